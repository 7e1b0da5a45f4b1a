"""Requests of the control API: caller, access, fields, exclusive work and streamed documents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from nodeagent.api.operations import Access
from nodeagent.api.requests import TEXT_FORM, is_text
from nodeagent.errors import UsageError
from nodeagent.gc.plan.policy import Scope
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.daemon.http.messages import Response
    from nodeagent.host.sockets import Peer
    from nodeagent.settings.endpoints import ControlSettings


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
