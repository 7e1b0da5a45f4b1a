"""Delivery of TERM and KILL to containers: through the runtime, and directly if the runtime is slow.

The runtime sends the stop signal of the image, so StopContainer is called first. StopContainer returns only after the
container has stopped, so it does not confirm the delivery of the signal. Delivery is confirmed by two facts: a later
Version request was answered, so the stop request has arrived; and the container has used CPU time since then, as every
handled signal does. Without confirmation after a quarter of the phase (at most 1 s), the main process is signalled
directly and the request is cancelled. After a phase in which the runtime did not answer, the next phase is signalled
directly from its start.

Many programs handle a second TERM as an exit without cleanup, so a second TERM is sent only shortly before KILL. It is
required because a busy container uses CPU time also while its shim hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError, RuntimeNotFoundError, RuntimeRequestError
from nodeagent.model.runtime import ContainerState
from nodeagent.shutdown.plan.planner import delayed_kill_ms

if TYPE_CHECKING:
    from nodeagent.host.container_processes import ContainerProcesses
    from nodeagent.shutdown.recorder import ContainerStop, PodRecord, Stopper

RETRY_S: Final = 0.2
_BATCH: Final = 16
_PATIENCE_S: Final = 1.0
_POLL_S: Final = 0.05
_DIRECT_KILL_S: Final = 0.5  # wait after a direct KILL, before StopContainer is called
_EXIT_READS: Final = 4
_UNSEEN_MS: Final = 1000  # time without an observation after which an end has an unknown time
_SANDBOXES_AT_ONCE: Final = 8
NO_ANSWER: Final = "the runtime did not answer in time"


class Delivery:
    """Delivery of signals to containers, and detection of their end. Methods that are not ``async`` never block.

    Attributes:
        searched: whether a search was complete, so that containers without located processes have no processes.
    """

    def __init__(
        self,
        stopper: Stopper,
        processes: ContainerProcesses,
        elapsed_ms: Callable[[], int],
        on_change: Callable[[], None],
    ) -> None:
        """Prepare a delivery.

        Args:
            stopper: stops containers through the runtime.
            processes: finds and signals the processes of containers directly.
            elapsed_ms: returns the milliseconds since the shutdown began.
            on_change: called after each change of a container.
        """
        self._stopper = stopper
        self._processes = processes
        self._elapsed_ms = elapsed_ms
        self._on_change = on_change
        self.searched = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._exit_reads = asyncio.Semaphore(_EXIT_READS)
        self._is_runtime_slow = False  # whether the runtime did not answer in the last phase

    def terminate(self, containers: Sequence[ContainerStop], timeout_s: int, within_ms: int) -> None:
        """Deliver TERM to containers.

        Args:
            containers: containers to stop, in order.
            timeout_s: timeout of StopContainer, after which the runtime sends KILL.
            within_ms: remaining time of the phase; after a quarter of that time, TERM is sent directly.
        """
        self._start(self._terminate(containers, timeout_s, within_ms))

    def terminate_finally(self, container: ContainerStop) -> None:
        """Send one direct TERM to a container that has received TERM from the runtime only."""
        if not (container.direct or container.answered) and self._processes.terminate(container.id):
            container.direct = True
            self._on_change()

    def kill(self, container: ContainerStop, due_ms: int, last_ms: int) -> None:
        """Send KILL to a container repeatedly, until the container has no processes.

        KILL is delayed while the main process has had no CPU time to receive its TERM, and if TERM, which was not
        confirmed, is sent now. The method then returns without a KILL, and the caller repeats the call.

        Args:
            container: the container.
            due_ms: due time of KILL, now or in the past, in milliseconds since the shutdown began.
            last_ms: latest time of a KILL in the run, in milliseconds since the shutdown began.
        """
        if container.killer is not None:
            return
        if self._terminate_directly([container]):
            return
        if container.kill_due_ms is None:
            container.kill_due_ms = due_ms
        is_last = self._elapsed_ms() >= delayed_kill_ms(container.kill_due_ms, last_ms)
        if not is_last and self._processes.has_pending_term(container.id) and self._processes.is_delayed(container.id):
            return
        container.killer = self._start(self._kill(container))

    def observe(self, container: ContainerStop) -> bool:
        """Record the end of a container if its processes have ended; return whether the container has ended."""
        if container.ended_at_ms is None:
            populated, now_ms = self._processes.is_populated(container.id), self._elapsed_ms()
            absent = populated is None and self.searched and container.observed
            container.observed = container.observed or populated is not None
            if populated is False or absent or (populated is None and container.answered):
                container.ended_at_ms = now_ms
                container.end_inferred = populated is None or now_ms - container.seen_at_ms > _UNSEEN_MS
            elif populated:
                container.seen_at_ms = now_ms
        return container.ended_at_ms is not None

    def read_exits(
        self, record: PodRecord, ended_ms: Callable[[datetime], int] | None, then: Callable[[], None]
    ) -> None:
        """Read the exit codes of an ended pod in the background, then call ``then``.

        ``ended_ms`` converts an exit time to milliseconds since the shutdown began; ``None`` to ignore exit times.
        """
        self._start(self._read_exits(record, ended_ms, then))

    async def stop_sandboxes(self, sandbox_ids: Iterable[str], within_s: float) -> None:
        """Stop sandboxes for up to ``within_s`` seconds.

        Failures are ignored, since the containers have ended and the node shuts down.
        """
        at_once = asyncio.Semaphore(_SANDBOXES_AT_ONCE)

        async def stop(sandbox_id: str) -> None:
            async with at_once:
                with suppress(NodeAgentError):
                    await self._stopper.stop_sandbox(sandbox_id)

        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*map(stop, sandbox_ids))

    async def close(self) -> None:
        """Cancel all pending requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- delivery of TERM

    async def _terminate(self, containers: Sequence[ContainerStop], timeout_s: int, within_ms: int) -> None:
        patience_s = max(0.0, min(_PATIENCE_S, within_ms / 4000))
        loop = asyncio.get_running_loop()
        until_s, answers = loop.time() + patience_s, True
        if self._is_runtime_slow:
            self._terminate_directly(containers)
        for each in containers:
            each.cpu_us = self._processes.cpu_us(each.id)
        for first in range(0, len(containers), _BATCH):
            batch = containers[first : first + _BATCH]
            for each in batch:
                each.call = self._start(self._request(each, timeout_s))
            await asyncio.sleep(0)  # sends the stop requests before the Version request
            answers = answers and await self._confirm(batch, until_s - loop.time())
        self._is_runtime_slow = not answers
        await self._confirm_all(containers, until_s)

    async def _confirm_all(self, containers: Sequence[ContainerStop], until_s: float) -> None:
        """Wait until every TERM is confirmed; from ``until_s`` on, send each unconfirmed TERM directly."""
        loop = asyncio.get_running_loop()
        while unconfirmed := [each for each in containers if each.signalled_at_ms is None and each.ended_at_ms is None]:
            overdue = loop.time() >= until_s
            self._terminate_directly(
                [each for each in unconfirmed if overdue or self._processes.has_stopped_shim(each.id)]
            )
            await asyncio.sleep(min(RETRY_S, max(_POLL_S, until_s - loop.time())))
            await self._confirm(unconfirmed, _PATIENCE_S if loop.time() >= until_s else until_s - loop.time())

    async def _confirm(self, batch: Sequence[ContainerStop], within_s: float) -> bool:
        """Mark the containers with a confirmed TERM; return whether the runtime answered within ``within_s`` s."""
        pending = [each for each in batch if each.signalled_at_ms is None and each.requested]
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                await self._stopper.version()
        except (NodeAgentError, TimeoutError):
            return False
        for each in pending:
            idle = each.cpu_us is not None and self._processes.cpu_us(each.id) == each.cpu_us
            if each.requested and not idle and not self._processes.has_stopped_shim(each.id):
                self._signalled(each)
        return True

    def _terminate_directly(self, batch: Sequence[ContainerStop]) -> bool:
        """Send TERM directly to each container without a confirmed TERM; return whether any was sent."""
        sent = False
        for each in batch:
            if each.signalled_at_ms is None and self._processes.terminate(each.id):
                each.direct = sent = True
                self._signalled(each)
                if each.call is not None and each.requested:
                    each.call.cancel()
        return sent

    def _signalled(self, container: ContainerStop) -> None:
        if container.signalled_at_ms is None:
            container.signalled_at_ms = self._elapsed_ms()
            self._on_change()

    async def _request(self, container: ContainerStop, timeout_s: int) -> None:
        """Repeat the stop request for a container until the runtime reports the end of the container."""
        while container.ended_at_ms is None:
            requested_ms = self._elapsed_ms()
            if container.signalled_at_ms is not None and self._processes.is_populated(container.id) is not None:
                return  # the end of its processes is observed directly
            try:
                if container.signalled_at_ms is None:
                    container.requested = True
                    await self._stopper.stop_container(container.id, timeout_s)
                    ended = True
                else:
                    ended = await self._has_exited(container)
            except NodeAgentError as error:
                if container.requested and isinstance(error, RuntimeRequestError):
                    self._retract(container, requested_ms)
                container.problem, container.requested, ended = str(error), False, False
                self._terminate_directly([container])
            if ended:
                container.answered, container.problem = True, ""
                self._signalled(container)
                self._on_change()
                return
            await asyncio.sleep(RETRY_S)

    def _retract(self, container: ContainerStop, requested_ms: int) -> None:
        """Withdraw the confirmation of a TERM if the runtime refused the stop request shortly after its arrival.

        After a lost connection the confirmation remains valid: the request had arrived, and a second TERM could prevent
        the cleanup of the pod.
        """
        if container.signalled_at_ms is None or container.direct:
            return
        if self._elapsed_ms() - requested_ms < _PATIENCE_S * 1000:
            container.signalled_at_ms = None
            self._start(self._confirm_all([container], asyncio.get_running_loop().time() + _PATIENCE_S))

    async def _has_exited(self, container: ContainerStop) -> bool:
        try:
            status = await self._stopper.container_status(container.id)
        except RuntimeNotFoundError:
            return True
        return status.state is ContainerState.EXITED

    # ---- delivery of KILL

    async def _kill(self, container: ContainerStop) -> None:
        container.killed_unhandled = self._processes.has_pending_term(container.id)
        while not self.observe(container):
            container.killed = True
            if self._processes.kill(container.id) and await self._ends_within(container, _DIRECT_KILL_S):
                break
            try:
                await self._stopper.stop_container(container.id, 0)
            except NodeAgentError as error:
                container.problem = str(error)
            else:
                container.answered = True
                if await self._ends_within(container, RETRY_S):
                    break
            await asyncio.sleep(RETRY_S)
        self._on_change()

    async def _ends_within(self, container: ContainerStop, within_s: float) -> bool:
        until_ms = self._elapsed_ms() + round(within_s * 1000)
        while not self.observe(container):
            if self._elapsed_ms() >= until_ms:
                return False
            await asyncio.sleep(0.02)
        return True

    # ---- exit codes of ended containers

    async def _read_exits(
        self, record: PodRecord, ended_ms: Callable[[datetime], int] | None, then: Callable[[], None]
    ) -> None:
        for each in tuple(record.containers.values()):
            if each.call is not None:
                await asyncio.wait({each.call})  # until the runtime has processed the exit
            await self._read_exit(each, ended_ms)
        then()

    async def _read_exit(self, container: ContainerStop, ended_ms: Callable[[datetime], int] | None) -> None:
        while True:
            try:
                async with self._exit_reads:
                    status = await self._stopper.container_status(container.id)
            except RuntimeNotFoundError:
                return
            except NodeAgentError:
                pass
            else:
                if status.state is ContainerState.EXITED:
                    container.exit_code = status.exit_code
                    if status.finished_at is not None and ended_ms is not None:
                        container.infer_end(ended_ms(status.finished_at))
                    return
            await asyncio.sleep(RETRY_S)

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
