"""Check of ``nodeagent doctor`` on the metrics listener and its TLS certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.clock import SystemClock
from nodeagent.doctor.plan.metrics import check_certificate, check_listener
from nodeagent.errors import ConfigError
from nodeagent.host.server_certificate import read_certificate, server_context
from nodeagent.kube.certificate_dates import expiry

if TYPE_CHECKING:
    from nodeagent.doctor.plan.node import Finding
    from nodeagent.settings.settings import Settings


def metrics_finding(settings: Settings) -> Finding:
    """Return the finding on the listen address of the metrics and on the TLS certificate files."""
    listen, files = settings.metrics.endpoint
    listener = check_listener(
        "" if listen is None else listen.text,
        is_remote=listen is not None and listen.is_remote,
        has_tls=files is not None,
        has_client_ca=files is not None and bool(files.client_ca),
    )
    if listen is None or files is None:
        return listener
    try:
        server_context(files)
        expires_at = expiry(read_certificate(files))
    except ConfigError as error:
        return check_certificate(listener, str(error), None, SystemClock().now())
    return check_certificate(listener, "", expires_at, SystemClock().now())
