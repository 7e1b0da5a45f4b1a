"""The operations of the control API that change the state of the daemon or the node."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from nodeagent import model
from nodeagent.api.codec import encode_line
from nodeagent.daemon.control.readings import Readings
from nodeagent.daemon.control.requested_pass import RequestedPass, require_agent
from nodeagent.daemon.control.requests import CALLER, check_number, check_text, parse_scope
from nodeagent.daemon.control_documents import Paused, Resumed, Triggered
from nodeagent.daemon.reload_preview import reload_document
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.gc.documents.holds import Hold
from nodeagent.gc.documents.passes import Result
from nodeagent.gc.documents.undo import Undone
from nodeagent.gc.loop import wait_for_any
from nodeagent.gc.plan.image_protection import EXPRESSION_PREFIX, parse_rule
from nodeagent.gc.restore import UndoOutcome
from nodeagent.loops.passes import Activity
from nodeagent.loops.pause import pause, resume
from nodeagent.loops.pause_file import LONGEST_PAUSE_S
from nodeagent.model import LONGEST_HOLD_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nodeagent.api import requests
    from nodeagent.daemon.reload_effect import Reloaded
    from nodeagent.gc import executor as outcomes
    from nodeagent.gc.documents.passes import Report

_MOST_ROUNDS: Final = 20
_RELOAD_WITHIN_S: Final = 60.0
_TRIGGER_WITHIN_S: Final = 900.0
_POLL_INTERVAL_S: Final = 0.1
_STOP_WITHIN_S: Final = 8.0


class ControlService(Readings):
    """Operations of the control API. The control server checks the access of the caller before each call."""

    async def add_hold(self, request: requests.AddHoldRequest) -> str:
        """Place a hold and return it."""
        image, why = check_text(request.image, "image"), check_text(request.why, "why")
        seconds = check_number(request.seconds, LONGEST_HOLD_S, "seconds")
        if not seconds:
            raise UsageError("seconds: a hold needs a duration of at most a year; protect.images keeps images forever")
        if image:
            try:
                parse_rule(image)
            except ValueError as error:
                raise UsageError(f"image: {error}") from error
        caller, by = CALLER.get(), check_text(request.by, "by")
        if image.strip().startswith(EXPRESSION_PREFIX) and not caller.is_root:
            raise UsageError("image: only root places holds by regular expressions; use a pattern such as */team/*")
        if by and not caller.is_root:
            raise UsageError("by: only root places holds for other users")
        at, clock = await self._clock_trust()
        until = at.wall + timedelta(seconds=seconds)
        hold = model.Hold("", image, why, by or caller.name, at.wall, until, at.boot_id, at.boottime_s)
        placed = await asyncio.to_thread(self._holds().add, hold, clock, limited=not caller.is_root)
        return encode_line(Hold.of(placed, at.wall, clock))

    async def remove_hold(self, request: requests.RemoveHoldRequest) -> str:
        """Remove a hold; users other than root can remove only their own holds."""
        caller, hold_id = CALLER.get(), check_text(request.id, "id")
        own = None if caller.is_root else caller.name
        removed = await asyncio.to_thread(self._holds().remove, hold_id, placed_by=own)
        if removed is None:
            for each in await asyncio.to_thread(self._holds().read):
                if each.id == hold_id:
                    raise UsageError(f"cannot remove hold {hold_id}: placed by {each.by}; requires root")
            raise UsageError(f"no hold {request.id}; 'nodeagent hold list' lists all")
        at, clock = await self._clock_trust()
        return encode_line(Hold.of(removed, at.wall, clock))

    async def pause(self, request: requests.PauseRequest) -> str:
        """Pause removals and evictions for a duration."""
        seconds = check_number(request.seconds, LONGEST_PAUSE_S, "seconds")
        if not seconds:
            raise UsageError("seconds: a pause needs a duration of at most 7 days")
        caller = CALLER.get()
        why = check_text(request.why, "why")
        work = pause(self._context, by=caller.name, is_root=caller.is_root, why=why, seconds=seconds)
        await asyncio.shield(work)  # a cancelled pause may be stored already, and would start at the next restart
        return encode_line(Paused(until=self._context.clock.now() + timedelta(seconds=seconds)))

    async def resume(self, _: requests.Empty) -> str:
        """End the pause; report whether the agent was paused."""
        caller = CALLER.get()
        was = await asyncio.shield(resume(self._context, by=caller.name, is_root=caller.is_root))
        return encode_line(Resumed(was_paused=was))

    async def trigger(self, request: requests.TriggerRequest) -> str:
        """Start a run of a loop, and wait for its end if requested."""
        lines = {line.name: line for line in self._context.loop_statuses.all}
        line, wake = lines.get(request.loop), self._context.wake.get(request.loop)
        if line is None or wake is None or line.activity is Activity.DISABLED:
            on = {name for name, each in lines.items() if each.activity is not Activity.DISABLED}
            known = ", ".join(sorted(self._context.wake.keys() & on))
            why = f": {line.reason}" if line is not None and line.reason else ""
            raise UsageError(f"loop {check_text(request.loop, 'loop')!r} is not running{why}; running loops: {known}")
        agent = require_agent(self._context)
        self._refuse_while_paused()
        ends = line.runs + (2 if line.activity is Activity.RUNNING else 1)
        self._context.triggered.add(request.loop)
        wake.set()
        if request.wait:
            await self._until(
                lambda: line.runs >= ends or line.activity is Activity.DISABLED, f"loop {request.loop} did not finish"
            )
            if line.runs < ends:
                raise UsageError(f"loop {request.loop!r} is not running: {line.reason}")
        return encode_line(
            Triggered(
                loop=request.loop,
                ended=request.wait,
                result=line.result if request.wait else "",
                detail=line.detail if request.wait else "",
                dry_run=agent.dry_run if self._context.agent is agent else None,
            )
        )

    def _refuse_while_paused(self) -> None:
        pause_in_force = self._context.pass_lock.pause()
        if pause_in_force is not None:
            raise UsageError(f"cannot trigger a loop: the agent is paused: {pause_in_force.reason}")

    async def _until(self, done: Callable[[], bool], late: str) -> None:
        ends_s = self._context.clock.monotonic_s() + _TRIGGER_WITHIN_S
        while not done():
            if self._context.stop.is_set() or self._context.clock.monotonic_s() > ends_s:
                raise NodeAgentError(f"{late} within {_TRIGGER_WITHIN_S:g} s or before the agent stopped")
            self._refuse_while_paused()
            await wait_for_any(_POLL_INTERVAL_S, self._context.stop)

    async def reload(self, _: requests.Empty) -> str:
        """Reload the configuration and return the effect; an invalid configuration changes nothing."""
        waiting: asyncio.Future[Reloaded] = asyncio.get_running_loop().create_future()
        self._context.awaiting_reload.append(waiting)
        self._context.reload.set()
        try:
            async with asyncio.timeout(_RELOAD_WITHIN_S):
                reloaded = await waiting
        except TimeoutError as error:
            raise NodeAgentError(f"configuration not reloaded within {_RELOAD_WITHIN_S:g} s") from error
        return encode_line(reload_document(reloaded))

    async def undo(self, request: requests.UndoRequest) -> str:
        """Restore the images removed by a pass."""
        require_agent(self._context)
        pass_id = check_text(request.pass_id, "pass_id")

        async def restore() -> str:
            async with self._context.pass_lock.take():
                report = await require_agent(self._context).undo_removals(pass_id)
            self._context.logger.info(
                "image_removal_undone",
                pass_id=report.pass_id,
                undo_id=report.id,
                restored=sum(each.outcome is UndoOutcome.RESTORED for each in report.results),
                failed=len(report.failed),
            )
            return encode_line(Undone.of(report))

        return await asyncio.shield(restore())  # if cancelled, only a part of the image names would be restored

    async def apply(self, request: requests.ApplyRequest) -> AsyncIterator[str]:
        """Carry out a pass or a saved plan; yield each result as it occurs, then the report."""
        if bool(request.scope) == bool(request.plan):
            raise UsageError("scope, plan: exactly one of them is required")
        if not 0 <= request.rounds <= _MOST_ROUNDS:
            raise UsageError(f"rounds: {request.rounds} is not between 0 and {_MOST_ROUNDS}")
        results: asyncio.Queue[str | None] = asyncio.Queue()

        def on_result(result: outcomes.Result) -> None:
            results.put_nowait(encode_line(Result.of_result(result)))

        requested = RequestedPass(self._context, self._heavy, on_result)
        work = asyncio.ensure_future(
            requested.apply_plan(request.plan)
            if request.plan
            else requested.apply_scope(parse_scope(request.scope), request.rounds or 1)
        )
        work.add_done_callback(lambda _: results.put_nowait(None))
        awaited = False
        try:
            while (message := await results.get()) is not None:
                yield message
            awaited = True
            yield encode_line(await work)
        finally:  # after a disconnection of the client, the pass ends before its next item
            requested.cancel()
            await self._end(work, awaited=awaited)

    async def _end(self, work: asyncio.Future[Report], *, awaited: bool) -> None:
        """Wait for a pass; at a stop of the daemon cancel it after ``_STOP_WITHIN_S``.

        An unexpected error is logged, unless the pass was ``awaited``, since the caller then reports the error.
        """
        stopping = asyncio.ensure_future(self._context.stop.wait())
        both: set[asyncio.Future[Any]] = {work, stopping}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not work.done():
            await asyncio.wait({work}, timeout=_STOP_WITHIN_S)
            work.cancel()
            await asyncio.wait({work}, timeout=1.0)
        error = work.exception() if work.done() and not work.cancelled() else None
        if error is not None and not awaited and not isinstance(error, NodeAgentError):
            self._context.logger.error("control_failed", method="Apply", exc_info=error)
