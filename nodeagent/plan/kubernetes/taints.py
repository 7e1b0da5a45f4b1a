"""Taints of the agent that follow its node conditions; the effect is ``NoSchedule`` or ``PreferNoSchedule``.

``spec.taints`` is one atomic list, which also the node lifecycle controller and operators change. The patch therefore
contains the whole list and the version of the object that was read, so that a concurrent change is a conflict. A taint
is of the agent by its key, effect and empty value; every other taint is kept, in its place and with all fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from nodeagent.model.kubernetes import Taint
from nodeagent.plan.kubernetes.conditions import is_degraded
from nodeagent.plan.kubernetes.policy import TAINT_EFFECTS, TAINT_KEYS
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodeagent.model.kubernetes import Node
    from nodeagent.plan.kubernetes.conditions import LoopResult


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
