"""Node-level reclaim before an eviction, executed as garbage collection passes; images are observed in advance."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nodeagent.errors import NodeAgentError, ObservationError, RuntimeUnsupportedError
from nodeagent.eviction.plan.reclaim import ReclaimAction, ReclaimStep, on_device
from nodeagent.gc.executor import Outcome, PassReport
from nodeagent.gc.pass_state import Preview
from nodeagent.gc.plan.image_protection import Irreplaceable
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.planner import plan_containers, until_freed
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope
from nodeagent.model.decision import ItemKind, Plan, ReasonCode
from nodeagent.model.node import NodeSnapshot
from nodeagent.model.pressure import FilesystemRole, OtherFilesystem
from nodeagent.pods.usage import total
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.gc.plan.image_targets import SpaceNeeded
    from nodeagent.model.runtime import Sandbox
    from nodeagent.units import Clock

IMAGE_ACTIONS: Final = frozenset({ReclaimAction.UNUSED_IMAGES, ReclaimAction.IRREPLACEABLE_IMAGES})
_SMALL = frozenset({ItemKind.SANDBOX, ItemKind.CONTAINER_LOG_LINK})
"""Kinds whose removal frees a negligible amount."""
_NOT_NEEDED_YET = frozenset({ReasonCode.ENOUGH_FREED, ReasonCode.IRREPLACEABLE_LATER, ReasonCode.COLLECTION_PENDING})
"""Reasons to keep an item that is removed if the measured effect of the step is too small."""


class Reclaimable(Record):
    """Predicted amounts that a reclaim step and all later steps for the same threshold can free; ``None`` if unknown.

    Attributes:
        size_bytes: bytes.
        inodes: inodes.
    """

    size_bytes: int | None = None
    inodes: int | None = None


UNKNOWN_AMOUNTS: Final = Reclaimable()


class Reclaimed(Record):
    """Result of one reclaim step.

    Attributes:
        report: report of the pass; ``None`` without removals.
        confirmed: whether the space of the removed items is verified to be freed.
        path: path of the filesystem that needs the space; empty on a node with one image filesystem.
        complete: whether the step has no further removals: all were needed, or none had an effect.
    """

    step: ReclaimStep
    report: PassReport | None
    confirmed: bool = False
    path: str = ""
    complete: bool = True

    def freed(self, *, inodes: bool = False) -> int | None:
        """Return the predicted bytes, or inodes, of the removed items; ``None`` if unknown for any item."""
        if self.report is None:
            return 0
        if inodes and self.report.collected_bytes:
            return None
        total = 0 if inodes or self.path else self.report.collected_bytes
        for result in self.report.results:
            if result.outcome is not Outcome.DONE or result.decision.kind in _SMALL:
                continue
            part = result.decision.frees_inodes if inodes else result.freed_bytes or result.decision.frees_bytes
            if self.path and result.decision.kind is ItemKind.IMAGE:
                part = None if inodes else result.decision.bytes_on(self.path)
            if part is None:
                return None
            total += part
        return total


class Reclaimer(Record):
    """Executor of the steps of node-level reclaim.

    Attributes:
        observe: returns the node snapshot of a scope.
        policy: garbage collection policy.
        carry_out: carries out a preview.
        evicted: returns the pods evicted by this agent: UID to the ids of their sandboxes. Their remaining
            containers, sandboxes and logs are removed, unless a pod of that UID was created again.
        collect_garbage: runs the runtime's garbage collection and waits for its end; ``None`` if unavailable.
        has_separate_logs: returns whether the pod logs are on a filesystem of their own; ``None``: they are on nodefs.
    """

    observe: Callable[[Scope], Awaitable[NodeSnapshot]]
    policy: GCPolicy
    carry_out: Callable[[Preview, asyncio.Event], Awaitable[PassReport]]
    evicted: Callable[[], Mapping[str, Collection[str]]] = dict
    collect_garbage: Callable[[], Awaitable[None]] | None = None
    has_separate_logs: Callable[[], Awaitable[bool]] | None = None

    async def run(
        self,
        step: ReclaimStep,
        needed: SpaceNeeded,
        stop: asyncio.Event,
        planned: Callable[[Reclaimable], None] = lambda _: None,
    ) -> Reclaimed:
        """Observe, plan and carry out the removals of one step that free the needed space.

        Args:
            step: the step.
            needed: space needed on the filesystem of the step.
            stop: when set, no removal of a further item starts.
            planned: called with the reclaimable amounts before the first removal.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            PassBusyError: another pass runs on this node.
            NodeAgentError: the node could not be observed.
        """
        preview = await self.preview(step, needed)
        planned(self._reclaimable(step, preview.snapshot))
        if step.other is not None and step.action in IMAGE_ACTIONS:
            path = _path_of(step.other, preview.snapshot)
        else:
            path = _watched_path(preview.snapshot) if step.other is None else step.other.path
        if not preview.acts:
            return Reclaimed(step, None)
        report = await self.carry_out(preview, stop)
        removed = any(each.outcome is Outcome.DONE for each in report.results)
        confirmed = step.action is not ReclaimAction.DEAD_CONTAINERS or (removed and await self._collected())
        complete = not (removed or report.collected_bytes) or not any(
            each.reason.code in _NOT_NEEDED_YET for plan in preview.plans for each in plan.decisions
        )
        return Reclaimed(step, report, confirmed, path, complete)

    def _reclaimable(self, step: ReclaimStep, snapshot: NodeSnapshot) -> Reclaimable:
        """Return the amounts that can be freed on the first image filesystem, if image reclaim is the last step.

        Images that cannot be pulled again are included, since a later step removes them.
        """
        if step.action not in IMAGE_ACTIONS or step.other is not None:
            return UNKNOWN_AMOUNTS
        plan = plan_image_gc(snapshot, self.policy.images, remove_all_unused=True, only_on=_watched_path(snapshot))
        if plan.blocked:
            return UNKNOWN_AMOUNTS
        size_bytes = total(each.frees_bytes for each in plan.removals)
        return Reclaimable(
            None if size_bytes is None else size_bytes + plan.pending_bytes,
            None if plan.pending_bytes else total(each.frees_inodes for each in plan.removals),
        )

    def _image_policy(self, step: ReclaimStep, snapshot: NodeSnapshot) -> ImageGCPolicy:
        """Return the policy of an image reclaim step; the first step keeps images that cannot be pulled again."""
        if step.action is ReclaimAction.UNUSED_IMAGES and snapshot.image_sources is not None:
            return without_irreplaceable(self.policy.images)
        return self.policy.images

    async def _collected(self) -> bool:
        """Run the runtime's garbage collection; return whether it succeeded.

        containerd removes the snapshots of removed containers asynchronously, so the pass itself does not free their
        space. Image removal waits for the garbage collection in its own transaction.
        """
        if self.collect_garbage is None:
            return False
        try:
            await self.collect_garbage()
        except RuntimeUnsupportedError:  # not containerd: RemoveContainer also removed the layer
            return True
        except NodeAgentError:
            return False
        return True

    async def preview(self, step: ReclaimStep, needed: SpaceNeeded) -> Preview:
        """Return the preview of the removals of a step that free the needed space.

        Raises:
            NodeAgentError: the node could not be observed.
        """
        if step.action in IMAGE_ACTIONS:
            snapshot = await self.observe(Scope.IMAGES)
            policy = self._image_policy(step, snapshot)
            path = _watched_path(snapshot) if step.other is None else _path_of(step.other, snapshot)
            plan = plan_image_gc(snapshot, policy, needed=needed, only_on=path)
            return Preview(Scope.IMAGES, snapshot, (plan,))
        snapshot = await self.observe(Scope.CONTAINERS)
        evicted = _still_evicted(self.evicted(), snapshot.sandboxes)
        only_logs = step.action is ReclaimAction.LOGS
        plans = plan_containers(snapshot, self.policy, evict_non_deleted_pods=not only_logs, evicted=evicted)
        if only_logs:
            found = _restricted(plans.plans, _with_removed_logs(plans.logs, snapshot))
        elif step.filesystem is FilesystemRole.NODEFS:
            found = plans.plans
        else:  # the sandbox of an evicted pod is removed with its logs, which are on nodefs
            ids = {each.id for plan in (plans.containers, plans.sandboxes) for each in plan.decisions}
            if step.other is not None:
                ids = {key for key, snapshotter in snapshot.snapshotters.items() if snapshotter in step.other.stores}
            ids -= {each.id for each in snapshot.sandboxes if each.uid in evicted}
            found = _restricted((plans.containers, plans.sandboxes), ids)
        logs = step.filesystem is FilesystemRole.NODEFS
        if logs and step.other is None and self.has_separate_logs is not None:
            logs = not await self.has_separate_logs()
        found = on_device(found, snapshot, layers=not only_logs, logs=logs)
        return Preview(Scope.CONTAINERS, snapshot, until_freed(found, needed))


def _watched_path(snapshot: NodeSnapshot) -> str:
    """Return the path of the image filesystem measured by the eviction signals; empty on a node with only one.

    Source: kubelet, which uses the first of ``ImageFsInfo``.
    """
    return snapshot.image_filesystems[0].path if snapshot.image_filesystems else ""


def _path_of(other: OtherFilesystem, snapshot: NodeSnapshot) -> str:
    """Return the path, in the snapshot, of an additional image filesystem.

    Raises:
        ObservationError: the snapshot lists no snapshotter on that filesystem, so its images are unknown.
    """
    for each in snapshot.image_filesystems[1:]:
        if each.observed is not None and each.observed.device_id == other.device_id and each.stores - {""}:
            return each.path
    raise ObservationError(f"{other.path} is no longer known as an image filesystem; no image is removed for it")


def _restricted(plans: Iterable[Plan], ids: AbstractSet[str]) -> tuple[Plan, ...]:
    """Return plans of containers and sandboxes limited to these ids; plans of logs are returned unchanged."""
    return tuple(
        plan
        if plan.kind == "logs"
        else replace(plan, decisions=tuple(each for each in plan.decisions if each.id in ids))
        for plan in plans
    )


def _with_removed_logs(logs: Plan, snapshot: NodeSnapshot) -> AbstractSet[str]:
    """Return the ids of the containers and sandboxes of pods whose log directories a plan removes."""
    names = {each.id for each in logs.removals}
    uids = {each.uid for each in snapshot.pod_log_directories if each.name in names}
    sandboxes = {each.id for each in snapshot.sandboxes if each.uid in uids}
    return sandboxes | {each.id for each in snapshot.containers if each.sandbox_id in sandboxes or each.pod_uid in uids}


def without_irreplaceable(policy: ImageGCPolicy) -> ImageGCPolicy:
    """Return the policy with images that cannot be pulled again kept; a later reclaim step removes them."""
    if policy.protection.irreplaceable is Irreplaceable.IGNORE:
        return policy
    return replace(policy, protection=replace(policy.protection, irreplaceable=Irreplaceable.NEVER))


def _still_evicted(evicted: Mapping[str, Collection[str]], sandboxes: Iterable[Sandbox]) -> frozenset[str]:
    """Return the UIDs of evicted pods whose newest listed sandbox is known to have existed at the eviction."""
    newest: dict[str, Sandbox] = {}
    for each in sandboxes:
        if each.uid not in evicted:
            continue
        current = newest.setdefault(each.uid, each)
        if each.created_at is None or current.created_at is None:
            newest[each.uid] = current if current.created_at is None else each  # age unknown: possibly newest
        elif each.created_at > current.created_at:
            newest[each.uid] = each
    return frozenset(uid for uid, each in newest.items() if each.created_at is not None and each.id in evicted[uid])


_USABLE_FOR_S: Final = 1.0
"""Age in seconds up to which a reading made in advance is used, as for readings of the signals."""
T = TypeVar("T")


class InAdvance(Generic[T]):
    """A reading that is begun before it is needed, and used while it is running or recent."""

    def __init__(self, read: Callable[[], Awaitable[T]], monotonic_s: Callable[[], float]) -> None:
        self._read = read
        self._monotonic_s = monotonic_s
        self._begun: asyncio.Future[T] | None = None
        self._begun_s = 0.0

    def begin(self) -> asyncio.Future[T]:
        """Return the usable reading; begin one if there is none."""
        begun = self.usable()
        if begun is None:
            self._begun_s = self._monotonic_s()
            self._begun = begun = asyncio.ensure_future(self._read())
            begun.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        return begun

    def usable(self) -> asyncio.Future[T] | None:
        """Return the begun reading if it is running, or succeeded within the age limit."""
        begun = self._begun
        if begun is None or not begun.done():
            return begun
        is_recent = self._monotonic_s() - self._begun_s <= _USABLE_FOR_S
        return begun if is_recent and not begun.cancelled() and begun.exception() is None else None

    def discard(self) -> None:
        """Cancel the begun reading, and do not use it."""
        if self._begun is not None:
            self._begun.cancel()
            self._begun = None


class ImageObservation(InAdvance[NodeSnapshot]):
    """Observes the node for reclaim steps; one observation of the images serves all steps until the first removal."""

    def __init__(self, observe: Callable[[Scope], Awaitable[NodeSnapshot]], clock: Clock) -> None:
        """Create it; ``observe`` returns a new node snapshot of a scope."""
        super().__init__(partial(observe, Scope.IMAGES), clock.monotonic_s)
        self._observe = observe

    async def prepare(self) -> None:
        """Observe the node once, so that the first reclaim finds the caches of the observation filled.

        A failure has no effect: a reclaim step observes the node itself.
        """
        with suppress(NodeAgentError):
            for scope in (Scope.IMAGES, Scope.CONTAINERS):
                await self._observe(scope)

    async def observe(self, scope: Scope) -> NodeSnapshot:
        """Return the node snapshot of a scope: for images the begun observation, if it is usable.

        Raises:
            NodeAgentError: the node could not be observed.
        """
        begun = self.usable() if scope is Scope.IMAGES else None
        return await (self._observe(scope) if begun is None else begun)
