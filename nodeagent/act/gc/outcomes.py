"""What became of each planned removal, and of the pass as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.model import FsObservation
    from nodeagent.plan.decision import Decision, Plan


class Outcome(StrEnum):
    """What became of one planned removal. The values are part of the JSON output and of logs."""

    DONE = "done"
    GONE = "gone"
    CHANGED = "changed"
    FAILED = "failed"
    DRY_RUN = "dry-run"
    NOT_NEEDED = "not-needed"
    NOT_ATTEMPTED = "not-attempted"


class PassEnd(StrEnum):
    """How a pass came to its end."""

    COMPLETE = "complete"
    NOTHING_TO_DO = "nothing-to-do"
    SHORTFALL = "shortfall"
    CANCELLED = "cancelled"
    RUNTIME_LOST = "runtime-lost"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Result:
    """One planned removal and what became of it.

    Attributes:
        detail: why, where the outcome alone does not say.
        freed_bytes: what was confirmed to be freed by this one item; ``None`` where it was not measured.
        duration_s: how long it took.
    """

    decision: Decision
    outcome: Outcome
    detail: str = ""
    freed_bytes: int | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PassReport:
    """One pass: what was planned, what was done, and what it brought.

    Attributes:
        plans: the plan of each round; later rounds exist where items failed or less was freed than planned.
        before: the image filesystem as it was observed for the first plan.
        after: the same filesystem measured after the last removal; ``None`` in a dry run.
        collected_bytes: what nothing held and the runtime collected on request.
        end_detail: what was missing or went wrong, in a sentence; empty when all is well.
    """

    id: str
    scope: str
    trigger: str
    started_at: datetime
    duration_s: float
    dry_run: bool
    plans: tuple[Plan, ...]
    results: tuple[Result, ...]
    end: PassEnd
    end_detail: str = ""
    before: FsObservation | None = None
    after: FsObservation | None = None
    warnings: tuple[str, ...] = field(default=())
    collected_bytes: int = 0

    @property
    def removed(self) -> tuple[Result, ...]:
        """What is gone now, whoever removed it."""
        return tuple(result for result in self.results if result.outcome in (Outcome.DONE, Outcome.GONE))

    @property
    def failed(self) -> tuple[Result, ...]:
        """What could not be removed."""
        return tuple(result for result in self.results if result.outcome is Outcome.FAILED)

    @property
    def predicted_bytes(self) -> int:
        """What the removals that were really done, and the collection before them, were expected to free."""
        return self.collected_bytes + sum(result.decision.frees_bytes or 0 for result in self.removed)

    @property
    def freed_bytes(self) -> int | None:
        """How much more is available on the image filesystem than before; ``None`` where not measured.

        It includes whatever else happened on that filesystem meanwhile, and may be negative.
        """
        if self.before is None or self.after is None or self.before.device_id != self.after.device_id:
            return None
        return self.after.available_bytes - self.before.available_bytes
