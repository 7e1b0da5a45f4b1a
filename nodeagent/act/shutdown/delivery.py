"""Delivery of TERM and KILL to containers, by the runtime and, where it is slow, directly.

The runtime sends the stop signal of the image, so it is asked first. It confirms no delivery, since a stop request
returns once the container has stopped. Two facts confirm it: a later request, which every runtime answers at once, was
answered, so that the stop request has arrived; and the container has used CPU time since, which a handled signal takes.
Otherwise the main process is signalled directly after a quarter of the phase, at most a second, and the request is
cancelled; after a phase in which the runtime did not answer, the next phase is signalled directly at once. A second
TERM, which many programs take as an order to exit without cleanup, follows only shortly before KILL: a busy container
uses CPU time also while its shim hangs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError, RuntimeNotFoundError, RuntimeRequestError
from nodeagent.model import ContainerState
from nodeagent.plan.shutdown.timing import delayed_kill_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from datetime import datetime

    from nodeagent.act.shutdown.pod_record import ContainerStop, PodRecord, Processes, Stopper

RETRY_S: Final = 0.2
_BATCH: Final = 16
_PATIENCE_S: Final = 1.0
_POLL_S: Final = 0.05
_DIRECT_KILL_S: Final = 0.5  # for the end of processes after a direct KILL, before the runtime is asked
_EXIT_READS: Final = 4
_SANDBOXES_AT_ONCE: Final = 8
NO_ANSWER: Final = "the runtime did not answer in time"


class Delivery:
    """Sends signals to containers and reads their ends; every method returns at once or is a task of the run.

    Attributes:
        searched: whether a complete search has found the processes of all containers that have any.
    """

    def __init__(
        self, stopper: Stopper, processes: Processes, elapsed_ms: Callable[[], int], on_change: Callable[[], None]
    ) -> None:
        """Prepare a delivery.

        Args:
            stopper: the runtime.
            processes: the processes of containers.
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
        self._is_runtime_slow = False  # in the last phase

    def terminate(self, containers: Sequence[ContainerStop], timeout_s: int, within_ms: int) -> None:
        """Deliver TERM to containers.

        Args:
            containers: all of one phase, in order.
            timeout_s: time after which the runtime may send KILL by itself.
            within_ms: time of the phase, of which a quarter may pass before direct signals.
        """
        self._start(self._terminate(containers, timeout_s, within_ms))

    def terminate_finally(self, container: ContainerStop) -> None:
        """Send TERM directly, once, to a container whose TERM was confirmed by the arrival of the request only."""
        if not (container.direct or container.answered) and self._processes.terminate(container.id):
            container.direct = True
            self._on_change()

    def kill(self, container: ContainerStop, due_ms: int, last_ms: int) -> None:
        """Send KILL to a container that has processes, until it has none.

        Its first call is followed by others while this returns without a KILL: for a process that has had no CPU time
        to receive its TERM, KILL is delayed.

        Args:
            container: the container.
            due_ms: time at which KILL was due, now or earlier.
            last_ms: time of the last KILL of the run.
        """
        if container.killer is not None:
            return
        if container.kill_due_ms is None:
            container.kill_due_ms = due_ms
        is_last = self._elapsed_ms() >= delayed_kill_ms(container.kill_due_ms, last_ms)
        if not is_last and self._processes.has_pending_term(container.id) and self._processes.is_delayed(container.id):
            return
        container.killer = self._start(self._kill(container))

    def observe(self, container: ContainerStop) -> bool:
        """Update the end of a container; return whether it has ended."""
        if container.ended_at_ms is None:
            populated = self._processes.is_populated(container.id)
            absent = populated is None and self.searched and container.observed
            container.observed = container.observed or populated is not None
            if populated is False or absent or (populated is None and container.answered):
                container.ended_at_ms, container.end_inferred = self._elapsed_ms(), populated is None
        return container.ended_at_ms is not None

    def read_exits(self, record: PodRecord, ended_ms: Callable[[datetime], int], then: Callable[[], None]) -> None:
        """Read the exit codes of a pod that has ended, then call ``then``; ``ended_ms`` converts a time of exit."""
        self._start(self._read_exits(record, ended_ms, then))

    async def stop_sandboxes(self, sandbox_ids: Iterable[str], within_s: float) -> None:
        """Stop sandboxes for up to ``within_s`` seconds.

        A failure is ignored, since their containers have ended and the node shuts down.
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

    # ---- TERM

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
            await asyncio.sleep(0)  # the requests are sent before the one that confirms them
            answers = answers and await self._confirm(batch, until_s - loop.time())
        self._is_runtime_slow = not answers
        await self._confirm_all(containers, until_s)

    async def _confirm_all(self, containers: Sequence[ContainerStop], until_s: float) -> None:
        """Confirm every TERM, by a direct one from ``until_s`` on."""
        loop = asyncio.get_running_loop()
        while unconfirmed := [each for each in containers if each.signalled_at_ms is None and each.ended_at_ms is None]:
            overdue = loop.time() >= until_s
            self._terminate_directly(
                [each for each in unconfirmed if overdue or self._processes.has_stopped_shim(each.id)]
            )
            await asyncio.sleep(min(RETRY_S, max(_POLL_S, until_s - loop.time())))
            await self._confirm(unconfirmed, _PATIENCE_S if loop.time() >= until_s else until_s - loop.time())

    async def _confirm(self, batch: Sequence[ContainerStop], within_s: float) -> bool:
        """Mark the containers whose TERM is confirmed; return whether the runtime has answered."""
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

    def _terminate_directly(self, batch: Sequence[ContainerStop]) -> None:
        for each in batch:
            if each.signalled_at_ms is None and self._processes.terminate(each.id):
                each.direct = True
                self._signalled(each)
                if each.call is not None and each.requested:
                    each.call.cancel()

    def _signalled(self, container: ContainerStop) -> None:
        if container.signalled_at_ms is None:
            container.signalled_at_ms = self._elapsed_ms()
            self._on_change()

    async def _request(self, container: ContainerStop, timeout_s: int) -> None:
        """Request the stop of a container until the runtime reports its end."""
        while container.ended_at_ms is None:
            requested_ms = self._elapsed_ms()
            if container.signalled_at_ms is not None and self._processes.is_populated(container.id) is not None:
                return  # its processes are watched
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
        """Retract the confirmation of a TERM whose request the runtime soon refused.

        A lost connection retracts nothing: the request had arrived, and a second TERM may cost the pod its cleanup.
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

    # ---- KILL

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

    # ---- ends

    async def _read_exits(
        self, record: PodRecord, ended_ms: Callable[[datetime], int], then: Callable[[], None]
    ) -> None:
        for each in tuple(record.containers.values()):
            if each.call is not None:
                await asyncio.wait({each.call})  # the runtime has processed the exit once it has answered
            await self._read_exit(each, ended_ms)
        then()

    async def _read_exit(self, container: ContainerStop, ended_ms: Callable[[datetime], int]) -> None:
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
                    if container.end_inferred and status.finished_at is not None:
                        container.ended_at_ms = ended_ms(status.finished_at)
                    return
            await asyncio.sleep(RETRY_S)

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
