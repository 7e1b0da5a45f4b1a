"""Interval between writes of image usage if only times have changed.

Each write syncs the disk, which takes longer than all other parts of an observation, and every read request of the
control API is an observation. If only times have changed since the written observation, the write is therefore deferred
to a later observation. A process that ends before that write leaves slightly earlier times of use in the file. A first
detection, the first use of an image, a gap or a jump of the clock is written immediately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nodeagent.model import ImageUsage
    from nodeagent.store.clock_record import ClockRecord
    from nodeagent.store.usage_file import StoredUsage

UNWRITTEN_S: Final = 5.0
"""Maximum difference of the current and the written times, in seconds."""


def is_due(now: StoredUsage, written: StoredUsage | None) -> bool:
    """Return whether a state has to be written: not if only times changed, by less than ``UNWRITTEN_S`` seconds."""
    if written is None or now.observation is None or written.observation is None:
        return True
    before, after = written.observation, now.observation
    return not (
        (after.boot_id, after.since_s, after.stopped_s) == (before.boot_id, before.since_s, before.stopped_s)
        and 0 <= after.last_s - before.last_s < UNWRITTEN_S
        and now.gaps == written.gaps
        and now.first_seen == written.first_seen
        and _fixed_clock(now.clock) == _fixed_clock(written.clock)
        and now.usage.keys() == written.usage.keys()
        and all(_adds_little(usage, written.usage[image_id]) for image_id, usage in now.usage.items())
    )


def _fixed_clock(record: ClockRecord | None) -> tuple[object, ...]:
    """Return the fields of a clock record that do not change with every reading."""
    if record is None:
        return ()
    known = (record.known_wall is None, record.calendar_zero is None)
    return record.boot_id, record.first_s, record.anchor, record.node_zero, record.jumped_s, record.jump_s, *known


def _adds_little(now: ImageUsage, written: ImageUsage) -> bool:
    fixed = now.first_detected, now.pulled_at, now.present_since
    if fixed != (written.first_detected, written.pulled_at, written.present_since):
        return False
    if now.last_used is None or written.last_used is None:
        return now.last_used is written.last_used
    return abs((now.last_used - written.last_used).total_seconds()) < UNWRITTEN_S
