"""The operations of the control API.

Responses are the documents that the commands print; the same functions create both.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nodeagent import __version__
from nodeagent.api.common import Document, encode_line, plain
from nodeagent.api.requests import parse_patterns
from nodeagent.daemon.control.requests import (
    CALLER,
    RequestedPass,
    check_number,
    check_text,
    parse_scope,
    require_agent,
    run_exclusively,
)
from nodeagent.daemon.control_documents import EffectiveConfig, Paused, Resumed, SettingDocument, Triggered, Version
from nodeagent.daemon.reload_preview import reload_document
from nodeagent.daemon.service_manager import preview_reload
from nodeagent.daemon.status import (
    StatusReader,
    eviction_preview_document,
    explanation_document,
    pods_document,
    pressure_document,
    report_document,
    status_document,
    without_agent,
)
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.gc.documents import readings as gc
from nodeagent.gc.documents.history import HistoryDocument
from nodeagent.gc.documents.holds import HoldDocument, HoldList
from nodeagent.gc.documents.passes import Report, ResultDocument
from nodeagent.gc.documents.undo import Undone, encode_saved_plan
from nodeagent.gc.hold_file import HoldFile
from nodeagent.gc.plan.image_protection import EXPRESSION_PREFIX, LABEL_PREFIX, parse_rule
from nodeagent.gc.plan.policy import Scope
from nodeagent.gc.restore import UndoOutcome
from nodeagent.host.node import node_identity
from nodeagent.loops.clock_reading import read_clocks, stored_trust
from nodeagent.loops.passes import Activity, wait_for_any
from nodeagent.loops.pause import pause, resume
from nodeagent.loops.pause_file import LONGEST_PAUSE_S
from nodeagent.model.node import LONGEST_HOLD_S, Hold, NodeSnapshot
from nodeagent.schemas import SchemaId
from nodeagent.shutdown import document_readings as shutdown
from nodeagent.telemetry.logging import REPEATED, Subscription
from nodeagent.trend.document_readings import DAY_S, LONGEST_S, trend_document

if TYPE_CHECKING:
    from nodeagent.api import requests
    from nodeagent.daemon.context import DaemonContext, Reloaded
    from nodeagent.daemon.report_document import NodeReport
    from nodeagent.gc import executor as outcomes
    from nodeagent.gc.agent import Agent
    from nodeagent.model.clock import ClockTrust
    from nodeagent.store.clock_record import ClockReading

T = TypeVar("T")
_LONGEST_PLAN_S: Final = 7 * 86_400.0
_LONGEST_AGE_S: Final = 100 * 365 * 86_400.0
_LONGEST_MEASUREMENT_S: Final = 600.0
_MOST_PASSES: Final = 10_000
_DEFAULT_PASSES: Final = 100


_MOST_ROUNDS: Final = 20
_RELOAD_WITHIN_S: Final = 60.0
_TRIGGER_WITHIN_S: Final = 900.0
_POLL_INTERVAL_S: Final = 0.1
_STOP_WITHIN_S: Final = 8.0


def _patterns_of(only: str | None, scope: Scope) -> tuple[str, ...]:
    """Return the image patterns of a request; empty for a request without the field.

    Raises:
        UsageError: the field ``only`` is invalid, or the scope includes other items than images.
    """
    if only is None:
        return ()
    if scope is not Scope.IMAGES:
        raise UsageError("only: requires scope images; nothing was removed")
    return parse_patterns(only)


class ControlService:
    """Operations of the control API. The control server checks the access of the caller before each call.

    At most one observation of the node runs for root, and one for all other users. Directory walks, which take up to
    ten minutes, have separate locks, so that other requests do not wait for them.
    """

    def __init__(self, context: DaemonContext) -> None:
        """Prepare the operations without reading the node."""
        self._context = context
        self._reader: StatusReader | None = None
        self._reader_agent: Agent | None = None
        self._heavy_locks = {is_root: asyncio.Lock() for is_root in (False, True)}
        self._walk_locks = {is_root: asyncio.Lock() for is_root in (False, True)}

    async def status(self, _: requests.Empty) -> str:
        """Return the status of the node and the daemon."""
        if self._context.agent is None:
            return encode_line(without_agent(self._context))
        return encode_line(await status_document(self._context.agent, self._status_reader(), self._context))

    async def pressure(self, _: requests.Empty) -> str:
        """Return the readings of all eviction signals with their thresholds."""
        return encode_line(await pressure_document(self._status_reader(), self._context))

    async def trend(self, request: requests.TrendRequest) -> str:
        """Return the record of the resources and their outlook."""
        resource = check_text(request.resource, "resource")
        seconds = check_number(request.seconds, LONGEST_S, "seconds") or DAY_S
        layout, *_ = await self._status_reader().read(self._context.eviction)
        return await self._document(lambda agent: trend_document(agent, layout, resource, seconds))

    async def plan(self, request: requests.PlanRequest) -> str:
        """Return the plan of a pass that starts now; with ``lasts_seconds``, a plan to save for a later apply."""
        scope = parse_scope(request.scope)
        lasts_s = check_number(request.lasts_seconds, _LONGEST_PLAN_S, "lasts_seconds")
        patterns = _patterns_of(request.only, scope)
        if patterns and lasts_s:
            raise UsageError("only: a plan of selected images cannot be saved")
        if not lasts_s:
            return await self._document(lambda agent: gc.preview_collection(agent, scope, patterns))

        async def save(agent: Agent) -> Mapping[str, object]:
            preview = await agent.collector.preview(scope)
            return await asyncio.to_thread(
                encode_saved_plan,
                preview,
                node=node_identity(),
                expires_at=preview.snapshot.observed_at + timedelta(seconds=lasts_s),
                agent_version=__version__,
            )

        return await self._document(save)

    async def pods(self, _: requests.Empty) -> str:
        """Return the pods with their usage, in eviction order under memory pressure."""
        return await self._document(lambda agent: pods_document(agent, self._status_reader(), self._context.eviction))

    async def history(self, request: requests.HistoryRequest) -> str:
        """Return past passes and node stops."""
        image = check_text(request.image, "image")
        ago_s = check_number(request.seconds, math.inf, "seconds")
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
            return encode_line(HistoryDocument.of(passes, stops))

        return await self._alone(asyncio.to_thread(read))

    async def holds(self, _: requests.Empty) -> str:
        """Return all holds in force."""
        at, clock = await self._clock_trust()
        found = await asyncio.to_thread(self._holds().read)
        return encode_line(HoldList.of(found, at.wall, clock))

    async def undo_list(self, _: requests.Empty) -> str:
        """Return the passes with image removals that can be undone."""
        return await self._document(gc.list_undoable)

    async def events(self, _: requests.Empty) -> AsyncIterator[str]:
        """Yield log events of the daemon as they occur."""
        missed = 0
        with Subscription() as tail:
            while True:
                event = await tail.next()
                if REPEATED in event:
                    continue
                fields = {key: plain(value) for key, value in event.items()}
                lost, missed = tail.missed - missed, tail.missed
                missing = {"missed_before": lost} if lost else {}
                yield encode_line({"schema": SchemaId.EVENT.value, **fields, **missing})

    async def preview_reload(self, _: requests.Empty) -> str:
        """Return the changes and the effect of a reload of the agent's own configuration file, without reloading."""
        return encode_line(reload_document(await self._alone(preview_reload(self._context))))

    async def version(self, _: requests.Empty) -> str:
        """Return the versions of the agent and the runtime."""
        return encode_line(Version.of(await require_agent(self._context).cri.version()))

    async def images(self, _: requests.Empty) -> str:
        """Return every image with its verdict."""
        return await self._document(gc.list_images)

    async def image_layers(self, _: requests.Empty) -> str:
        """Return the images grouped by shared layers."""
        return await self._document(gc.list_image_layers)

    async def containers(self, _: requests.Empty) -> str:
        """Return every container with its verdict."""
        return await self._document(gc.list_containers)

    async def pod_list(self, _: requests.Empty) -> str:
        """Return every pod with its deletion status."""
        return await self._document(gc.list_pods)

    async def explain(self, request: requests.ExplainRequest) -> str:
        """Return the verdicts on the images, containers and pods with a name, digest or id."""
        name = check_text(request.name, "name")
        if not name.strip():
            raise UsageError("name: give a name, digest or id of an image, a container or a pod")
        return await self._document(
            lambda agent: explanation_document(agent, self._status_reader(), self._context, name)
        )

    async def disk_usage(self, request: requests.DiskUsageRequest) -> str:
        """Return the usage breakdown of the image filesystem."""
        within_s = check_number(request.within_seconds, _LONGEST_MEASUREMENT_S, "within_seconds")
        agent, cancelled = require_agent(self._context), threading.Event()

        async def measure(snapshot: NodeSnapshot) -> str:
            private = CALLER.get().is_root
            document = await gc.break_down_usage(agent, snapshot, within_s, cancelled, private=private)
            return await asyncio.to_thread(encode_line, document)

        try:
            snapshot = await self._alone(gc.read_for_usage(agent))
            return await run_exclusively(self._walk_locks[CALLER.get().is_root], measure(snapshot))
        finally:
            cancelled.set()  # ends the walk of a disconnected client, so that the next client does not wait for it

    async def leaks(self, request: requests.LeaksRequest) -> str:
        """Return the leaks of the runtime."""
        minimum_age_s = check_number(request.minimum_age_seconds, _LONGEST_AGE_S, "minimum_age_seconds")
        include = frozenset(filter(None, request.include.split(",")))
        return await self._document(
            lambda agent: gc.list_leaks(agent, minimum_age_s, rooted=request.rooted, include=include)
        )

    async def node_report(self, _: requests.Empty) -> str:
        """Return the report of this node, for a summary of many nodes."""

        async def make(agent: Agent) -> NodeReport:
            status = await status_document(agent, self._status_reader(), self._context)
            return await report_document(agent, status)

        return await self._document(make)

    async def eviction_preview(self, request: requests.EvictionPreviewRequest) -> str:
        """Return the preview of an eviction, now or with simulated readings."""
        simulate = [each for each in check_text(request.simulate, "simulate").split(",") if each]
        return await self._document(
            lambda agent: eviction_preview_document(agent, self._status_reader(), self._context, simulate)
        )

    async def shutdown_plan(self, _: requests.Empty) -> str:
        """Return the timeline of a shutdown starting now."""
        return await self._document(shutdown.rehearse_shutdown)

    async def shutdown_status(self, request: requests.ShutdownStatusRequest) -> str:
        """Return the state of the inhibitor lock and past node stops."""
        if not 0 <= request.limit <= _MOST_PASSES:
            raise UsageError(f"limit: {request.limit} is not between 0 and {_MOST_PASSES}")
        settings = self._context.settings
        return encode_line(await self._alone(shutdown.read_shutdown_status(settings, request.limit)))

    async def config(self, _: requests.Empty) -> str:
        """Return the configuration in force."""
        settings = self._context.settings
        found = EffectiveConfig.of(settings.values, dict(settings.sources))
        if settings.origin.dry_run:  # set on the command line, outside the settings
            found.settings["dry_run"] = SettingDocument(value="true", source="command line")
        return encode_line(found)

    @property
    def _heavy(self) -> asyncio.Lock:
        """Lock that serialises observations of the node: one for root, one for all other users."""
        return self._heavy_locks[CALLER.get().is_root]

    async def _alone(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of an observation of the node; observations run one at a time.

        A waiting observation ends when its client disconnects. A started observation is completed and holds the lock
        until then, since each cancelled runtime call leaks about a kilobyte in the gRPC library.
        """
        return await run_exclusively(self._heavy, work)

    async def _document(
        self, make: Callable[[Agent], Coroutine[object, object, Document | Mapping[str, object]]]
    ) -> str:
        """Return the document of an observation, encoded in a thread: a large document would delay other requests."""
        agent = require_agent(self._context)

        async def encoded() -> str:
            return await asyncio.to_thread(encode_line, await make(agent))

        return await self._alone(encoded())

    def _status_reader(self) -> StatusReader:
        agent = require_agent(self._context)
        if self._reader is None or self._reader_agent is not agent:
            self._reader, self._reader_agent = StatusReader(agent), agent
        return self._reader

    async def _clock_trust(self) -> tuple[ClockReading, ClockTrust]:
        """Return a reading of the clocks, and whether its wall clock is trusted."""
        agent = self._context.agent
        at = read_clocks(self._context.clock)
        if agent is not None:
            return at, agent.store.clock(at)
        return at, await asyncio.to_thread(stored_trust, self._context.settings.state_directory, at)

    def _holds(self) -> HoldFile:
        return HoldFile(self._context.settings.state_directory)

    # ---- operations that act

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
        if image.strip().startswith((EXPRESSION_PREFIX, LABEL_PREFIX)) and not caller.is_root:
            raise UsageError(
                "image: only root places holds by regular expressions or labels; use a pattern such as */team/*"
            )
        if by and not caller.is_root:
            raise UsageError("by: only root places holds for other users")
        at, clock = await self._clock_trust()
        until = at.wall + timedelta(seconds=seconds)
        hold = Hold("", image, why, by or caller.name, at.wall, until, at.boot_id, at.boottime_s)
        placed = await asyncio.to_thread(self._holds().add, hold, clock, limited=not caller.is_root)
        return encode_line(HoldDocument.of(placed, at.wall, clock))

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
        return encode_line(HoldDocument.of(removed, at.wall, clock))

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
            results.put_nowait(encode_line(ResultDocument.of_result(result)))

        requested = RequestedPass(self._context, self._heavy, on_result, no_dry_run=request.no_dry_run)
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
