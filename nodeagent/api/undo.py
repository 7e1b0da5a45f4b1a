"""Documents of the undo of image removals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.act.gc.restore import UndoOutcome, by_image
from nodeagent.api.codec import Document, Number, Part, Time
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.act.gc import restore as undo
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


class RestoredImage(Part, frozen=True, kw_only=True):
    """A removed image with the outcome of its undo.

    Attributes:
        outcome: ``restored``, ``present`` (all its names existed again before the undo) or ``failed``.
        detail: cause of the outcome; empty for an outcome without a cause.
    """

    id: str
    names: tuple[str, ...]
    outcome: UndoOutcome
    detail: str


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
    results: tuple[RestoredImage, ...]

    @classmethod
    def of(cls, value: undo.UndoReport) -> Undone:
        """Return the document of an undo."""
        return cls(
            pass_id=value.pass_id,
            undo_id=value.id,
            started_at=value.started_at,
            duration_s=round(value.duration_s, 4),
            results=tuple(
                RestoredImage(id=each.image_id, names=each.names, outcome=each.outcome, detail=each.detail)
                for each in value.results
            ),
        )
