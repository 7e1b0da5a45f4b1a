"""Client of the Kubernetes API server: one connection, one request at a time, limits on time and answer size.

The client uses h11, asyncio and ssl, which add at most 3 MiB of memory to the daemon. Rejected after measurement:
httpx (10 MiB), aiohttp (15 MiB), and Kubernetes client packages (30 MiB and more).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from nodeagent.errors import ApiServerUnavailableError
from nodeagent.kube.api_connection import ApiConnection, ClosedBeforeAnswerError, cause_of, place_of, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.kube.api_connection import ApiRequest
    from nodeagent.kube.api_credentials import ApiCredentials
    from nodeagent.model.access import ApiAccess

T = TypeVar("T")
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"


class ApiClient:
    """Request client with one persistent connection, which is reopened after a change of the credentials."""

    def __init__(self, access: ApiAccess, credentials: ApiCredentials) -> None:
        """Create a client; the first request opens the connection."""
        self._access = access
        self._credentials = credentials
        self._connection: ApiConnection | None = None
        self._lock = asyncio.Lock()

    async def send(self, request: ApiRequest, kind: type[T]) -> T:
        """Send a request and return the answer's body, decoded as ``kind``.

        If the server has closed the idle connection, the request is sent once more over a new connection.

        Raises:
            ApiServerRefusedError: the server refused the request; the text has status, reason and message.
            ApiServerUnavailableError: no connection, or no complete and valid answer in time; the effect of a write is
                unknown.
        """
        return (await self.send_with_headers(request, kind))[0]

    async def send_with_headers(self, request: ApiRequest, kind: type[T]) -> tuple[T, Mapping[str, str]]:
        """Return the object in the answer, and the headers, with names in lower case; otherwise as :meth:`send`."""
        async with self._lock:
            try:
                async with asyncio.timeout(self._access.timeout_s):
                    status, headers, body = await self._exchange(request)
            except TimeoutError as error:
                self._close()
                raise ApiServerUnavailableError(
                    f"{place_of(request)}: no answer in {self._access.timeout_s:g} s"
                ) from error
            except BaseException:
                self._close()
                raise
        if status >= 300:
            if status == 401:
                self._credentials.discard()
            raise refusal(place_of(request), status, headers, body)
        try:
            return msgspec.json.decode(body, type=kind), headers
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ApiServerUnavailableError(f"{place_of(request)}: answer is not a {kind.__name__}") from error

    def close(self) -> None:
        """Close the connection."""
        self._close()

    async def _exchange(self, request: ApiRequest) -> tuple[int, dict[str, str], bytes]:
        identity = await self._credentials.current()
        connection = self._connection
        if connection is not None and connection.identity is identity and connection.reusable:
            try:
                return await connection.exchange(request, self._access.max_bytes)
            except ClosedBeforeAnswerError:
                pass  # the server has closed the idle connection
        self._close()
        self._connection = await ApiConnection.open(identity, place_of(request))
        try:
            return await self._connection.exchange(request, self._access.max_bytes)
        except ClosedBeforeAnswerError as error:
            raise ApiServerUnavailableError(
                f"{place_of(request)}: {cause_of(error.__cause__) if error.__cause__ else 'connection closed'}"
            ) from error

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class ApiStream:
    """Lines of one long answer, over a separate connection.

    The server may end the answer at any time; the caller then sends a new request.
    """

    def __init__(self, access: ApiAccess, credentials: ApiCredentials, *, idle_s: float, max_line_bytes: int) -> None:
        """Prepare a stream.

        Args:
            access: API server settings; ``timeout_s`` is the deadline for the headers of the answer.
            credentials: source of the server address and the credentials.
            idle_s: seconds without a complete line after which the stream ends.
            max_line_bytes: maximum length of a line.
        """
        self._access = access
        self._credentials = credentials
        self._idle_s = idle_s
        self._max_line_bytes = max_line_bytes
        self._connection: ApiConnection | None = None
        self._where = ""
        self._pending = bytearray()
        self._searched = 0

    async def open(self, request: ApiRequest) -> None:
        """Send the request; return once the server accepts it.

        Raises:
            ApiServerRefusedError: the server refused the request; the text has status, reason and message.
            ApiServerUnavailableError: no connection, or no answer in time.
        """
        self._where = place_of(request)
        try:
            async with asyncio.timeout(self._access.timeout_s):
                identity = await self._credentials.current()
                self._connection = await ApiConnection.open(identity, self._where)
                status, headers = await self._connection.begin(request)
                refused = await self._connection.rest(self._max_line_bytes) if status >= 300 else b""
        except ClosedBeforeAnswerError as error:
            raise ApiServerUnavailableError(f"{self._where}: {cause_of(error.__cause__)}") from error
        except TimeoutError as error:
            raise ApiServerUnavailableError(f"{self._where}: no answer in {self._access.timeout_s:g} s") from error
        if status >= 300:
            if status == 401:
                self._credentials.discard()
            raise refusal(self._where, status, headers, refused)

    async def next_line(self) -> bytes | None:
        """Return the next line; ``None`` at the end of the answer, or after the idle time.

        Raises:
            ApiServerUnavailableError: the answer is incomplete, or a line is too long.
        """
        try:
            async with asyncio.timeout(self._idle_s):
                while (end := self._pending.find(b"\n", self._searched)) < 0:
                    if len(self._pending) > self._max_line_bytes:
                        raise ApiServerUnavailableError(
                            f"{self._where}: line has more than {self._max_line_bytes} bytes"
                        )
                    self._searched = len(self._pending)
                    data = None if self._connection is None else await self._connection.next_data()
                    if data is None:
                        return None
                    self._pending += data
        except TimeoutError:
            return None
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        self._searched = 0
        return line

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
