"""Removers of all items but images, one per kind of item, each with a guard.

A guard reads the runtime's state immediately before the removing call. It has no separate rules: it runs the planner
again for the item, so that a preview, a pass and a guard cannot disagree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError, RuntimeTimeoutError, RuntimeUnsupportedError, StoreError
from nodeagent.gc.executor import BATCH, Outcome, Result, caught
from nodeagent.gc.plan.consistency import leak_kind, piece_name
from nodeagent.gc.plan.image_protection import holds_in_force
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.pod_logs import keep_tree
from nodeagent.host import pod_logs as log_removal
from nodeagent.host.pod_logs import read_log_tree
from nodeagent.model.decision import Decision, ItemKind, ReasonCode, Verdict
from nodeagent.model.runtime import (
    Container,
    ContainerState,
    HeldContent,
    Image,
    Sandbox,
    UnlistedContent,
    UnreferencedPiece,
)
from nodeagent.record import Record, replace
from nodeagent.units import Clock, format_duration

if TYPE_CHECKING:
    from nodeagent.gc.guard import CurrentReader
    from nodeagent.gc.plan.policy import ImageGCPolicy, PodLogPolicy
    from nodeagent.model.clock import ClockTrust
    from nodeagent.model.node import Hold, LogTree, NodeSnapshot
    from nodeagent.model.runtime import Label
    from nodeagent.runtime.containerd import StoredImage
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.storage_backend import StorageBackend

_CLOCK_TOLERANCE: Final = timedelta(minutes=1)
LONGEST_UNOBSERVED_S: Final = 600.0
"""Maximum age of a plan for removals by age: an image use that began and ended after the plan is not observed."""


class ImageRemover:
    """Remover of one image, after a second plan with the current state of the runtime.

    Source: CRI ``RemoveImage``.
    """

    def __init__(  # noqa: PLR0913 - inputs of the second planning
        self,
        reader: CurrentReader,
        actions: CriClient,
        policy: ImageGCPolicy,
        template: NodeSnapshot,
        *,
        clock: Clock,
        read_holds: Callable[[], tuple[Hold, ...]],
    ) -> None:
        """Compose the remover.

        Args:
            reader: reads the current state.
            actions: calls that change the runtime.
            policy: the plan's policy.
            template: the plan's snapshot, for facts that do not change within a pass.
            clock: measures the age of the plan.
            read_holds: reads the current holds; blocking.
        """
        self._read_holds = read_holds
        self._reader = reader
        self._actions = actions
        # already considered by the plan: the guard checks the use of an image, not the need for space
        self._template = replace(template, sandboxes_unread=frozenset(), image_filesystems=())
        self._clock = clock
        protection = replace(policy.protection, keep_last_n_tags_per_repository=0)
        self._policy = replace(
            policy, max_images_per_pass=0, max_bytes_per_pass=0, minimum_gain_bytes=0, protection=protection
        )

    async def remove(self, decision: Decision) -> Result:
        """Remove the image unless it is already removed, in use or kept by another rule."""
        image, names = await self._reader.image_and_names(decision.id)
        if image is None:
            return Result(decision, Outcome.GONE, "already removed")
        kept = await self._keep_reasons({image.id: image}, [decision])
        reason = kept.get(image.id) or changed_since(self._template.observed_at, names, self._clock.now())
        if reason:
            return Result(decision, Outcome.CHANGED, f"kept: {reason}")
        return await self._delete(image, decision)

    async def _delete(self, image: Image, decision: Decision) -> Result:
        """Remove an image that passed the guard."""
        try:
            await self._actions.remove_image(image.id)
        except RuntimeTimeoutError:
            if await self._reader.image(image.id) is not None:
                raise
            return Result(decision, Outcome.DONE, "removed; the call timed out")
        return Result(decision, Outcome.DONE)

    async def _keep_reasons(self, images: Mapping[str, Image], decisions: Sequence[Decision]) -> dict[str, str]:
        """Plan the images again with the current state; return the reason of each kept image, by image id."""
        try:
            holds = await asyncio.to_thread(self._read_holds)
        except StoreError as error:
            return dict.fromkeys(images, str(error))
        containers, sandboxes = await self._reader.users()
        usage = self._template.image_usage
        unobserved_s, clock = self._time_since_plan()
        observed_at = self._template.observed_at + timedelta(seconds=unobserved_s)
        fresh = replace(
            self._template,
            observed_at=observed_at,
            clock=clock,
            images=tuple(
                replace(each, labels=each.labels | self._labels.get(each.id, frozenset())) for each in images.values()
            ),
            containers=containers,
            sandboxes=sandboxes,
            image_usage={image_id: usage[image_id] for image_id in images if image_id in usage},
            storage=None,
            holds=holds_in_force(holds, clock, observed_at),
            pod_images=await self._reader.read_pod_images(),
        )
        by_age = {each.id for each in decisions if each.reason.code is ReasonCode.UNUSED_TOO_LONG}
        ahead = {each.id for each in decisions if each.reason.code is ReasonCode.COLLECT_AHEAD}
        stale: dict[str, str] = {}
        if unobserved_s > LONGEST_UNOBSERVED_S:  # such as during the confirmation prompt
            reason = f"image use not observed for {format_duration(unobserved_s)} since the plan"
            stale = dict.fromkeys((by_age | ahead) & images.keys(), reason)
        return stale | {
            verdict.id: verdict.reason.sentence
            for verdict in plan_image_gc(fresh, self._policy, remove_all_unused=True).decisions
            if verdict.verdict is not Verdict.REMOVE
            # removals by maximum age ignore the minimum age
            and not (verdict.reason.code is ReasonCode.TOO_YOUNG and verdict.id in by_age)
        }

    @cached_property
    def _labels(self) -> Mapping[str, frozenset[Label]]:
        """The labels of images in the plan's snapshot; those of a config never change."""
        return {each.id: each.labels for each in self._template.images if each.labels}

    def _time_since_plan(self) -> tuple[float, ClockTrust]:
        """Return the seconds since the plan's observation, by the boot clock, and the clock trust at this moment."""
        clock = self._template.clock
        if clock.boottime_s is None:
            return max(0.0, (self._clock.now() - self._template.observed_at).total_seconds()), clock
        now_s = max(clock.boottime_s, self._clock.monotonic_s())
        return now_s - clock.boottime_s, replace(clock, boottime_s=now_s)


class ImageRemoverWithoutLeases(Record):
    """Remover of images through CRI, on a runtime without leases only.

    On containerd, images are kept: unreadable records do not justify a removal without a transaction.

    Attributes:
        remover: removes the image on a runtime without leases.
        list_leases: raises RuntimeUnsupportedError on a runtime without leases.
    """

    remover: ImageRemover
    list_leases: Callable[[], Awaitable[object]]

    async def remove(self, decision: Decision) -> Result:
        """Remove the image as :class:`ImageRemover` does, unless the runtime has leases."""
        try:
            await self.list_leases()
        except RuntimeUnsupportedError:
            return await self.remover.remove(decision)
        detail = "kept: containerd's records of images and layers could not be read at the observation; try again later"
        return Result(decision, Outcome.FAILED, detail)


class ContainerRemover(Record):
    """Remover of one dead container and then its logs.

    In the reverse order, a failed removal would lose the logs of a kept container.
    Source: kubelet ``removeContainer``; CRI ``RemoveContainer``.
    """

    reader: CurrentReader
    actions: CriClient
    logs: HostLogs

    async def remove(self, decision: Decision) -> Result:
        """Remove the container unless it is running or its pod is active again."""
        container = await self.actions.get_container(decision.id)
        if container is not None and decision.reason.code is ReasonCode.POD_DELETED:
            containers, sandboxes = await self.reader.users()
            active = pod_activity(container.pod_uid, container.sandbox_id, containers, sandboxes)
            if active:
                return Result(decision, Outcome.CHANGED, f"kept: {active}")
            container = await self.actions.get_container(decision.id)  # may have been started meanwhile
        if container is None:
            return Result(decision, Outcome.GONE, "already removed")
        if container.state in (ContainerState.RUNNING, ContainerState.UNKNOWN):
            return Result(decision, Outcome.CHANGED, f"kept: container is {container.state.value}")
        try:
            await self.actions.remove_container(decision.id)
        except RuntimeTimeoutError:
            if await self.actions.get_container(decision.id) is not None:
                raise
        if await self.actions.get_container(decision.id) is not None:
            detail = "the runtime reported the removal, but the item still exists; logs kept"
            return Result(decision, Outcome.FAILED, detail)
        leftovers = [await self._remove_logs(container), await _leftover_layer(self.reader, decision.id)]
        return Result(decision, Outcome.DONE, "; ".join(filter(None, leftovers)), freed_bytes=decision.frees_bytes)

    async def _remove_logs(self, container: Container) -> str:
        if not container.log_path:
            return ""
        try:
            await asyncio.to_thread(self.logs.remove_container_logs, container.log_path, container.id)
        except NodeAgentError as error:
            return f"log kept: {error}"
        return ""


class SandboxRemover(Record):
    """Remover of one sandbox, which is stopped first.

    Source: kubelet ``removeSandbox``; CRI ``StopPodSandbox``, ``RemovePodSandbox``.
    """

    reader: CurrentReader
    actions: CriClient

    async def remove(self, decision: Decision) -> Result:
        """Remove the sandbox unless it is ready or has containers."""
        containers, sandboxes = await self.reader.users()
        sandbox = next((each for each in sandboxes if each.id == decision.id), None)
        if sandbox is None:
            return Result(decision, Outcome.GONE, "already removed")
        if sandbox.ready:
            return Result(decision, Outcome.CHANGED, "kept: sandbox is ready")
        own = [each.id[:12] for each in containers if each.sandbox_id == decision.id]
        if own:
            return Result(decision, Outcome.CHANGED, f"kept: sandbox has {len(own)} container(s): {', '.join(own[:3])}")
        if decision.reason.code is ReasonCode.POD_DELETED:
            active = pod_activity(sandbox.uid, sandbox.id, containers, sandboxes)
            if active:
                return Result(decision, Outcome.CHANGED, f"kept: {active}")
        await self.actions.stop_sandbox(decision.id)
        try:
            await self.actions.remove_sandbox(decision.id)
        except RuntimeTimeoutError:
            if await self.reader.sandbox_listed(decision.id):
                raise
        if await self.reader.sandbox_listed(decision.id):
            return Result(decision, Outcome.FAILED, "the runtime reported the removal, but the item still exists")
        return Result(decision, Outcome.DONE, await _leftover_layer(self.reader, decision.id))


async def _leftover_layer(reader: CurrentReader, container_id: str) -> str:
    """Return a warning if the writable layer of a removed container or sandbox remains; otherwise empty."""
    remains = await reader.has_writable_layer(container_id)
    if remains is None:
        return f"cannot read whether snapshot {container_id[:12]} remains; see nodeagent gc leaks"
    return f"snapshot {container_id[:12]} remains; see nodeagent gc leaks" if remains else ""


def changed_since(observed_at: datetime, names: Iterable[StoredImage], now: datetime) -> str:
    """Return the reason to keep an image if one of its names changed after ``observed_at``; otherwise empty.

    The plan is then out of date for the image, as a container is usually created after a pull. A change time after
    ``now`` is ignored: the time precedes a correction of the wall clock.
    """
    latest = now + _CLOCK_TOLERANCE
    for each in names:
        stamps = [stamp.at for stamp in (each.created, each.updated) if stamp.at is not None]
        if any(observed_at < stamp <= latest for stamp in stamps):
            return "pulled, tagged or labelled since the plan"
    return ""


def pod_activity(uid: str, sandbox_id: str, containers: tuple[Container, ...], sandboxes: tuple[Sandbox, ...]) -> str:
    """Return the reason that a pod is active; empty if the pod is not active.

    A pod is active if one of its sandboxes is ready or one of its containers may be running.
    """
    ids = {each.id for each in sandboxes if uid and each.uid == uid} | {sandbox_id}
    if any(each.ready and each.id in ids for each in sandboxes):
        return "its pod has a ready sandbox"
    active = (ContainerState.RUNNING, ContainerState.UNKNOWN)
    for each in containers:
        if each.state in active and (each.sandbox_id in ids or (uid and each.pod_uid == uid)):
            return f"container {each.name} of its pod is {each.state.value}"
    return ""


class PodLogRemover:
    """Remover of one pod log directory, after a new reading of the directory tree."""

    def __init__(
        self, reader: CurrentReader, logs: HostLogs, policy: PodLogPolicy, template: NodeSnapshot, *, clock: Clock
    ) -> None:
        """Compose the remover; ``policy`` and ``template`` are those of the plan."""
        self._reader = reader
        self._logs = logs
        self._policy = policy
        self._clock = clock
        self._trust = template.clock
        self._directories = {each.name: each for each in template.pod_log_directories}
        self._template = template

    @cached_property
    def _listed(self) -> frozenset[str]:
        """UIDs of the pods that the runtime listed at the observation; computed for the first removal only."""
        return frozenset([each.uid for each in self._template.sandboxes]).union(
            [each.pod_uid for each in self._template.containers]
        )

    async def remove(self, decision: Decision) -> Result:
        """Remove the directory unless the runtime lists its pod, or its files changed, are open or unreadable."""
        planned = self._directories.get(decision.id)
        if planned is None or planned.tree is None:
            return Result(decision, Outcome.CHANGED, "kept: not read by the observation of this pass")
        containers, sandboxes = await self._reader.users()
        if any(each.uid == planned.uid for each in sandboxes) or any(
            each.pod_uid == planned.uid for each in containers
        ):
            return Result(decision, Outcome.CHANGED, "kept: the runtime lists a container or sandbox of its pod")
        tree = await asyncio.to_thread(self._logs.read_pod_directory, decision.id)
        if tree is None:
            return Result(decision, Outcome.GONE, "already removed")
        checked = replace(tree, unchanged_s=0.0)
        if tree.digest == planned.tree.digest:  # the plan replaces implausible times by their observation
            checked = replace(tree, changed_at=planned.tree.changed_at, unchanged_s=planned.tree.unchanged_s)
        # no minimum age for a pod listed at the observation: the removal of its containers changed the directory
        minimum_age_s = 0.0 if planned.uid in self._listed else self._policy.minimum_age_s
        kept = keep_tree(checked, self._policy, self._clock.now(), self._trust, minimum_age_s=minimum_age_s)
        if kept is not None:
            return Result(decision, Outcome.CHANGED, f"kept: {kept.sentence}")
        try:
            freed = await asyncio.to_thread(self._logs.remove_pod_directory, decision.id, planned.uid, tree.changed_at)
        except FileNotFoundError:
            return Result(decision, Outcome.GONE, "already removed")
        return Result(decision, Outcome.DONE, freed_bytes=freed)


class LogLinkRemover(Record):
    """Remover of one container log link whose target does not exist."""

    cri: CriClient
    logs: HostLogs

    async def remove(self, decision: Decision) -> Result:
        """Remove the link unless its container exists and has not exited.

        During a log rotation the target is missing for a moment. Source: kubelet ``removeDeadSymlinks``.
        """
        container_id = log_removal.link_container_id(decision.id)
        if container_id:
            container = await self.cri.get_container(container_id)
            if container is not None and container.state is not ContainerState.EXITED:
                return Result(decision, Outcome.CHANGED, f"kept: container is {container.state.value}")
        try:
            removed = await asyncio.to_thread(self.logs.remove_dead_link, decision.id)
        except FileNotFoundError:
            return Result(decision, Outcome.GONE, "already removed")
        return (
            Result(decision, Outcome.DONE)
            if removed
            else Result(decision, Outcome.CHANGED, "kept: its target exists again")
        )


class HostLogs(Record):
    """Remover of pod logs below the kubelet's log roots; paths are checked in ``host.log_removal``.

    Attributes:
        pod_log_root: root directory of pod logs.
        container_log_root: directory of the links to container logs.
        clock: limits the time of a directory walk.
    """

    pod_log_root: Path
    container_log_root: Path
    clock: Clock

    def remove_container_logs(self, log_path: str, container_id: str) -> int:
        """Remove a container's current and rotated logs, then its links; return the bytes freed."""
        freed = log_removal.remove_container_logs(self.pod_log_root, Path(log_path)).size_bytes
        log_removal.remove_links_of(self.container_log_root, container_id)
        return freed

    def read_pod_directory(self, name: str) -> LogTree | None:
        """Return a reading of one pod log directory; ``None`` if it does not exist."""
        return read_log_tree(self.pod_log_root, name, self.clock)

    def remove_pod_directory(self, name: str, uid: str, changed_at: datetime) -> int:
        """Remove one pod log directory unless an entry changed after ``changed_at``; return the bytes freed."""
        return log_removal.remove_pod_log_directory(self.pod_log_root, name, uid, changed_at).size_bytes

    def remove_dead_link(self, name: str) -> bool:
        """Remove a link whose target does not exist; return false if the target exists again."""
        return log_removal.remove_dead_log_link(self.container_log_root, name)


class LeakRemover:
    """Remover of leaks in batches; all references are read again before each batch."""

    batch_size = BATCH
    settled_s = 0.0

    def __init__(self, find_unlisted: Callable[[], Awaitable[UnlistedContent]], storage: StorageBackend) -> None:
        self._find_unlisted = find_unlisted
        self._storage = storage
        self._deleted = False

    async def remove_many(self, decisions: Sequence[Decision], stop: asyncio.Event) -> list[Result | NodeAgentError]:
        """Delete the items that are still leaks, in plan order: a snapshot after its children.

        A stop request takes effect after the batch.

        Raises:
            RuntimeUnavailableError: the runtime is unavailable.
        """
        del stop
        now = await self._find_unlisted()
        unreferenced = {piece_name(each): each for each in now.unreferenced}
        held = {(kind, each.name): each for each in now.held if (kind := leak_kind(each)) is not None}
        found = [held.get((each.kind, each.name)) or unreferenced.get(each.name) for each in decisions]
        return [await caught(self._delete(each, its)) for each, its in zip(decisions, found, strict=True)]

    async def _delete(self, decision: Decision, found: UnreferencedPiece | HeldContent | None) -> Result:
        if found is None:
            return Result(decision, Outcome.CHANGED, "kept: already removed, or referenced again")
        if isinstance(found, HeldContent):
            details = decision.reason.details
            if (found.created_at, found.target) != (details.get("created_at"), details.get("target", "")):
                return Result(decision, Outcome.CHANGED, "kept: created again since the plan")
            if decision.kind is ItemKind.LEASE:
                existed = await self._storage.delete_lease(found.name)
            else:
                existed = False
                for name in found.names:
                    existed = await self._storage.delete_image(name, sync=False, target=found.target) or existed
        elif found.rooted and not decision.reason.details.get("rooted"):
            return Result(decision, Outcome.CHANGED, "kept: labelled containerd.io/gc.root since the plan")
        elif decision.kind is ItemKind.BLOB:
            existed = await self._storage.delete_content(decision.id)
        else:
            existed = await self._storage.remove_snapshot(found.snapshotter, decision.id)
        self._deleted = self._deleted or existed
        return Result(decision, Outcome.DONE if existed else Outcome.GONE)

    async def finish(self) -> tuple[Result, ...]:
        """Run the runtime's garbage collection, which removes the data of deleted records from disk."""
        if self._deleted:
            await self._storage.collect_garbage()
        return ()
