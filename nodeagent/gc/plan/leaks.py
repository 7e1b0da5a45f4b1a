"""Deletion plan for unreferenced blobs and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import TRUSTED, PieceKind
from nodeagent.model.clock_age import clock_untrusted
from nodeagent.model.decision import Accounting, Decision, ItemKind, Plan, Reason, ReasonCode, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from nodeagent.model import ClockTrust, UnreferencedPiece
    from nodeagent.model.decision import Detail

_KINDS = {PieceKind.BLOB: ItemKind.BLOB, PieceKind.SNAPSHOT: ItemKind.SNAPSHOT}


def plan_leaks(
    found: Sequence[UnreferencedPiece],
    now: datetime,
    *,
    minimum_age_s: float,
    rooted: bool,
    clock: ClockTrust = TRUSTED,
) -> Plan:
    """Return the plan that deletes unreferenced blobs and snapshots ("pieces").

    Pieces younger than the minimum age are kept, since a client may be about to reference them. Pieces of unknown age
    are kept and, unless ``rooted``, pieces with a ``containerd.io/gc.root`` label. A snapshot is deleted after its
    child snapshots, and kept if a child is kept. For pieces created before the last jump of the wall clock, the age
    counts from the jump.
    """
    reasons = {
        (each.snapshotter, each.piece.key): _keep_reason(each, now, minimum_age_s, clock, rooted=rooted)
        for each in found
    }
    parents = {(each.snapshotter, each.piece.key): (each.snapshotter, each.parent) for each in found if each.parent}
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

    ordered = sorted(found, key=lambda each: (each.piece.kind is PieceKind.BLOB, -depth(each), each.piece.key))
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
    decisions.sort(key=lambda decision: decision.verdict is not Verdict.REMOVE)
    return Plan("leaks", now, tuple(decisions), accounting=Accounting.LAYERS)


def _keep_reason(
    each: UnreferencedPiece, now: datetime, minimum_age_s: float, clock: ClockTrust, *, rooted: bool
) -> Reason | None:
    if each.rooted and not rooted:
        return Reason(ReasonCode.GC_ROOT_LABEL)
    if each.created_at is None:
        return Reason(ReasonCode.AGE_UNKNOWN)
    created_at = max(each.created_at, clock.jumped_at) if clock.jumped_at is not None else each.created_at
    age_s = (now - created_at).total_seconds()
    if age_s < minimum_age_s:
        return Reason(ReasonCode.CREATED_RECENTLY, {"age_s": max(0.0, age_s), "minimum_s": minimum_age_s})
    return clock_untrusted(clock) if minimum_age_s > 0 else None


def _age(each: UnreferencedPiece, now: datetime) -> dict[str, Detail]:
    age_s = (now - each.created_at).total_seconds() if each.created_at is not None else 0.0
    return {"age_s": age_s, "rooted": each.rooted}


def piece_name(each: UnreferencedPiece) -> str:
    """Return the display name of a piece: the digest of a blob, or snapshotter and key of a snapshot."""
    return f"{each.snapshotter}/{each.piece.key}" if each.snapshotter else each.piece.key
