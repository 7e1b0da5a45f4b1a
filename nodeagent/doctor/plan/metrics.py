"""Checks of ``nodeagent doctor`` on the metrics listener: TLS and client authentication for remote clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.doctor.plan.node import Finding, Verdict

if TYPE_CHECKING:
    from datetime import datetime

METRICS_CHECK: Final = "metrics"
OPEN_LISTENER: Final = "serves other machines without encryption and authentication"
OPEN_FIX: Final = "set metrics.certificate_file, key_file and client_ca_file, or listen on loopback"
_SOON_S: Final = 7 * 86_400.0
_RENEW: Final = "renew the certificate; the agent reads the new files without a restart"


def check_listener(listen: str, *, is_remote: bool, has_tls: bool, has_client_ca: bool) -> Finding:
    """Return the finding on the metrics listen address; ``listen`` is empty if the listener is disabled."""
    if not listen:
        return Finding(METRICS_CHECK, Verdict.SKIPPED, 'metrics.listen = "off"')
    if is_remote and not has_tls:
        return Finding(METRICS_CHECK, Verdict.WARNING, f"{listen} {OPEN_LISTENER}", OPEN_FIX)
    if is_remote and not has_client_ca:
        evidence = f"{listen} serves every client with TLS, without authentication"
        return Finding(METRICS_CHECK, Verdict.WARNING, evidence, "set metrics.client_ca_file")
    protection = ("; TLS with client certificates" if has_client_ca else "; TLS") if has_tls else ""
    return Finding(METRICS_CHECK, Verdict.OK, f"{listen}{protection}")


def check_certificate(listener: Finding, problem: str, expires_at: datetime | None, now: datetime) -> Finding:
    """Return the finding on the certificate files of a metrics listener with TLS.

    Args:
        listener: the finding of :func:`check_listener`, returned if the files are valid.
        problem: cause why the certificate files cannot be used; empty if they are valid.
        expires_at: end of validity of the server certificate; ``None`` if unknown.
        now: time of the check, aware UTC.
    """
    if problem:
        return Finding(METRICS_CHECK, Verdict.PROBLEM, problem, "correct the file; the agent reads it again")
    if expires_at is None:
        return listener
    left_s, until = (expires_at - now).total_seconds(), f"{expires_at:%Y-%m-%d %H:%M} UTC"
    if left_s <= 0:
        return Finding(METRICS_CHECK, Verdict.PROBLEM, f"the server certificate expired at {until}", _RENEW)
    if left_s < _SOON_S:
        return Finding(METRICS_CHECK, Verdict.WARNING, f"the server certificate expires at {until}", _RENEW)
    return listener
