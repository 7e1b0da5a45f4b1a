"""The methods of the control API.

Answers are the documents that commands print, made by the same functions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from nodeagent import __version__, model
from nodeagent._proto.control.v1 import control_pb2 as api
from nodeagent.api.codec import encode, plain, schema_id
from nodeagent.api.control import Paused, Resumed, Triggered
from nodeagent.api.gc import Preview, Result
from nodeagent.api.history import History
from nodeagent.api.holds import Hold, HoldList
from nodeagent.api.saved_plan import encode_saved_plan
from nodeagent.daemon.control.guard import CALLER, Guard
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
    from collections.abc import AsyncIterator, Callable

    from google.protobuf.message import Message

    from nodeagent.act.agent import Agent
    from nodeagent.act.gc import outcomes
    from nodeagent.api.codec import Document
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.reload_effect import Reloaded
    from nodeagent.host.peer import Peer

    Context = grpc.aio.ServicerContext[Message, Message]

_LONGEST_PLAN_S: Final = 7 * 86_400.0
_LONGEST_TEXT: Final = 4096
_MOST_PASSES: Final = 10_000
_DEFAULT_PASSES: Final = 100
_MOST_ROUNDS: Final = 20
_RELOAD_WITHIN_S: Final = 60.0
_TRIGGER_WITHIN_S: Final = 900.0
_POLL_INTERVAL_S: Final = 0.1
_MAX_CALLS: Final = 64
_LARGEST_REQUEST_BYTES: Final = 8 << 20
"""Size of a saved plan with ten thousand items. gRPC reads a request into memory before its caller is authorised."""


class ControlService:
    """The methods of the control API. The guard authorises the caller before it calls one."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        self._reader: StatusReader | None = None
        self._reader_agent: Agent | None = None
        self._heavy = asyncio.Lock()
        self._plan_key = PlanKey(context)

    # ---- right READ

    async def Status(self, _: api.StatusRequest, __: Context) -> api.Document:  # noqa: N802 - the name in the protocol
        """Return the status of the node and the daemon."""
        if self._context.agent is None:
            return _message(without_agent(self._context))
        return _message(await status_document(self._context.agent, self._status_reader(), self._context))

    async def Pressure(self, _: api.PressureRequest, __: Context) -> api.Document:  # noqa: N802
        """Return every signal against its thresholds."""
        return _message(await pressure_document(self._status_reader(), self._context.eviction))

    async def Plan(self, request: api.PlanRequest, _: Context) -> api.Document:  # noqa: N802
        """Return the plan of a pass that starts now; with a lifetime it can be saved and applied."""
        scope, lasts_s = _scope(request.scope), _seconds(request.lasts_seconds, _LONGEST_PLAN_S, "lasts_seconds")
        agent = require_agent(self._context)
        async with self._heavy:
            preview = await agent.collector.preview(scope)
        if not lasts_s:
            return _message(Preview.of(scope.value, preview.snapshot, preview.plans))
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
        return _message(saved)

    async def Pods(self, _: api.PodsRequest, __: Context) -> api.Document:  # noqa: N802
        """Return the pods with their usage, in eviction order under memory pressure."""
        agent = require_agent(self._context)
        async with self._heavy:
            return _message(await pods_document(agent, self._status_reader(), self._context.eviction))

    async def History(self, request: api.HistoryRequest, _: Context) -> api.Document:  # noqa: N802
        """Return past passes and node stops."""
        image = _text(request.image, "image")
        ago_s = _seconds(request.seconds, math.inf, "seconds")
        limit = min(_MOST_PASSES, request.limit or _DEFAULT_PASSES)
        history = require_agent(self._context).history
        try:
            since = self._context.clock.now() - timedelta(seconds=ago_s) if ago_s else None
        except OverflowError as error:
            raise UsageError(f"seconds: {ago_s} is out of range") from error

        def read() -> api.Document:
            passes = history.read(since=since, image=image, limit=limit, quiet=request.quiet)
            stops = () if image else history.read_stops(since=since, limit=limit)
            return _message(History.of(passes, stops))

        async with self._heavy:
            return await asyncio.to_thread(read)

    async def Holds(self, _: api.HoldsRequest, __: Context) -> api.Document:  # noqa: N802
        """Return all holds in force."""
        now = self._context.clock.now()
        found = await asyncio.to_thread(self._holds().read)
        return _message(HoldList.of(found, now))

    async def Events(self, _: api.EventsRequest, __: Context) -> AsyncIterator[api.Document]:  # noqa: N802
        """Yield events as they occur."""
        missed = 0
        with Subscription() as tail:
            while True:
                event = await tail.next()
                fields = {key: plain(value) for key, value in event.items()}
                lost, missed = tail.missed - missed, tail.missed
                yield _message({"schema": SchemaId.EVENT.value, **fields, **({"missed_before": lost} if lost else {})})

    async def PreviewReload(self, _: api.PreviewReloadRequest, __: Context) -> api.Document:  # noqa: N802
        """Return the changes and the effect of a reload without reloading; always of the agent's own file."""
        async with self._heavy:
            return _message(reload_document(await preview_reload(self._context)))

    # ---- right ACT

    async def AddHold(self, request: api.AddHoldRequest, _: Context) -> api.Document:  # noqa: N802
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
        now = self._context.clock.now()
        hold = model.Hold("", image, why, CALLER.get().name, now, now + timedelta(seconds=seconds))
        placed = await asyncio.to_thread(self._holds().add, hold)
        return _message(Hold.of(placed, now))

    async def RemoveHold(self, request: api.RemoveHoldRequest, _: Context) -> api.Document:  # noqa: N802
        """Remove a hold; users other than root can remove only their own."""
        caller, hold_id = CALLER.get(), _text(request.id, "id")
        own = None if caller.is_root else caller.name
        removed = await asyncio.to_thread(self._holds().remove, hold_id, placed_by=own)
        if removed is None:
            for each in await asyncio.to_thread(self._holds().read):
                if each.id == hold_id:
                    raise UsageError(f"cannot remove hold {hold_id}: placed by {each.by}; only root may do that")
            raise UsageError(f"no hold {request.id}; 'nodeagent hold list' lists all")
        return _message(Hold.of(removed, self._context.clock.now()))

    async def Pause(self, request: api.PauseRequest, _: Context) -> api.Document:  # noqa: N802
        """Pause removals and evictions for a duration."""
        seconds = _seconds(request.seconds, LONGEST_S, "seconds")
        if not seconds:
            raise UsageError("seconds: a pause needs a duration of at most 7 days")
        caller = CALLER.get()
        await pause(
            self._context, by=caller.name, is_root=caller.is_root, why=_text(request.why, "why"), seconds=seconds
        )
        return _message(Paused(until=self._context.clock.now() + timedelta(seconds=seconds)))

    async def Resume(self, _: api.ResumeRequest, __: Context) -> api.Document:  # noqa: N802
        """End the pause."""
        caller = CALLER.get()
        was = await resume(self._context, by=caller.name, is_root=caller.is_root)
        return _message(Resumed(was_paused=was))

    async def Trigger(self, request: api.TriggerRequest, _: Context) -> api.Document:  # noqa: N802
        """Start a run of a loop, and wait for its end if requested."""
        lines = {line.name: line for line in self._context.loop_statuses.all}
        line, wake = lines.get(request.loop), self._context.wake.get(request.loop)
        if line is None or wake is None or line.activity is Activity.DISABLED:
            on = {name for name, each in lines.items() if each.activity is not Activity.DISABLED}
            known = ", ".join(sorted(self._context.wake.keys() & on))
            why = f": {line.reason}" if line is not None and line.reason else ""
            raise UsageError(f"loop {_text(request.loop, 'loop')!r} does not run here{why}; running loops: {known}")
        agent = require_agent(self._context)
        self._refuse_while_paused()
        ends = line.runs + (2 if line.activity is Activity.RUNNING else 1)
        wake.set()
        if request.wait:
            await self._until(
                lambda: line.runs >= ends or line.activity is Activity.DISABLED, f"loop {request.loop} did not finish"
            )
            if line.runs < ends:
                raise UsageError(f"loop {request.loop!r} does not run here: {line.reason}")
        return _message(
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

    async def Reload(self, _: api.ReloadRequest, __: Context) -> api.Document:  # noqa: N802
        """Reload the configuration and return the effect; an invalid one changes nothing."""
        waiting: asyncio.Future[Reloaded] = asyncio.get_running_loop().create_future()
        self._context.awaiting_reload.append(waiting)
        self._context.reload.set()
        try:
            reloaded = await asyncio.wait_for(waiting, _RELOAD_WITHIN_S)
        except TimeoutError as error:
            raise NodeAgentError(f"configuration not reloaded within {_RELOAD_WITHIN_S:g} s") from error
        return _message(reload_document(reloaded))

    async def Apply(self, request: api.ApplyRequest, _: Context) -> AsyncIterator[api.Document]:  # noqa: N802
        """Carry out a pass or a saved plan; yield each result as it occurs, then the report."""
        if bool(request.scope) == bool(request.plan):
            raise UsageError("scope, plan: exactly one of them is required")
        if request.rounds > _MOST_ROUNDS:
            raise UsageError(f"rounds: at most {_MOST_ROUNDS}")
        results: asyncio.Queue[api.Document | None] = asyncio.Queue()

        def on_result(result: outcomes.Result) -> None:
            results.put_nowait(_message(Result.of_result(result)))

        requested = RequestedPass(self._context, self._heavy, on_result)
        work = asyncio.ensure_future(
            requested.apply_plan(request.plan, self._plan_key)
            if request.plan
            else requested.apply_scope(_scope(request.scope), request.rounds or 1)
        )
        work.add_done_callback(lambda _: results.put_nowait(None))
        try:
            while (message := await results.get()) is not None:
                yield message
            yield _message(await work)
        finally:  # the client may have disconnected: the pass then ends between two items
            requested.cancelled.set()
            await asyncio.wait({work})

    # ---- shared by the methods

    def _status_reader(self) -> StatusReader:
        agent = require_agent(self._context)
        if self._reader is None or self._reader_agent is not agent:
            self._reader, self._reader_agent = StatusReader(agent), agent
        return self._reader

    def _holds(self) -> HoldFile:
        return HoldFile(self._context.settings.state_directory)


class RunningService:
    """The running gRPC server."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    async def stop(self) -> None:
        """Cancel all calls in progress."""
        await self._server.stop(None)


async def serve(context: DaemonContext, address: str, peer_of: Callable[[str], Peer | None]) -> RunningService:
    """Start the service on a socket in a private directory."""
    server = grpc.aio.server(
        maximum_concurrent_rpcs=_MAX_CALLS,
        options=(
            ("grpc.max_receive_message_length", _LARGEST_REQUEST_BYTES),
            ("grpc.max_send_message_length", -1),
        ),
    )
    server.add_generic_rpc_handlers((Guard(ControlService(context), context, peer_of).handler(),))
    server.add_insecure_port(f"unix:{address}")
    await server.start()
    return RunningService(server)


def _message(document: Document | Mapping[str, Any]) -> api.Document:
    schema = str(document["schema"]) if isinstance(document, Mapping) else schema_id(document)
    return api.Document(schema=schema, json=encode(document))


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
