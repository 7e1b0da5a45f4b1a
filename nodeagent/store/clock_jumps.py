"""Detection of jumps of the wall clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.model import ImageUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

TOLERANCE_S: Final = 1.0
"""Total difference between wall time and boot time, in seconds, above which it counts as a jump.

It is the maximum error of ages. Both clocks are slewed by the same amount, so that only steps add up.
"""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Reading of both clocks at one instant.

    Attributes:
        boot_id: id of the boot; empty if unknown.
        boottime_s: seconds since boot, suspend included.
        wall: wall time, aware UTC.
    """

    boot_id: str
    boottime_s: float
    wall: datetime


@dataclass(frozen=True, slots=True)
class ClockJump:
    """A step of the wall clock by ``jump_s`` seconds relative to elapsed time."""

    jump_s: float


def find_jump(before: ClockReading | None, now: ClockReading) -> ClockJump | None:
    """Return the jump between two readings; ``None`` without a jump or between different boots.

    Within one boot the two clocks advance equally. Across boots only a clock behind the last reading could be detected,
    which has no consequence: ages then restart at 0.
    """
    if before is None or not now.boot_id or before.boot_id != now.boot_id:
        return None
    wall_s = (now.wall - before.wall).total_seconds()
    elapsed_s = now.boottime_s - before.boottime_s
    jump_s = wall_s - elapsed_s
    return ClockJump(jump_s) if elapsed_s >= 0 and abs(jump_s) > TOLERANCE_S else None


def shifted(usage: Mapping[str, ImageUsage], jump: ClockJump) -> dict[str, ImageUsage]:
    """Return the usage with all times shifted by the jump, so that ages are unchanged."""
    return {
        image_id: ImageUsage(
            moved(each.first_detected, jump), moved(each.last_used, jump) if each.last_used is not None else None
        )
        for image_id, each in usage.items()
    }


def moved(moment: datetime, jump: ClockJump) -> datetime:
    """Return a time shifted by the jump; unchanged if the result is beyond the calendar."""
    try:
        return moment + timedelta(seconds=jump.jump_s)
    except OverflowError:
        return moment
