"""One shutdown of the node as it is carried out and told: to the log at once, to the disk as it goes on.

The daemon and the unit's own stop command go through the same code; what differs is who is waiting for how long.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.act.shutdown.executor import ShutdownRun
from nodeagent.errors import StoreError
from nodeagent.model import PodOutcome
from nodeagent.model.node_stop import BootRecord, LastActivity, NodeStop, StopEnd, StopKind, StoppedPod
from nodeagent.plan.shutdown.planner import elapsed_since, plan_shutdown
from nodeagent.store.history import Retention

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from structlog.typing import FilteringBoundLogger

    from nodeagent.act.shutdown.executor import RunningPod, Stopper
    from nodeagent.clock import Clock
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.shutdown.pod_cache import PodCache
    from nodeagent.plan.shutdown.budget import ShutdownBudget
    from nodeagent.store.history import History
    from nodeagent.store.shutdown import ShutdownFiles

NAMED_PODS: Final = 50


@dataclass
class ShutdownRecorder:
    """Where stops of the node are written: a file that outlives a crash, and the history. Nothing here raises."""

    files: ShutdownFiles
    history: History
    retention: Retention
    clock: Clock
    logger: FilteringBoundLogger
    boot_id: str

    def __post_init__(self) -> None:
        self._told = ""

    def last(self) -> NodeStop | None:
        """Return the last stop; ``None`` where there was none or it cannot be read."""
        try:
            return self.files.read_stop()
        except StoreError as error:
            self._complain(error)
            return None

    def under_way(self) -> NodeStop | None:
        """Return the stop of this boot that was begun and has not ended."""
        last = self.last()
        ours = last is not None and last.boot_id == self.boot_id and last.end is StopEnd.IN_PROGRESS
        return last if ours else None

    def write(self, stop: NodeStop) -> None:
        """Keep how far a stop has come."""
        try:
            self.files.write_stop(stop)
        except StoreError as error:
            self._complain(error)

    def close(self, stop: NodeStop) -> None:
        """Keep how a stop ended, in the history too."""
        self.write(stop)
        self.history.add_stop(stop, self.retention, self.clock.now())

    def seen(self, presence: LastActivity, pods: Iterable[StoppedPod] = ()) -> None:
        """Keep what was last seen of this boot."""
        try:
            self.files.write_boot(BootRecord(self.boot_id, presence, self.clock.now(), tuple(pods)))
        except StoreError as error:
            self._complain(error)

    def last_seen(self) -> BootRecord | None:
        """Return what was last seen of a boot."""
        try:
            return self.files.read_boot()
        except StoreError as error:
            self._complain(error)
            return None

    def review(self) -> NodeStop | None:
        """Close what an earlier boot left open; return the stop that nobody announced, if that is how it ended."""
        last, seen = self.last(), self.last_seen()
        if last is not None and last.boot_id != self.boot_id and last.end is StopEnd.IN_PROGRESS:
            last = replace(last, end=StopEnd.INCOMPLETE)
            self.close(last)
            self.logger.warning("shutdown_incomplete", **_summary(last), running=_names(_unended(last.pods)))
        if seen is None or seen.boot_id == self.boot_id or seen.presence is not LastActivity.WATCHING:
            return None
        unclean = NodeStop(seen.boot_id, StopKind.UNCLEAN, seen.seen_at, end=StopEnd.UNKNOWN, pods=seen.pods)
        self.history.add_stop(unclean, self.retention, self.clock.now())
        self.logger.warning(
            "unclean_stop",
            boot_id=unclean.boot_id,
            last_seen=unclean.started_at.isoformat(),
            pods=len(unclean.pods),
            running=_names(unclean.pods),
        )
        return unclean

    def _complain(self, error: StoreError) -> None:
        if str(error) != self._told:
            self._told = str(error)
            self.logger.warning("shutdown_state_not_written", error=str(error))


class ShutdownInProgress:
    """A shutdown that is being carried out.

    Attributes:
        stop: how far it has come.
    """

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        book: ShutdownRecorder,
        budget: ShutdownBudget,
        stopper: Stopper,
        pods: PodCache,
        *,
        kind: StopKind,
        earlier: NodeStop | None = None,
    ) -> None:
        """Begin a shutdown, or go on with one.

        Args:
            book: where it is written.
            budget: its phases.
            stopper: ends containers.
            pods: what is up.
            kind: how it came about.
            earlier: one of this boot that was interrupted. One that logind's signal began goes on with what is left
                of its time; at the stop of the unit time counts anew, since it is systemd that waits now.
        """
        self._book = book
        self._clock = book.clock
        self._logger = book.logger
        self._pods = pods
        now_s = self._clock.monotonic_s()
        goes_on = earlier is not None and kind is StopKind.SIGNAL
        begun_s = earlier.started_s if earlier is not None and goes_on else now_s
        begun_at = earlier.started_at if earlier is not None and goes_on else self._clock.now()
        shift_ms = elapsed_since(earlier.started_s, now_s) if earlier is not None and not goes_on else 0
        before = {
            each.uid: replace(each, asked_ms=each.asked_ms - shift_ms)
            for each in (earlier.pods if earlier is not None else ())
        }
        self._stop = NodeStop(book.boot_id, kind, begun_at, begun_s, budget.granted_ms)
        self._budget = budget
        self._dirty = asyncio.Event()
        self._run = ShutdownRun(
            budget,
            stopper,
            lambda: elapsed_since(begun_s, self._clock.monotonic_s()),
            pods.look,
            on_phase=lambda name, count: self._logger.info("shutdown_phase", phase=name, pods=count),
            on_pod=self._log_pod,
            on_change=self._dirty.set,
            before=before,
        )
        self._elapsed_ms = elapsed_since(begun_s, now_s)
        self._continued = earlier is not None
        self._written_off = False
        self._writer: asyncio.Task[None] | None = None

    @property
    def stop(self) -> NodeStop:
        """How far it has come."""
        return replace(self._stop, pods=self._run.pods)

    async def carry_out(self) -> None:
        """Stop all pods; returns once each has ended, at the end of the time at the latest.

        Cancelled, it leaves alone what was not told to stop yet. Either way :meth:`close` or :meth:`interrupt` is to
        follow; what held the node back can be let go before.
        """
        self._dirty.set()
        self._writer = asyncio.create_task(self._keep_written())
        work = asyncio.create_task(self._run.carry_out(self._pods.pods))
        try:
            await asyncio.sleep(0)  # the pods are told first, the log afterwards
            self._log_begin()
            await work
        finally:
            work.cancel()
            await asyncio.wait({work})
        self._stop = replace(self._stop, end=StopEnd.COMPLETE, ended_at=self._clock.now())

    async def close(self, end: StopEnd | None = None, *, sandboxes_within_s: float = 0.0) -> NodeStop:
        """Write how it ended, and give sandboxes so many seconds; return how it ended."""
        if end is not None:
            self._stop = replace(self._stop, end=end, ended_at=self._clock.now())
        stop = self.stop
        self._logger.info("shutdown_finished", **_summary(stop))
        if self._run.list_problem:
            self._logger.warning("shutdown_pods_outdated", error=self._run.list_problem)
        await self._end_writing()
        await asyncio.to_thread(self._book.close, stop)
        await self._run.end_sandboxes(sandboxes_within_s)
        return stop

    async def interrupt(self) -> None:
        """Write how far it has come, for whoever goes on."""
        await self._end_writing()
        await asyncio.to_thread(self._book.write, self.stop)
        await self._run.end_sandboxes(0)

    def _log_begin(self) -> None:
        self._logger.info(
            "shutdown_resumed" if self._continued else "shutdown_started",
            kind=self._stop.kind.value,
            granted_s=self._budget.granted_ms / 1000,
            elapsed_s=self._elapsed_ms / 1000,
            phases={each.phase.name: each.granted_ms / 1000 for each in self._budget.phases},
            pods=len(self._pods.pods),
        )
        for note in self._budget.notes:
            self._logger.warning("shutdown_warning", note=note)

    def _log_pod(self, pod: StoppedPod) -> None:
        level = self._logger.info if pod.outcome is PodOutcome.STOPPED else self._logger.warning
        level("pod_stopped", **_pod(pod), why=pod.why, **({"detail": pod.detail} if pod.detail else {}))

    async def _keep_written(self) -> None:
        """Write what changed, one write at a time, always the newest."""
        await asyncio.to_thread(self._book.seen, LastActivity.GOING_DOWN)
        while not self._written_off:
            await self._dirty.wait()
            self._dirty.clear()
            await asyncio.to_thread(self._book.write, self.stop)

    async def _end_writing(self) -> None:
        """Wait for the write under way; cancelled, it would end after the last one and undo it."""
        if self._writer is not None:
            self._written_off = True
            self._dirty.set()
            await asyncio.wait({self._writer})


def rehearse(budget: ShutdownBudget, pods: Sequence[RunningPod], logger: FilteringBoundLogger) -> None:
    """Log what a shutdown would do, pod by pod."""
    plan = plan_shutdown(budget, [each.pod for each in pods])
    for phase in plan.phases:
        for stop in phase.stops:
            logger.info(
                "would_stop",
                pod=f"{stop.pod.namespace}/{stop.pod.name}",
                pod_uid=stop.pod.uid,
                phase=phase.budget.phase.name,
                grace_s=stop.grace_ms / 1000,
                why=stop.placement.why,
                dry_run=True,
            )
    logger.info("shutdown_rehearsed", pods=len(pods), granted_s=budget.granted_ms / 1000, dry_run=True)


def running(pods: Iterable[RunningPod]) -> tuple[StoppedPod, ...]:
    """Return pods as they are remembered while nothing happens to them, by namespace, name and UID."""
    seen = (StoppedPod(each.pod.uid, each.pod.namespace, each.pod.name) for each in pods)
    return tuple(sorted(seen, key=lambda each: (each.namespace, each.name, each.uid)))


def retention(settings: Settings) -> Retention:
    """Return how long the history is kept."""
    return Retention(timedelta(seconds=settings.history_age_s), settings.history_bytes)


def _unended(pods: Iterable[StoppedPod]) -> list[StoppedPod]:
    return [each for each in pods if each.outcome is None or not each.outcome.ended]


def _names(pods: Iterable[StoppedPod]) -> list[str]:
    return [f"{each.namespace}/{each.name}" for each in pods][:NAMED_PODS]


def _pod(pod: StoppedPod) -> dict[str, object]:
    return {
        "pod": f"{pod.namespace}/{pod.name}",
        "pod_uid": pod.uid,
        "phase": pod.phase,
        "outcome": pod.outcome.value if pod.outcome else "",
        "seconds": None if pod.took_ms is None else pod.took_ms / 1000,
    }


def _summary(stop: NodeStop) -> dict[str, object]:
    counts = Counter(each.outcome.value if each.outcome else "not-told" for each in stop.pods)
    took_s = (stop.ended_at - stop.started_at).total_seconds() if stop.ended_at else None
    return {
        "boot_id": stop.boot_id,
        "kind": stop.kind.value,
        "end": stop.end.value,
        "seconds": None if took_s is None else round(took_s, 3),
        "pods": len(stop.pods),
        **{outcome.replace("-", "_"): count for outcome, count in sorted(counts.items())},
    }
