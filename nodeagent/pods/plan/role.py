"""Role of the agent: beside a kubelet, or standalone.

In the role standalone, the agent infers pod deletions from CRI, evicts pods, and stops pods at node shutdown. Beside a
kubelet each of these actions does damage: Jobs lose their containers and logs, and the kubelet restarts stopped pods.
Ambiguous traces therefore always count as a kubelet.

Labels and annotations of pods are not traces, since tenants can set them.
"""

from __future__ import annotations

from typing import Final

from nodeagent.model.node import KubeletTraces, LastTrace, Role, RoleBasis, RoleDecision, RoleMemory
from nodeagent.units import format_duration

ABSENT_S: Final = 300.0
"""Seconds without any trace before the agent takes the role standalone; longer than a restart of a kubelet."""

_CONFIGURED: Final = "configured"
_NO_TRACE: Final = "no kubelet process, state or configuration found"


def decide_role(traces: KubeletTraces, configured: Role | None) -> RoleDecision:
    """Return the role according to one reading of the kubelet traces.

    A configured ``beside-kubelet`` is always used. A configured ``standalone`` overrides unreadable traces and kubelet
    files, which remain after the removal of a kubelet, but not a kubelet process. Without a configured role, any found
    or unreadable trace results in ``beside-kubelet``. A listener on a kubelet port without a kubelet process is only a
    warning, since a root process of a container with its own namespaces can listen too.
    """
    live, files = _live(traces), traces.files[0] if traces.files else ""
    trace = live or files
    if configured is Role.BESIDE_KUBELET:
        return RoleDecision(Role.BESIDE_KUBELET, RoleBasis.CONFIGURED, _CONFIGURED, trace)
    if live:
        warning = _contradiction(live) if configured is Role.STANDALONE else ""
        return RoleDecision(Role.BESIDE_KUBELET, RoleBasis.LIVE_KUBELET, live, trace, warning)
    if configured is Role.STANDALONE:
        overridden = files or (traces.unreadable[0] if traces.unreadable else "")
        reason = f"{_CONFIGURED}; overrides {overridden}" if overridden else _CONFIGURED
        return RoleDecision(Role.STANDALONE, RoleBasis.CONFIGURED, reason, trace, _foreign_listener(traces))
    if files:
        return RoleDecision(Role.BESIDE_KUBELET, RoleBasis.KUBELET_FILES, f"{files} exists", trace)
    if traces.unreadable:
        reason = f"unknown, treated as beside a kubelet: {traces.unreadable[0]}"
        return RoleDecision(Role.BESIDE_KUBELET, RoleBasis.UNREADABLE, reason)
    return RoleDecision(Role.STANDALONE, RoleBasis.NO_TRACE, _NO_TRACE, warning=_foreign_listener(traces))


def apply_hysteresis(
    decision: RoleDecision, traces: KubeletTraces, memory: RoleMemory, now_s: float
) -> tuple[RoleDecision, RoleMemory]:
    """Return the role after hysteresis, and the memory for the next reading.

    The role ``beside-kubelet`` takes effect immediately. The role ``standalone`` takes effect ``ABSENT_S`` seconds
    after the first complete reading without a trace, so that a restart of the kubelet between two readings does not
    count as its removal. A configured ``standalone`` waits only for the absence of a running kubelet, since it
    overrides kubelet files.

    Args:
        decision: result of ``decide_role`` for ``traces``.
        traces: the current reading of the traces.
        memory: memory returned for the previous reading.
        now_s: time of the reading in monotonic seconds.
    """
    complete = not traces.unreadable
    live = _remember(_live(traces), memory.live, now_s, complete=complete)
    files = _remember(traces.files[0] if traces.files else "", memory.files, now_s, complete=complete)
    memory = RoleMemory(live, files)
    if decision.role is not Role.STANDALONE:
        return decision, memory
    configured = decision.basis is RoleBasis.CONFIGURED
    last = live or (None if configured else files)
    if last is None:
        return decision, memory
    absent_s = 0.0 if last.absent_since_s is None else now_s - last.absent_since_s
    absent, whole = format_duration(max(0.0, absent_s)), format_duration(ABSENT_S)
    reason = f"{last.trace} absent for {absent}; standalone after {whole}"
    warning = _contradiction(reason) if configured else ""
    return RoleDecision(Role.BESIDE_KUBELET, RoleBasis.RECENT_KUBELET, reason, last.trace, warning), memory


def _remember(trace: str, before: LastTrace | None, now_s: float, *, complete: bool) -> LastTrace | None:
    """Return the last trace found, with the start of its absence; ``None`` after an absence of ``ABSENT_S``."""
    if trace:
        return LastTrace(trace)
    if before is None:
        return None
    if not complete:
        return LastTrace(before.trace)
    since_s = now_s if before.absent_since_s is None else before.absent_since_s
    return None if now_s - since_s >= ABSENT_S else LastTrace(before.trace, since_s)


def _live(traces: KubeletTraces) -> str:
    """Return the strongest trace of a running kubelet as text; empty if no kubelet is running."""
    if traces.processes:
        first = traces.processes[0]
        return f"kubelet process {first.pid} ({first.name})"
    return ""


def _foreign_listener(traces: KubeletTraces) -> str:
    if not traces.ports:
        return ""
    return f"listener on kubelet port {traces.ports[0]} without a kubelet process: ignored for the role"


def _contradiction(trace: str) -> str:
    return f'role = "standalone" is configured, but not in force: {trace}; the node is treated as beside a kubelet'
