"""The methods of the control API.

Answers are the documents that commands print, made by the same functions.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from nodeagent import __version__, model
from nodeagent._proto.control.v1 import control_pb2 as api
from nodeagent.act.agent import open_agent
from nodeagent.act.gc.outcomes import PassEnd
from nodeagent.api.codec import encode, plain, schema_id
from nodeagent.api.control import Paused, Resumed, Triggered
from nodeagent.api.gc import Preview, Report, Result
from nodeagent.api.history import History
from nodeagent.api.holds import Hold, HoldList
from nodeagent.api.saved_plan import encode_saved_plan
from nodeagent.daemon.control.guard import CALLER, Guard
from nodeagent.daemon.loop_status import Activity
from nodeagent.daemon.loops import log_report, log_result, wait_for_any
from nodeagent.daemon.pause import LONGEST_S, pause, resume
from nodeagent.daemon.reload_preview import reload_document
from nodeagent.daemon.service_manager import preview_reload
from nodeagent.daemon.status import StatusReader, pods_document, pressure_document, status_document, without_agent
from nodeagent.errors import (
    NodeAgentError,
    RuntimeUnavailableError,
    StoreError,
    UsageError,
)
from nodeagent.host.node import node_identity
from nodeagent.model import LONGEST_HOLD_S
from nodeagent.model.schemas import SchemaId
from nodeagent.plan.gc.image_protection import parse_rule
from nodeagent.plan.gc.saved_plan import refusal_of, unseal
from nodeagent.plan.gc.scope import Scope
from nodeagent.plan.gc.strictness import stricter
from nodeagent.store import HoldFile
from nodeagent.store.plan_key import KEY_BYTES, PlanKeyFile
from nodeagent.telemetry.event_bus import Subscription

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from google.protobuf.message import Message

    from nodeagent.act.agent import Agent
    from nodeagent.act.gc import outcomes
    from nodeagent.act.gc import preview as gc_preview
    from nodeagent.api.codec import Document
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.reload_effect import Reloaded
    from nodeagent.host.peer import Peer
    from nodeagent.plan.gc.saved_plan import Drift, SavedPlan

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
        self._own_key = secrets.token_bytes(KEY_BYTES)
        self._key_problem = ""

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
        agent = self._agent()
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
            key=await self._plan_key(),
        )
        return _message(saved)

    async def Pods(self, _: api.PodsRequest, __: Context) -> api.Document:  # noqa: N802
        """Return the pods with their usage, in eviction order under memory pressure."""
        agent = self._agent()
        async with self._heavy:
            return _message(await pods_document(agent, self._status_reader(), self._context.eviction))

    async def History(self, request: api.HistoryRequest, _: Context) -> api.Document:  # noqa: N802
        """Return past passes and node stops."""
        image = _text(request.image, "image")
        ago_s = _seconds(request.seconds, math.inf, "seconds")
        limit = min(_MOST_PASSES, request.limit or _DEFAULT_PASSES)
        history = self._agent().history
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
        agent = self._agent()
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
        rounds = request.rounds or 1
        results: asyncio.Queue[api.Document | None] = asyncio.Queue()
        ended = asyncio.Event()

        def on_result(result: outcomes.Result) -> None:
            results.put_nowait(_message(Result.of_result(result)))

        work = asyncio.ensure_future(
            self._apply_plan(request.plan, ended, on_result)
            if request.plan
            else self._apply_scope(_scope(request.scope), rounds, ended, on_result)
        )
        work.add_done_callback(lambda _: results.put_nowait(None))
        try:
            while (message := await results.get()) is not None:
                yield message
            yield _message(await work)
        finally:  # the client may have disconnected: the pass then ends between two items
            ended.set()
            await asyncio.wait({work})

    async def _apply_scope(
        self, scope: Scope, rounds: int, ended: asyncio.Event, on_result: Callable[[outcomes.Result], None]
    ) -> Report:
        agent = self._agent()
        _refuse_disabled(scope, agent.settings)
        preview = await agent.collector.preview(scope)
        report = await self._run(agent, preview, ended, on_result, rounds=rounds, trigger="control", in_force=agent)
        return await self._report(agent, report)

    async def _apply_plan(
        self, text: str, ended: asyncio.Event, on_result: Callable[[outcomes.Result], None]
    ) -> Report:
        try:
            saved: SavedPlan = unseal(text, await self._plan_key())
        except ValueError as error:
            raise UsageError(f"plan: {error}; nothing was removed") from error
        refused = refusal_of(saved, self._context.clock.now(), node_identity())
        if refused:
            raise UsageError(f"plan: {refused}")
        in_force = self._agent()
        _refuse_disabled(saved.scope, in_force.settings)
        current = in_force.settings.policy
        settings = replace(in_force.settings, policy=stricter(saved.policy, current))
        async with open_agent(
            settings, record=True, dry_run=settings.dry_run, clock=self._context.clock, roles=in_force.roles
        ) as agent:
            preview, drift = await agent.collector.preview_saved(saved, current)
            report = await self._run(
                agent, preview, ended, on_result, rounds=1, trigger="apply", plan_id=saved.id, in_force=in_force
            )
            return await self._report(agent, report, drift)

    async def _report(self, agent: Agent, report: outcomes.PassReport, drift: Iterable[Drift] | None = None) -> Report:
        """Return a report, with the filesystem usage breakdown if the pass missed its target."""
        async with self._heavy:
            breakdown = await agent.break_down_shortfall(report)
        return Report.of(report, breakdown=breakdown, drift=drift)

    async def _run(  # noqa: PLR0913 - the options of a pass
        self,
        agent: Agent,
        preview: gc_preview.Preview,
        ended: asyncio.Event,
        on_result: Callable[[outcomes.Result], None],
        *,
        rounds: int,
        trigger: str,
        plan_id: str = "",
        in_force: Agent,
    ) -> outcomes.PassReport:
        """Wait for the pass lock and carry out a preview, if ``in_force`` is still the agent of the daemon.

        ``in_force`` is the agent whose settings the preview was made with.
        """

        def on_item(result: outcomes.Result) -> None:
            log_result(self._context.logger, result, dry_run=agent.dry_run)
            on_result(result)

        async with self._context.pass_lock.take() as stop:
            pause_in_force = self._context.pass_lock.pause()
            if pause_in_force is not None:
                raise UsageError(f"nothing was removed: the agent is paused: {pause_in_force.text}")
            if self._context.grace.pending:
                left_s = math.ceil(self._context.grace.left_s())
                raise UsageError(f"nothing was removed: reload grace period after a dry run, {left_s} s left")
            if self._context.agent is not in_force or self._context.renew.is_set():
                raise NodeAgentError("nothing was removed: the configuration changed during the request; retry")
            forwarding = asyncio.ensure_future(_set_with(ended, stop))
            try:
                report = await agent.run(
                    preview, trigger=trigger, stop=stop, max_rounds=rounds, on_result=on_item, plan_id=plan_id
                )
            finally:
                forwarding.cancel()
        log_report(self._context.logger, preview, report)
        if report.end is PassEnd.RUNTIME_LOST:
            raise RuntimeUnavailableError(report.end_detail)
        return report

    # ---- shared by the methods

    def _agent(self) -> Agent:
        if self._context.agent is None:
            raise RuntimeUnavailableError("not ready: the daemon starts, reloads, or waits for a container runtime")
        return self._context.agent

    def _status_reader(self) -> StatusReader:
        agent = self._agent()
        if self._reader is None or self._reader_agent is not agent:
            self._reader, self._reader_agent = StatusReader(agent), agent
        return self._reader

    async def _plan_key(self) -> bytes:
        """Return this node's plan key, or a key of this process where the state directory is unavailable.

        A full or read-only state directory is when an operator needs to confirm removals. Plans signed with the
        fallback key are valid until the daemon stops.
        """
        try:
            key = await asyncio.to_thread(PlanKeyFile(self._context.settings.state_directory).read_or_create)
        except StoreError as error:
            if str(error) != self._key_problem:
                self._context.logger.warning("plan_key_unavailable", error=str(error))
            self._key_problem = str(error)
            return self._own_key
        self._key_problem = ""
        return key

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


async def _set_with(first: asyncio.Event, second: asyncio.Event) -> None:
    await first.wait()
    second.set()


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


def _refuse_disabled(scope: Scope, settings: Settings) -> None:
    """Refuse a user other than root a scope that the configuration disables, as triggering its loop is refused."""
    if CALLER.get().is_root:
        return
    for disabled, of, name in (
        (settings.image_interval_s is None, Scope.IMAGES, "image_gc"),
        (settings.container_interval_s is None, Scope.CONTAINERS, "container_gc"),
    ):
        if disabled and scope in (of, Scope.ALL):
            raise UsageError(
                f"cannot collect {of.value}: disabled by the configuration ({name}.enabled = false); nothing was "
                "removed; only root may do that"
            )


def _seconds(value: float, most: float, name: str) -> float:
    if not 0 <= value <= most:
        raise UsageError(f"{name}: {value:g} is not between 0 and {most:g}")
    return value


def _text(value: str, name: str) -> str:
    if len(value) > _LONGEST_TEXT or not value.isprintable():
        raise UsageError(f"{name}: at most {_LONGEST_TEXT} characters, all printable")
    return value
