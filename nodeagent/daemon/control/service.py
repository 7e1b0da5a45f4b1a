"""What the running agent answers and does on its socket.

Answers are the documents that commands print, made by the same functions. Whoever may only read changes nothing here;
what changes something is logged with who asked for it.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from nodeagent import __version__
from nodeagent._proto.control.v1 import control_pb2 as api
from nodeagent.act.agent import open_agent
from nodeagent.act.gc.outcomes import PassEnd
from nodeagent.api import documents as document
from nodeagent.daemon.control.access import Access, access_of
from nodeagent.daemon.loop_status import Activity
from nodeagent.daemon.loops import log_report, log_result, wait_for_any
from nodeagent.daemon.pause import LONGEST_S, pause, resume
from nodeagent.daemon.reload_preview import reload_document
from nodeagent.daemon.service_manager import preview_reload
from nodeagent.daemon.status import StatusReader, pods_document, pressure_document, status_document, without_agent
from nodeagent.errors import (
    ConfigError,
    NodeAgentError,
    PassBusyError,
    RuntimeUnavailableError,
    StoreError,
    UsageError,
)
from nodeagent.host.node import node_identity
from nodeagent.host.peer import group_number
from nodeagent.model import LONGEST_HOLD_S, Hold
from nodeagent.plan.gc.image_protection import parse_rule
from nodeagent.plan.gc.saved_plan import refusal_of, unseal
from nodeagent.plan.gc.scope import Scope
from nodeagent.plan.gc.strictness import stricter
from nodeagent.store import HoldFile
from nodeagent.store.plan_key import KEY_BYTES, PlanKeyFile
from nodeagent.telemetry.event_bus import Subscription
from nodeagent.text import encodable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping

    from google.protobuf.message import Message

    from nodeagent.act.agent import Agent
    from nodeagent.act.gc.outcomes import PassReport, Result
    from nodeagent.act.gc.preview import Preview
    from nodeagent.api.documents import Json
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.reload_effect import Reloaded
    from nodeagent.host.peer import Peer
    from nodeagent.plan.gc.saved_plan import SavedPlan

    Context = grpc.aio.ServicerContext[Message, Message]

RIGHTS: Final[Mapping[str, Access]] = {
    "Status": Access.READ,
    "Pressure": Access.READ,
    "Plan": Access.READ,
    "Pods": Access.READ,
    "History": Access.READ,
    "Holds": Access.READ,
    "Events": Access.READ,
    "PreviewReload": Access.READ,
    "AddHold": Access.ACT,
    "RemoveHold": Access.ACT,
    "Pause": Access.ACT,
    "Resume": Access.ACT,
    "Trigger": Access.ACT,
    "Reload": Access.ACT,
    "Apply": Access.ACT,
}
"""What each call takes. One that is missing here is refused."""

SOCKET_PREFIX: Final = "unix-abstract:"
_ASKED_BY: ContextVar[str] = ContextVar("asked_by", default="?")
_IS_ROOT: ContextVar[bool] = ContextVar("is_root", default=False)
"""Whether the caller is root. Any other caller may only restrict the configuration, and root's holds and pauses."""
_LONGEST_PLAN_S: Final = 7 * 86_400.0
_LONGEST_TEXT: Final = 4096
_MOST_PASSES: Final = 10_000
_DEFAULT_PASSES: Final = 100
_MOST_ROUNDS: Final = 20
_RELOAD_WITHIN_S: Final = 60.0
_TRIGGER_WITHIN_S: Final = 900.0
_LOOK_AGAIN_S: Final = 0.1
_MOST_CALLS: Final = 64
_MOST_CALLS_OF_A_USER: Final = 16
"""At once, of a user other than root, so that there is always one left for root."""
_LARGEST_REQUEST_BYTES: Final = 8 << 20
"""Of a saved plan with some ten thousand items. A request is in memory before it is known who may make it."""
_CODES: Final[Mapping[type[NodeAgentError], grpc.StatusCode]] = {
    UsageError: grpc.StatusCode.INVALID_ARGUMENT,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    RuntimeUnavailableError: grpc.StatusCode.UNAVAILABLE,
    PassBusyError: grpc.StatusCode.ABORTED,
}


class ControlService:
    """The methods of the service; each is called only by those who may."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        self._look: StatusReader | None = None
        self._look_of: Agent | None = None
        self._heavy = asyncio.Lock()
        self._own_key = secrets.token_bytes(KEY_BYTES)
        self._key_problem = ""

    # ---- for readers

    async def Status(self, _: api.StatusRequest, __: Context) -> api.Document:  # noqa: N802 - as the service has it
        """Return how the node and the daemon are."""
        if self._context.agent is None:
            return _made(without_agent(self._context))
        return _made(await status_document(self._context.agent, self._looking(), self._context))

    async def Pressure(self, _: api.PressureRequest, __: Context) -> api.Document:  # noqa: N802
        """Return every signal against its thresholds."""
        return _made(await pressure_document(self._looking(), self._context.eviction))

    async def Plan(self, request: api.PlanRequest, _: Context) -> api.Document:  # noqa: N802
        """Return what a pass would do now."""
        scope, lasts_s = _scope(request.scope), _seconds(request.lasts_seconds, _LONGEST_PLAN_S, "lasts_seconds")
        agent = self._agent()
        async with self._heavy:
            preview = await agent.collector.preview(scope)
        if not lasts_s:
            return _made(document.preview(scope.value, preview.snapshot, preview.plans))
        saved = document.saved_plan(
            scope.value,
            preview.snapshot,
            preview.plans,
            agent.settings.policy,
            node=node_identity(),
            expires_at=preview.snapshot.observed_at + timedelta(seconds=lasts_s),
            agent_version=__version__,
            key=await self._plan_key(),
        )
        return _made(saved)

    async def Pods(self, _: api.PodsRequest, __: Context) -> api.Document:  # noqa: N802
        """Return the pods with what they use, in the order in which they would go for want of memory."""
        agent = self._agent()
        async with self._heavy:
            return _made(await pods_document(agent, self._looking(), self._context.eviction))

    async def History(self, request: api.HistoryRequest, _: Context) -> api.Document:  # noqa: N802
        """Return what passes did."""
        image = _text(request.image, "image")
        ago_s = _seconds(request.seconds, math.inf, "seconds")
        limit = min(_MOST_PASSES, request.limit or _DEFAULT_PASSES)
        history = self._agent().history
        try:
            since = self._context.clock.now() - timedelta(seconds=ago_s) if ago_s else None
        except OverflowError as error:
            raise UsageError(f"seconds: {ago_s} is too far back") from error

        def read() -> api.Document:
            passes = history.read(since=since, image=image, limit=limit, quiet=request.quiet)
            stops = () if image else history.read_stops(since=since, limit=limit)
            return _made(document.history(passes, stops))

        async with self._heavy:
            return await asyncio.to_thread(read)

    async def Holds(self, _: api.HoldsRequest, __: Context) -> api.Document:  # noqa: N802
        """Return every hold that has not run out."""
        now = self._context.clock.now()
        found = await asyncio.to_thread(self._holds().read)
        return _made(document.holds([each for each in found if each.until > now], now))

    async def Events(self, _: api.EventsRequest, __: Context) -> AsyncIterator[api.Document]:  # noqa: N802
        """Return events as they come."""
        missed = 0
        with Subscription() as tail:
            while True:
                event = await tail.next()
                shown = {key: document.plain(value) for key, value in event.items()}
                lost, missed = tail.missed - missed, tail.missed
                yield _made({"schema": "nodeagent/event/v1", **shown, **({"missed_before": lost} if lost else {})})

    async def PreviewReload(self, _: api.PreviewReloadRequest, __: Context) -> api.Document:  # noqa: N802
        """Return the changes and the effect of a reload; nothing is reloaded. The file is always the agent's own."""
        async with self._heavy:
            return _made(reload_document(await preview_reload(self._context)))

    # ---- for those who may change something

    async def AddHold(self, request: api.AddHoldRequest, _: Context) -> api.Document:  # noqa: N802
        """Place a hold."""
        image, why = _text(request.image, "image"), _text(request.why, "why")
        seconds = _seconds(request.seconds, LONGEST_HOLD_S, "seconds")
        if not seconds:
            raise UsageError("seconds: how long is the hold to last? at most a year; protect.images keeps for good")
        if image:
            try:
                parse_rule(image)
            except ValueError as error:
                raise UsageError(f"image: {error}") from error
        now = self._context.clock.now()
        hold = Hold("", image, why, _ASKED_BY.get(), now, now + timedelta(seconds=seconds))
        placed = await asyncio.to_thread(self._holds().add, hold)
        return _made({"schema": "nodeagent/hold/v1", **document.hold(placed, now)})

    async def RemoveHold(self, request: api.RemoveHoldRequest, _: Context) -> api.Document:  # noqa: N802
        """Remove a hold; a caller other than root only one that he placed."""
        hold_id, own = _text(request.id, "id"), None if _IS_ROOT.get() else _ASKED_BY.get()
        gone = await asyncio.to_thread(self._holds().remove, hold_id, placed_by=own)
        if gone is None:
            for each in await asyncio.to_thread(self._holds().read):
                if each.id == hold_id:
                    raise UsageError(f"cannot remove hold {hold_id}: placed by {each.by}; only root may do that")
            raise UsageError(f"there is no hold {request.id}; 'nodeagent hold list' shows them")
        return _made({"schema": "nodeagent/hold/v1", **document.hold(gone, self._context.clock.now())})

    async def Pause(self, request: api.PauseRequest, _: Context) -> api.Document:  # noqa: N802
        """Collect and evict nothing for a while."""
        seconds = _seconds(request.seconds, LONGEST_S, "seconds")
        if not seconds:
            raise UsageError("seconds: how long is the pause to last? at most 7 days")
        await pause(
            self._context, by=_ASKED_BY.get(), is_root=_IS_ROOT.get(), why=_text(request.why, "why"), seconds=seconds
        )
        until = document.time_text(self._context.clock.now() + timedelta(seconds=seconds))
        return _made({"schema": "nodeagent/pause/v1", "paused": True, "until": until})

    async def Resume(self, _: api.ResumeRequest, __: Context) -> api.Document:  # noqa: N802
        """End the pause."""
        was = await resume(self._context, by=_ASKED_BY.get(), is_root=_IS_ROOT.get())
        return _made({"schema": "nodeagent/pause/v1", "paused": False, "was_paused": was})

    async def Trigger(self, request: api.TriggerRequest, _: Context) -> api.Document:  # noqa: N802
        """Have a loop run now."""
        lines = {line.name: line for line in self._context.loop_statuses.all}
        line, wake = lines.get(request.loop), self._context.wake.get(request.loop)
        if line is None or wake is None or line.activity is Activity.DISABLED:
            on = {name for name, each in lines.items() if each.activity is not Activity.DISABLED}
            known = ", ".join(sorted(self._context.wake.keys() & on))
            why = f": {line.reason}" if line is not None and line.reason else ""
            raise UsageError(f"loop {_text(request.loop, 'loop')!r} does not run here{why}; those that do: {known}")
        agent = self._agent()
        self._refuse_while_paused()
        ends = line.runs + (2 if line.activity is Activity.RUNNING else 1)
        wake.set()
        if request.wait:
            await self._until(
                lambda: line.runs >= ends or line.activity is Activity.DISABLED, f"{request.loop} did not end"
            )
            if line.runs < ends:
                raise UsageError(f"loop {request.loop!r} does not run here: {line.reason}")
        return _made(
            {
                "schema": "nodeagent/trigger/v1",
                "loop": request.loop,
                "ended": request.wait,
                "result": line.result if request.wait else "",
                "detail": line.detail if request.wait else "",
                "dry_run": agent.dry_run if self._context.agent is agent else None,
            }
        )

    def _refuse_while_paused(self) -> None:
        held = self._context.pass_lock.pause()
        if held is not None:
            raise UsageError(f"nothing is triggered while the agent is paused: {held.text}")

    async def _until(self, done: Callable[[], bool], late: str) -> None:
        ends_s = self._context.clock.monotonic_s() + _TRIGGER_WITHIN_S
        while not done():
            if self._context.stop.is_set() or self._context.clock.monotonic_s() > ends_s:
                raise NodeAgentError(f"{late} before the agent stopped or {_TRIGGER_WITHIN_S:g} s were over")
            self._refuse_while_paused()
            await wait_for_any(_LOOK_AGAIN_S, self._context.stop)

    async def Reload(self, _: api.ReloadRequest, __: Context) -> api.Document:  # noqa: N802
        """Read the configuration again and return the effect; a bad one changes nothing."""
        waiting: asyncio.Future[Reloaded] = asyncio.get_running_loop().create_future()
        self._context.awaiting_reload.append(waiting)
        self._context.reload.set()
        try:
            reloaded = await asyncio.wait_for(waiting, _RELOAD_WITHIN_S)
        except TimeoutError as error:
            raise NodeAgentError(f"the configuration was not read within {_RELOAD_WITHIN_S:g} s") from error
        return _made(reload_document(reloaded))

    async def Apply(self, request: api.ApplyRequest, _: Context) -> AsyncIterator[api.Document]:  # noqa: N802
        """Carry out a pass, or a saved plan: each result as it comes, the report at the end."""
        if bool(request.scope) == bool(request.plan):
            raise UsageError("give a scope or a saved plan; not both")
        if request.rounds > _MOST_ROUNDS:
            raise UsageError(f"rounds: at most {_MOST_ROUNDS}")
        rounds = request.rounds or 1
        results: asyncio.Queue[api.Document | None] = asyncio.Queue()
        ended = asyncio.Event()

        def tell(result: Result) -> None:
            results.put_nowait(_made({"schema": "nodeagent/result/v1", **document.result(result)}))

        work = asyncio.ensure_future(
            self._apply_plan(request.plan, ended, tell)
            if request.plan
            else self._apply_scope(_scope(request.scope), rounds, ended, tell)
        )
        work.add_done_callback(lambda _: results.put_nowait(None))
        try:
            while (document_ := await results.get()) is not None:
                yield document_
            yield _made(await work)
        finally:  # whoever asked has gone: the pass ends between two items
            ended.set()
            await asyncio.wait({work})

    async def _apply_scope(
        self, scope: Scope, rounds: int, ended: asyncio.Event, tell: Callable[[Result], None]
    ) -> dict[str, Json]:
        agent = self._agent()
        _refuse_disabled(scope, agent.settings)
        preview = await agent.collector.preview(scope)
        report = await self._run(agent, preview, ended, tell, rounds=rounds, trigger="control", in_force=agent)
        return await self._reported(agent, report)

    async def _apply_plan(self, text: str, ended: asyncio.Event, tell: Callable[[Result], None]) -> dict[str, Json]:
        try:
            saved: SavedPlan = unseal(text, await self._plan_key())
        except ValueError as error:
            raise UsageError(f"plan: {error}; nothing was done") from error
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
                agent, preview, ended, tell, rounds=1, trigger="apply", plan_id=saved.id, in_force=in_force
            )
            shown = await self._reported(agent, report)
        return {**shown, "drift": [document.drift(each) for each in drift]}

    async def _reported(self, agent: Agent, report: PassReport) -> dict[str, Json]:
        """Return a report, with what fills the image filesystem if the pass ended short of its target."""
        async with self._heavy:
            filled = await agent.break_down_shortfall(report)
        return document.report(report) | ({"breakdown": document.breakdown(filled)} if filled else {})

    async def _run(  # noqa: PLR0913 - what a run is told
        self,
        agent: Agent,
        preview: Preview,
        ended: asyncio.Event,
        tell: Callable[[Result], None],
        *,
        rounds: int,
        trigger: str,
        plan_id: str = "",
        in_force: Agent,
    ) -> PassReport:
        """Carry out a preview once it is its turn, if ``in_force`` still is: whose settings it was made by."""

        def on_result(result: Result) -> None:
            log_result(self._context.logger, result, dry_run=agent.dry_run)
            tell(result)

        async with self._context.pass_lock.take() as stop:
            held = self._context.pass_lock.pause()
            if held is not None:
                raise UsageError(f"nothing is removed while the agent is paused: {held.text}")
            if self._context.grace.pending:
                left_s = math.ceil(self._context.grace.left_s())
                raise UsageError(f"nothing is removed for another {left_s} s: reload grace period after a dry run")
            if self._context.agent is not in_force or self._context.renew.is_set():
                raise NodeAgentError("the configuration changed meanwhile; nothing was removed, try again")
            passing = asyncio.ensure_future(_set_with(ended, stop))
            try:
                report = await agent.run(
                    preview, trigger=trigger, stop=stop, max_rounds=rounds, on_result=on_result, plan_id=plan_id
                )
            finally:
                passing.cancel()
        log_report(self._context.logger, preview, report)
        if report.end is PassEnd.RUNTIME_LOST:
            raise RuntimeUnavailableError(report.end_detail)
        return report

    # ---- what they share

    def _agent(self) -> Agent:
        if self._context.agent is None:
            raise RuntimeUnavailableError("no agent is composed: it starts, reloads, or waits for a container runtime")
        return self._context.agent

    def _looking(self) -> StatusReader:
        agent = self._agent()
        if self._look is None or self._look_of is not agent:
            self._look, self._look_of = StatusReader(agent), agent
        return self._look

    async def _plan_key(self) -> bytes:
        """Return this node's plan key, or one of this process where that is unavailable.

        With a full or read-only state directory a caller can so still agree to a plan, as removing items is what such a
        node needs; the plans last as long as the daemon does.
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


class Guard:
    """The service as it is served: every call is checked, errors become statuses, and a bug stays within its call."""

    def __init__(self, service: ControlService, context: DaemonContext, peer_of: Callable[[str], Peer | None]) -> None:
        self._service = service
        self._context = context
        self._peer_of = peer_of
        self._calls: Counter[int] = Counter()
        self._naming = asyncio.Lock()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return what serves every call that has its right. Requests are read only after whoever asks is let in."""
        handlers = {}
        for method in api.DESCRIPTOR.services_by_name["Control"].methods:
            if method.name not in RIGHTS:
                continue
            kind = message_factory.GetMessageClass(method.input_type)
            implementation = getattr(self._service, method.name)
            if method.server_streaming:
                stream = self._stream(method.name, kind, implementation)
                handlers[method.name] = grpc.unary_stream_rpc_method_handler(
                    stream, response_serializer=api.Document.SerializeToString
                )
            else:
                single = self._single(method.name, kind, implementation)
                handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                    single, response_serializer=api.Document.SerializeToString
                )
        return grpc.method_handlers_generic_handler("nodeagent.control.v1.Control", handlers)

    def _single(
        self, name: str, kind: type[Message], method: Callable[[Any, Context], Awaitable[api.Document]]
    ) -> Callable[[bytes, Context], Coroutine[object, object, api.Document]]:
        async def served(request: bytes, context: Context) -> api.Document:
            with self._counted(await self._admit(name, context)):
                try:
                    return await method(_parsed(kind, request), context)
                except Exception as error:  # noqa: BLE001 - told below
                    return await self._refuse(name, context, error)

        return served

    def _stream(
        self, name: str, kind: type[Message], method: Callable[[Any, Context], AsyncIterator[api.Document]]
    ) -> Callable[[bytes, Context], AsyncIterator[api.Document]]:
        async def served(request: bytes, context: Context) -> AsyncIterator[api.Document]:
            with self._counted(await self._admit(name, context)):
                try:
                    async for each in method(_parsed(kind, request), context):
                        yield each
                except Exception as error:  # noqa: BLE001 - told below
                    await self._refuse(name, context, error)

        return served

    @contextmanager
    def _counted(self, peer: Peer) -> Iterator[None]:
        """Count a call for as long as it takes."""
        self._calls[peer.uid] += 1
        try:
            yield
        finally:
            self._calls[peer.uid] -= 1
            if not self._calls[peer.uid]:
                del self._calls[peer.uid]

    async def _admit(self, name: str, context: Context) -> Peer:
        """End a call that may not be made; log one that changes something; return who makes it."""
        peer = self._peer_of(context.peer().removeprefix(SOCKET_PREFIX))
        settings = self._context.settings.control
        needed = RIGHTS[name]
        if peer is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "it is not known who asks")
        group, user = (None, "root") if peer.uid == 0 else await self._names(peer, settings.group)
        has = access_of(peer, settings, group)
        if has < needed:
            why = (
                f"it takes root or a member of group {settings.group}"
                if has is Access.NOTHING
                else f"members of group {settings.group} may only read; control.group_may_act = true lets them act"
            )
            self._context.logger.warning("control_refused", method=name, user=user, uid=peer.uid, pid=peer.pid)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{user} may not do that: {why}")
        if peer.uid and self._calls[peer.uid] >= _MOST_CALLS_OF_A_USER:
            many = f"{user} has {_MOST_CALLS_OF_A_USER} calls under way; wait for one to end"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, many)
        if needed is Access.ACT:
            self._context.logger.info("control_request", method=name, user=user, uid=peer.uid, pid=peer.pid)
        _ASKED_BY.set(user)
        _IS_ROOT.set(peer.uid == 0)
        return peer

    async def _names(self, peer: Peer, group: str) -> tuple[int | None, str]:
        """Return a group's number and the name of who asks, from a directory that may be far away."""
        async with self._naming:  # so that it takes one thread
            return await asyncio.to_thread(lambda: (group_number(group), peer.name))

    async def _refuse(self, name: str, context: Context, error: Exception) -> NoReturn:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if isinstance(error, NodeAgentError):
            code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
            await context.abort(code or grpc.StatusCode.FAILED_PRECONDITION, encodable(str(error)))
        self._context.logger.error("control_failed", method=name, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, f"a fault in the agent, see its log: {error!r}")


class RunningService:
    """The service while it runs."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    async def stop(self) -> None:
        """Cancel what is under way."""
        await self._server.stop(None)


async def serve(context: DaemonContext, address: str, peer_of: Callable[[str], Peer | None]) -> RunningService:
    """Serve at the path of a socket that nobody else can reach."""
    server = grpc.aio.server(
        maximum_concurrent_rpcs=_MOST_CALLS,
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


def _made(shown: Mapping[str, Any]) -> api.Document:
    return api.Document(schema=str(shown.get("schema", "")), json=document.dumps(shown, "json"))


def _parsed(kind: type[Message], request: bytes) -> Message:
    try:
        return kind.FromString(request)
    except DecodeError as error:
        raise UsageError(f"the request cannot be read: {error}") from error


def _scope(text: str) -> Scope:
    try:
        scope = Scope(text)
    except ValueError as error:
        raise UsageError(f"scope: write images, containers or all, not {_text(text, 'scope')!r}") from error
    if scope is Scope.LEAKS:
        raise UsageError("scope: write images, containers or all")
    return scope


def _refuse_disabled(scope: Scope, settings: Settings) -> None:
    """Refuse a caller other than root what the configuration has the daemon not do at all, as triggering it is."""
    if _IS_ROOT.get():
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
        raise UsageError(f"{name}: {value:g} is not from 0 to {most:g}")
    return value


def _text(value: str, name: str) -> str:
    if len(value) > _LONGEST_TEXT or not value.isprintable():
        raise UsageError(f"{name}: at most {_LONGEST_TEXT} characters, all of them printable")
    return value
