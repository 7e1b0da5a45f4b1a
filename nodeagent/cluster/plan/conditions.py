"""Node conditions of the agent, the taints that follow them, and the removal of both at an uninstallation.

Beside a kubelet, conditions and taints are the only fields of the Node object that the agent writes. The conditions are
written by a strategic merge patch, which keeps the conditions of others, such as the kubelet. Server-side apply is not
used: an apply without conditions, which would remove them, also removes all status fields that no field manager owns,
such as the addresses and capacity with which a kubelet has created its Node object.

The effect of a taint is ``NoSchedule`` or ``PreferNoSchedule``. ``spec.taints`` is one atomic list, which also the node
lifecycle controller and operators change. The patch therefore contains the whole list and the version of the object
that was read, so that a concurrent change is a conflict. A taint is of the agent by its key, effect and empty value;
every other taint is kept, in its place and with all fields.

Beside a kubelet, an uninstallation also removes the taints and annotations of a registration, and uncordons the node if
the agent cordoned it. Without a kubelet, these are kept, since no process would start the pods that the scheduler binds
to the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nodeagent.cluster.plan.registration import (
    CORDONED_ANNOTATION,
    LABELS_ANNOTATION,
    TAINT_EFFECTS,
    TAINT_KEYS,
    UNCLEAN_STOP_ANNOTATION,
)
from nodeagent.model.clock import not_before
from nodeagent.model.kubernetes import NO_KUBELET_TAINT, REGISTERED_ANNOTATION, Node, StatusCondition, Taint
from nodeagent.record import Record
from nodeagent.text import escape

if TYPE_CHECKING:
    from nodeagent.model.outlook import ExpectedShortage

PREFIX: Final = "nodeagent.dev/"
TYPES: Final = {"images": f"{PREFIX}ImageGCDegraded", "containers": f"{PREFIX}ContainerGCDegraded"}
"""Condition type by loop name; the condition is true if the last pass of the loop failed or missed its target."""
SHORTAGE_TYPE: Final = f"{PREFIX}ShortageExpected"
"""Condition that is true while a shortage of a resource is expected, and unknown with too few readings."""
OWN_TYPES: Final = (*TYPES.values(), SHORTAGE_TYPE)
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
    loops: Iterable[LoopResult],
    before: tuple[StatusCondition, ...],
    now: datetime,
    *,
    shortage: ExpectedShortage | None,
) -> tuple[StatusCondition, ...]:
    """Return the conditions of all enabled loops and of the outlook.

    A loop without a conclusive result, and the outlook before the first forecast, keep their earlier conditions.

    Args:
        loops: last result of each loop.
        before: the conditions written last, or of the Node object, which provide the transition times.
        now: time of the report, aware UTC.
        shortage: whether a shortage is expected; ``None`` before the first forecast.
    """
    earlier = {each.type: each for each in before if each.type in OWN_TYPES}
    now = report_time(now, earlier.values())
    states = [(TYPES[each.name], _of_loop(each)) for each in loops if each.name in TYPES and not each.is_disabled]
    states.append((SHORTAGE_TYPE, None if shortage is None else _of_shortage(shortage)))
    found = []
    for condition_type, state in sorted(states, key=itemgetter(0)):
        known = earlier.get(condition_type)
        if state is None:
            if known is not None:
                found.append(msgspec.structs.replace(known, last_heartbeat_time=now))
            continue
        status, reason, message = state
        changed = known is None or known.status != status or known.last_transition_time is None
        found.append(
            StatusCondition(
                type=condition_type,
                status=status,
                last_heartbeat_time=now,
                last_transition_time=now if changed or known is None else known.last_transition_time,
                reason=reason,
                message=message[:MAX_MESSAGE],
            )
        )
    return tuple(found)


_State = tuple[str, str, str]
"""Status, reason and message of a condition."""


def _of_loop(loop: LoopResult) -> _State | None:
    """Return the state of a loop; ``None`` without a conclusive result."""
    if loop.result in _UNDECIDED:
        return None
    reason = _REASONS.get(loop.result, "")
    if not reason:
        return "False", "PassSucceeded", "the last pass succeeded"
    return "True", reason, escape(loop.detail) or "the last pass missed its target"


def _of_shortage(shortage: ExpectedShortage) -> _State:
    if shortage.is_expected is None:
        return "Unknown", "TooFewReadings", escape(shortage.detail)
    if shortage.is_expected:
        return "True", "ShortageExpected", escape(shortage.detail)
    return "False", "NoShortageExpected", "no shortage is expected"


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
    absent = {each: {"type": each, "$patch": "delete"} for each in OWN_TYPES}
    present = {each.type: {"message": "", **msgspec.to_builtins(each)} for each in conditions}
    return {"metadata": {"uid": uid}, "status": {"conditions": list({**absent, **present}.values())}}


def _comparable(condition: StatusCondition) -> tuple[str, str, str, str]:
    return condition.type, condition.status, condition.reason, condition.message


class TaintPlan(Record):
    """Changes of the agent's taints on a Node object.

    Attributes:
        added: taints to set, for display.
        removed: taints to remove, for display.
        present: the agent's taints after the changes, for display.
        patch: patch of the Node; ``None`` without changes. The patch fails with a conflict if the object has changed.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    patch: Mapping[str, Any] | None = None


def desired_effects(loops: Iterable[LoopResult], configured: Mapping[str, str]) -> dict[str, str]:
    """Return the effect of each taint of the agent by key; an empty effect removes the taint.

    A configured taint is absent in the result, and therefore unchanged, until its loop has a conclusive result.

    Args:
        loops: last result of each loop.
        configured: effect of each configured taint, by key.
    """
    desired = {key: "" for key in TAINT_KEYS.values() if key not in configured}
    for loop in loops:
        key = TAINT_KEYS.get(loop.name, "")
        degraded = False if loop.is_disabled else is_degraded(loop)
        if key in configured and degraded is not None:
            desired[key] = configured[key] if degraded else ""
    return desired


def plan_taints(found: Node, desired: Mapping[str, str]) -> TaintPlan:
    """Return the changes of the agent's taints on a Node object; kept taints keep their order, new ones are appended.

    Args:
        found: the Node object.
        desired: result of :func:`desired_effects`.
    """
    kept: list[Taint] = []
    removed: list[Taint] = []
    for each in found.spec.taints:
        wrong = is_condition_taint(each) and desired.get(each.key, each.effect) != each.effect
        (removed if wrong else kept).append(each)
    used = {(each.key, each.effect) for each in kept}
    added = [Taint(key=key, effect=effect) for key, effect in sorted(desired.items()) if effect]
    added = [each for each in added if (each.key, each.effect) not in used]
    taints = (*kept, *added)
    shown = _shown(filter(is_condition_taint, taints))
    if not added and not removed:
        return TaintPlan(present=shown)
    metadata = {"resourceVersion": found.metadata.resource_version}
    patch = {"metadata": metadata, "spec": {"taints": [msgspec.to_builtins(each) for each in taints]}}
    return TaintPlan(_shown(added), _shown(removed), shown, patch)


def is_condition_taint(taint: Taint) -> bool:
    """Return whether a taint follows a condition of the agent; one with a value or another effect is of an operator."""
    return taint.key in TAINT_KEYS.values() and taint.effect in TAINT_EFFECTS and not taint.value


def trial_patch(found: Node) -> Mapping[str, Any] | None:
    """Return a patch that changes the taints, for a dry run at the API server; ``None`` if no taint can be changed."""
    own = any(map(is_condition_taint, found.spec.taints))
    return plan_taints(found, dict.fromkeys(TAINT_KEYS.values(), "" if own else TAINT_EFFECTS[0])).patch


def _shown(taints: Iterable[Taint]) -> tuple[str, ...]:
    return tuple(f"{each.key}:{each.effect}" for each in taints)


class WithdrawalPlan(Record):
    """Changes of a Node object at an uninstallation.

    Attributes:
        conditions: types of the agent's node conditions, which are removed.
        removed: taints and annotations that are removed, for display.
        patch: patch that removes taints and annotations; ``None`` without changes. The patch fails with a conflict if
            the object has changed.
        kept: the fields that are kept, with the reason; empty if all are removed.
    """

    conditions: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    patch: Mapping[str, Any] | None = None
    kept: str = ""


_ANNOTATIONS: Final = (REGISTERED_ANNOTATION, CORDONED_ANNOTATION, LABELS_ANNOTATION, UNCLEAN_STOP_ANNOTATION)


def plan_withdrawal(found: Node, *, has_kubelet: bool) -> WithdrawalPlan:
    """Return the changes that remove the agent's fields from the Node object of this machine.

    A cordon is kept: beside a kubelet no session of the agent removes the annotation of a cordon that an operator
    ended, so that it does not prove whose cordon the present one is.

    Args:
        found: the Node object.
        has_kubelet: whether a kubelet manages this node.
    """
    conditions = tuple(each.type for each in found.status.conditions if each.type in OWN_TYPES)
    annotations = [each for each in _ANNOTATIONS if each in found.metadata.annotations]
    taints = [each for each in found.spec.taints if each.key == NO_KUBELET_TAINT or is_condition_taint(each)]
    name, kept = found.metadata.name, ""
    if not has_kubelet and (annotations or not all(map(is_condition_taint, taints))):
        because = "no kubelet manages this node; to remove the object: kubectl delete node"
        kept = f"Node object {name}, with taints and cordon ({because} {name})"
        annotations, taints = [], [each for each in taints if is_condition_taint(each)]
    if not annotations and not taints:
        return WithdrawalPlan(conditions, kept=kept)
    removed = [f"taint {each.key}:{each.effect}" for each in taints]
    patch: dict[str, Any] = {"metadata": {"resourceVersion": found.metadata.resource_version}}
    if annotations:
        patch["metadata"]["annotations"] = dict.fromkeys(annotations)
    if taints:
        patch["spec"] = {"taints": [msgspec.to_builtins(each) for each in found.spec.taints if each not in taints]}
    if CORDONED_ANNOTATION in annotations and found.spec.unschedulable:
        kept = f"cordon of Node object {name}, which may be an operator's; to end it: kubectl uncordon {name}"
    return WithdrawalPlan(conditions, (*removed, *(f"annotation {each}" for each in annotations)), patch, kept)
