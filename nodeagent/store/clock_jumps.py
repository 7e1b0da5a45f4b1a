"""Telling a jump of the wall clock from time that passed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from nodeagent.model import ImageUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

TOLERANCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Both clocks at one instant of one boot."""

    boot_id: str
    boottime_s: float
    wall: datetime


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The wall clock moved by ``jump_s`` seconds more than time passed."""

    jump_s: float


def find_jump(before: Reading | None, now: Reading) -> ClockJump | None:
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
    by = timedelta(seconds=jump.jump_s)
    return {
        image_id: ImageUsage(
            _moved(each.first_detected, by), _moved(each.last_used, by) if each.last_used is not None else None
        )
        for image_id, each in usage.items()
    }


def _moved(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        return moment
