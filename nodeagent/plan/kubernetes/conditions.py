"""Node conditions of the agent, the only fields of the Node object that the agent writes beside a kubelet.

The conditions are written by a strategic merge patch, which keeps the conditions of others, such as the kubelet.
Server-side apply is not used: an apply without conditions, which would remove them, also removes all status fields that
no field manager owns, such as the addresses and capacity with which a kubelet has created its Node object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from nodeagent.model.kubernetes import StatusCondition
from nodeagent.plan.clock import not_before
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

PREFIX: Final = "nodeagent.dev/"
TYPES: Final = {"images": f"{PREFIX}ImageGCDegraded", "containers": f"{PREFIX}ContainerGCDegraded"}
"""Condition type by loop name; the condition is true if the last pass of the loop failed or missed its target."""
REPORT_S: Final = 300.0
"""Heartbeat interval of unchanged conditions in seconds."""
MAX_MESSAGE: Final = 1024
_REASONS: Final = {
    "shortfall": "Shortfall",
    "failed": "PassFailed",
    "crashed": "PassFailed",
    "runtime-unavailable": "RuntimeUnavailable",
    "runtime-lost": "RuntimeUnavailable",
}
_UNDECIDED: Final = frozenset({"", "cancelled"})


class LoopResult(Record):
    """Last result of a collection loop.

    Attributes:
        name: name of the loop, such as ``images``.
        result: result code; empty before the first pass.
        detail: error or shortfall of the pass, as text.
        is_disabled: whether the loop is disabled, so that it has no condition.
    """

    name: str
    result: str = ""
    detail: str = ""
    is_disabled: bool = False


class ConditionMemory(Record):
    """Conditions in the last patch that the API server accepted.

    Attributes:
        conditions: the accepted conditions; ``None`` before the first accepted patch.
        due_s: monotonic seconds at which unchanged conditions are written again.
    """

    conditions: tuple[StatusCondition, ...] | None = None
    due_s: float = 0.0


def own_conditions(
    loops: Iterable[LoopResult], before: tuple[StatusCondition, ...], now: datetime
) -> tuple[StatusCondition, ...]:
    """Return the conditions of all enabled loops; a loop without a conclusive result keeps its earlier condition.

    Args:
        loops: last result of each loop.
        before: the conditions written last, or of the Node object, which provide the transition times.
        now: time of the report, aware UTC.
    """
    earlier = {each.type: each for each in before if each.type in TYPES.values()}
    now = report_time(now, earlier.values())
    found = []
    for loop in sorted(loops, key=lambda each: each.name):
        condition_type = TYPES.get(loop.name)
        if condition_type is None or loop.is_disabled:
            continue
        known = earlier.get(condition_type)
        if loop.result in _UNDECIDED:
            if known is not None:
                found.append(msgspec.structs.replace(known, last_heartbeat_time=now))
            continue
        reason = _REASONS.get(loop.result, "")
        status = "True" if reason else "False"
        changed = known is None or known.status != status or known.last_transition_time is None
        found.append(
            StatusCondition(
                type=condition_type,
                status=status,
                last_heartbeat_time=now,
                last_transition_time=now if changed or known is None else known.last_transition_time,
                reason=reason or "PassSucceeded",
                message=(loop.detail[:MAX_MESSAGE] or "the last pass missed its target") if reason else "",
            )
        )
    return tuple(found)


def report_time(now: datetime, before: Iterable[StatusCondition]) -> datetime:
    """Return the time of a report in whole seconds, never before a time of an earlier condition."""
    times = [time for each in before for time in (each.last_heartbeat_time, each.last_transition_time) if time]
    return not_before(now.replace(microsecond=0), max(times, default=None), 1.0)


def is_degraded(loop: LoopResult) -> bool | None:
    """Return whether the last pass of a loop failed or missed its target; ``None`` without a conclusive result."""
    return None if loop.result in _UNDECIDED else loop.result in _REASONS


def is_due(memory: ConditionMemory, conditions: tuple[StatusCondition, ...], now_s: float) -> bool:
    """Return whether to write conditions: status, reason or message changed, or the heartbeat is due."""
    if memory.conditions is None:
        return bool(conditions)
    if [_comparable(each) for each in conditions] != [_comparable(each) for each in memory.conditions]:
        return True
    return bool(conditions) and now_s >= memory.due_s


def conditions_patch(uid: str, conditions: Iterable[StatusCondition]) -> Mapping[str, Any]:
    """Return the strategic merge patch that writes the conditions and removes the agent's other ones.

    The API server refuses the patch if the UID of the Node object is not ``uid``: another object has taken its name.
    """
    absent = {each: {"type": each, "$patch": "delete"} for each in TYPES.values()}
    present = {each.type: {"message": "", **msgspec.to_builtins(each)} for each in conditions}
    return {"metadata": {"uid": uid}, "status": {"conditions": list({**absent, **present}.values())}}


def _comparable(condition: StatusCondition) -> tuple[str, str, str, str]:
    return condition.type, condition.status, condition.reason, condition.message
