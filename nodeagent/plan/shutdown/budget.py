"""Shutdown budgets: the time of each phase within the delay that logind or systemd grants.

One function, :func:`shutdown_budget`, serves the inhibitor task, the stop hook, the command line and ``doctor``. They
differ in the limit only, see :class:`DelayLimit`. Times are whole milliseconds, so that shares add up without rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from nodeagent.record import Record
from nodeagent.units import USEC_INFINITY, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.plan.shutdown.phases import Phase

MINIMUM_AT_SIGNAL_MS: Final = 2000
"""Least time for stopping pods at logind's signal. Source: kubelet ``minimumGracePeriodInSeconds``."""

RESERVE_MS: Final = 500
"""Part of the limit that is reserved for the last kills and the release of the inhibitor lock."""

STOP_HOOK_RESERVE_S: Final = 10.0
"""Part of ``TimeoutStopSec`` that is reserved for the start of the stop hook and its last log entries."""

LAST_KILLS_MS: Final = 2000
"""Wait for the kills of the last phase, where the limit allows it."""

_LIMIT_MARGIN_MS: Final = 100
_LATE_START_MS: Final = 500  # for kills where the whole time had passed before the run began


class DelayLimit(Record):
    """Longest time that the node waits for its pods.

    Attributes:
        limit_us: limit in microseconds; ``USEC_INFINITY`` for no limit, ``None`` where it could not be read.
        set_by: file or unit that sets the limit; empty where not known.
        setting: name of the setting.
        waiter: service that waits for the pods.
    """

    limit_us: int | None
    set_by: str = ""
    setting: str = "InhibitDelayMaxSec"
    waiter: str = "logind"

    @classmethod
    def of_logind(cls, reported_us: int | None, configured_us: int, set_by: str) -> DelayLimit:
        """Return the limit at logind's signal: the reported value; the configured one before its first answer."""
        return cls(configured_us if reported_us is None else reported_us, set_by)

    @classmethod
    def of_unit_stop(cls, timeout_us: int | None, *, elapsed_s: float = 0.0) -> DelayLimit:
        """Return the limit at a stop of the unit.

        Args:
            timeout_us: ``TimeoutStopUSec`` of the unit; ``None`` for no limit.
            elapsed_s: seconds since the stop hook began.
        """
        limit_us = USEC_INFINITY
        if timeout_us is not None:
            limit_us = max(0, round(timeout_us - (STOP_HOOK_RESERVE_S + elapsed_s) * 1e6))
        return cls(limit_us, "the unit", "TimeoutStopSec", "systemd")

    @property
    def limit_ms(self) -> int | None:
        """The limit in milliseconds, rounded down; ``None`` for no limit or where it could not be read."""
        return None if self.limit_us is None or self.limit_us == USEC_INFINITY else self.limit_us // 1000

    @property
    def source(self) -> str:
        """The setting with the file or unit that sets it."""
        return f"{self.setting}, set by {self.set_by}" if self.set_by else self.setting


UNLIMITED: Final = DelayLimit(USEC_INFINITY)


class PhaseBudget(Record):
    """The time of one phase.

    Attributes:
        granted_ms: share of the granted time; the configured time unless phases were scaled.
        deadline_ms: latest end, in milliseconds since the shutdown began. A phase that starts early, after unused time
            of earlier phases, has until then.
    """

    phase: Phase
    granted_ms: int
    deadline_ms: int


class ShutdownBudget(Record):
    """The time of all phases.

    Attributes:
        requested_ms: the configured time.
        granted_ms: the available time; never more than requested or than the limit.
        limit: the applied limit.
        notes: warnings for the operator, as sentences.
    """

    phases: tuple[PhaseBudget, ...]
    requested_ms: int
    granted_ms: int
    limit: DelayLimit
    notes: tuple[str, ...] = ()

    @property
    def limit_ms(self) -> int | None:
        """The limit in milliseconds, rounded down; ``None`` for no limit or where it could not be read."""
        return self.limit.limit_ms

    @property
    def scaled(self) -> bool:
        """Whether the phases had to be shortened."""
        return self.granted_ms < self.requested_ms

    @property
    def suffices_at_signal(self) -> bool:
        """Whether pods are stopped at logind's signal.

        With too little time they would all be killed at once; the unit's stop hook, which has ``TimeoutStopSec``, stops
        them instead. Source: the kubelet's shutdown manager does not start with less time than configured.
        """
        return self.granted_ms >= min(self.requested_ms, MINIMUM_AT_SIGNAL_MS)

    @property
    def delegated_because(self) -> str:
        """Reason to stop no pod at logind's signal, as a sentence; empty if pods are stopped then."""
        if self.suffices_at_signal:
            return ""
        return (
            f"{self.limit.waiter} waits only {_format_ms(self.limit_ms or 0)} ({self.limit.source}), too short "
            f"for phases of {_format_ms(self.requested_ms)} in total: no pod is stopped at the signal; the unit's stop "
            "hook stops pods within TimeoutStopSec"
        )

    def latest_end_ms(self, started_ms: int) -> int:
        """Return the latest end of a run, in milliseconds since the shutdown began.

        Args:
            started_ms: start of the run, later than 0 for one that resumes a shutdown.
        """
        latest = self.granted_ms + LAST_KILLS_MS
        if self.limit_ms is not None:
            latest = max(self.granted_ms, min(latest, self.limit_ms - _LIMIT_MARGIN_MS))
        return max(latest, started_ms + _LATE_START_MS)


def shutdown_budget(phases: Sequence[Phase], limit: DelayLimit, *, reserve_ms: int = RESERVE_MS) -> ShutdownBudget:
    """Return the time of each phase within the limit.

    The phases get their configured time where it fits. Otherwise each keeps its proportion: the deadlines are scaled
    and rounded down to milliseconds, and a share is the distance between two of them, so the shares add up to the
    granted time exactly.

    Args:
        phases: as :func:`~nodeagent.plan.shutdown.phases.check_phases` accepts them.
        limit: the longest delay.
        reserve_ms: part of the limit reserved for the last kills and the release of the lock; at most a tenth of it.

    Raises:
        ValueError: the limit or the reserve is negative.

    Source: logind.conf(5), ``InhibitDelayMaxSec=``: logind proceeds after it despite delay locks.
    """
    if (limit.limit_us is not None and limit.limit_us < 0) or reserve_ms < 0:
        raise ValueError(f"invalid limit of {limit.limit_us} microseconds with a reserve of {reserve_ms} milliseconds")
    requested_ms = sum(phase.requested_ms for phase in phases)
    granted_ms = requested_ms
    if limit.limit_ms is not None:
        granted_ms = min(requested_ms, limit.limit_ms - min(reserve_ms, limit.limit_ms // 10))
    shares, requested_so_far_ms, deadline_ms = [], 0, 0
    for phase in phases:
        requested_so_far_ms += phase.requested_ms
        previous_ms = deadline_ms
        deadline_ms = requested_so_far_ms * granted_ms // requested_ms if requested_ms else 0
        shares.append(PhaseBudget(phase, deadline_ms - previous_ms, deadline_ms))
    notes = tuple(_notes(shares, requested_ms, granted_ms, limit))
    return ShutdownBudget(tuple(shares), requested_ms, granted_ms, limit, notes)


def required_delay_s(phases: Sequence[Phase]) -> int:
    """Return the limit in whole seconds that grants the phases their configured time, with the reserve."""
    return math.ceil(sum(phase.requested_ms for phase in phases) / 1000 * 1.1) + 1


def _notes(shares: Sequence[PhaseBudget], requested_ms: int, granted_ms: int, limit: DelayLimit) -> list[str]:
    notes = []
    if shares and limit.limit_us is None:
        notes.append(f"cannot read the limit of {limit.waiter}; the phases may be shortened")
    elif limit.limit_ms is not None and granted_ms < requested_ms:
        notes.append(
            f"the phases add up to {_format_ms(requested_ms)}, but {limit.waiter} waits only "
            f"{_format_ms(limit.limit_ms)} ({limit.source}): they are scaled to {_format_ms(granted_ms)}"
        )
    notes += [
        f"phase {share.phase.name!r} has no time: its pods are killed at once unless others end early"
        for share in shares
        if not share.granted_ms
    ]
    return notes


def _format_ms(milliseconds: int) -> str:
    if milliseconds % 1000:  # a rounded time would be that of the limit
        return f"{milliseconds / 1000:.3f}".rstrip("0") + "s"
    return format_duration(milliseconds / 1000)
