"""Telling a jump of the wall clock from time that passed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.model import ImageUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

TOLERANCE_S: Final = 1.0
"""How far wall time and boot time may drift apart, in total, before it counts as a jump.

Ages are off by this much at most. Both clocks are slewed alike, so only steps add up.
"""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Both clocks at one instant of one boot.

    Attributes:
        boot_id: of this boot; empty if unknown.
        boottime_s: seconds since boot, suspend included.
        wall: wall time, aware UTC.
    """

    boot_id: str
    boottime_s: float
    wall: datetime


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The wall clock moved by ``jump_s`` seconds more than time passed."""

    jump_s: float


def find_jump(before: ClockReading | None, now: ClockReading) -> ClockJump | None:
    """Return the jump between two readings, ``None`` if there is none or it cannot be told.

    Within one boot the two clocks must advance alike. Across boots only a clock that lies behind the last reading
    can be told, and that is harmless: ages then start again at nothing.
    """
    if before is None or not now.boot_id or before.boot_id != now.boot_id:
        return None
    walked_s = (now.wall - before.wall).total_seconds()
    passed_s = now.boottime_s - before.boottime_s
    jump_s = walked_s - passed_s
    return ClockJump(jump_s) if passed_s >= 0 and abs(jump_s) > TOLERANCE_S else None


def shifted(usage: Mapping[str, ImageUsage], jump: ClockJump) -> dict[str, ImageUsage]:
    """Return the usage with every time moved along with the clock, so that ages stay what they were."""
    return {
        image_id: ImageUsage(
            moved(each.first_detected, jump), moved(each.last_used, jump) if each.last_used is not None else None
        )
        for image_id, each in usage.items()
    }


def moved(moment: datetime, jump: ClockJump) -> datetime:
    """Return a time moved along with the clock; the same time where that is beyond the calendar."""
    try:
        return moment + timedelta(seconds=jump.jump_s)
    except OverflowError:
        return moment
