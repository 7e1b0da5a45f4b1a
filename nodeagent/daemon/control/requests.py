"""Requests of the control API: caller, access, fields, requested passes and streamed documents."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from nodeagent.api.operations import Access
from nodeagent.api.requests import TEXT_FORM, is_text
from nodeagent.daemon.health import not_composed
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError, UsageError
from nodeagent.gc.documents.passes import Report
from nodeagent.gc.executor import PassEnd, PassTrigger
from nodeagent.gc.loop import log_report, log_result, log_start
from nodeagent.gc.plan.policy import Scope
from nodeagent.gc.plan.saved_plan import Drift, parse_plan, refusal_of
from nodeagent.host.node import node_identity
from nodeagent.record import Record
from nodeagent.telemetry.logging import StateLog

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.http.connection import Response
    from nodeagent.gc import executor as outcomes, pass_state as gc_preview
    from nodeagent.gc.agent import Agent
    from nodeagent.host.sockets import Peer
    from nodeagent.settings.settings import ControlSettings, Settings


def access_of(peer: Peer, settings: ControlSettings, group: int | None) -> Access:
    """Return the access right of the process at the other end of a connection.

    Args:
        peer: credentials of the process when it connected.
        settings: whether members of the group have write access.
        group: GID of the configured group; ``None`` if the group does not exist on the node.
    """
    if peer.uid == 0:
        return Access.ACT
    if group is None or group not in peer.groups:
        return Access.NOTHING
    return Access.ACT if settings.group_may_act else Access.READ


class Caller(Record):
    """User who sent a control request. Only root may relax the configuration or end root's holds and pauses."""

    name: str
    is_root: bool


_UNKNOWN: Final = Caller("?", is_root=False)
CALLER: Final[ContextVar[Caller]] = ContextVar("caller", default=_UNKNOWN)
"""Caller of the current control request; set by the control server before it reads the request body."""


def parse_scope(text: str) -> Scope:
    """Return the scope of a plan.

    Raises:
        UsageError: the scope is not images, containers or all.
    """
    try:
        scope = Scope(text)
    except ValueError as error:
        raise UsageError(f"scope: write images, containers or all, not {check_text(text, 'scope')!r}") from error
    if scope is Scope.LEAKS:
        raise UsageError("scope: write images, containers or all")
    return scope


def check_number(value: float, most: float, name: str) -> float:
    """Return ``value`` if it is between 0 and ``most``.

    Raises:
        UsageError: the field ``name`` is out of this range.
    """
    if not 0 <= value <= most:
        raise UsageError(f"{name}: {value:g} is not between 0 and {most:g}")
    return value


def check_text(value: str, name: str) -> str:
    """Return ``value`` if it is a valid request text.

    Raises:
        UsageError: the field ``name`` is too long, or unprintable.
    """
    if not is_text(value):
        raise UsageError(f"{name}: {TEXT_FORM}")
    return value


T = TypeVar("T")


async def run_exclusively(lock: asyncio.Lock, work: Coroutine[object, object, T]) -> T:
    """Run work under a lock and return its result.

    A cancellation during the wait for the lock prevents the work. After a later cancellation the work continues under
    the lock, so that uninterruptible work, such as a thread, is never started twice.

    Raises:
        Exception: the work failed.
    """
    try:
        await lock.acquire()
    except BaseException:
        work.close()
        raise
    task = asyncio.ensure_future(work)
    task.add_done_callback(partial(_release, lock))
    return await asyncio.shield(task)


def _release(lock: asyncio.Lock, ended: asyncio.Future[T]) -> None:
    lock.release()
    if not ended.cancelled():
        ended.exception()  # retrieved here: asyncio would log the exception if the caller was cancelled


class DocumentLines:
    """JSON lines of a stream of documents; an error after the start of the response becomes the last line.

    Not a generator: ``aclose`` of a generator that was never iterated would not close the source of its documents.
    """

    def __init__(self, documents: AsyncGenerator[str, None], problem: Callable[[Exception], Response]) -> None:
        """Create a stream without reading documents.

        Args:
            documents: JSON documents, each with its line break.
            problem: returns the problem document of an error.
        """
        self._documents = documents
        self._problem = problem
        self._first: asyncio.Future[str | None] | None = None
        self._failed = False

    async def start(self, within_s: float | None) -> None:
        """Wait up to ``within_s`` seconds for the first document; ``None`` waits without a limit.

        Raises:
            Exception: the source of the documents failed before the first document.
        """
        self._first = asyncio.ensure_future(self._next())
        try:
            await asyncio.wait({self._first}, timeout=within_s)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if self._first.done() and (error := self._first.exception()) is not None:
            raise error

    def __aiter__(self) -> DocumentLines:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next JSON line; an error of the source becomes the last line."""
        if self._failed:
            raise StopAsyncIteration
        try:
            if self._first is None:
                document = await self._next()
            else:
                document = await self._first
                self._first = None
        except Exception as error:  # noqa: BLE001 - reported to the client and logged
            self._failed = True
            body = self._problem(error).body
            return b'{"problem": ' + (body if isinstance(body, bytes) else b"null").strip() + b"}\n"
        if document is None:
            raise StopAsyncIteration
        return document.encode()

    async def aclose(self) -> None:
        """Close the stream and the source of its documents."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.wait({self._first})
            if not self._first.cancelled():
                self._first.exception()  # retrieved here, since asyncio logs an exception that no caller has retrieved
        await self._documents.aclose()

    async def _next(self) -> str | None:
        return await anext(self._documents, None)


def require_agent(context: DaemonContext) -> Agent:
    """Return the agent of the daemon.

    Raises:
        RuntimeUnavailableError: the daemon is not ready.
    """
    if context.agent is None:
        raise RuntimeUnavailableError(f"not ready: {not_composed(context)}")
    return context.agent


class RequestedPass:
    """One pass requested over the control API."""

    def __init__(
        self,
        context: DaemonContext,
        breakdowns: asyncio.Lock,
        on_result: Callable[[outcomes.Result], None],
        *,
        no_dry_run: bool = False,
    ) -> None:
        """Prepare a pass.

        Args:
            context: daemon context.
            breakdowns: lock that serialises measurements of filesystem usage.
            on_result: called with the result of each item.
            no_dry_run: whether the pass removes although the agent runs with ``dry_run``.
        """
        self._context = context
        self._no_dry_run = no_dry_run
        self._breakdowns = breakdowns
        self._on_result = on_result
        self._cancelled = False
        self._stop: asyncio.Event | None = None

    def cancel(self) -> None:
        """End the pass before its next item."""
        self._cancelled = True
        if self._stop is not None:
            self._stop.set()

    async def apply_scope(self, scope: Scope, rounds: int) -> Report:
        """Run a garbage collection pass over a scope and return its report.

        Raises:
            UsageError: the agent is paused, or the configuration disables the scope for this caller.
            NodeAgentError: the pass failed or was not started.
        """
        agent = require_agent(self._context)
        _refuse_disabled(scope, agent.settings)
        preview = await self._acting(agent).collector.prepare(scope)
        report = await self._run(agent, preview, rounds=rounds, trigger=PassTrigger.CONTROL)
        return await self._report(agent, report)

    async def apply_plan(self, text: str) -> Report:
        """Remove the items of a saved plan that a new plan removes too; return the report of the pass.

        Raises:
            UsageError: the plan is invalid, expired or for another node, the agent is paused, or the configuration
                disables the scope for this caller.
            NodeAgentError: the pass failed or was not started.
        """
        try:
            saved = parse_plan(text)
        except ValueError as error:
            raise UsageError(f"plan: {error}; nothing was removed") from error
        refused = refusal_of(saved, self._context.clock.now(), node_identity())
        if refused:
            raise UsageError(f"plan: {refused}")
        agent = require_agent(self._context)
        _refuse_disabled(saved.scope, agent.settings)
        preview, drift = await self._acting(agent).collector.prepare_saved(saved)
        report = await self._run(agent, preview, rounds=1, trigger=PassTrigger.APPLY, plan_id=saved.id)
        return await self._report(agent, report, drift)

    def _acting(self, agent: Agent) -> Agent:
        return agent.acting() if self._no_dry_run else agent

    async def _report(self, agent: Agent, report: outcomes.PassReport, drift: Iterable[Drift] | None = None) -> Report:
        """Return a report, with the filesystem usage breakdown if the pass missed its target."""
        async with self._breakdowns:
            breakdown = await agent.break_down_shortfall(report)
        return Report.of(report, breakdown=breakdown, drift=drift)

    async def _run(
        self, agent: Agent, preview: gc_preview.Preview, *, rounds: int, trigger: str, plan_id: str = ""
    ) -> outcomes.PassReport:
        """Wait for the pass lock, carry out the plans of a preview, and return the report of the pass.

        ``agent`` is the agent of the daemon at the request; if a reload has replaced this agent, nothing is removed.
        """
        acting = self._acting(agent)
        states = StateLog(self._context.logger, self._context.clock)

        def on_item(result: outcomes.Result) -> None:
            log_result(states, result, dry_run=acting.dry_run)
            self._on_result(result)

        async with self._context.pass_lock.take() as stop:
            pause_in_force = self._context.pass_lock.pause()
            if self._cancelled:
                raise NodeAgentError("nothing was removed: the client disconnected")
            if pause_in_force is not None:
                raise UsageError(f"nothing was removed: the agent is paused: {pause_in_force.reason}")
            if self._context.grace.pending:
                left_s = math.ceil(self._context.grace.left_s())
                raise UsageError(f"nothing was removed: reload grace period after a dry run, {left_s} s left")
            if self._context.agent is not agent or self._context.renew.is_set():
                raise NodeAgentError("nothing was removed: the configuration changed during the request; retry")
            self._stop = stop
            try:
                report = await acting.run(
                    preview,
                    trigger=trigger,
                    stop=stop,
                    max_rounds=rounds,
                    on_start=partial(log_start, states),
                    on_result=on_item,
                    plan_id=plan_id,
                )
            finally:
                self._stop = None
        log_report(states, preview, report)
        if report.end is PassEnd.RUNTIME_LOST:
            raise RuntimeUnavailableError(report.end_detail)
        return report


def _refuse_disabled(scope: Scope, settings: Settings) -> None:
    """Raise a ``UsageError`` for a disabled scope unless the caller is root, as for the trigger of a disabled loop."""
    if CALLER.get().is_root:
        return
    for disabled, of, name in (
        (settings.image_interval_s is None, Scope.IMAGES, "image_gc"),
        (settings.container_interval_s is None, Scope.CONTAINERS, "container_gc"),
    ):
        if disabled and scope in (of, Scope.ALL):
            raise UsageError(
                f"cannot collect {of.value}: disabled by the configuration ({name}.enabled = false); nothing was "
                "removed; requires root"
            )
