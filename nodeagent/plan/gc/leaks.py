"""Which blobs and snapshots that nothing holds may be deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import PieceKind
from nodeagent.plan.decision import Accounting, Decision, ItemKind, Plan, Reason, ReasonCode, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from nodeagent.model import UnreferencedPiece
    from nodeagent.plan.decision import Detail

_KINDS = {PieceKind.BLOB: ItemKind.BLOB, PieceKind.SNAPSHOT: ItemKind.SNAPSHOT}


def plan_leaks(found: Sequence[UnreferencedPiece], now: datetime, *, minimum_age_s: float, rooted: bool) -> Plan:
    """Choose what to delete of the pieces that no image, container, lease, write or other piece holds.

    Those younger than the bound stay, as what made them may still be at work, and so do those whose age is not known,
    and, unless ``rooted``, those that a label of their own keeps. A snapshot goes after those that lie on it; it stays
    while one of them does.
    """
    reasons = {
        (each.snapshotter, each.piece.key): _kept_because(each, now, minimum_age_s, rooted=rooted) for each in found
    }
    parents = {(each.snapshotter, each.piece.key): (each.snapshotter, each.parent) for each in found if each.parent}
    for name, reason in list(reasons.items()):
        below = parents.get(name) if reason is not None else None
        while below in reasons:
            reasons[below] = reasons[below] or Reason(ReasonCode.SNAPSHOT_HAS_CHILD, {"child": name[1]})
            below = parents.get(below)

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
        said = reason or Reason(ReasonCode.UNREFERENCED, _age(each, now))
        decisions.append(
            Decision(_KINDS[each.piece.kind], each.piece.key, piece_name(each), verdict, said, frees, inodes)
        )
    decisions.sort(key=lambda decision: decision.verdict is not Verdict.REMOVE)
    return Plan("leaks", now, tuple(decisions), accounting=Accounting.LAYERS)


def _kept_because(each: UnreferencedPiece, now: datetime, minimum_age_s: float, *, rooted: bool) -> Reason | None:
    if each.rooted and not rooted:
        return Reason(ReasonCode.GC_ROOT_LABEL)
    if each.created_at is None:
        return Reason(ReasonCode.AGE_UNKNOWN)
    age_s = (now - each.created_at).total_seconds()
    if age_s < minimum_age_s:
        return Reason(ReasonCode.CREATED_RECENTLY, {"age_s": max(0.0, age_s), "minimum_s": minimum_age_s})
    return None


def _age(each: UnreferencedPiece, now: datetime) -> dict[str, Detail]:
    age_s = (now - each.created_at).total_seconds() if each.created_at is not None else 0.0
    return {"age_s": age_s, "rooted": each.rooted}


def piece_name(each: UnreferencedPiece) -> str:
    """Return what to call a piece: a snapshot with its snapshotter."""
    return f"{each.snapshotter}/{each.piece.key}" if each.snapshotter else each.piece.key
