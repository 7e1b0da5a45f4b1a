"""Documents of the undo of image removals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nodeagent.api.common import Document, Filesystem, Number, Part, RecordedReason, Runtime, encode_line
from nodeagent.gc.documents.passes import DecisionDocument, DriftDocument, PreviewDocument, Report
from nodeagent.gc.plan import saved_plan
from nodeagent.gc.restore import UndoResult, by_image
from nodeagent.model.decision import ItemKind, Verdict
from nodeagent.record import Time
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.gc import restore as undo
    from nodeagent.gc.pass_state import Preview as GCPreview
    from nodeagent.runtime.leases import UndoableRemoval


class RemovedImage(Part, frozen=True, kw_only=True):
    """A removed image with its names before the removal, without its id."""

    id: str
    names: tuple[str, ...]


class UndoablePass(Part, frozen=True, kw_only=True):
    """The image removals of a pass that can be undone.

    Attributes:
        removed_at: time of the first removal; ``None`` if unknown.
        until: end of the undo window.
        size_bytes: predicted bytes that the end of the window frees; ``None`` if unknown.
    """

    pass_id: str
    removed_at: Time | None
    until: Time | None
    size_bytes: int | None
    images: tuple[RemovedImage, ...]


class UndoList(Document, frozen=True, kw_only=True, tag=SchemaId.UNDO_LIST.value):
    """The passes with image removals that can be undone, newest first."""

    passes: tuple[UndoablePass, ...]

    @classmethod
    def of(cls, removals: Iterable[UndoableRemoval]) -> UndoList:
        """Return the document of undoable removals, newest first, by pass."""
        grouped: dict[str, list[UndoableRemoval]] = {}
        for each in removals:
            grouped.setdefault(each.pass_id, []).append(each)
        return cls(passes=tuple(_pass(pass_id, each) for pass_id, each in grouped.items()))


def _pass(pass_id: str, removals: list[UndoableRemoval]) -> UndoablePass:
    sizes = [each.size_bytes for each in removals]
    names = [name for each in removals for name in each.names]
    return UndoablePass(
        pass_id=pass_id,
        removed_at=min((each.removed_at for each in removals if each.removed_at is not None), default=None),
        until=min((each.expires_at for each in removals if each.expires_at is not None), default=None),
        size_bytes=None if None in sizes else sum(each or 0 for each in sizes),
        images=tuple(RemovedImage(id=image_id, names=own) for image_id, own in by_image(names)),
    )


class Undone(Document, frozen=True, kw_only=True, tag=SchemaId.UNDO.value):
    """The outcome of an undo.

    Attributes:
        pass_id: id of the pass whose image removals were undone.
        undo_id: id of the undo in the history.
    """

    pass_id: str
    undo_id: str
    started_at: Time
    duration_s: Number
    results: tuple[UndoResult, ...]

    @classmethod
    def of(cls, value: undo.UndoReport) -> Undone:
        """Return the document of an undo."""
        return cls.from_value(value, undo_id=value.id, duration_s=round(value.duration_s, 4))


class Apply(Document, frozen=True, kw_only=True, tag=SchemaId.APPLY.value):
    """The outcome of applying a saved plan; ``report`` is ``None`` in a dry run."""

    plan_id: str
    drift: tuple[DriftDocument, ...]
    preview: PreviewDocument
    report: Report | None


class SavedItemDocument(Part, frozen=True, kw_only=True):
    """One item of a saved plan."""

    kind: ItemKind
    id: str
    name: str
    verdict: Verdict
    reason: RecordedReason
    frees_bytes: int | None

    @classmethod
    def of_optional(cls, value: saved_plan.SavedItem | None) -> SavedItemDocument | None:
        """Return the document form of an item; ``None`` for ``None``."""
        if value is None:
            return None
        reason = RecordedReason(code=value.code, sentence=value.sentence)
        return cls.from_value(value, reason=reason)


class DifferenceDocument(Part, frozen=True, kw_only=True):
    """An item with different decisions in two plans; ``before`` or ``after`` is ``None`` if absent."""

    kind: ItemKind | None
    id: str | None
    name: str | None
    before: SavedItemDocument | None
    after: SavedItemDocument | None

    @classmethod
    def of(cls, value: saved_plan.Difference) -> DifferenceDocument:
        """Return the document form of a difference."""
        known = value.after or value.before
        return cls(
            kind=known.kind if known else None,
            id=known.id if known else None,
            name=known.name if known else None,
            before=SavedItemDocument.of_optional(value.before),
            after=SavedItemDocument.of_optional(value.after),
        )


class ComparedPlan(Part, frozen=True, kw_only=True):
    """One of two compared plans."""

    id: str
    made_at: Time


class PlanDiff(Document, frozen=True, kw_only=True, tag=SchemaId.PLAN_DIFF.value):
    """The differences between two saved plans."""

    before: ComparedPlan
    after: ComparedPlan
    differences: tuple[DifferenceDocument, ...]

    @classmethod
    def of(
        cls, before: saved_plan.SavedPlan, after: saved_plan.SavedPlan, differences: Iterable[saved_plan.Difference]
    ) -> PlanDiff:
        """Return the document of a comparison."""
        return cls(
            before=ComparedPlan(id=before.id, made_at=before.made_at),
            after=ComparedPlan(id=after.id, made_at=after.made_at),
            differences=tuple(map(DifferenceDocument.of, differences)),
        )


def encode_saved_plan(preview: GCPreview, *, node: str, expires_at: datetime, agent_version: str) -> dict[str, Any]:
    """Return the document of a plan to save.

    The document is not a struct, since its id is a digest of exactly these keys and values. The decoder is in
    ``gc.plan.saved_plan``.
    """
    snapshot = preview.snapshot
    decisions = [each for plan in preview.plans for each in plan.decisions]
    removals_first = sorted(decisions, key=lambda each: each.verdict is not Verdict.REMOVE)
    body: Mapping[str, Any] = {
        "made_at": snapshot.observed_at.isoformat(),
        "expires_at": expires_at.isoformat(),
        "agent_version": agent_version,
        "node": node,
        "runtime": Runtime.of(snapshot),
        "scope": preview.scope.value,
        "imagefs": Filesystem.of_optional(snapshot.image_filesystem),
        "frees_bytes": sum(plan.frees_bytes for plan in preview.plans),
        "warnings": [*snapshot.warnings, *(warning for plan in preview.plans for warning in plan.warnings)],
        "decisions": [DecisionDocument.of(each) for each in removals_first],
    }
    # converted through JSON, so that the digest covers the written text
    document = json.loads(encode_line(body))
    digests = saved_plan.item_digests(snapshot)
    for row, each in zip(document["decisions"], removals_first, strict=True):
        row["digest"] = digests[each.kind, each.id]
    return saved_plan.seal(document)
