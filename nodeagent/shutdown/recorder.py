"""Records of node stops: progress of each pod, a state file that outlives a crash, this boot, and the history.

The shutdown in progress and the last record of the boot survive a crash of the agent. Their state is in two small files
instead of database tables: the files are written while pods are being stopped, are read by the process that resumes the
shutdown after a crash, and must not be lost with a quarantined database. Each file is replaced atomically and synced;
in a full filesystem it is overwritten in place.

If the state directory cannot store a stop, for example because it is read-only, the stop is written to the runtime
directory. Other processes of the boot read it there: without it, the stop hook would repeat a complete shutdown and
record wrong outcomes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from nodeagent.errors import StoreError
from nodeagent.files import closing_descriptor, overwrite_file, replace_file
from nodeagent.model import stops
from nodeagent.record import Record, replace
from nodeagent.schemas import SchemaId
from nodeagent.shutdown.plan.planner import ContainerEnd, exit_note, outcome_summary, pod_outcome
from nodeagent.store.history import History, configured_retention
from nodeagent.store.json_file import JsonFile

if TYPE_CHECKING:
    import asyncio

    from structlog.typing import FilteringBoundLogger

    from nodeagent.model.runtime import Container
    from nodeagent.settings.settings import Settings
    from nodeagent.units import Clock

T = TypeVar("T")

STOP_FILE: Final = "shutdown.json"
BOOT_FILE: Final = "boot.json"
LOCK_FILE: Final = "shutdown.lock"
_LOCK_POLL_S: Final = 0.25


class ShutdownFiles:
    """Files of the shutdown state of this node. Methods block and may be called from any thread or process."""

    def __init__(self, directory: Path, runtime_directory: Path | None = None) -> None:
        """Use files under the given directories.

        Args:
            directory: the state directory, created at the first write.
            runtime_directory: an existing directory that is kept until power-off, for a stop that the state directory
                cannot store; ``None`` for no such directory.
        """
        self._directory = directory
        self.runtime_directory = runtime_directory
        self._stop = JsonFile(directory / STOP_FILE, SchemaId.SHUTDOWN_FILE, stops.NodeStop)
        self._boot = JsonFile(directory / BOOT_FILE, SchemaId.BOOT_FILE, stops.BootRecord)

    def read_stop(self) -> stops.NodeStop | None:
        """Return the last node stop, finished or not; ``None`` if no file exists.

        A file in the runtime directory has precedence over the file in the state directory, since it is written only if
        the write to the state directory fails, and removed by the next successful write.

        Raises:
            StoreError: the file cannot be read, or its content is invalid.
        """
        if self.runtime_directory is not None:
            with suppress(StoreError):  # may be the file of an agent of another user with another state directory
                copy = JsonFile(self.runtime_directory / STOP_FILE, SchemaId.SHUTDOWN_FILE, stops.NodeStop).read()
                if copy is not None:
                    return copy
        return self._stop.read()

    def write_stop(self, stop: stops.NodeStop) -> None:
        """Replace the stored node stop.

        Raises:
            StoreError: the file cannot be written to the state directory. The previous file is kept there, and the stop
                is written to the runtime directory if that is writable.
        """
        copy = self.runtime_directory / STOP_FILE if self.runtime_directory is not None else None
        try:
            _write(self._stop, stop)
        except StoreError:
            if copy is not None:
                with suppress(OSError):
                    replace_file(copy, self._stop.text_of(stop))
            raise
        if copy is not None:
            with suppress(OSError):
                copy.unlink(missing_ok=True)

    def read_boot(self) -> stops.BootRecord | None:
        """Return the last record of this or an earlier boot; ``None`` if the file does not exist.

        Raises:
            StoreError: as for :meth:`read_stop`.
        """
        return self._boot.read()

    def write_boot(self, record: stops.BootRecord) -> None:
        """Replace the record of the boot.

        Raises:
            StoreError: as for :meth:`write_stop`.
        """
        named = tuple(stops.StoppedPod(each.uid, each.namespace, each.name) for each in record.pods)
        _write(self._boot, replace(record, pods=named))

    @contextmanager
    def claim(self, within_s: float = 0.0, take_over: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Acquire the lock on stopping pods; yield whether it was acquired within ``within_s`` seconds.

        The kernel releases the lock when the process ends. If no lock file can be opened, the block runs as if the lock
        were acquired, since stopping pods is more important than the lock.

        Args:
            within_s: maximum wait in seconds.
            take_over: called at intervals while another process holds the lock; returns whether that process stops no
                further pods, so that the block runs as if the lock were acquired.
        """
        descriptor = self._open_lock()
        if descriptor is None:
            yield True
            return
        with closing_descriptor(descriptor):
            yield _lock(descriptor, time.monotonic() + within_s, take_over)

    def _open_lock(self) -> int | None:
        """Return a descriptor of the lock file; ``None`` if it cannot be opened.

        An existing file is opened even in a read-only state directory.
        """
        with suppress(OSError):
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        created = os.O_RDWR | os.O_CREAT
        for directory, access in (
            (self._directory, created),
            (self._directory, os.O_RDONLY),
            (self.runtime_directory, created),
        ):
            if directory is not None:
                with suppress(OSError):
                    return os.open(directory / LOCK_FILE, access | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return None


def _write(file: JsonFile[T], record: T) -> None:
    """Write a record; in a full filesystem overwrite the file, since an outdated record would be an unclean stop."""
    try:
        file.write(record)
    except StoreError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT):
            with suppress(OSError):
                overwrite_file(file.path, file.text_of(record))
                return
        raise


def _lock(descriptor: int, until_s: float, take_over: Callable[[], bool]) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if take_over():
                return True
            if time.monotonic() >= until_s:
                return False
            time.sleep(_LOCK_POLL_S)  # polling, since a blocking flock has no timeout
        except OSError:
            return True
        else:
            return True


MAX_LISTED_PODS: Final = 50
STALLED_AFTER_S: Final = 10.0
"""Age of the last recorded progress after which the process that stops the pods counts as stalled."""


class ShutdownRecorder:
    """Reads and writes the records. A failed read or write is logged, never raised.

    Attributes:
        files: files of the shutdown in progress and of the boot.
        clock: clock of the records.
        logger: logger of the shutdown.
        boot_id: id of the current start of the userspace.
    """

    def __init__(
        self, settings: Settings, clock: Clock, logger: FilteringBoundLogger, boot_id: str, runtime_directory: Path
    ) -> None:
        """Use the state directory of the settings, and a runtime directory for a stop that it cannot store."""
        self.clock = clock
        self.logger = logger
        self.boot_id = boot_id
        self._runtime_directory = runtime_directory
        self._logged_problem = ""
        self.follow(settings)

    def follow(self, settings: Settings) -> None:
        """Use the state directory and the retention of other settings for later records."""
        self.files = ShutdownFiles(settings.state_directory, self._runtime_directory)
        self._history = History(settings.state_directory)
        self._retention = configured_retention(settings)

    def last(self) -> stops.NodeStop | None:
        """Return the record of the last node stop; ``None`` without a readable record."""
        try:
            return self.files.read_stop()
        except StoreError as error:
            self._log_problem(error)
            return None

    def last_of_this_boot(self) -> stops.NodeStop | None:
        """Return the last stop, finished or not, if the stop began in this boot, else ``None``."""
        last = self.last()
        return last if last is not None and last.boot_id == self.boot_id else None

    def in_progress(self) -> stops.NodeStop | None:
        """Return the unfinished node stop of this boot; ``None`` if no stop is in progress."""
        last = self.last_of_this_boot()
        return last if last is not None and last.end is stops.StopEnd.IN_PROGRESS else None

    def is_stalled(self) -> bool:
        """Return whether the process that stops the pods has made no progress for some time; false if unknown."""
        stop = self.in_progress()
        if stop is None or stop.progress_s is None:
            return False
        return self.clock.monotonic_s() - stop.progress_s > STALLED_AFTER_S

    def write(self, stop: stops.NodeStop) -> None:
        """Write the progress of a stop to the state file."""
        try:
            self.files.write_stop(stop)
        except StoreError as error:
            self._log_problem(error)

    def close(self, stop: stops.NodeStop) -> None:
        """Write the end of a stop to the state file and the history."""
        self.write(stop)
        self._add_to_history(stop)

    def record_activity(self, activity: stops.LastActivity, pods: Iterable[stops.StoppedPod] = ()) -> None:
        """Write the agent's current activity on this boot, with the running pods."""
        try:
            self.files.write_boot(stops.BootRecord(self.boot_id, activity, self.clock.now(), tuple(pods)))
        except StoreError as error:
            self._log_problem(error)

    def record_agent_stop(self) -> None:
        """Record the stop of the agent as the last activity, unless the node is shutting down."""
        boot = self.last_boot()
        if boot is not None and boot.boot_id == self.boot_id and boot.activity is stops.LastActivity.WATCHING:
            self.record_activity(stops.LastActivity.AGENT_STOPPED, boot.pods)

    def last_boot(self) -> stops.BootRecord | None:
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
        """Close an unfinished shutdown of an earlier boot, and record an unclean stop of that boot.

        A finished shutdown is added to the history again: the node may have ended before the agent could add it.
        """
        last, boot = self.last(), self.last_boot()
        if last is not None and last.boot_id != self.boot_id and last.end is stops.StopEnd.IN_PROGRESS:
            last = replace(last, end=stops.StopEnd.INCOMPLETE)
            self.close(last)
            running = [each for each in last.pods if each.outcome is None or not each.outcome.ended]
            self.logger.warning("shutdown_incomplete", **summary(last), running=_names(running))
        elif last is not None and boot is not None and last.boot_id == boot.boot_id != self.boot_id:
            self._add_to_history(last)
        if boot is None or boot.boot_id == self.boot_id or boot.activity is not stops.LastActivity.WATCHING:
            return
        unclean = stops.NodeStop(
            boot.boot_id, stops.StopKind.UNCLEAN, boot.recorded_at, end=stops.StopEnd.UNKNOWN, pods=boot.pods
        )
        self._add_to_history(unclean)
        self.logger.warning(
            "unclean_stop",
            boot_id=unclean.boot_id,
            last_seen=unclean.started_at.isoformat(),
            pods=len(unclean.pods),
            running=_names(unclean.pods),
        )

    def _add_to_history(self, stop: stops.NodeStop) -> None:
        # The wall clock may be wrong here; the next pass prunes old records.
        self._history.add_stop(stop, self._retention, self.clock.now(), clock_trusted=False)
        for problem in (self._history.problem, *self._history.take_notices()):
            if problem:
                self._log_problem(problem)

    def _log_problem(self, error: StoreError | str) -> None:
        if str(error) != self._logged_problem:
            self._logged_problem = str(error)
            self.logger.warning("shutdown_state_not_written", error=str(error))


def running_pods(pods: Iterable[RunningPod]) -> tuple[stops.StoppedPod, ...]:
    """Return running pods as records, sorted by namespace, name and UID."""
    records = (stops.StoppedPod(each.pod.uid, each.pod.namespace, each.pod.name) for each in pods)
    return tuple(sorted(records, key=lambda each: (each.namespace, each.name, each.uid)))


def summary(stop: stops.NodeStop) -> dict[str, object]:
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


def _names(pods: Iterable[stops.StoppedPod]) -> list[str]:
    return [f"{each.namespace}/{each.name}" for each in pods][:MAX_LISTED_PODS]


NO_TERM: Final = "no TERM"
"""Remark in the record of a pod to which no TERM was sent."""


class Stopper(Protocol):
    """Runtime calls that stop containers and sandboxes.

    The methods raise errors of the runtime; a container or sandbox that was not found counts as stopped.
    """

    async def version(self) -> object:
        """Return once the runtime has received all earlier requests."""

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Send TERM to a container, and KILL after ``timeout_s`` seconds; return once the container has stopped."""

    async def container_status(self, container_id: str) -> Container:
        """Return a container with its exit code; raise RuntimeNotFoundError if the container does not exist."""

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox with its containers."""


class RunningPod(Record):
    """A pod with running containers or a ready sandbox.

    Attributes:
        pod: the pod, with its running containers only.
        sandbox_ids: ids of its ready sandboxes.
    """

    pod: stops.ShutdownPod
    sandbox_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class ContainerStop:
    """One container with a stop request.

    Attributes:
        requested: whether a stop request to the runtime is pending.
        signalled_at_ms: time of TERM, confirmed by the runtime or sent directly, in milliseconds since the shutdown
            began; ``None`` before.
        direct: whether TERM was sent directly.
        answered: whether the runtime reported its end.
        seen_at_ms: last observation of its processes, at first the time of the stop request; in milliseconds since the
            shutdown began.
        ended_at_ms: its end, in milliseconds since the shutdown began; ``None`` before.
        end_inferred: whether the end of its processes was not observed at once; the runtime's exit time is then used.
        observed: whether its processes were found, by this or by an earlier process of the agent.
        killed: whether KILL was sent while it had processes; ``None`` if an earlier process of the agent may have sent
            KILL.
        kill_due_ms: first due time of KILL, in milliseconds since the shutdown began; ``None`` before.
        killed_unhandled: whether KILL was sent while TERM was pending in its main process.
        cpu_us: CPU time in microseconds before the stop request; ``None`` if unknown.
        call: the pending stop request.
        problem: error text of the last failure; empty without a failure.
    """

    id: str
    signalled_at_ms: int | None = None
    seen_at_ms: int = 0
    requested: bool = False
    direct: bool = False
    answered: bool = False
    ended_at_ms: int | None = None
    end_inferred: bool = False
    observed: bool = False
    killed: bool | None = False
    kill_due_ms: int | None = None
    killed_unhandled: bool = False
    exit_code: int | None = None
    cpu_us: int | None = None
    call: asyncio.Task[None] | None = None
    killer: asyncio.Task[None] | None = None
    problem: str = ""

    def infer_end(self, reported_ms: int) -> None:
        """Use the exit time that the runtime reports, if the end was not observed at once.

        A jump of the wall clock falsifies the reported time, so it is limited to the time without an observation.
        """
        if self.end_inferred and self.ended_at_ms is not None:
            self.ended_at_ms = max(self.seen_at_ms, min(self.ended_at_ms, reported_ms))

    @property
    def end(self) -> ContainerEnd:
        """End of the container, as input of ``pod_outcome``."""
        return ContainerEnd(self.ended_at_ms is not None, self.killed, self.exit_code)


@dataclass(slots=True)
class PodRecord:
    """One pod with a stop request.

    Attributes:
        own_grace_ms: its termination grace period; ``None`` if unknown.
        phase: index of its phase.
        readings: number of pending readings of exit codes.
        is_final: whether ``outcome`` is final.
        is_overdue: whether it had processes at the end of the run.
    """

    pod: stops.ShutdownPod
    why: str
    phase: int
    phase_name: str
    requested_at_ms: int
    own_grace_ms: int | None = None
    containers: dict[str, ContainerStop] = field(default_factory=dict)
    outcome: stops.PodOutcome = stops.PodOutcome.STOPPING
    took_ms: int | None = None
    readings: int = 0
    is_final: bool = False
    is_overdue: bool = False
    detail: str = ""

    @property
    def running(self) -> list[ContainerStop]:
        """Containers of the pod that have not ended."""
        return [each for each in self.containers.values() if each.ended_at_ms is None]

    @property
    def signalled_at_ms(self) -> int | None:
        """Time of the last TERM to its running containers; ``None`` while any TERM is unconfirmed."""
        times = [each.signalled_at_ms for each in self.containers.values() if each.ended_at_ms is None]
        known = [each for each in times if each is not None]
        return max(known) if known and len(known) == len(times) else None

    @property
    def known_outcome(self) -> stops.PodOutcome:
        """Outcome of the pod; until its exit codes are known, the outcome for the usual exit codes."""
        if self.is_final or self.took_ms is None:
            return self.outcome
        return pod_outcome([each.end for each in self.containers.values()])

    def end(self, now_ms: int) -> None:
        """Record the duration from the stop request to the end of the pod's processes."""
        ended_ms = max((each.ended_at_ms or 0 for each in self.containers.values()), default=now_ms)
        self.took_ms = max(0, ended_ms - self.requested_at_ms)

    def exceed_time(self, problem: str) -> None:
        """Set the outcome to failed at the end of the run; it changes if the pod's processes end later."""
        self.outcome, self.is_overdue = stops.PodOutcome.FAILED, True
        for each in self.running:
            each.problem = each.problem or problem

    def conclude(self) -> None:
        """Set the final outcome and detail from the ends of the pod's containers."""
        ends = [each.end for each in self.containers.values()]
        self.outcome, self.is_final = pod_outcome(ends), True
        self.detail = exit_note(ends)
        if self.outcome is stops.PodOutcome.FAILED:
            self.took_ms = None
            problems = [each.problem for each in self.running if each.problem]
            no_term = [NO_TERM] if _lacks_term(self.running) else []
            self.detail = "; ".join(dict.fromkeys(["still running", *no_term, *problems]))
            return
        killed = [each for each in self.containers.values() if each.killed]
        notes = [
            "ended after the granted time" if self.is_overdue else "",
            NO_TERM if _lacks_term(killed) else _unconfirmed(killed),
            "killed while TERM was pending" if any(each.killed_unhandled for each in killed) else "",
            self.detail,
        ]
        self.detail = "; ".join(filter(None, notes))

    @property
    def stopped(self) -> stops.StoppedPod:
        """The pod as stored in the shutdown record."""
        pod = self.pod
        terms = {
            each.id: stops.SentTerm(each.signalled_at_ms, each.direct)
            for each in self.containers.values()
            if each.signalled_at_ms is not None
        }
        return stops.StoppedPod(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            phase=self.phase_name,
            why=self.why,
            outcome=self.outcome,
            requested_at_ms=self.requested_at_ms,
            took_ms=self.took_ms,
            detail=self.detail,
            container_ids=tuple(self.containers),
            terms=terms,
            observed=bool(self.containers) and all(each.observed for each in self.containers.values()),
            kill_sent=any(each.killed for each in self.containers.values()),
        )


def _lacks_term(containers: Iterable[ContainerStop]) -> bool:
    """Return whether TERM was sent to any container neither directly nor by a request that the runtime accepted."""
    return any(each.signalled_at_ms is None and not each.requested for each in containers)


def _unconfirmed(killed: Iterable[ContainerStop]) -> str:
    return "killed without a confirmed TERM" if any(each.signalled_at_ms is None for each in killed) else ""
