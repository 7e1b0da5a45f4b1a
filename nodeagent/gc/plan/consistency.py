"""Consistency checks of the CRI lists, suspension of removals by contradictory lists, and the deletion plan of leaks.

With an incomplete list, used images appear unused and active pods appear deleted. A mismatch is only a suspicion at
first, since the lists are read one after the other while the node changes. The observer confirms a suspicion by a
second listing and by the CRI status of the objects concerned (``gc.snapshot.lists``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.gc.plan.image_users import ImageIndex, bare_id, image_references
from nodeagent.last_result import keep_last_result
from nodeagent.model.clock import TRUSTED, ClockTrust, clock_untrusted
from nodeagent.model.decision import Accounting, Decision, Detail, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.model.runtime import HeldContent, PieceKind, ReferenceKind, UnlistedContent, UnreferencedPiece
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.model.runtime import Container, Image, ListContradiction, Sandbox

_ID: Final = attrgetter("id")
_SANDBOX_ID: Final = attrgetter("sandbox_id")
_IMAGE_REF: Final = attrgetter("image_ref")
_IMAGE: Final = attrgetter("image_ref", "image_id")

EMPTY_PODS_MIN: Final = 2
"""Minimum number of ready sandboxes without containers for a suspicion, if at least half of all are without."""


class SuspicionKind(StrEnum):
    """Kind of mismatch between the CRI lists."""

    DUPLICATE_ID = "duplicate-id"
    ID_MISSING = "id-missing"
    SANDBOX_UNLISTED = "sandbox-unlisted"
    IMAGE_UNLISTED = "image-unlisted"
    OBJECT_UNLISTED = "object-unlisted"
    PODS_WITHOUT_CONTAINERS = "pods-without-containers"


class Suspicion(Record):
    """One mismatch between the CRI lists.

    Attributes:
        kind: kind of the mismatch.
        id: id or reference of the missing or inconsistent object.
        detail: description of the mismatch, for display.
    """

    kind: SuspicionKind
    id: str
    detail: str


class RuntimeLists(Record):
    """The CRI lists of one observation.

    Attributes:
        images: all images; ``None`` if images were not listed.
        containers: all containers.
        sandboxes: all sandboxes, listed together with the containers.
        existing: ids of containers and sandboxes from sources other than the CRI lists: cgroups, containerd records.
        running_known: whether ``existing`` contains every running container; false if containers may run in virtual
            machines.
    """

    images: tuple[Image, ...] | None
    containers: tuple[Container, ...]
    sandboxes: tuple[Sandbox, ...]
    existing: frozenset[str] = frozenset()
    running_known: bool = False


class ListedIds(NamedTuple):
    """Ids of the containers, sandboxes and images in the CRI lists of one observation."""

    containers: frozenset[str]
    sandboxes: frozenset[str]
    images: frozenset[str]

    @classmethod
    def of(cls, lists: RuntimeLists) -> ListedIds:
        """Return the ids of all objects in these lists."""
        # ``map`` takes half the time of a comprehension; a large node has 35,000 ids.
        return cls(_container_ids(lists.containers), _sandbox_ids(lists.sandboxes), _image_ids(lists.images or ()))


def _ids(items: tuple[Container | Sandbox | Image, ...]) -> frozenset[str]:
    return frozenset(map(_ID, items))


_container_ids, _sandbox_ids, _image_ids = keep_last_result(_ids), keep_last_result(_ids), keep_last_result(_ids)


def find_suspicions(lists: RuntimeLists, ids: ListedIds | None = None) -> tuple[Suspicion, ...]:
    """Return the mismatches between the lists, in a fixed order; ``ids`` are the precomputed ids of ``lists``."""
    ids = ListedIds.of(lists) if ids is None else ids
    sandbox_ids = frozenset(map(_SANDBOX_ID, lists.containers))
    return (
        *_duplicates(lists, ids),
        *_without_id(ids),
        *_without_sandbox(lists, sandbox_ids - ids.sandboxes),
        *_without_image(lists, ids),
        *_objects_unlisted(lists, ids),
        *_pods_without_containers(lists, ids.sandboxes - sandbox_ids),
    )


def _duplicates(lists: RuntimeLists, listed: ListedIds) -> Iterator[Suspicion]:
    is_each_once = len(listed.containers) == len(lists.containers) and len(listed.sandboxes) == len(lists.sandboxes)
    if is_each_once and listed.containers.isdisjoint(listed.sandboxes):
        return
    ids = [each.id for each in lists.containers] + [each.id for each in lists.sandboxes]
    for each, count in sorted(Counter(ids).items()):
        if count > 1:
            yield Suspicion(SuspicionKind.DUPLICATE_ID, each, f"id {each[:12]} is listed {count} times")


def _without_id(ids: ListedIds) -> Iterator[Suspicion]:
    """Yield a suspicion for each list that contains an object without an id, which a removal could not address."""
    for kind, listed in (("image", ids.images), ("container", ids.containers), ("sandbox", ids.sandboxes)):
        if "" in listed:
            yield Suspicion(SuspicionKind.ID_MISSING, kind, f"a listed {kind} has no id")


def _without_sandbox(lists: RuntimeLists, unlisted: frozenset[str]) -> Iterator[Suspicion]:
    """Yield a suspicion for each unlisted sandbox of a container; an empty id in ``unlisted`` is ignored."""
    if unlisted <= {""}:
        return
    missing = {each.sandbox_id: each for each in lists.containers if each.sandbox_id and each.sandbox_id in unlisted}
    for sandbox_id, container in sorted(missing.items(), key=itemgetter(0)):
        detail = f"sandbox {sandbox_id[:12]} of container {container.id[:12]} is not listed"
        yield Suspicion(SuspicionKind.SANDBOX_UNLISTED, sandbox_id, detail)


def _without_image(lists: RuntimeLists, listed: ListedIds) -> Iterator[Suspicion]:
    """Yield a suspicion for each unlisted image that a container references."""
    if lists.images is None or frozenset(map(_IMAGE_REF, lists.containers)) <= listed.images:
        return
    ids = set(map(bare_id, listed.images))
    unlisted = {pair for pair in set(map(_IMAGE, lists.containers)) if ids.isdisjoint(map(bare_id, pair))}
    candidates = {
        tuple(filter(None, image_references(each))): each
        for each in (lists.containers if unlisted else ())
        if _IMAGE(each) in unlisted
    }
    if not candidates:
        return
    index = ImageIndex(lists.images)
    for references, container in sorted(candidates.items()):
        if references and not index.resolve_all(references):
            detail = f"image {references[0]} of container {container.id[:12]} is not listed"
            yield Suspicion(SuspicionKind.IMAGE_UNLISTED, references[0], detail)


def _objects_unlisted(lists: RuntimeLists, ids: ListedIds) -> Iterator[Suspicion]:
    for each in sorted(lists.existing - ids.containers - ids.sandboxes):
        detail = f"container {each[:12]} is not listed, but running or in the records of the runtime"
        yield Suspicion(SuspicionKind.OBJECT_UNLISTED, each, detail)


def _pods_without_containers(lists: RuntimeLists, unused: frozenset[str]) -> Iterator[Suspicion]:
    """Yield a suspicion if too many ready sandboxes have no container.

    The check is skipped if ``existing`` has all running containers. A few sandboxes without a container are normal,
    such as during an image pull. ``unused`` are the ids of sandboxes without a container.
    """
    if lists.running_known or not unused:
        return
    ready = [each for each in lists.sandboxes if each.ready]
    empty = [each for each in ready if each.id in unused]
    if empty:  # rare: reading the UIDs of all containers is slow
        uids = {each.pod_uid for each in lists.containers}
        empty = [each for each in empty if each.uid not in uids]
    if len(empty) >= EMPTY_PODS_MIN and 2 * len(empty) >= len(ready):
        detail = f"{len(empty)} of {len(ready)} ready sandboxes have no listed container"
        yield Suspicion(SuspicionKind.PODS_WITHOUT_CONTAINERS, "", detail)


def withheld(plan: Plan, contradictions: Sequence[ListContradiction], *, by_images: bool = False) -> Plan:
    """Return the plan; without removals and blocked if the CRI lists contradict each other.

    Args:
        plan: the plan made from the CRI lists.
        contradictions: confirmed contradictions between the CRI lists.
        by_images: whether the plan depends on the image list, so that contradictions of images count as well.
    """
    relevant = [each.detail for each in contradictions if by_images or not each.images_only]
    if not relevant:
        return plan
    more = f" and {len(relevant) - 1} more" if len(relevant) > 1 else ""
    detail = f"{relevant[0]}{more}"
    reason = Reason(ReasonCode.RUNTIME_INCONSISTENT, {"detail": detail})
    decisions = [
        replace(each, verdict=Verdict.KEEP, reason=reason) if each.verdict is Verdict.REMOVE else each
        for each in plan.decisions
    ]
    return replace(plan, decisions=tuple(decisions), pending_bytes=0, blocked=reason.sentence, ends_undo=False)


def persistent(first: Collection[Suspicion], second: Sequence[Suspicion]) -> tuple[Suspicion, ...]:
    """Return the suspicions of the second listing that were found in the first listing too, by kind and id."""
    known = {(each.kind, each.id) for each in first}
    return tuple(each for each in second if (each.kind, each.id) in known)


_KINDS = {PieceKind.BLOB: ItemKind.BLOB, PieceKind.SNAPSHOT: ItemKind.SNAPSHOT}
_HOLDERS = {ReferenceKind.LEASE: ItemKind.LEASE, ReferenceKind.UNLISTED_IMAGE: ItemKind.IMAGE_NAME}

NOTHING_KEPT: Final[Mapping[str, Reason]] = MappingProxyType({})
ALL_LEASES: Final = "leases"
"""Name that includes all leases without expiry."""


def leak_kind(held: HeldContent) -> ItemKind | None:
    """Return the kind of a holder that is a leak; ``None`` for other holders."""
    return _HOLDERS.get(held.kind) if held.is_stuck and held.kind is not None else None


def plan_leaks(  # noqa: PLR0913 - one argument for each option
    found: UnlistedContent,
    now: datetime,
    *,
    minimum_age_s: float,
    rooted: bool,
    include: Collection[str] = (),
    clock: ClockTrust = TRUSTED,
    kept: Mapping[str, Reason] = NOTHING_KEPT,
) -> Plan:
    """Return the plan that deletes leaks: content that no image, container or running client uses.

    Leaks are unreferenced blobs and snapshots, names of images with missing blobs, and leases of other programs without
    expiry. Items younger than the minimum age are kept, since a client may be about to reference them. Items of unknown
    age are kept. A snapshot is deleted after its child snapshots, and kept if a child is kept. For items created before
    the last jump of the wall clock, the age counts from the jump.

    Args:
        found: content that no listed image references.
        now: time of the reading.
        minimum_age_s: minimum age of deleted items in seconds.
        rooted: whether to delete pieces with a ``containerd.io/gc.root`` label.
        include: leases to delete, or ``ALL_LEASES``. Without expiry, the lease of a client that is stopped cannot be
            distinguished from that of a client in use, such as a build cache.
        clock: trust in the wall clock.
        kept: reasons to keep image names, by name of the holder; see ``image_protection.kept_names``.
    """
    pieces = found.unreferenced
    reasons: dict[tuple[str, str], Reason | None] = {}
    for each in pieces:
        reason = Reason(ReasonCode.GC_ROOT_LABEL) if each.rooted and not rooted else None
        reasons[each.snapshotter, each.piece.key] = reason or _too_young(each.created_at, now, minimum_age_s, clock)
    parents = {(each.snapshotter, each.piece.key): (each.snapshotter, each.parent) for each in pieces if each.parent}
    for name, reason in list(reasons.items()):
        parent = parents.get(name) if reason is not None else None
        while parent in reasons:
            reasons[parent] = reasons[parent] or Reason(ReasonCode.SNAPSHOT_HAS_CHILD, {"child": name[1]})
            parent = parents.get(parent)

    def depth(each: UnreferencedPiece) -> int:
        steps, name = 0, parents.get((each.snapshotter, each.piece.key))
        while name is not None:
            steps, name = steps + 1, parents.get(name)
        return steps

    ordered = sorted(pieces, key=lambda each: (each.piece.kind is PieceKind.BLOB, -depth(each), each.piece.key))
    decisions = []
    for each in ordered:
        reason = reasons[each.snapshotter, each.piece.key]
        verdict = Verdict.REMOVE if reason is None else Verdict.KEEP
        frees = 0 if each.piece.references else each.piece.size_bytes
        inodes = 0 if each.piece.references else each.piece.inodes
        given = reason or Reason(ReasonCode.UNREFERENCED, _age(each, now))
        decisions.append(
            Decision(_KINDS[each.piece.kind], each.piece.key, piece_name(each), verdict, given, frees, inodes)
        )
    for held in found.held:
        if (kind := leak_kind(held)) is not None:
            keep = _too_young(held.created_at, now, minimum_age_s, clock)
            keep = _foreign(held, include) or kept.get(held.name, keep)
            verdict = Verdict.REMOVE if keep is None else Verdict.KEEP
            given = keep or _stuck(held, now)
            decisions.append(Decision(kind, held.name, held.name, verdict, given, held.size_bytes, held.inodes))
    decisions.sort(key=lambda decision: decision.verdict is not Verdict.REMOVE)
    return Plan("leaks", now, tuple(decisions), accounting=Accounting.LAYERS)


def _too_young(created_at: datetime | None, now: datetime, minimum_age_s: float, clock: ClockTrust) -> Reason | None:
    """Return the reason to keep an item that is younger than the minimum age, or of unknown age."""
    if created_at is None:
        return Reason(ReasonCode.AGE_UNKNOWN)
    since = max(created_at, clock.jumped_at) if clock.jumped_at is not None else created_at
    age_s = (now - since).total_seconds()
    if age_s < minimum_age_s:
        return Reason(ReasonCode.CREATED_RECENTLY, {"age_s": max(0.0, age_s), "minimum_s": minimum_age_s})
    return clock_untrusted(clock) if minimum_age_s > 0 else None


def _foreign(held: HeldContent, include: Collection[str]) -> Reason | None:
    """Return the reason to keep a lease that is not included; ``None`` for other objects."""
    if held.kind is not ReferenceKind.LEASE or held.name in include or ALL_LEASES in include:
        return None
    return Reason(ReasonCode.FOREIGN_LEASE, {"lease": held.name})


def _stuck(held: HeldContent, now: datetime) -> Reason:
    """Return the reason to delete a holder, with the time of creation, by which the remover recognises the holder."""
    created_at = held.created_at or now
    details: dict[str, Detail] = {"age_s": (now - created_at).total_seconds(), "created_at": created_at}
    if held.kind is ReferenceKind.LEASE:
        return Reason(ReasonCode.LEASE_WITHOUT_EXPIRY, details)
    return Reason(ReasonCode.IMAGE_INCOMPLETE, {"missing": held.detail, "target": held.target, **details})


def _age(each: UnreferencedPiece, now: datetime) -> dict[str, Detail]:
    age_s = (now - each.created_at).total_seconds() if each.created_at is not None else 0.0
    return {"age_s": age_s, "rooted": each.rooted}


def piece_name(each: UnreferencedPiece) -> str:
    """Return the display name of a piece: the digest of a blob, or snapshotter and key of a snapshot."""
    return f"{each.snapshotter}/{each.piece.key}" if each.snapshotter else each.piece.key
