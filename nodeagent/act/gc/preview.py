"""Previews: the plans of a pass with their snapshot."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import force_setattr

from nodeagent.act.gc.outcomes import PassEnd
from nodeagent.plan.gc.images import plan_image_gc
from nodeagent.plan.gc.scope import Scope
from nodeagent.record import Record
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from nodeagent.model import NodeSnapshot
    from nodeagent.plan.decision import Decision, Plan
    from nodeagent.plan.gc.policy import GCPolicy
    from nodeagent.plan.gc.saved_plan import Drift, SavedPlan


class Observer(Protocol):
    """Source of node snapshots."""

    async def observe(self, scope: Scope) -> NodeSnapshot:
        """Return the current state of the node, limited to ``scope``."""


class Preview(Record):
    """The plans of a pass, in order of execution, with their snapshot.

    Attributes:
        removals: every removal, in order of execution; computed from ``plans``.
    """

    scope: Scope
    snapshot: NodeSnapshot
    plans: tuple[Plan, ...]
    removals: tuple[Decision, ...] = ()

    def __post_init__(self) -> None:
        """Compute the removals once, as a pass reads them many times and plans of large nodes keep most items."""
        force_setattr(self, "removals", tuple(decision for plan in self.plans for decision in plan.removals))

    @property
    def pending_bytes(self) -> int:
        """Unreferenced bytes that the runtime collects before the first removal."""
        return sum(plan.pending_bytes for plan in self.plans)

    @property
    def ends_undo(self) -> bool:
        """Whether undo windows end before the first removal, because space is needed."""
        return any(plan.ends_undo for plan in self.plans)

    @property
    def acts(self) -> bool:
        """Whether a pass would collect garbage or remove an item."""
        return bool(self.pending_bytes) or bool(self.removals)

    @property
    def predicted_end(self) -> tuple[PassEnd, str]:
        """End of the pass and its detail if every removal succeeds and frees the predicted bytes.

        A dry run reports this end; the end of any other pass is measured.
        """
        blocked = [plan.blocked for plan in self.plans if plan.blocked]
        if blocked:
            return PassEnd.REFUSED, "; ".join(blocked)
        short_bytes = sum(plan.shortfall_bytes for plan in self.plans)
        if short_bytes:
            return PassEnd.SHORTFALL, f"{format_bytes(short_bytes)} short of the low threshold"
        return (PassEnd.COMPLETE if self.acts else PassEnd.NOTHING_TO_DO), ""


async def preview_pass(
    observer: Observer, policy: GCPolicy, scope: Scope, only: frozenset[str] | None = None
) -> Preview:
    """Observe and plan a pass without any change to the node; ``only`` limits the removals to these ids.

    Plans are computed in a thread, since planning for a large node would delay the other tasks of the daemon.
    """
    snapshot = await observer.observe(scope)
    return Preview(scope, snapshot, await asyncio.to_thread(plans_for, scope, snapshot, policy, only))


def plans_for(
    scope: Scope, snapshot: NodeSnapshot, policy: GCPolicy, only: frozenset[str] | None = None
) -> tuple[Plan, ...]:
    """Return the plans of a pass over ``scope``, in order of execution; ``only`` limits the removals to these ids."""
    if scope is Scope.IMAGES:
        return (plan_image_gc(snapshot, policy.images, only=only),)
    from nodeagent.plan.gc.planner import plan_all, plan_containers  # noqa: PLC0415 - not needed for a list of images

    if scope is Scope.CONTAINERS:
        return plan_containers(snapshot, policy, only=only).plans
    return plan_all(snapshot, policy, only=only).plans


def plans_by_loop(snapshot: NodeSnapshot, policy: GCPolicy) -> tuple[Plan, ...]:
    """Return the plans of the next container GC pass and of the next image GC pass, for the same snapshot.

    A plan of all items treats the containers planned for removal as removed. Here these containers still reference
    their images, as in the lists of images and containers.
    """
    return (*plans_for(Scope.CONTAINERS, snapshot, policy), *plans_for(Scope.IMAGES, snapshot, policy))


def plans_for_saved(
    saved: SavedPlan, snapshot: NodeSnapshot, policy: GCPolicy
) -> tuple[tuple[Plan, ...], tuple[Drift, ...]]:
    """Return the plans to carry out when a saved plan is applied, and its removals that are not carried out.

    The plans remove an item only if the saved plan and a new plan under the policy in force both remove the item, and
    if its digest is unchanged. The planners run again with these items alone, since an image can be in use by a
    container that only the new plan removes.
    """
    from nodeagent.plan.gc.saved_plan import find_drift, unchanged_removals  # noqa: PLC0415 - not needed for lists

    unchanged = unchanged_removals(saved, snapshot)
    fresh = plans_for(saved.scope, snapshot, policy)
    both = unchanged & {decision.id for plan in fresh for decision in plan.removals}
    plans = plans_for(saved.scope, snapshot, policy, both)
    return plans, find_drift(saved, (*fresh, *plans), unchanged)
