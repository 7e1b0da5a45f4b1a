"""A garbage collection pass: observe, plan, carry out, measure, and plan again while something is missing.

A plan is fixed while it is carried out. When an item fails, or less is freed than was predicted, a further round
observes and plans anew with the failed items set aside, within the limits of the pass; otherwise one stuck image,
counted as freed every time, would starve the rest for ever.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from nodeagent.act.gc.executor import DryRunRemover, Interrupted, carry_out
from nodeagent.act.gc.outcomes import Outcome, PassEnd, PassReport, Result
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.plan.decision import Accounting, ItemKind, ReasonCode
from nodeagent.plan.gc.images import Spent, plan_image_gc
from nodeagent.plan.gc.planner import plan_all, plan_containers
from nodeagent.plan.gc.saved_plan import find_drift
from nodeagent.plan.gc.scope import Scope
from nodeagent.plan.gc.strictness import stricter
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    from nodeagent.act.gc.executor import BatchRemover, Remover
    from nodeagent.clock import Clock
    from nodeagent.model import FsObservation, NodeSnapshot
    from nodeagent.plan.decision import Decision, Plan
    from nodeagent.plan.gc.planner import GCPolicy
    from nodeagent.plan.gc.saved_plan import Drift, SavedPlan

MAX_ROUNDS = 5
_ON_IMAGEFS = frozenset({ItemKind.IMAGE, ItemKind.BLOB, ItemKind.SNAPSHOT})
SETTLE_WITHIN_S = 10.0
SETTLE_STEP_S = 0.1
MEASUREMENT_SLACK_BYTES = 1 << 20


class Observer(Protocol):
    """Reads the node."""

    async def observe(self, scope: Scope) -> NodeSnapshot:
        """Return the node as it is now, as far as ``scope`` needs it."""


class ActorFactory(Protocol):
    """Makes the removers of a pass."""

    def __call__(self, snapshot: NodeSnapshot, policy: GCPolicy) -> Mapping[ItemKind, Remover | BatchRemover]:
        """Return who removes which kind, given the snapshot and policy the plan was made from."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run would do, with the snapshot it was decided on."""

    scope: Scope
    snapshot: NodeSnapshot
    plans: tuple[Plan, ...]

    @property
    def removals(self) -> tuple[Decision, ...]:
        """Every removal, in order of execution."""
        return tuple(decision for plan in self.plans for decision in plan.removals)

    @property
    def pending_bytes(self) -> int:
        """What the runtime is asked to collect first."""
        return sum(plan.pending_bytes for plan in self.plans)

    @property
    def acts(self) -> bool:
        """Whether a run would do anything."""
        return bool(self.pending_bytes) or any(plan.removals for plan in self.plans)

    @property
    def predicted_end(self) -> tuple[PassEnd, str]:
        """How a run ends if every removal succeeds and frees what is planned, with what is missing or wrong.

        A run is judged by what it measures, a dry run by this; failures cannot be predicted.
        """
        blocked = [plan.blocked for plan in self.plans if plan.blocked]
        if blocked:
            return PassEnd.REFUSED, "; ".join(blocked)
        short_bytes = sum(plan.shortfall_bytes for plan in self.plans)
        if short_bytes:
            return PassEnd.SHORTFALL, f"{format_bytes(short_bytes)} short of the low threshold"
        return (PassEnd.COMPLETE if self.acts else PassEnd.NOTHING_TO_DO), ""


def plans_for(
    scope: Scope, snapshot: NodeSnapshot, policy: GCPolicy, only: frozenset[str] | None = None
) -> tuple[Plan, ...]:
    """Return the plans of a pass over ``scope``, in order of execution; ``only`` restricts what may go, by id."""
    if scope is Scope.IMAGES:
        return (plan_image_gc(snapshot, policy.images, only=only),)
    if scope is Scope.CONTAINERS:
        return plan_containers(snapshot, policy, only=only).plans
    return plan_all(snapshot, policy, only=only).plans


def plans_for_saved(
    saved: SavedPlan, snapshot: NodeSnapshot, current: GCPolicy
) -> tuple[tuple[Plan, ...], tuple[Plan, ...]]:
    """Return the plans under the policy in force, and those that applying a saved plan carries out.

    The latter remove only items that the saved plan lists, that ``current`` removes on this snapshot, and that the
    stricter of both policies removes. Planning twice makes this hold by construction: thresholds are not monotonic
    (an image that one policy removes by age can bring usage below the high threshold, which keeps others), so the
    stricter fields alone could remove an item that ``current`` keeps.
    """
    listed = frozenset([item.id for item in saved.removals])
    in_force = plans_for(saved.scope, snapshot, current, listed)
    allowed = frozenset([decision.id for plan in in_force for decision in plan.removals])
    return in_force, plans_for(saved.scope, snapshot, stricter(saved.policy, current), allowed)


def dry_run_actors(_snapshot: NodeSnapshot, _policy: GCPolicy) -> Mapping[ItemKind, Remover | BatchRemover]:
    """Return removers that touch nothing."""
    nothing = DryRunRemover()
    return dict.fromkeys(ItemKind, nothing)


class Collector:
    """Runs garbage collection passes."""

    def __init__(  # noqa: PLR0913 - it composes the room's collaborators
        self,
        observer: Observer,
        actors: ActorFactory,
        policy: GCPolicy,
        *,
        clock: Clock,
        read_filesystem: Callable[[str], FsObservation],
        collect_garbage: Callable[[], Awaitable[None]] | None = None,
        dry_run: bool = False,
    ) -> None:
        """Compose a collector; nothing is touched when ``dry_run``.

        ``collect_garbage`` makes the runtime collect what nothing holds, where that can be asked for.
        """
        self._collect_garbage = None if dry_run else collect_garbage
        self._observer = observer
        self._actors = dry_run_actors if dry_run else actors
        self._policy = policy
        self._clock = clock
        self._read_filesystem = read_filesystem
        self._dry_run = dry_run

    async def preview(self, scope: Scope, only: frozenset[str] | None = None) -> Preview:
        """Observe and plan; touch nothing. ``only`` restricts what may go, by id."""
        snapshot = await self._observer.observe(scope)
        return Preview(scope, snapshot, plans_for(scope, snapshot, self._policy, only))

    async def preview_saved(self, saved: SavedPlan, current: GCPolicy) -> tuple[Preview, tuple[Drift, ...]]:
        """Observe and plan what applying ``saved`` removes; return it with the listed items that are kept.

        ``current`` is the policy in force; this collector's own has to be the stricter of it and the saved one.
        """
        snapshot = await self._observer.observe(saved.scope)
        in_force, plans = plans_for_saved(saved, snapshot, current)
        return Preview(saved.scope, snapshot, plans), find_drift(saved, (*in_force, *plans))

    async def run(
        self,
        preview: Preview,
        *,
        trigger: str,
        stop: asyncio.Event,
        max_rounds: int = MAX_ROUNDS,
        on_result: Callable[[Result], None] = lambda _: None,
    ) -> PassReport:
        """Carry out a preview, then further rounds while something is missing.

        Args:
            preview: what to carry out first, exactly as shown.
            trigger: who asked, for the record.
            stop: set to end the pass between two items.
            max_rounds: 1 removes nothing that ``preview`` does not list.
            on_result: told of each result as it comes.
        """
        run = _Run(self._clock.now(), self._clock.monotonic_s(), preview, trigger, self._dry_run)
        current: Preview | None = preview
        while current is not None:
            run.plans.extend(current.plans)
            if not await self._collected(run, current):
                break
            try:
                results = await carry_out(
                    current.removals,
                    self._actors(current.snapshot, self._policy),
                    clock=self._clock,
                    stop=stop,
                    enough=self._enough(current),
                    on_result=on_result,
                )
            except Interrupted as interrupted:
                run.results.extend(interrupted.results)
                run.end = PassEnd.RUNTIME_LOST if interrupted.lost else PassEnd.CANCELLED
                run.end_detail = interrupted.lost or "told to stop between two items"
                break
            run.results.extend(results)
            run.rounds += 1
            current = await self._next_round(run, current, results, max_rounds, stop)
        return await self._report(run, stop)

    async def _collected(self, run: _Run, current: Preview) -> bool:
        """Let the runtime collect what nothing holds, where the plan counts on it; false if the runtime is gone."""
        if not current.pending_bytes or self._collect_garbage is None:
            return True
        try:
            await self._collect_garbage()
        except RuntimeUnavailableError as error:
            run.end, run.end_detail = PassEnd.RUNTIME_LOST, str(error)
            lost = f"the runtime went away: {error}"
            run.results.extend(Result(each, Outcome.NOT_ATTEMPTED, lost) for each in current.removals)
            return False
        except NodeAgentError as error:
            run.warnings.append(f"the runtime did not collect what nothing holds: {error}")
        else:
            run.collected_bytes += current.pending_bytes
        return True

    def _enough(self, current: Preview) -> Callable[[Decision], bool] | None:
        """Return a check that ends removals by threshold once the filesystem is measured low enough.

        Sizes that are upper bounds can also be far too small, as the runtime counts compressed content; there the
        measurement after each removal decides. With exact accounting the plan is trusted to the last image.
        """
        observed = current.snapshot.image_filesystem
        if self._dry_run or observed is None:
            return None
        exact = any(plan.accounting is Accounting.LAYERS for plan in current.plans)
        low = self._policy.images.low_threshold_percent - (1 if exact else 0)

        def enough(decision: Decision) -> bool:
            if decision.kind is not ItemKind.IMAGE or decision.reason.code is not ReasonCode.LEAST_RECENTLY_USED:
                return False
            try:
                return self._read_filesystem(observed.path).used_percent <= low
            except NodeAgentError:
                return False

        return enough

    async def _next_round(
        self, run: _Run, current: Preview, results: Sequence[Result], max_rounds: int, stop: asyncio.Event
    ) -> Preview | None:
        """Return what is still to be done, or ``None``. Only images are planned again within a pass."""
        if self._dry_run or current.scope is Scope.CONTAINERS or current.snapshot.image_filesystem is None:
            return None
        if run.rounds >= max_rounds or not any(result.decision.kind is ItemKind.IMAGE for result in results):
            return None
        wanted_by_threshold = any(plan.wanted_bytes for plan in current.plans)
        try:
            after = await self._settled(run, current.snapshot.image_filesystem.path, stop)
            if not wanted_by_threshold or not _missing_bytes(after, self._policy.images.low_threshold_percent):
                return None
            snapshot = await self._observer.observe(Scope.IMAGES)
        except NodeAgentError as error:
            run.warnings.append(f"no further round: {error}")
            return None
        low = self._policy.images.low_threshold_percent
        policy = replace(self._policy.images, high_threshold_percent=min(99, low + 1))
        plan = plan_image_gc(snapshot, policy, set_aside=run.set_aside(), spent=run.spent())
        if not plan.removals:
            run.last_plan = plan
            return None
        return Preview(Scope.IMAGES, snapshot, (plan,))

    async def _report(self, run: _Run, stop: asyncio.Event) -> PassReport:
        before = run.preview.snapshot.image_filesystem
        after = None
        if before is not None and not self._dry_run:
            try:
                after = await self._settled(run, before.path, stop)
            except NodeAgentError as error:
                run.warnings.append(f"the filesystem could not be measured again: {error}")
        if run.end is None:
            run.end, run.end_detail = self._judge_end(run, after)
        return PassReport(
            id=run.id,
            scope=run.preview.scope.value,
            trigger=run.trigger,
            started_at=run.started_at,
            duration_s=self._clock.monotonic_s() - run.began_s,
            dry_run=self._dry_run,
            plans=tuple(run.plans),
            results=tuple(run.results),
            end=run.end,
            end_detail=run.end_detail,
            before=before,
            after=after,
            warnings=tuple(run.warnings),
            collected_bytes=run.collected_bytes,
        )

    async def _settled(self, run: _Run, path: str, stop: asyncio.Event) -> FsObservation:
        """Measure a filesystem once it shows what was freed, or after a bounded wait.

        containerd collects in the background at times, and XFS returns inodes and blocks a moment later; judged too
        early, a pass would remove more than it has to. Without exact accounting there is nothing to wait for.
        """
        before = run.preview.snapshot.image_filesystem
        exact = any(plan.accounting is Accounting.LAYERS for plan in run.plans)
        expected = run.collected_bytes + sum(
            result.decision.frees_bytes or 0
            for result in run.results
            if result.outcome is Outcome.DONE and result.decision.kind in _ON_IMAGEFS
        )
        sure = max(0, expected * 98 // 100 - MEASUREMENT_SLACK_BYTES)
        wanted = (before.available_bytes if before is not None else 0) + sure
        waited_s = 0.0
        while True:
            measured = self._read_filesystem(path)
            done = not exact or not sure or measured.available_bytes >= wanted
            if done or waited_s >= SETTLE_WITHIN_S or stop.is_set():
                return measured
            waited_s += SETTLE_STEP_S
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), SETTLE_STEP_S)

    def _judge_end(self, run: _Run, after: FsObservation | None) -> tuple[PassEnd, str]:
        if self._dry_run:
            return run.preview.predicted_end
        image_plans = [plan for plan in run.plans if plan.kind == "images"]
        blocked = [plan.blocked for plan in run.plans if plan.blocked]
        if blocked:
            return PassEnd.REFUSED, "; ".join(blocked)
        wanted = any(plan.wanted_bytes for plan in image_plans)
        low = self._policy.images.low_threshold_percent
        if wanted and after is not None and _missing_bytes(after, low):
            return PassEnd.SHORTFALL, _why_short(run, after, low)
        if not run.results and not run.collected_bytes:
            return PassEnd.NOTHING_TO_DO, ""
        return PassEnd.COMPLETE, ""


def _missing_bytes(observed: FsObservation, low: int) -> int:
    """Return the bytes still to be freed for a low threshold in percent.

    By the planner's own arithmetic: rounded down as the kubelet does, its target can be met to the byte while the whole
    percent still reads one above the threshold, and a run that freed what its plan wanted would count as short of it.
    """
    return max(0, observed.capacity_bytes * (100 - low) // 100 - observed.available_bytes)


def _why_short(run: _Run, after: FsObservation, low: int) -> str:
    """Say precisely why the filesystem is still above the low threshold."""
    missing = _missing_bytes(after, low)
    last = run.last_plan or next((plan for plan in reversed(run.plans) if plan.kind == "images"), None)
    counted: dict[str, int] = {}
    for decision in last.decisions if last else ():
        if decision.id not in run.removed_ids():
            counted[decision.reason.code.value] = counted.get(decision.reason.code.value, 0) + 1
    kept = ", ".join(f"{count} {code}" for code, count in sorted(counted.items(), key=lambda item: -item[1]))
    what = f"imagefs is still {after.used_percent}% full, {format_bytes(missing)} above the low threshold {low}%"
    return f"{what}; images left: {kept}" if kept else f"{what}; no images are left"


class _Run:
    """What a pass has gathered so far."""

    def __init__(
        self,
        started_at: datetime,
        began_s: float,
        preview: Preview,
        trigger: str,
        dry_run: bool,  # noqa: FBT001
    ) -> None:
        self.id = f"{started_at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        self.started_at = started_at
        self.began_s = began_s
        self.preview = preview
        self.trigger = trigger
        self.dry_run = dry_run
        self.rounds = 0
        self.collected_bytes = 0
        self.plans: list[Plan] = []
        self.results: list[Result] = []
        self.warnings: list[str] = []
        self.last_plan: Plan | None = None
        self.end: PassEnd | None = None
        self.end_detail = ""

    def set_aside(self) -> dict[str, str]:
        """Return the images that failed or changed in this pass, with why."""
        aside = (Outcome.FAILED, Outcome.CHANGED)
        return {
            result.decision.id: result.detail
            for result in self.results
            if result.decision.kind is ItemKind.IMAGE and result.outcome in aside
        }

    def removed_ids(self) -> frozenset[str]:
        """Return the ids of what is gone."""
        return frozenset(
            result.decision.id for result in self.results if result.outcome in (Outcome.DONE, Outcome.GONE)
        )

    def spent(self) -> Spent:
        """Return what counts against the limits per pass."""
        done = [
            result.decision
            for result in self.results
            if result.decision.kind is ItemKind.IMAGE and result.outcome is Outcome.DONE
        ]
        return Spent(images=len(done), size_bytes=sum(decision.frees_bytes or 0 for decision in done))
