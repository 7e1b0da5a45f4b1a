"""State of a garbage collection pass between its rounds."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from nodeagent.act.gc.outcomes import Outcome, PassReport, bytes_in_undo_windows
from nodeagent.plan.decision import ItemKind
from nodeagent.plan.gc.pass_limits import Spent
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from nodeagent.act.gc.outcomes import MeasuredFilesystem, PassEnd, Result
    from nodeagent.act.gc.preview import Preview
    from nodeagent.plan.decision import Plan


def new_pass_id(started_at: datetime) -> str:
    """Return a new unique id of a pass or an eviction: its start time and six random hexadecimal digits."""
    return f"{started_at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


class PassProgress:
    """Plans, results and warnings of a pass so far."""

    def __init__(self, started_at: datetime, preview: Preview, trigger: str) -> None:
        self.id = new_pass_id(started_at)
        self.started_at = started_at
        self.preview = preview
        self.trigger = trigger
        self.rounds = 0
        self.collected_bytes = 0
        self.settled_s = 0.0
        self.plans: list[Plan] = []
        self.results: list[Result] = []
        self.warnings: list[str] = []
        self.last_plan: Plan | None = None
        self.end: tuple[PassEnd, str] | None = None

    def failed_images(self) -> dict[str, str]:
        """Return the cause of each failed or skipped image removal of this pass, by image id."""
        return {
            result.decision.id: result.detail
            for result in self.results
            if result.decision.kind is ItemKind.IMAGE and result.outcome in (Outcome.FAILED, Outcome.CHANGED)
        }

    @property
    def undo_bytes(self) -> int:
        """Predicted bytes of removed images in their undo window."""
        return bytes_in_undo_windows(self.results)

    def end_undo(self) -> int:
        """Mark the undo windows of this pass as ended; return the predicted bytes of their images."""
        size_bytes = self.undo_bytes
        self.results = [
            replace(each, undo_until=None, detail="undo window ended: more space is needed")
            if each.undo_until
            else each
            for each in self.results
        ]
        return size_bytes

    def removed_ids(self) -> frozenset[str]:
        """Return the ids of the removed items."""
        return frozenset(
            result.decision.id for result in self.results if result.outcome in (Outcome.DONE, Outcome.GONE)
        )

    def spent(self) -> Spent:
        """Return the number and the bytes of removed images, which count against the limits per pass."""
        done = [
            result.decision
            for result in self.results
            if result.decision.kind is ItemKind.IMAGE and result.outcome is Outcome.DONE
        ]
        return Spent(images=len(done), size_bytes=sum(decision.frees_bytes or 0 for decision in done))

    def report(
        self,
        end: tuple[PassEnd, str],
        *,
        duration_s: float,
        dry_run: bool,
        measured: Sequence[MeasuredFilesystem],
    ) -> PassReport:
        """Return the report of the pass; ``measured`` are the image filesystems after the last removal, if measured."""
        before = self.preview.snapshot.image_filesystem
        after = next((each.after for each in measured if before is not None and each.before.path == before.path), None)
        return PassReport(
            id=self.id,
            scope=self.preview.scope.value,
            trigger=self.trigger,
            started_at=self.started_at,
            duration_s=duration_s,
            dry_run=dry_run,
            plans=tuple(self.plans),
            results=tuple(self.results),
            end=end[0],
            end_detail=end[1],
            before=before,
            after=after,
            warnings=tuple(self.warnings),
            collected_bytes=self.collected_bytes,
            settled_s=self.settled_s,
            filesystems=tuple(measured) if self.preview.snapshot.image_filesystems else (),
        )
