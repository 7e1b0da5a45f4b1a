"""The duty that stops pods in order when the node goes down.

It holds logind's delay lock for as long as the daemon runs and keeps the pods at hand, so that at the signal nothing
has to be asked before the first pod is told. A copy of the lock waits in systemd's store: an agent that is killed in
the middle comes back, gets it handed over, reads how far it was, and goes on.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.act.agent import READ_METHODS
from nodeagent.daemon.loops import wait_for_any
from nodeagent.daemon.pass_lock import Pause
from nodeagent.daemon.shutdown.execution import ShutdownInProgress, ShutdownRecorder, rehearse, retention, running
from nodeagent.daemon.shutdown.pod_cache import PodCache
from nodeagent.errors import InhibitorError, NodeAgentError
from nodeagent.host.fdstore import DescriptorStore, stored_descriptor
from nodeagent.host.logind_config import LogindDelay, read_delay
from nodeagent.host.node import boot_id
from nodeagent.host.systemd import LogindUnit
from nodeagent.model.node_stop import LastActivity, StopEnd, StopKind
from nodeagent.observe.node_role import FRESH_S, ROLE_POLL_S
from nodeagent.plan.shutdown.budget import DelayLimit, shutdown_budget
from nodeagent.runtime.connection import RuntimeConnection, discover_endpoint
from nodeagent.runtime.cri import CriClient
from nodeagent.store.history import History
from nodeagent.store.shutdown import ShutdownFiles

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.host.logind import LogindEvent, ShutdownInhibitor
    from nodeagent.model.node_stop import NodeStop, StoppedPod
    from nodeagent.plan.shutdown.budget import ShutdownBudget

NAME: Final = "shutdown"
REFRESH_S: Final = 30.0
_LOOK_S: Final = 5.0
_SLACK_S: Final = 60.0
_SEEN_EVERY_S: Final = 300.0
_LEARN_WITHIN_S: Final = 2.0
_SANDBOXES_S: Final = 5.0
_WIND_UP_S: Final = 7.0
_MEND_AFTER_S: Final = 1.5
_MEND_EVERY_S: Final = 300.0


class Logind(Protocol):
    """logind's unit; both methods block."""

    def runs_beside_the_bus(self) -> bool:
        """Return whether it and the bus both run."""

    def restart(self) -> None:
        """Restart it; raises InhibitorError."""


class InhibitorTask:
    """Holds the lock, and stops the pods at the signal. It lasts over reloads and looks at the settings in force."""

    def __init__(  # noqa: PLR0913 - where the outside world is
        self,
        context: DaemonContext,
        *,
        bus_address: str = "",
        root: Path = Path("/"),
        store: DescriptorStore | None = None,
        adopted: int | None = None,
        logind: Logind | None = None,
        this_boot: str = "",
    ) -> None:
        """Prepare the duty; nothing is asked for yet.

        Args:
            context: what the duties share.
            bus_address: of the bus; empty for this machine's.
            root: where the files of logind are looked for.
            store: where a copy of the lock is kept.
            adopted: a lock that was handed to this process; else what systemd hands over.
            logind: its unit.
            this_boot: the id of this boot; the kernel's unless given.
        """
        self._context = context
        self._logger = context.logger.bind(duty=NAME)
        self._clock = context.clock
        self._address = bus_address
        self._root = root
        self._store = store or DescriptorStore()
        self._adopted = adopted if adopted is not None else stored_descriptor()
        self._logind = logind or LogindUnit()
        self._mended_s: float | None = None
        self._boot_id = this_boot or boot_id()
        self._book = self._open_book()
        self._settings = context.settings
        self._inhibitor: ShutdownInhibitor | None = None
        self._connection: RuntimeConnection | None = None
        self._pods: PodCache | None = None
        self._stopper: CriClient | None = None
        self._work: asyncio.Task[None] | None = None
        self._under_way: ShutdownInProgress | None = None
        self._earlier: NodeStop | None = None
        self._released = False
        self._news = asyncio.Event()
        self._delay = LogindDelay(None)
        self._checked: object = None
        self._missing = ""
        self._problem = ""
        self._seen: tuple[StoppedPod, ...] | None = None
        self._seen_s = 0.0
        self._refused = False

    async def run(self, stop: asyncio.Event) -> None:
        """Hold the lock until told to stop; a shutdown that is under way then is left to whoever comes next."""
        await asyncio.to_thread(self._book.review)
        while not stop.is_set():
            off = await self._off_because()
            if not off:
                try:
                    await self._watch(stop)
                except Exception:  # a bug here must not end the daemon's other duties
                    self._logger.exception("inhibitor_task_crashed")
                    await wait_for_any(_LOOK_S, stop)
                continue
            self._context.loop_statuses.disabled(NAME, off)
            level = self._logger.warning if self._refused else self._logger.info
            level("shutdown_disabled", because=off)
            self._give_up_adopted()
            await asyncio.to_thread(self._leave)
            while not stop.is_set() and (off := await self._off_because(max_age_s=ROLE_POLL_S)):
                self._context.loop_statuses.disabled(NAME, off)
                await wait_for_any(_LOOK_S, stop)

    # ---- holding the lock

    async def _watch(self, stop: asyncio.Event) -> None:
        """Hold the lock until told to stop, or until the settings say that it is not wanted."""
        from nodeagent.host.logind import ShutdownInhibitor  # noqa: PLC0415 - dbus_fast, only where it is wanted

        last = await asyncio.to_thread(self._book.last)
        self._earlier = last if last is not None and last.boot_id == self._boot_id else None
        adopted, self._adopted = self._adopted, None
        self._released, self._checked, self._seen = False, None, None
        self._inhibitor = inhibitor = ShutdownInhibitor(self._on_event, address=self._address, adopted=adopted)
        self._missing = inhibitor.state.because  # not asked for yet, which is nothing to tell
        self._delay = await asyncio.to_thread(read_delay, self._root)
        await self._take_settings()
        holding, off = asyncio.create_task(inhibitor.run()), ""
        try:
            while not stop.is_set() and not holding.done() and not (off := await self._off_unless_going_down()):
                if self._context.settings is not self._settings and self._under_way is None:
                    await self._take_settings()
                self._news.clear()
                await self._look(inhibitor)
                if not inhibitor.state.held and not self._released:
                    await wait_for_any(_MEND_AFTER_S, stop)
                    await self._mend(inhibitor)
                await self._wait(REFRESH_S if inhibitor.state.held else _LOOK_S, stop)
            if off:
                self._context.pass_lock.lift(NAME)  # a cancellation of the shutdown will not be heard
                self._store.forget()
                if inhibitor.state.held:
                    self._release(off)
            if holding.done():
                holding.result()
        finally:
            await self._end_work()
            holding.cancel()
            await asyncio.wait({holding})
            self._inhibitor, self._context.lock_held = None, None
            await self._close_runtime()
            await asyncio.to_thread(self._leave)

    async def _wait(self, seconds: float, stop: asyncio.Event) -> None:
        """Wait so long, or until there is news, or until the lock is not wanted any more."""
        while seconds > 0:
            if await wait_for_any(min(seconds, ROLE_POLL_S), stop, self._news):
                return
            if await self._off_because(max_age_s=ROLE_POLL_S):  # the eviction loop reads it as often
                return
            seconds -= ROLE_POLL_S

    def _on_event(self, event: LogindEvent) -> None:
        """Take note of what logind did; called from the arriving message, so it only starts things."""
        from nodeagent.host.logind import LogindEventKind  # noqa: PLC0415 - loaded already

        self._context.lock_held = event.state.held
        self._news.set()
        match event.kind:
            case LogindEventKind.SHUTDOWN_BEGINS:
                self._begin()
            case LogindEventKind.SHUTDOWN_CANCELLED:
                self._cancel()
            case LogindEventKind.LOCK_HELD:
                number = self._inhibitor.descriptor if self._inhibitor is not None else None
                kept = number is not None and self._store.keep(number)
                self._missing = ""
                self._logger.info("inhibitor_lock_acquired", because=event.state.because, kept_by_systemd=kept)
                if not event.state.preparing and self._earlier is not None:
                    self._work = asyncio.create_task(self._put_back(self._work))
            case LogindEventKind.LOCK_LOST:
                self._missing = event.state.because
                self._logger.warning("inhibitor_lock_lost", because=event.state.because)

    async def _look(self, inhibitor: ShutdownInhibitor) -> None:
        """Do what is due from time to time: pods, the self-check, the board. Changes nothing on the node."""
        if self._under_way is not None:
            return
        await self._refresh()
        state = inhibitor.state
        if state.limit_us is not None and self._checked != (state.limit_us, self._settings):
            self._checked = state.limit_us, self._settings
            self._delay = await asyncio.to_thread(read_delay, self._root)
            self._tell_budget()
        if state.held:
            left = self._budget().delegated_because
            if left:
                self._context.loop_statuses.paused(NAME, left, REFRESH_S + _SLACK_S)
            else:
                self._context.loop_statuses.waiting(NAME, REFRESH_S, _SLACK_S)
            return
        self._context.loop_statuses.paused(NAME, str(state), _LOOK_S + _SLACK_S)
        if state.because != self._missing:
            self._missing = state.because
            self._logger.warning("inhibitor_lock_missing", because=state.because)

    async def _mend(self, inhibitor: ShutdownInhibitor) -> None:
        """Restart a logind that runs without the bus: nothing else brings it back, and no shutdown would be told."""
        now_s = self._clock.monotonic_s()
        recently = self._mended_s is not None and now_s - self._mended_s < _MEND_EVERY_S
        if not inhibitor.logind_is_missing or recently or not self._settings.shutdown.restart_logind:
            return
        if self._settings.dry_run or not await asyncio.to_thread(self._logind.runs_beside_the_bus):
            return
        self._mended_s = now_s
        self._logger.warning("logind_restart", because="it runs, but is not on the system bus")
        try:
            await asyncio.to_thread(self._logind.restart)
        except InhibitorError as error:
            self._logger.warning("logind_restart_failed", error=str(error))

    def _tell_budget(self) -> None:
        budget = self._budget()
        self._logger.info(
            "shutdown_ready",
            wanted_s=budget.requested_ms / 1000,
            granted_s=budget.granted_ms / 1000,
            limit_s=None if budget.limit_ms is None else budget.limit_ms / 1000,
            phases={each.phase.name: each.granted_ms / 1000 for each in budget.phases},
            at_signal=budget.suffices_at_signal,
            dry_run=self._settings.dry_run,
        )
        left = budget.delegated_because
        for note in (left,) if left else budget.notes:
            self._logger.warning("shutdown_warning", note=note, hint="nodeagent doctor --fix-logind")

    def _budget(self) -> ShutdownBudget:
        reported_us = self._inhibitor.state.limit_us if self._inhibitor is not None else None
        limit = DelayLimit.of_logind(reported_us, self._delay.delay_us, self._delay.set_by)
        return shutdown_budget(self._settings.shutdown.phases, limit)

    # ---- pods at hand

    async def _refresh(self) -> None:
        """Look at the pods, and keep what runs for whoever asks after a crash of the node."""
        if self._pods is None:
            self._open_runtime()
        if self._pods is None:
            return
        try:
            pods = running(await self._pods.refresh())
        except NodeAgentError as error:
            self._tell_problem(str(error))
            return
        self._tell_problem("")
        now_s = self._clock.monotonic_s()
        if self._work is None and (pods != self._seen or now_s - self._seen_s >= _SEEN_EVERY_S):
            self._seen, self._seen_s = pods, now_s
            await asyncio.to_thread(self._book.seen, LastActivity.WATCHING, pods)

    def _tell_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._logger.warning("shutdown_pods_unavailable", error=problem)
        self._problem = problem

    async def _take_settings(self) -> None:
        await self._close_runtime()
        self._settings = self._context.settings
        self._book = self._open_book()
        self._open_runtime()

    def _open_runtime(self) -> None:
        """Open a connection of our own: a reload closes the agent's, and calls under way must not end with it."""
        try:
            endpoint = discover_endpoint(self._settings.endpoint or None)
        except NodeAgentError as error:
            self._tell_problem(str(error))
            return
        self._connection = RuntimeConnection(
            endpoint,
            deadlines=dict.fromkeys(READ_METHODS, self._settings.timeout_s),
            observer=self._context.counters.call,
        )
        self._stopper = CriClient(self._connection)
        roles = self._context.roles
        self._pods = PodCache(self._stopper, self._settings, self._clock, lambda: roles.current.role)

    async def _close_runtime(self) -> None:
        connection, self._connection = self._connection, None
        pods, self._pods, self._stopper = self._pods, None, None
        if pods is not None:
            await pods.close()
        if connection is not None:
            await connection.close()

    # ---- going down

    def _begin(self) -> None:
        self._context.pass_lock.hold(Pause(NAME, "the node is going down"))
        self._work = asyncio.create_task(self._go_down(self._work))

    def _cancel(self) -> None:
        self._context.pass_lock.lift(NAME)
        self._logger.warning("shutdown_cancelled")
        before = self._work
        if before is not None:
            before.cancel()
        self._work = asyncio.create_task(self._put_back(before))

    async def _go_down(self, before: asyncio.Task[None] | None) -> None:
        """Stop the pods and let the node go, whatever happens; only a stop of the agent or a cancellation keeps it."""
        try:
            if before is not None and not before.done():
                await asyncio.wait({before})
            if off := await self._off_because():  # a kubelet may have started since the last poll
                self._release(off)
                self._news.set()
                return
            left = self._budget().delegated_because
            if left:
                self._logger.warning("shutdown_delegated", because=left, hint="nodeagent doctor --fix-logind")
                self._release("logind grants too little time to stop pods")
                return
            with self._book.files.claim() as ours:
                if ours:
                    await self._stop_pods()
                else:
                    self._logger.warning("shutdown_delegated", because="another process of the agent stops the pods")
        except Exception:  # whatever it is, it must not hold the node back
            self._logger.exception("shutdown_crashed")
        self._release("the pods were seen to")

    async def _stop_pods(self) -> None:
        earlier, self._earlier = self._earlier, None
        if earlier is not None and earlier.end is StopEnd.COMPLETE:
            self._logger.info("shutdown_already_done")
            return
        budget = self._budget()
        if self._pods is None or self._stopper is None:
            self._open_runtime()
        if self._pods is None or self._stopper is None:
            self._logger.error("shutdown_runtime_unavailable", error=self._problem)
            return
        if not self._pods.known:
            await self._learn_quickly(self._pods)
        if self._settings.dry_run:
            rehearse(budget, self._pods.pods, self._logger)
            return
        if earlier is not None and earlier.end is not StopEnd.IN_PROGRESS:
            earlier = None
        self._under_way = ShutdownInProgress(
            self._book, budget, self._stopper, self._pods, kind=StopKind.SIGNAL, earlier=earlier
        )
        self._context.loop_statuses.running(NAME, budget.granted_ms / 1000 + _SLACK_S)
        await self._under_way.carry_out()
        self._release("every pod has ended")
        stop = await self._under_way.close(sandboxes_within_s=_SANDBOXES_S)
        self._context.loop_statuses.ended(NAME, stop.end.value)

    async def _learn_quickly(self, pods: PodCache) -> None:
        """Learn what the pods are where there was no time before: a shutdown goes on after a restart of the agent."""
        try:
            async with asyncio.timeout(_LEARN_WITHIN_S):
                await pods.refresh()
        except (NodeAgentError, TimeoutError) as error:
            self._logger.warning("shutdown_pods_unavailable", error=str(error) or "no answer in time")

    def _release(self, because: str) -> None:
        """Let the node go: our lock, and the copy that systemd keeps."""
        if self._inhibitor is None or self._released:
            return
        self._released = True
        self._store.forget()
        self._inhibitor.release(because)
        self._context.lock_held = False
        self._logger.info("inhibitor_lock_released", because=because)

    async def _put_back(self, before: asyncio.Task[None] | None) -> None:
        """Note that nothing came of a shutdown, one of an earlier run of the agent too."""
        if before is not None and not before.done():
            await asyncio.wait({before})
        under_way, self._under_way = self._under_way, None
        earlier, self._earlier = self._earlier, None
        self._released, self._seen = False, None
        if under_way is not None:
            await under_way.close(StopEnd.CANCELLED)
            self._context.loop_statuses.ended(NAME, StopEnd.CANCELLED.value)
        elif earlier is not None and earlier.end in (StopEnd.IN_PROGRESS, StopEnd.COMPLETE):
            ended = replace(earlier, end=StopEnd.CANCELLED, ended_at=self._clock.now())
            await asyncio.to_thread(self._book.close, ended)
        if self._work is asyncio.current_task():
            self._work = None
        self._news.set()

    async def _end_work(self) -> None:
        """Leave a shutdown that is under way to whoever comes next; let one that is over be written down."""
        work = self._work
        if work is None:
            return
        if not self._released:
            work.cancel()
        _, late = await asyncio.wait({work}, timeout=_WIND_UP_S)
        for task in late:
            task.cancel()
        if self._under_way is not None and not self._released:
            await self._under_way.interrupt()

    # ---- the record of this boot

    def _open_book(self) -> ShutdownRecorder:
        settings = self._context.settings
        return ShutdownRecorder(
            ShutdownFiles(settings.state_directory),
            History(settings.state_directory),
            retention(settings),
            self._clock,
            self._logger,
            self._boot_id,
        )

    def _leave(self) -> None:
        """Note that nobody watches this boot any more, unless it is going down."""
        seen = self._book.last_seen()
        if seen is not None and seen.boot_id == self._boot_id and seen.presence is LastActivity.WATCHING:
            self._book.seen(LastActivity.AGENT_STOPPED, seen.pods)

    async def _off_because(self, *, max_age_s: float = FRESH_S) -> str:
        """Return why pods are not stopped in order now; empty if they are."""
        settings = self._context.settings
        role = await self._context.roles.evaluate(settings.role, max_age_s=max_age_s)
        self._refused = settings.shutdown.refused(role.role)
        return settings.shutdown.off_because(role.role, role.reason)

    async def _off_unless_going_down(self) -> str:
        """Return why pods are not stopped in order now; empty while they are being stopped, which is finished."""
        off = await self._off_because(max_age_s=ROLE_POLL_S)
        return "" if self._work is not None and not self._work.done() else off

    def _give_up_adopted(self) -> None:
        """Close a lock that was handed over and is not wanted."""
        number, self._adopted = self._adopted, None
        if number is not None:
            with suppress(OSError):
                os.close(number)
            self._store.forget()
