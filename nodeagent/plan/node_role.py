"""Role of the agent: beside a kubelet, or alone with the runtime.

Alone, the agent infers from the runtime that a pod is deleted, evicts pods, and stops them at shutdown. Beside a
kubelet each of these does damage: Jobs lose their containers and logs, and the kubelet restarts stopped pods. Unclear
traces therefore always count as a kubelet.

Labels and annotations of pods are not traces, as tenants can set them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.model.kubelet_traces import LastTrace, Role, RoleBasis, RoleDecision, RoleMemory
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from nodeagent.model.kubelet_traces import KubeletTraces

ABSENT_S: Final = 300.0
"""Time for which all traces must be absent before the agent manages the node alone; covers a kubelet restart."""

_CONFIGURED: Final = "configured"
_NO_TRACE: Final = "no kubelet process, listener, state or configuration found"


def decide_role(traces: KubeletTraces, configured: Role | None) -> RoleDecision:
    """Return the role by one reading of the traces.

    A configured ``beside-kubelet`` always holds. A configured ``standalone`` overrides files, which a removed kubelet
    leaves behind, and traces that cannot be read, but not a running kubelet: a kubelet process or a listener on a
    kubelet port. Without a configured role any trace means beside a kubelet, and so does a trace that cannot be read.
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
        return RoleDecision(Role.STANDALONE, RoleBasis.CONFIGURED, reason, trace)
    if files:
        return RoleDecision(Role.BESIDE_KUBELET, RoleBasis.KUBELET_FILES, f"{files} exists", trace)
    if traces.unreadable:
        reason = f"unknown, treated as beside a kubelet: {traces.unreadable[0]}"
        return RoleDecision(Role.BESIDE_KUBELET, RoleBasis.UNREADABLE, reason)
    return RoleDecision(Role.STANDALONE, RoleBasis.NO_TRACE, _NO_TRACE)


def apply_hysteresis(
    decision: RoleDecision, traces: KubeletTraces, memory: RoleMemory, now_s: float
) -> tuple[RoleDecision, RoleMemory]:
    """Return the role after hysteresis, and the memory for the next reading.

    Beside a kubelet takes effect at once, standalone only ``ABSENT_S`` seconds after the first complete reading
    without a trace, so that two readings far apart do not count a restart of the kubelet as its removal. A
    configured ``standalone`` waits for the traces of a running kubelet alone, as it overrides files.

    Args:
        decision: as ``decide_role`` returned for ``traces``.
        traces: the reading.
        memory: from the previous reading.
        now_s: monotonic seconds of the reading.
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
    """Return the trace found last; ``None`` where it has been absent for ``ABSENT_S``."""
    if trace:
        return LastTrace(trace)
    if before is None:
        return None
    if not complete:
        return LastTrace(before.trace)
    since_s = now_s if before.absent_since_s is None else before.absent_since_s
    return None if now_s - since_s >= ABSENT_S else LastTrace(before.trace, since_s)


def _live(traces: KubeletTraces) -> str:
    """Return the strongest trace of a running kubelet; empty without one."""
    if traces.processes:
        first = traces.processes[0]
        return f"kubelet process {first.pid} ({first.name})"
    if traces.ports:
        return f"listener on kubelet port {traces.ports[0]}"
    return ""


def _contradiction(trace: str) -> str:
    return f'role = "standalone" is configured, but not in force: {trace}; the node is treated as beside a kubelet'
