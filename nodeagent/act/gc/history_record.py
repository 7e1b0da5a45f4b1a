"""History records of garbage collection passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.act.gc.outcomes import PassEnd
from nodeagent.plan.decision import ItemKind
from nodeagent.plan.gc.scope import Scope
from nodeagent.record import replace
from nodeagent.store.history import PastAction, PastPass
from nodeagent.store.write_ahead import PLANNED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.act.gc.outcomes import PassReport, Result
    from nodeagent.act.gc.undo import UndoReport
    from nodeagent.model import NodeSnapshot
    from nodeagent.plan.decision import Decision

UNDO: Final = "undo"
"""Trigger and reason of an undo in the history."""


def past_pass(report: PassReport, snapshot: NodeSnapshot, plan_id: str) -> PastPass:
    """Return the history record of a pass with every planned removal; image names are from ``snapshot``."""
    removed = {result.decision.id for result in report.results}
    names = {image.id: image.references for image in snapshot.images if image.id in removed} if removed else {}
    return PastPass(
        id=report.id,
        started_at=report.started_at,
        duration_s=report.duration_s,
        trigger=report.trigger,
        scope=report.scope,
        plan_id=plan_id,
        dry_run=report.dry_run,
        result=report.end.value,
        detail=report.end_detail,
        predicted_bytes=report.predicted_bytes,
        freed_bytes=report.freed_bytes,
        percent_before=report.before.used_percent if report.before else None,
        percent_after=report.after.used_percent if report.after else None,
        actions=tuple(past_action(result, names) for result in report.results),
        settled_s=report.settled_s,
    )


def past_undo(report: UndoReport, names: Mapping[str, str]) -> PastPass:
    """Return the history record of an undo; ``names`` are the display names of images, by id."""
    failed = len(report.failed)
    detail = f"undo of pass {report.pass_id}"
    actions = [
        PastAction(
            kind=ItemKind.IMAGE.value,
            item_id=each.image_id,
            name=names.get(each.image_id) or next(iter(each.names), each.image_id),
            references=each.names,
            outcome=each.outcome.value,
            detail=each.detail,
            reason=UNDO,
            sentence=detail,
            frees_bytes=None,
            duration_s=0.0,
        )
        for each in report.results
    ]
    return PastPass(
        id=report.id,
        started_at=report.started_at,
        duration_s=report.duration_s,
        trigger=UNDO,
        scope=Scope.IMAGES.value,
        plan_id="",
        dry_run=False,
        result="failed" if failed else PassEnd.COMPLETE.value,
        detail=f"{detail}: {failed} of {len(report.results)} images not restored" if failed else detail,
        predicted_bytes=0,
        freed_bytes=None,
        percent_before=None,
        percent_after=None,
        actions=tuple(actions),
    )


def planned_action(decision: Decision, names: Mapping[str, tuple[str, ...]]) -> PastAction:
    """Return the history record of a planned removal without an outcome; ``names`` are image names by image id."""
    return PastAction(
        kind=decision.kind.value,
        item_id=decision.id,
        name=decision.name,
        references=names.get(decision.id, ()) if decision.kind is ItemKind.IMAGE else (),
        outcome=PLANNED,
        detail="",
        reason=decision.reason.code.value,
        sentence=decision.reason.sentence,
        frees_bytes=decision.frees_bytes,
        duration_s=0.0,
    )


def past_action(result: Result, names: Mapping[str, tuple[str, ...]]) -> PastAction:
    """Return the history record of a removal with its outcome."""
    planned = planned_action(result.decision, names)
    return replace(planned, outcome=result.outcome.value, detail=result.detail, duration_s=result.duration_s)
