"""The operations of the control API.

Responses are the documents printed by the commands, created by the same functions.
"""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nodeagent import __version__, model
from nodeagent.api.codec import encode_line, plain
from nodeagent.api.control import Paused, Resumed, Triggered
from nodeagent.api.gc import Preview, Result
from nodeagent.api.history import History
from nodeagent.api.holds import Hold, HoldList
from nodeagent.api.saved_plan import encode_saved_plan
from nodeagent.daemon.control.caller import CALLER
from nodeagent.daemon.control.exclusive import run_exclusively
from nodeagent.daemon.control.requested_pass import PlanKey, RequestedPass, require_agent
from nodeagent.daemon.loop_status import Activity
from nodeagent.daemon.loops import wait_for_any
from nodeagent.daemon.pause import LONGEST_S, pause, resume
from nodeagent.daemon.reload_preview import reload_document
from nodeagent.daemon.service_manager import preview_reload
from nodeagent.daemon.status import StatusReader, pods_document, pressure_document, status_document, without_agent
from nodeagent.errors import (
    NodeAgentError,
    UsageError,
)
from nodeagent.host.node import node_identity
from nodeagent.model import LONGEST_HOLD_S
from nodeagent.model.schemas import SchemaId
from nodeagent.plan.gc.image_protection import parse_rule
from nodeagent.plan.gc.scope import Scope
from nodeagent.store import HoldFile
from nodeagent.telemetry.event_bus import Subscription

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from nodeagent.act.agent import Agent
    from nodeagent.act.gc import outcomes
    from nodeagent.api import requests
    from nodeagent.api.gc import Report
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.reload_effect import Reloaded


T = TypeVar("T")
_LONGEST_PLAN_S: Final = 7 * 86_400.0
_LONGEST_TEXT: Final = 4096
_MOST_PASSES: Final = 10_000
_DEFAULT_PASSES: Final = 100
_MOST_ROUNDS: Final = 20
_RELOAD_WITHIN_S: Final = 60.0
_TRIGGER_WITHIN_S: Final = 900.0
_POLL_INTERVAL_S: Final = 0.1
_STOP_WITHIN_S: Final = 8.0


class ControlService:
    """The operations of the control API. The control server checks the access of the caller before it calls one."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        self._reader: StatusReader | None = None
        self._reader_agent: Agent | None = None
        self._heavy_locks = {is_root: asyncio.Lock() for is_root in (False, True)}
        self._plan_key = PlanKey(context)

    # ---- right READ

    async def status(self, _: requests.Empty) -> str:
        """Return the status of the node and the daemon."""
        if self._context.agent is None:
            return encode_line(without_agent(self._context))
        return encode_line(await status_document(self._context.agent, self._status_reader(), self._context))

    async def pressure(self, _: requests.Empty) -> str:
        """Return every signal against its thresholds."""
        return encode_line(await pressure_document(self._status_reader(), self._context.eviction))

    async def plan(self, request: requests.PlanRequest) -> str:
        """Return the plan of a pass starting now; with a lifetime it can be saved and applied."""
        scope, lasts_s = _scope(request.scope), _seconds(request.lasts_seconds, _LONGEST_PLAN_S, "lasts_seconds")
        agent = require_agent(self._context)
        preview = await self._alone(agent.collector.preview(scope))
        if not lasts_s:
            return encode_line(Preview.of(scope.value, preview.snapshot, preview.plans))
        saved = encode_saved_plan(
            scope.value,
            preview.snapshot,
            preview.plans,
            agent.settings.policy,
            node=node_identity(),
            expires_at=preview.snapshot.observed_at + timedelta(seconds=lasts_s),
            agent_version=__version__,
            key=await self._plan_key.read(),
        )
        return encode_line(saved)

    async def pods(self, _: requests.Empty) -> str:
        """Return the pods with their usage, in eviction order under memory pressure."""
        agent = require_agent(self._context)
        document = await self._alone(pods_document(agent, self._status_reader(), self._context.eviction))
        return encode_line(document)

    async def history(self, request: requests.HistoryRequest) -> str:
        """Return past passes and node stops."""
        image = _text(request.image, "image")
        ago_s = _seconds(request.seconds, math.inf, "seconds")
        if request.limit < 0:
            raise UsageError(f"limit: {request.limit} is negative")
        limit = min(_MOST_PASSES, request.limit or _DEFAULT_PASSES)
        history = require_agent(self._context).history
        try:
            since = self._context.clock.now() - timedelta(seconds=ago_s) if ago_s else None
        except OverflowError as error:
            raise UsageError(f"seconds: {ago_s} is out of range") from error

        def read() -> str:
            passes = history.read(since=since, image=image, limit=limit, quiet=request.quiet)
            stops = () if image else history.read_stops(since=since, limit=limit)
            return encode_line(History.of(passes, stops))

        return await self._alone(asyncio.to_thread(read))

    async def holds(self, _: requests.Empty) -> str:
        """Return all holds in force."""
        now = self._context.clock.now()
        found = await asyncio.to_thread(self._holds().read)
        return encode_line(HoldList.of(found, now))

    async def events(self, _: requests.Empty) -> AsyncIterator[str]:
        """Yield events as they occur."""
        missed = 0
        with Subscription() as tail:
            while True:
                event = await tail.next()
                fields = {key: plain(value) for key, value in event.items()}
                lost, missed = tail.missed - missed, tail.missed
                missing = {"missed_before": lost} if lost else {}
                yield encode_line({"schema": SchemaId.EVENT.value, **fields, **missing})

    async def preview_reload(self, _: requests.Empty) -> str:
        """Return the changes and the effect of a reload without reloading; always of the agent's own file."""
        return encode_line(reload_document(await self._alone(preview_reload(self._context))))

    # ---- right ACT

    async def add_hold(self, request: requests.AddHoldRequest) -> str:
        """Place a hold."""
        image, why = _text(request.image, "image"), _text(request.why, "why")
        seconds = _seconds(request.seconds, LONGEST_HOLD_S, "seconds")
        if not seconds:
            raise UsageError("seconds: a hold needs a duration of at most a year; protect.images keeps images forever")
        if image:
            try:
                parse_rule(image)
            except ValueError as error:
                raise UsageError(f"image: {error}") from error
        caller, by = CALLER.get(), _text(request.by, "by")
        if by and not caller.is_root:
            raise UsageError("by: only root places holds for other users")
        now = self._context.clock.now()
        hold = model.Hold("", image, why, by or caller.name, now, now + timedelta(seconds=seconds))
        placed = await asyncio.to_thread(self._holds().add, hold)
        return encode_line(Hold.of(placed, now))

    async def remove_hold(self, request: requests.RemoveHoldRequest) -> str:
        """Remove a hold; users other than root can remove only their own."""
        caller, hold_id = CALLER.get(), _text(request.id, "id")
        own = None if caller.is_root else caller.name
        removed = await asyncio.to_thread(self._holds().remove, hold_id, placed_by=own)
        if removed is None:
            for each in await asyncio.to_thread(self._holds().read):
                if each.id == hold_id:
                    raise UsageError(f"cannot remove hold {hold_id}: placed by {each.by}; only root may do that")
            raise UsageError(f"no hold {request.id}; 'nodeagent hold list' lists all")
        return encode_line(Hold.of(removed, self._context.clock.now()))

    async def pause(self, request: requests.PauseRequest) -> str:
        """Pause removals and evictions for a duration."""
        seconds = _seconds(request.seconds, LONGEST_S, "seconds")
        if not seconds:
            raise UsageError("seconds: a pause needs a duration of at most 7 days")
        caller = CALLER.get()
        why = _text(request.why, "why")
        work = pause(self._context, by=caller.name, is_root=caller.is_root, why=why, seconds=seconds)
        await asyncio.shield(work)  # an incomplete pause would start at the next restart
        return encode_line(Paused(until=self._context.clock.now() + timedelta(seconds=seconds)))

    async def resume(self, _: requests.Empty) -> str:
        """End the pause."""
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
            raise UsageError(f"loop {_text(request.loop, 'loop')!r} is not running{why}; running loops: {known}")
        agent = require_agent(self._context)
        self._refuse_while_paused()
        ends = line.runs + (2 if line.activity is Activity.RUNNING else 1)
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
            raise UsageError(f"cannot trigger a loop: the agent is paused: {pause_in_force.text}")

    async def _until(self, done: Callable[[], bool], late: str) -> None:
        ends_s = self._context.clock.monotonic_s() + _TRIGGER_WITHIN_S
        while not done():
            if self._context.stop.is_set() or self._context.clock.monotonic_s() > ends_s:
                raise NodeAgentError(f"{late} within {_TRIGGER_WITHIN_S:g} s or before the agent stopped")
            self._refuse_while_paused()
            await wait_for_any(_POLL_INTERVAL_S, self._context.stop)

    async def reload(self, _: requests.Empty) -> str:
        """Reload the configuration and return the effect; an invalid one changes nothing."""
        waiting: asyncio.Future[Reloaded] = asyncio.get_running_loop().create_future()
        self._context.awaiting_reload.append(waiting)
        self._context.reload.set()
        try:
            reloaded = await asyncio.wait_for(waiting, _RELOAD_WITHIN_S)
        except TimeoutError as error:
            raise NodeAgentError(f"configuration not reloaded within {_RELOAD_WITHIN_S:g} s") from error
        return encode_line(reload_document(reloaded))

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
            requested.apply_plan(request.plan, self._plan_key)
            if request.plan
            else requested.apply_scope(_scope(request.scope), request.rounds or 1)
        )
        work.add_done_callback(lambda _: results.put_nowait(None))
        awaited = False
        try:
            while (message := await results.get()) is not None:
                yield message
            awaited = True
            yield encode_line(await work)
        finally:  # the client may have disconnected: the pass then ends before its next item
            requested.cancel()
            await self._end(work, awaited=awaited)

    async def _end(self, work: asyncio.Future[Report], *, awaited: bool) -> None:
        """Wait for a pass; at a stop of the daemon cancel it after ``_STOP_WITHIN_S``.

        An unexpected error is logged, unless the pass was ``awaited``: the caller reports it then.
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

    # ---- shared by the methods

    @property
    def _heavy(self) -> asyncio.Lock:
        """Serialises observations of the node; root does not wait for other users."""
        return self._heavy_locks[CALLER.get().is_root]

    async def _alone(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of an observation, one at a time.

        A waiting observation ends when its client disconnects. A started one is completed, and holds the lock until
        then: each cancelled call to the runtime leaks about a kilobyte in the gRPC library.
        """
        return await run_exclusively(self._heavy, work)

    def _status_reader(self) -> StatusReader:
        agent = require_agent(self._context)
        if self._reader is None or self._reader_agent is not agent:
            self._reader, self._reader_agent = StatusReader(agent), agent
        return self._reader

    def _holds(self) -> HoldFile:
        return HoldFile(self._context.settings.state_directory)


def _scope(text: str) -> Scope:
    try:
        scope = Scope(text)
    except ValueError as error:
        raise UsageError(f"scope: write images, containers or all, not {_text(text, 'scope')!r}") from error
    if scope is Scope.LEAKS:
        raise UsageError("scope: write images, containers or all")
    return scope


def _seconds(value: float, most: float, name: str) -> float:
    if not 0 <= value <= most:
        raise UsageError(f"{name}: {value:g} is not between 0 and {most:g}")
    return value


def _text(value: str, name: str) -> str:
    if len(value) > _LONGEST_TEXT or not value.isprintable():
        raise UsageError(f"{name}: at most {_LONGEST_TEXT} characters, all printable")
    return value
