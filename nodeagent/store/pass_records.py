"""Pass records and their retention limits: number, age and size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record

if TYPE_CHECKING:
    from datetime import datetime, timedelta


class PastAction(Record):
    """Planned removal of a pass and its outcome.

    Attributes:
        kind: kind of the item, as in a plan.
        item_id: id of the item in the runtime, or name of a log.
        name: name for display.
        references: further names of an image.
        outcome: outcome code, as in a pass report.
        detail: cause of the outcome; may be empty.
        reason: code of the reason for the removal, as defined by the version of the agent that recorded the pass.
        sentence: the reason as a sentence.
        frees_bytes: bytes that the removal was predicted to free; ``None`` if unknown.
        duration_s: duration of the removal, in seconds.
    """

    kind: str
    item_id: str
    name: str
    references: tuple[str, ...]
    outcome: str
    detail: str
    reason: str
    sentence: str
    frees_bytes: int | None
    duration_s: float


class PastPass(Record):
    """A recorded pass.

    Attributes:
        id: id of the pass.
        started_at: start, aware UTC.
        trigger: ``interval``, ``trigger``, ``once``, ``command``, ``control``, ``apply``, ``leaks``, ``undo`` or
            ``eviction``.
        scope: kinds of items that the pass may remove.
        plan_id: id of the first plan of the pass.
        dry_run: whether removals were reported without being carried out.
        result: result code, as in a pass report.
        detail: cause of the result, such as the shortfall.
        predicted_bytes: bytes that the completed removals were predicted to free.
        freed_bytes: measured number of freed bytes; ``None`` without a measurement.
        percent_before: usage of the image filesystem before the pass, in percent; ``None`` without a reading.
        percent_after: usage of the image filesystem after the pass, in percent; ``None`` without a reading.
        actions: all planned removals.
        eviction: JSON document of an eviction; empty for other passes.
        settled_s: part of the duration, in seconds, spent waiting for container creations in progress.
    """

    id: str
    started_at: datetime
    duration_s: float
    trigger: str
    scope: str
    plan_id: str
    dry_run: bool
    result: str
    detail: str
    predicted_bytes: int
    freed_bytes: int | None
    percent_before: int | None
    percent_after: int | None
    actions: tuple[PastAction, ...] = ()
    eviction: str = ""
    settled_s: float = 0.0


class CountedPass(Record):
    """A recorded pass without its actions.

    Attributes:
        past: the pass; its actions and the document of an eviction are empty.
        removed: number of removed items.
        planned: number of planned removals.
    """

    past: PastPass
    removed: int
    planned: int


class Retention(Record):
    """Limits of the history.

    Attributes:
        maximum_age: older passes are dropped; passes of the daemon without removals are dropped after a day.
        maximum_bytes: the oldest passes are dropped while the used pages of the file exceed this size.
        maximum_records: maximum number of passes and of node stops; the oldest are dropped. 0 for no limit.
    """

    maximum_age: timedelta
    maximum_bytes: int
    maximum_records: int = 10_000
