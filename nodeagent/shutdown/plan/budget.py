"""Shutdown budget: the time of each shutdown phase within the delay that logind or systemd grants.

The inhibitor task, the stop hook, the CLI and ``doctor`` all use :func:`shutdown_budget`, with different limits
(:class:`DelayLimit`). Times are whole milliseconds, so that the shares of the phases add up without rounding errors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from nodeagent.record import Record
from nodeagent.units import USEC_INFINITY, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.shutdown.plan.phases import Phase

MINIMUM_AT_SIGNAL_MS: Final = 2000
"""Minimum time for stopping pods at logind's signal. Source: kubelet ``minimumGracePeriodInSeconds``."""

RESERVE_MS: Final = 500
"""Part of the limit reserved for the last kills and the release of the inhibitor lock."""

STOP_HOOK_RESERVE_S: Final = 10.0
"""Part of ``TimeoutStopSec`` reserved for the start of the stop hook and its last log entries."""

LAST_KILLS_MS: Final = 2000
"""Time to wait for the kills of the last phase, if the limit permits."""

_LIMIT_MARGIN_MS: Final = 100
_LATE_START_MS: Final = 500  # for kills of a run that starts after its deadline


class DelayLimit(Record):
    """Limit of the shutdown delay: maximum time for which logind or systemd waits for pods.

    Attributes:
        limit_us: limit in microseconds; ``USEC_INFINITY`` for no limit, ``None`` if the limit could not be read.
        set_by: file or unit that sets the limit; empty if unknown.
        setting: name of the logind or systemd setting.
        waiter: service that waits for the pods: logind or systemd.
    """

    limit_us: int | None
    set_by: str = ""
    setting: str = "InhibitDelayMaxSec"
    waiter: str = "logind"

    @classmethod
    def of_logind(cls, reported_us: int | None, configured_us: int, set_by: str) -> DelayLimit:
        """Return the limit at logind's signal: the reported value, or the configured value before logind's report."""
        return cls(configured_us if reported_us is None else reported_us, set_by)

    @classmethod
    def of_unit_stop(cls, timeout_us: int | None, *, elapsed_s: float = 0.0) -> DelayLimit:
        """Return the limit at a stop of the agent's systemd unit.

        Args:
            timeout_us: ``TimeoutStopUSec`` of the unit; ``None`` for no limit.
            elapsed_s: seconds since the start of the stop hook.
        """
        limit_us = USEC_INFINITY
        if timeout_us is not None:
            limit_us = max(0, round(timeout_us - (STOP_HOOK_RESERVE_S + elapsed_s) * 1e6))
        return cls(limit_us, "the unit", "TimeoutStopSec", "systemd")

    @property
    def limit_ms(self) -> int | None:
        """The limit in milliseconds, rounded down; ``None`` for no limit or if it could not be read."""
        return None if self.limit_us is None or self.limit_us == USEC_INFINITY else self.limit_us // 1000

    @property
    def source(self) -> str:
        """Name of the setting, with the file or unit that sets it."""
        return f"{self.setting}, set by {self.set_by}" if self.set_by else self.setting


UNLIMITED: Final = DelayLimit(USEC_INFINITY)


class PhaseBudget(Record):
    """Time of one phase.

    Attributes:
        granted_ms: share of the phase in the granted time; the configured time, unless the phases were scaled.
        deadline_ms: latest end of the phase, in milliseconds since the start of the shutdown. A phase that starts early
            may use the time that earlier phases left unused.
    """

    phase: Phase
    granted_ms: int
    deadline_ms: int


class ShutdownBudget(Record):
    """Time of all phases within the limit.

    Attributes:
        requested_ms: configured time of all phases.
        granted_ms: available time of all phases; at most the requested time and the limit.
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
        """The limit in milliseconds, rounded down; ``None`` for no limit or if it could not be read."""
        return self.limit.limit_ms

    @property
    def scaled(self) -> bool:
        """Whether the phases are shortened because the limit is less than the configured time."""
        return self.granted_ms < self.requested_ms

    @property
    def suffices_at_signal(self) -> bool:
        """Whether pods are stopped at logind's signal.

        With too little time all pods would be killed immediately; instead, the stop hook of the unit stops the pods
        within ``TimeoutStopSec``. Source: kubelet shutdown manager, which does not start if logind grants less than the
        configured time.
        """
        return self.granted_ms >= min(self.requested_ms, MINIMUM_AT_SIGNAL_MS)

    @property
    def delegated_because(self) -> str:
        """Reason to stop no pod at logind's signal, as a sentence; empty if pods are stopped at the signal."""
        if self.suffices_at_signal:
            return ""
        return (
            f"{self.limit.waiter} waits only {_format_ms(self.limit_ms or 0)} ({self.limit.source}), too short "
            f"for phases of {_format_ms(self.requested_ms)} in total: no pod is stopped at the signal; the unit's stop "
            "hook stops pods within TimeoutStopSec"
        )

    def latest_end_ms(self, started_ms: int) -> int:
        """Return the latest end of a shutdown run, in milliseconds since the start of the shutdown.

        Args:
            started_ms: start of the run in milliseconds since the start of the shutdown; above 0 for a resumed
                shutdown.
        """
        latest = self.granted_ms + LAST_KILLS_MS
        if self.limit_ms is not None:
            latest = max(self.granted_ms, min(latest, self.limit_ms - _LIMIT_MARGIN_MS))
        return max(latest, started_ms + _LATE_START_MS)


def shutdown_budget(phases: Sequence[Phase], limit: DelayLimit, *, reserve_ms: int = RESERVE_MS) -> ShutdownBudget:
    """Return the time of each phase within the limit.

    The phases get their configured time if the limit permits. Otherwise all deadlines are scaled by the same factor and
    rounded down to milliseconds. The share of a phase is the difference between two deadlines, so that the shares add
    up exactly to the granted time.

    Args:
        phases: phases that :func:`~nodeagent.shutdown.plan.phases.check_phases` accepts.
        limit: limit of the shutdown delay.
        reserve_ms: part of the limit reserved for the last kills and the release of the lock; at most a tenth of the
            limit is reserved.

    Raises:
        ValueError: the limit or the reserve is negative.

    Source: logind.conf(5), ``InhibitDelayMaxSec=``: logind continues the shutdown after this time despite delay locks.
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
    """Return the limit in whole seconds that permits the configured time of all phases plus the reserve."""
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
    if milliseconds % 1000:  # rounding would display the limit
        return f"{milliseconds / 1000:.3f}".rstrip("0") + "s"
    return format_duration(milliseconds / 1000)
