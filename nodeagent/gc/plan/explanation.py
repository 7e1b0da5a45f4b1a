"""Explanations of verdicts: the reason of a decision, and the condition under which the item would be removed.

Explanations are derived from the plan of the next pass, so that they cannot contradict this plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from nodeagent.gc.plan.image_protection import Irreplaceable, describe_origins, irreplaceable_images, keep_reasons
from nodeagent.gc.plan.image_targets import ledger_for
from nodeagent.gc.plan.image_users import ImageIndex, ImageUsers, find_users
from nodeagent.gc.plan.images import plan_image_gc, untagged_images, unused_since
from nodeagent.model.decision import Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.pods.plan.deletion import PodDeletionStatus, check_pods
from nodeagent.pods.plan.facts import sandbox_name
from nodeagent.record import Record, replace
from nodeagent.text import escape
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import Container, Image, ImageFilesystem, Sandbox, StorageGraph

_NEVER: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.PINNED: "pinned in the runtime",
    ReasonCode.SANDBOX_IMAGE: "the sandbox image",
    ReasonCode.PROTECTED: "matched by protect.images",
    ReasonCode.IRREPLACEABLE: 'irreplaceable and image_gc.irreplaceable = "never"',
}
_ONCE: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.IN_USE_BY_CONTAINER: "it is unreferenced",
    ReasonCode.IN_USE_BY_SANDBOX: "it is unreferenced",
    ReasonCode.NAMED_BY_POD: "no pod of this node names it",
    ReasonCode.NEWEST_TAGS: "its repository has newer images",
    ReasonCode.HELD: "the hold has ended",
    ReasonCode.LABELS_UNKNOWN: "its labels are known",
    ReasonCode.TOO_YOUNG: "it is old enough",
    ReasonCode.USED_THIS_PASS: "its last use is in the past",
    ReasonCode.USE_UNKNOWN: "image use is known",
    ReasonCode.ORIGIN_UNKNOWN: "its origin is known",
    ReasonCode.FILESYSTEM_UNREADABLE: "the image filesystem can be read",
    ReasonCode.FILESYSTEM_UNKNOWN: "the image filesystem on which it frees space is known",
}
_AT: Final[Mapping[ReasonCode, str]] = {ReasonCode.HELD: "until_at", ReasonCode.TOO_YOUNG: "eligible_at"}
_OF_IMAGE: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.IRREPLACEABLE_INSUFFICIENT: "when removals including this image free enough space",
    ReasonCode.LIMIT_IMAGES_PER_PASS: "in a later pass; this pass has reached its limit",
    ReasonCode.LIMIT_BYTES_PER_PASS: "in a later pass; this pass has reached its limit",
    ReasonCode.COLLECTION_PENDING: "if imagefs is still above its threshold after the runtime's garbage collection",
    ReasonCode.UNDO_WINDOW_OPEN: "if imagefs is still above its threshold after the undo window of removed images",
    ReasonCode.FREES_NO_SPACE: "once its removal frees space on an image filesystem",
    ReasonCode.GAIN_TOO_SMALL: "once its gain is larger (images with common layers removed), or minimum_gain is lower",
    ReasonCode.CLOCK_UNTRUSTED: "once the wall clock has not jumped for the grace period",
    ReasonCode.RUNTIME_INCONSISTENT: "once the lists of the runtime agree",
    ReasonCode.FAILED_EARLIER: "in a later pass",
    ReasonCode.NOT_IN_PLAN: "by a saved plan that lists the item",
}
_OF_OTHERS: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.RUNNING: "once it has exited, and its pod is deleted or the limits on dead containers are exceeded",
    ReasonCode.STATE_UNKNOWN: "once reported as exited",
    ReasonCode.NOT_KUBELET_MANAGED: "never unless container_gc.include_unlabelled is set",
    ReasonCode.WITHIN_LIMITS: "once newer instances of it have exited, or its pod is deleted",
    ReasonCode.NEWEST_DEAD_CONTAINER: "once a newer instance of it has exited, or its pod is deleted",
    ReasonCode.SANDBOX_UNKNOWN: "once its label and its sandbox have the same pod",
    ReasonCode.RUNTIME_INCONSISTENT: "once the lists of the runtime agree",
    ReasonCode.AGE_UNKNOWN: "once its creation time is known",
    ReasonCode.CREATED_RECENTLY: "once it is old enough, unless another rule keeps it",
    ReasonCode.SANDBOX_READY: "once it is not ready and has no containers",
    ReasonCode.SANDBOX_HAS_CONTAINERS: "once its containers are removed",
    ReasonCode.NEWEST_OF_POD: "once its pod is deleted, or has a newer sandbox",
    ReasonCode.POD_PRESENT: "once its pod is deleted",
    ReasonCode.POD_ITEMS_KEPT: "once the containers and sandboxes of its pod are removed",
    ReasonCode.MODIFIED_RECENTLY: "once it is old enough, unless another rule keeps it",
    ReasonCode.BOOTED_RECENTLY: "once it is old enough, unless another rule keeps it",
    ReasonCode.LOG_NOT_READ: "once it can be read completely",
    ReasonCode.LOG_OPEN: "once no process has it open",
    ReasonCode.LOG_OPENERS_UNKNOWN: "once two readings one interval of container GC apart are equal",
    ReasonCode.NOT_A_POD_LOG_DIRECTORY: "never: not a pod log directory",
    ReasonCode.CONTAINER_PRESENT: "once its container is removed",
    ReasonCode.CLOCK_UNTRUSTED: "once the wall clock has not jumped for the grace period",
    ReasonCode.NOT_IN_PLAN: "by a saved plan that lists the item",
}


def condition_of(reason: Reason) -> str:
    """Return the removal condition of a container, sandbox or log kept for this reason; empty if undefined."""
    return _OF_OTHERS.get(reason.code, "")


def condition_of_image(reason: Reason) -> str:
    """Return the removal condition of an image kept for this reason, without the other rules; empty if undefined."""
    return _OF_IMAGE.get(reason.code, "")


def image_condition(
    reasons: Sequence[Reason], policy: ImageGCPolicy, *, by_use: str, users_removed: bool, order: str
) -> str:
    """Return the text of the condition under which a kept image would be removed.

    Args:
        reasons: all reasons to keep the image; the reason of the decision is first.
        policy: policy of the plan.
        by_use: text of the imagefs usage at which the image is removed by threshold.
        users_removed: whether the next container GC pass removes all users of the image.
        order: place of the image in removal order, for display; empty for an image that is removed after all others,
            and not by age.
    """
    codes = [each.code for each in reasons]
    never = [_NEVER[code] for code in codes if code in _NEVER]
    if never:
        return f"never while it is {' and '.join(never)}"
    once = [_ONCE[code] for code in codes if code in _ONCE]
    if users_removed:
        once = [
            "container GC has removed its dead containers" if each == "it is unreferenced" else each for each in once
        ]
    if once:
        return f"once {' and '.join(dict.fromkeys(once))}; then {_by_threshold(policy, order)}"
    code = codes[0]
    unused = f"once unused for {format_duration(policy.maximum_unused_age_s)}" if policy.maximum_unused_age_s else ""
    if code in _BY_USE:
        return f"{by_use}; or {unused}" if unused else by_use
    if code is ReasonCode.THRESHOLD_DISABLED:
        return unused or "never while image GC by threshold and by age are disabled"
    if code is ReasonCode.AGE_NOT_OBSERVED:
        maximum = format_duration(policy.maximum_unused_age_s)
        observed = f"once image use has been observed for {maximum} without a gap, if unused until then"
        return observed if policy.high_threshold_percent >= 100 else f"{observed}; or {by_use}"
    is_later = code is ReasonCode.IRREPLACEABLE_LATER
    return _by_threshold(policy, "") if is_later else condition_of_image(reasons[0])


def eligible_at(reasons: Sequence[Reason]) -> datetime | None:
    """Return the time at which the last reason to keep an image ends; ``None`` if it depends on more than time."""
    if any(each.code in _NEVER or (each.code in _ONCE and each.code not in _AT) for each in reasons):
        return None
    times = [each.details.get(_AT.get(each.code, "eligible_at")) for each in reasons]
    return max((each for each in times if isinstance(each, datetime)), default=None)


def _by_threshold(policy: ImageGCPolicy, order: str) -> str:
    unused_s = policy.maximum_unused_age_s if order else 0.0
    unused = f"once unused for {format_duration(unused_s)}" if unused_s else ""
    if policy.high_threshold_percent >= 100:
        return unused or "not removed by usage: threshold collection disabled"
    threshold = f"when imagefs is {policy.high_threshold_percent}% full, {order or 'if no other image frees enough'}"
    return f"{threshold}; or {unused}" if unused else threshold


_SHORTEST_ID: Final = 4
_BY_USE: Final = frozenset({ReasonCode.BELOW_HIGH_THRESHOLD, ReasonCode.ENOUGH_FREED, ReasonCode.USE_EXPECTED})


class Sharing(Record):
    """Layers and blobs ("pieces") that an image shares with other images and objects.

    Attributes:
        unique_bytes: size of the pieces without other references.
        shared_bytes: size of the pieces with other references.
        with_images: name of each other image with common pieces, and the bytes in common; largest first.
        with_others: kind and bytes of references from objects other than listed images, largest first; such as
            ``container`` for container snapshots based on this image or on an image with common layers.
    """

    unique_bytes: int
    shared_bytes: int
    with_images: tuple[tuple[str, int], ...]
    with_others: tuple[tuple[str, int], ...]


class Explanation(Record):
    """Explanation of the decision on one item: its reasons, and the condition of its removal.

    Attributes:
        decision: the decision of the next pass.
        attempt: attempt of a container or sandbox; ``None`` for other items.
        names: all names of the item.
        also: reasons of further rules that keep the image.
        when: condition under which the item is removed, for display.
        eligible_at: time at which the item becomes eligible for removal, in aware UTC; ``None`` if it depends on more
            than time.
        users: containers and sandboxes that refer to an image, by name, newest attempt first.
        position: position of an image in removal order, from 1: the removals of the plan, then those of a plan that
            removes all unused images; 0 for an image that both plans keep, and for other items.
        positions: number of images in removal order.
        origin: origin of an image, see ``describe_origins``; empty for other items.
        first_detected: time of the first detection or pull of an image.
        last_used: time of the last observed use of an image.
        size_bytes: size of an image as reported by CRI.
        frees_alone_bytes: bytes freed if only this image is removed; ``decision`` has the bytes freed within the plan.
        removals_before: number of image removals that the plan executes before this image.
        sharing: shared pieces of an image; ``None`` if its layers are unknown.
        pod: deletion status of the pod of a container, sandbox or pod log directory.
    """

    decision: Decision
    attempt: int | None = None
    names: tuple[str, ...] = ()
    also: tuple[Reason, ...] = ()
    when: str = ""
    eligible_at: datetime | None = None
    users: tuple[str, ...] = ()
    position: int = 0
    positions: int = 0
    origin: str = ""
    first_detected: datetime | None = None
    last_used: datetime | None = None
    size_bytes: int | None = None
    frees_alone_bytes: int | None = None
    removals_before: int = 0
    sharing: Sharing | None = None
    pod: PodDeletionStatus | None = None


def explain(snapshot: NodeSnapshot, policy: GCPolicy, plans: Iterable[Plan], query: str) -> tuple[Explanation, ...]:
    """Return the explanations of all items that match ``query``; empty without a match.

    An image is matched by reference, digest or id; a container by id, name, ``pod/name`` or ``namespace/pod/name``; a
    pod by UID, name or ``namespace/name``, which returns all its containers, sandboxes and logs. A container or sandbox
    id may be shortened to ``_SHORTEST_ID`` or more digits. Names may be given with the escapes of the display.
    """
    finder = _Explainer(snapshot, policy, tuple(plans))
    found = (*finder.images(query), *finder.workload(query))
    if found or "\\" not in query:
        return found
    names = sorted({name for name in _names(snapshot) if escape(name) == query})
    return tuple(each for name in names for each in (*finder.images(name), *finder.workload(name)))


def _names(snapshot: NodeSnapshot) -> Iterator[str]:
    """Yield the names and references of all items that can be explained."""
    for image in snapshot.images:
        yield from image.references
    for sandbox in snapshot.sandboxes:
        yield from _pod_names(sandbox)
    for container in snapshot.containers:
        yield from (*_pod_names_of(container), *_container_names(container))
    yield from (each.name for each in snapshot.pod_log_directories)
    yield from (each.name for each in snapshot.dead_log_links)


class _Explainer:
    def __init__(self, snapshot: NodeSnapshot, policy: GCPolicy, plans: Sequence[Plan]) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._decided = {(each.kind, each.id): each for plan in plans for each in plan.decisions}
        self._removals = tuple(each for plan in plans if plan.kind == "images" for each in plan.removals)
        without_limits = replace(policy.images, max_images_per_pass=0, max_bytes_per_pass=0)
        self._everything = plan_image_gc(snapshot, without_limits, remove_all_unused=True)
        order = (*self._removals, *self._everything.removals)
        self._order = tuple(dict.fromkeys(each.id for each in order))
        self._statuses = check_pods(snapshot, policy.containers.deleted_pod_grace_s)

    def images(self, query: str) -> list[Explanation]:
        """Return the explanations of the matching images."""
        snapshot = self._snapshot
        matched = set(ImageIndex(snapshot.images).resolve(query))
        found = [
            image for image in snapshot.images if image.id in matched and (ItemKind.IMAGE, image.id) in self._decided
        ]
        if not found:
            return []
        users, protection = find_users(snapshot), self._policy.images.protection
        reasons = keep_reasons(snapshot, protection, matched)
        origins = describe_origins(snapshot, protection.unreachable_registries)
        removals, order = [each.id for each in self._removals], self._order
        ledger = ledger_for(snapshot)
        explained = []
        for image in found:
            decision, usage = self._decided[ItemKind.IMAGE, image.id], snapshot.image_usage.get(image.id)
            also = tuple(each for each in reasons[image.id] if each.code is not decision.reason.code)
            explained.append(
                Explanation(
                    decision,
                    names=(*image.references, image.id),
                    also=also,
                    when=self._image_when(image, decision, also, users),
                    eligible_at=self._image_eligible_at(image, decision, also),
                    users=tuple(self._user_lines(image, users)),
                    frees_alone_bytes=ledger.gain(image)[0],
                    removals_before=removals.index(image.id) if image.id in removals else len(removals),
                    position=order.index(image.id) + 1 if image.id in order else 0,
                    positions=len(order) if image.id in order else 0,
                    origin=origins[image.id],
                    first_detected=usage.first_detected if usage else None,
                    last_used=usage.last_used if usage else None,
                    size_bytes=image.size_bytes,
                    sharing=_sharing(snapshot.storage, image, snapshot.images),
                )
            )
        return explained

    def _user_lines(self, image: Image, users: ImageUsers) -> Iterator[str]:
        for each in sorted(users.containers.get(image.id, ()), key=_by_instance):
            state = each.state.value + (
                ", removed by container GC" if self._removes(ItemKind.CONTAINER, each.id) else ""
            )
            yield f"container {each.display_name} attempt {each.attempt} {each.id[:12]} ({state})"
        for sandbox in sorted(users.sandboxes.get(image.id, ()), key=_by_sandbox):
            state = "ready" if sandbox.ready else "not ready"
            state += ", removed by container GC" if self._removes(ItemKind.SANDBOX, sandbox.id) else ""
            yield f"sandbox {sandbox_name(sandbox)} attempt {sandbox.attempt} {sandbox.id[:12]} ({state})"

    def _removes(self, kind: ItemKind, item_id: str) -> bool:
        decision = self._decided.get((kind, item_id))
        return decision is not None and _is_removed(decision)

    def workload(self, query: str) -> list[Explanation]:
        """Return the explanations of the matching containers, sandboxes and logs, and of all items of matching pods.

        Containers are sorted by name, then by attempt, newest first.
        """
        snapshot = self._snapshot
        pods = {each.uid for each in snapshot.sandboxes if query in _pod_names(each)}
        pods |= {each.pod_uid for each in snapshot.containers if query in _pod_names_of(each)}
        pods.discard("")
        containers = [
            self._other(ItemKind.CONTAINER, each.id, each.display_name, each.pod_uid, each.attempt)
            for each in sorted(snapshot.containers, key=_by_instance)
            if each.pod_uid in pods or query in _container_names(each) or _is_id(query, each.id)
        ]
        sandboxes = [
            self._other(ItemKind.SANDBOX, each.id, sandbox_name(each), each.uid, each.attempt)
            for each in sorted(snapshot.sandboxes, key=_by_sandbox)
            if each.uid in pods or _is_id(query, each.id)
        ]
        logs = [
            self._other(ItemKind.POD_LOG_DIRECTORY, each.name, each.name, each.name.rpartition("_")[2])
            for each in sorted(snapshot.pod_log_directories, key=attrgetter("name"))
            if each.name == query or each.name.rpartition("_")[2] in pods
        ]
        links = [
            self._other(ItemKind.CONTAINER_LOG_LINK, each.name, each.name, "")
            for each in sorted(snapshot.dead_log_links, key=attrgetter("name"))
            if each.name == query
        ]
        return [each for each in (*containers, *sandboxes, *logs, *links) if each is not None]

    def _other(
        self, kind: ItemKind, item_id: str, name: str, uid: str, attempt: int | None = None
    ) -> Explanation | None:
        decision = self._decided.get((kind, item_id))
        if decision is None:
            return None
        code, details = decision.reason.code, decision.reason.details
        at = None
        if code in (ReasonCode.CREATED_RECENTLY, ReasonCode.MODIFIED_RECENTLY, ReasonCode.BOOTED_RECENTLY):
            age_s, minimum_s = details.get("age_s"), details.get("minimum_s")
            if isinstance(age_s, int | float) and isinstance(minimum_s, int | float):
                at = self._snapshot.observed_at + timedelta(seconds=minimum_s - age_s)
        when = "in the next pass" if _is_removed(decision) else condition_of(decision.reason)
        pod = self._statuses.get(uid)
        return Explanation(decision, attempt, names=(name, item_id), when=when, eligible_at=at, pod=pod)

    def _image_when(self, image: Image, decision: Decision, also: Sequence[Reason], users: ImageUsers) -> str:
        if _is_removed(decision):
            return f"in the next pass, as number {self._removals.index(decision) + 1} of {len(self._removals)}"
        containers, sandboxes = users.containers.get(image.id, ()), users.sandboxes.get(image.id, ())
        users_removed = all(self._removes(ItemKind.CONTAINER, each.id) for each in containers) and all(
            self._removes(ItemKind.SANDBOX, each.id) for each in sandboxes
        )
        return image_condition(
            (decision.reason, *also),
            self._policy.images,
            by_use=self._by_use(decision),
            users_removed=users_removed,
            order=self._place(image),
        )

    def _place(self, image: Image) -> str:
        """Return the place of an image in removal order; empty for an image that is removed after all others."""
        policy, snapshot = self._policy.images, self._snapshot
        protection = policy.protection
        last = irreplaceable_images(snapshot, protection.unreachable_registries)
        if protection.irreplaceable is Irreplaceable.LAST and image.id in last:
            return ""
        if not policy.untagged_first:
            return "in order of use"
        if image.id in untagged_images(snapshot):
            return "in order of use, before all images with a tag"
        return "in order of use, after all images without a tag"

    def _by_use(self, decision: Decision) -> str:
        """Return the text of the filesystem usage at which the high threshold would cause removal of an image."""
        removals = self._everything.removals
        place = next((number for number, each in enumerate(removals) if each.id == decision.id), None)
        if place is None:
            kept = next((each for each in self._everything.decisions if each.id == decision.id), decision)
            return condition_of_image(kept.reason)
        earlier = removals[:place]
        filesystem = self._filesystem_of(decision)
        path, observed = filesystem.path if filesystem else "", self._snapshot.image_filesystem
        if filesystem is not None:
            earlier, observed = tuple(each for each in earlier if each.bytes_on(path)), filesystem.observed
        frees = sum((each.bytes_on(path) if path else each.frees_bytes) or 0 for each in earlier)
        percent = self._policy.images.high_threshold_percent
        words = f"once imagefs{f' {path}' if path else ''} is {percent}% full"
        missing = 0 if observed is None else observed.bytes_until(percent)
        if missing:
            words += f", {format_bytes(missing)} more than now"
        if not earlier:
            return f"{words}; it would be removed first"
        which = "before it in order" if self._policy.images.untagged_first else "less recently used"
        return f"{words}, and removing the {len(earlier)} {which} ({format_bytes(frees)}) is not enough"

    def _filesystem_of(self, decision: Decision) -> ImageFilesystem | None:
        """Return the fullest image filesystem on which the image frees space; ``None`` with one image filesystem."""
        found = [each for each in self._snapshot.image_filesystems if decision.bytes_on(each.path)]
        return max(found, key=lambda each: each.observed.used_percent if each.observed else 0, default=None)

    def _image_eligible_at(self, image: Image, decision: Decision, also: Sequence[Reason]) -> datetime | None:
        if _is_removed(decision):
            return None
        if decision.reason.code not in _BY_USE:
            return eligible_at((decision.reason, *also))
        usage, maximum_s = self._snapshot.image_usage.get(image.id), self._policy.images.maximum_unused_age_s
        observed_since = self._snapshot.image_use_observed_since
        if maximum_s > 0 and usage is not None and observed_since is not None:
            return unused_since(usage, observed_since) + timedelta(seconds=maximum_s)
        return None


def _is_removed(decision: Decision) -> bool:
    return decision.verdict is Verdict.REMOVE


def _sharing(storage: StorageGraph | None, image: Image, images: Iterable[Image]) -> Sharing | None:
    indexes = storage.by_image.get(image.id) if storage is not None else None
    if storage is None or indexes is None:
        return None
    own, common = set(indexes), {}
    names = {each.id: each.name for each in images}
    shared: set[int] = set()
    for other, theirs in storage.by_image.items():
        if other == image.id:
            continue
        both = own.intersection(theirs)
        if both:
            shared |= both
            common[names.get(other, other)] = sum(storage.pieces[index].size_bytes for index in both)
    kinds: Counter[str] = Counter()
    for index in own:
        piece = storage.pieces[index]
        kinds.update(dict.fromkeys({kind.value for kind in piece.references}, piece.size_bytes))
    shared |= {index for index in own if storage.pieces[index].references}
    return Sharing(
        unique_bytes=sum(storage.pieces[index].size_bytes for index in own - shared),
        shared_bytes=sum(storage.pieces[index].size_bytes for index in shared),
        with_images=tuple(sorted(common.items(), key=lambda each: (-each[1], each[0]))),
        with_others=tuple(sorted(kinds.items(), key=lambda each: (-each[1], each[0]))),
    )


def _is_id(query: str, item_id: str) -> bool:
    return len(query) >= _SHORTEST_ID and item_id.startswith(query)


def _by_instance(container: Container) -> tuple[str, int, str]:
    """Sort key: by name, newest attempt first, then by id."""
    return container.display_name, -container.attempt, container.id


def _by_sandbox(sandbox: Sandbox) -> tuple[str, int, str]:
    """Sort key: by name, newest attempt first, then by id."""
    return sandbox_name(sandbox), -sandbox.attempt, sandbox.id


def _pod_names(sandbox: Sandbox) -> tuple[str, ...]:
    return sandbox.uid, sandbox.name, f"{sandbox.namespace}/{sandbox.name}"


def _pod_names_of(container: Container) -> tuple[str, ...]:
    return container.pod_uid, container.pod_name, f"{container.pod_namespace}/{container.pod_name}"


def _container_names(container: Container) -> tuple[str, ...]:
    pod = f"{container.pod_name}/{container.name}"
    return container.name, pod, f"{container.pod_namespace}/{pod}"
