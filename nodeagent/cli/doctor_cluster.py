"""Checks of ``nodeagent doctor`` on the access to the Kubernetes API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.cli.session import run_async
from nodeagent.clock import SystemClock
from nodeagent.cluster.plan.rules import SETTINGS
from nodeagent.cluster.plan.workloads import IN_CLUSTER
from nodeagent.doctor.plan.api_access import API_CHECK, check_api_access, check_pod_access
from nodeagent.doctor.plan.node import Finding, Verdict
from nodeagent.host.node import node_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.settings.settings import Settings


def cluster_findings(settings: Settings) -> Iterator[Finding]:
    """Yield the findings on TLS trust, credentials, RBAC rules and watched pods; nothing without an API server."""
    access = settings.kubernetes.access
    if access is None:
        return
    from nodeagent.doctor.api_access import read_api_access, read_pod_access  # noqa: PLC0415 - imports OpenSSL

    name = node_name(settings.kubelet.node_name)
    used = [each for each in SETTINGS if getattr(settings.kubernetes, each)]
    if not used:
        yield Finding(API_CHECK, Verdict.SKIPPED, f"no setting uses the API server: {', '.join(SETTINGS)}")
        return
    facts = run_async(read_api_access(access, name, used))
    yield check_api_access(
        facts.error,
        facts.missing,
        facts.expires_at,
        foreign=facts.foreign,
        has_node=facts.has_node,
        now=SystemClock().now(),
        options=used,
        in_pod=str(access.token_file) == IN_CLUSTER["token_file"],
    )
    if settings.kubernetes.watch_pods and not facts.error:
        yield check_pod_access(*run_async(read_pod_access(access, name)))
