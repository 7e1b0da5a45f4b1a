"""Undo window of a pass: its duration, and the image removals that can be undone within the window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.model.decision import ItemKind, ReasonCode
from nodeagent.record import Record

if TYPE_CHECKING:
    from datetime import timedelta

    from nodeagent.gc.pass_state import Preview
    from nodeagent.model.decision import Decision
    from nodeagent.settings.settings import Settings

MANUAL_TRIGGERS: Final = frozenset({"command", "control", "apply"})
"""Triggers of passes that a user requested."""


class UndoTerms(Record):
    """The undo window of the removals of a pass.

    Attributes:
        pass_id: id of the pass.
        window: time for which a removal can be undone.
        only_by_age: whether only removals by maximum age have the window; all others free space immediately.
    """

    pass_id: str
    window: timedelta
    only_by_age: bool

    def covers(self, decision: Decision) -> bool:
        """Return whether a removal has the window."""
        if decision.kind is not ItemKind.IMAGE:
            return False
        return not self.only_by_age or decision.reason.code is ReasonCode.UNUSED_TOO_LONG


def offered_window_s(settings: Settings, preview: Preview) -> float:
    """Return the undo window in seconds of the image removals of a preview that a user requests; 0 without a window.

    Removals through CRI, and removals without containerd's records, free space immediately.
    """
    by_name = settings.bulk_removal and preview.snapshot.storage is not None
    removes_images = any(each.kind is ItemKind.IMAGE for each in preview.removals)
    return settings.undo_window_s if by_name and removes_images else 0.0


def undo_terms(pass_id: str, trigger: str, window: timedelta, *, space_needed: bool) -> UndoTerms | None:
    """Return the undo window of a pass; ``None`` if its removals free space immediately.

    Args:
        pass_id: id of the pass.
        trigger: trigger of the pass.
        window: the configured window.
        space_needed: whether the filesystem is above its threshold. A pass of the daemon then frees space immediately;
            in a pass requested by a user, the window ends with the next pass that needs the space.
    """
    manual = trigger in MANUAL_TRIGGERS
    if window.total_seconds() <= 0 or (space_needed and not manual):
        return None
    return UndoTerms(pass_id, window, only_by_age=not manual)
