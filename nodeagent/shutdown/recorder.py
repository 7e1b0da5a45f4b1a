"""Records of node stops: a state file that outlives a crash, the record of this boot, and the history."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.model.stops import BootRecord, LastActivity, NodeStop, StopEnd, StopKind, StoppedPod
from nodeagent.record import replace
from nodeagent.shutdown.plan.timing import outcome_summary
from nodeagent.shutdown.state_file import ShutdownFiles
from nodeagent.store.history import History, Retention, configured_retention

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from nodeagent.clock import Clock
    from nodeagent.settings.settings import Settings
    from nodeagent.shutdown.pod_record import RunningPod

MAX_LISTED_PODS: Final = 50
STALLED_AFTER_S: Final = 10.0
"""Age of the last recorded progress after which the process that stops the pods counts as stalled."""


@dataclass
class ShutdownRecorder:
    """Reads and writes the records. A failed read or write is logged, never raised."""

    files: ShutdownFiles
    history: History
    retention: Retention
    clock: Clock
    logger: FilteringBoundLogger
    boot_id: str

    def __post_init__(self) -> None:
        self._logged_problem = ""

    @classmethod
    def open(
        cls, settings: Settings, clock: Clock, logger: FilteringBoundLogger, boot_id: str, runtime_directory: Path
    ) -> ShutdownRecorder:
        """Return a recorder for the state directory of the settings."""
        directory = settings.state_directory
        files = ShutdownFiles(directory, runtime_directory)
        return cls(files, History(directory), configured_retention(settings), clock, logger, boot_id)

    def follow(self, settings: Settings) -> None:
        """Use the state directory and the retention of other settings for later records."""
        directory = settings.state_directory
        self.files, self.history, self.retention = (
            ShutdownFiles(directory, self.files.runtime_directory),
            History(directory),
            configured_retention(settings),
        )

    def last(self) -> NodeStop | None:
        """Return the record of the last node stop; ``None`` without a readable record."""
        try:
            return self.files.read_stop()
        except StoreError as error:
            self._log_problem(error)
            return None

    def last_of_this_boot(self) -> NodeStop | None:
        """Return the last stop, finished or not, if the stop began in this boot, else ``None``."""
        last = self.last()
        return last if last is not None and last.boot_id == self.boot_id else None

    def in_progress(self) -> NodeStop | None:
        """Return the unfinished node stop of this boot; ``None`` if no stop is in progress."""
        last = self.last_of_this_boot()
        return last if last is not None and last.end is StopEnd.IN_PROGRESS else None

    def is_stalled(self) -> bool:
        """Return whether the process that stops the pods has made no progress for some time; false if unknown."""
        stop = self.in_progress()
        if stop is None or stop.progress_s is None:
            return False
        return self.clock.monotonic_s() - stop.progress_s > STALLED_AFTER_S

    def write(self, stop: NodeStop) -> None:
        """Write the progress of a stop to the state file."""
        try:
            self.files.write_stop(stop)
        except StoreError as error:
            self._log_problem(error)

    def close(self, stop: NodeStop) -> None:
        """Write the end of a stop to the state file and the history."""
        self.write(stop)
        self._add_to_history(stop)

    def record_activity(self, activity: LastActivity, pods: Iterable[StoppedPod] = ()) -> None:
        """Write the agent's current activity on this boot, with the running pods."""
        try:
            self.files.write_boot(BootRecord(self.boot_id, activity, self.clock.now(), tuple(pods)))
        except StoreError as error:
            self._log_problem(error)

    def record_agent_stop(self) -> None:
        """Record the stop of the agent as the last activity, unless the node is shutting down."""
        boot = self.last_boot()
        if boot is not None and boot.boot_id == self.boot_id and boot.activity is LastActivity.WATCHING:
            self.record_activity(LastActivity.AGENT_STOPPED, boot.pods)

    def last_boot(self) -> BootRecord | None:
        """Return the last record of this or an earlier boot; ``None`` without a readable record."""
        try:
            return self.files.read_boot()
        except StoreError as error:
            self._log_problem(error)
            return None

    def has_running_pods(self) -> bool:
        """Return whether the last records of this boot contain running pods."""
        stop, boot = self.in_progress(), self.last_boot()
        if stop is not None:
            return any(each.outcome is None or not each.outcome.ended for each in stop.pods)
        return boot is not None and boot.boot_id == self.boot_id and bool(boot.pods)

    def review(self) -> None:
        """Close an unfinished shutdown of an earlier boot, and record an unclean stop of that boot."""
        last, boot = self.last(), self.last_boot()
        if last is not None and last.boot_id != self.boot_id and last.end is StopEnd.IN_PROGRESS:
            last = replace(last, end=StopEnd.INCOMPLETE)
            self.close(last)
            running = [each for each in last.pods if each.outcome is None or not each.outcome.ended]
            self.logger.warning("shutdown_incomplete", **summary(last), running=_names(running))
        if boot is None or boot.boot_id == self.boot_id or boot.activity is not LastActivity.WATCHING:
            return
        unclean = NodeStop(boot.boot_id, StopKind.UNCLEAN, boot.recorded_at, end=StopEnd.UNKNOWN, pods=boot.pods)
        self._add_to_history(unclean)
        self.logger.warning(
            "unclean_stop",
            boot_id=unclean.boot_id,
            last_seen=unclean.started_at.isoformat(),
            pods=len(unclean.pods),
            running=_names(unclean.pods),
        )

    def _add_to_history(self, stop: NodeStop) -> None:
        # The wall clock may be wrong here; the next pass prunes old records.
        self.history.add_stop(stop, self.retention, self.clock.now(), clock_trusted=False)
        for problem in (self.history.problem, *self.history.take_notices()):
            if problem:
                self._log_problem(problem)

    def _log_problem(self, error: StoreError | str) -> None:
        if str(error) != self._logged_problem:
            self._logged_problem = str(error)
            self.logger.warning("shutdown_state_not_written", error=str(error))


def running_pods(pods: Iterable[RunningPod]) -> tuple[StoppedPod, ...]:
    """Return running pods as records, sorted by namespace, name and UID."""
    records = (StoppedPod(each.pod.uid, each.pod.namespace, each.pod.name) for each in pods)
    return tuple(sorted(records, key=lambda each: (each.namespace, each.name, each.uid)))


def summary(stop: NodeStop) -> dict[str, object]:
    """Return a stop as fields of a log event, with the number of pods per outcome."""
    counts = Counter(each.outcome.value if each.outcome else "not-requested" for each in stop.pods)
    took_s = (stop.ended_at - stop.started_at).total_seconds() if stop.ended_at else None
    return {
        "boot_id": stop.boot_id,
        "kind": stop.kind.value,
        "operation": stop.operation,
        "end": stop.end.value,
        "seconds": None if took_s is None else round(took_s, 3),
        "pods": len(stop.pods),
        "outcomes": outcome_summary(each.outcome for each in stop.pods),
        **{outcome.replace("-", "_"): count for outcome, count in sorted(counts.items())},
    }


def _names(pods: Iterable[StoppedPod]) -> list[str]:
    return [f"{each.namespace}/{each.name}" for each in pods][:MAX_LISTED_PODS]
