"""Checks of ``nodeagent doctor`` on the clock and on the observation of image use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.doctor.plan.node import Finding, Verdict
from nodeagent.gc.plan.gap_text import describe_gap
from nodeagent.model import TRUSTED, ClockTrust
from nodeagent.units import format_duration, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from nodeagent.model import ObservationGap

_MUCH_SKEW_S: Final = 5.0
_MANY_GAPS: Final = 3
_DAY_S: Final = 86_400.0

_REMEDY: Final = "check the time service; nothing is removed too early, since ages count from the first observation"


def check_clock(
    skew_s: float | None,
    synchronised: bool | None,  # noqa: FBT001 - a reading, not a mode switch
    clock: ClockTrust = TRUSTED,
) -> Finding:
    """Return the ``doctor`` finding on the wall clock, on which ages across boots depend.

    Args:
        skew_s: creation time of the newest container relative to now, in seconds; ``None`` without containers.
        synchronised: whether the kernel reports the clock as synchronised (adjtimex); ``None`` if unknown.
        clock: trust status of the wall clock, with its last jump.
    """
    if clock.problem:
        return Finding("clock", Verdict.WARNING, clock.problem, _REMEDY)
    if clock.untrusted_until is not None:
        until = format_time(clock.untrusted_until)
        detail = f"{clock.jump_text}: nothing is removed by age before {until}"
        return Finding("clock", Verdict.WARNING, detail, "check the time service if this occurs again")
    if skew_s is not None and skew_s > _MUCH_SKEW_S:
        ahead = format_duration(skew_s)
        return Finding(
            "clock",
            Verdict.WARNING,
            f"a container was created {ahead} in the future: the clock was set back",
            _REMEDY,
        )
    if synchronised is False:
        return Finding("clock", Verdict.WARNING, "clock not synchronised (adjtimex)", "start a time service")
    state = "synchronised" if synchronised else "no creation time in the future"
    if clock.jumped_at is not None:
        state += f"; {clock.jump_text} at {format_time(clock.jumped_at)}"
    return Finding("clock", Verdict.OK, state)


def check_image_use(
    observed_since: datetime | None, now: datetime, maximum_s: float, gaps: Sequence[ObservationGap] = ()
) -> Finding:
    """Return the ``doctor`` finding on image use: whether it was observed for long enough to remove images by age.

    Args:
        observed_since: start of the uninterrupted observation; ``None`` if the state database is unavailable.
        now: the time of the check.
        maximum_s: maximum unused age of images in seconds; 0 disables removal by age.
        gaps: the latest gaps in the observation, oldest first.
    """
    if observed_since is None:
        if not maximum_s:
            return Finding("image-use", Verdict.SKIPPED, "image_gc.maximum_unused_age = 0: no image is removed by age")
        return Finding(
            "image-use",
            Verdict.WARNING,
            "not observed: state database is unavailable; no image is removed by age",
            "see state-directory and stores",
        )
    observed_s = (now - observed_since).total_seconds()
    observed = f"observed since {format_time(observed_since)} ({format_duration(observed_s)})"
    if maximum_s and observed_s <= maximum_s:
        observed += f": no image is removed by age until use is observed for {format_duration(maximum_s)}"
    if gaps:
        last = gaps[-1]
        observed += f"; {describe_gap(last.started_at, last.ended_at, last.cause.value)}"
    if not maximum_s:
        observed = f"image_gc.maximum_unused_age = 0: no image is removed by age; {observed}"
    elif observed_s <= maximum_s and (longest_s := _longest_of_many(gaps, now)) is not None and longest_s < maximum_s:
        causes = ", ".join(sorted({each.cause.value for each in gaps}))
        longest = format_duration(longest_s)
        lasted = f"the last {len(gaps) - 1} observations lasted {longest} at most ({causes})"
        return Finding(
            "image-use",
            Verdict.WARNING,
            f"{lasted}: no image is removed by age; {observed}",
            f"set image_gc.maximum_unused_age below {longest}; for reboots see image-gc.md, section Reboots",
        )
    return Finding("image-use", Verdict.OK if maximum_s else Verdict.SKIPPED, observed)


def _longest_of_many(gaps: Sequence[ObservationGap], now: datetime) -> float | None:
    """Return the seconds of the longest observation between recorded gaps; ``None`` if these are few or of one day."""
    if len(gaps) < _MANY_GAPS or (now - gaps[0].ended_at).total_seconds() < _DAY_S:
        return None
    starts = [each.started_at or each.ended_at for each in gaps[1:]]
    return max((end - gap.ended_at).total_seconds() for gap, end in zip(gaps, starts, strict=False))
