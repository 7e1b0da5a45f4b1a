"""Client of the Kubernetes API server: one connection, one request at a time, limits on time and answer size.

The client uses h11, asyncio and ssl, which add at most 3 MiB of memory to the daemon. Rejected after measurement:
httpx (10 MiB), aiohttp (15 MiB), and Kubernetes client packages (30 MiB and more).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import quote, urlsplit

import h11
import msgspec

from nodeagent import __version__
from nodeagent.errors import ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.files import closing_descriptor
from nodeagent.http_exchange import PART_BYTES, HttpExchange, HttpProtocolError, TruncatedResponseError
from nodeagent.model.kubernetes import ApiAccess, Lease, Node
from nodeagent.record import Record
from nodeagent.text import escape, shortened

if TYPE_CHECKING:
    from nodeagent.kube.api_credentials import ApiCredentials, ApiIdentity

T = TypeVar("T")
JSON: Final = "application/json"
_MAX_SHOWN: Final = 300
_MAX_RETRY_AFTER_S: Final = 60.0
_MAX_CAUSES: Final = 3
_HINTS: Final = {
    401: "credentials refused: expired, revoked or of another cluster",
    403: "the identity of the agent lacks this rule",
}


class ApiStatus(msgspec.Struct, frozen=True, rename="camel"):
    """Status object in the answer to a refused request. Source: Kubernetes ``metav1.Status``."""

    reason: str = ""
    message: str = ""


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct, frozen=True):
    kind: str = ""
    causes: list[_Cause] = []


class _Detailed(msgspec.Struct, frozen=True):
    details: _Details = _Details()


class ApiRequest(Record):
    """One HTTP request to the API server.

    Attributes:
        method: HTTP method, such as ``PATCH``.
        target: path and query, percent-encoded.
        body: JSON document; empty for a request without a body.
        content_type: media type of the body.
    """

    method: str
    target: str
    body: bytes = b""
    content_type: str = JSON


class ClosedBeforeAnswerError(Exception):
    """The server closed the connection before the first byte of an answer."""


class ApiConnection:
    """One TLS connection to the API server, for one HTTP request at a time."""

    def __init__(
        self, identity: ApiIdentity, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str
    ) -> None:
        self.identity = identity
        self._reader = reader
        self._writer = writer
        self._where = where
        self._http = HttpExchange()

    @classmethod
    async def open(cls, identity: ApiIdentity, where: str) -> ApiConnection:
        """Return an open connection to a verified server.

        Raises:
            ApiServerUnavailableError: the connection failed, the server certificate is not trusted, or the CA or the
                client certificate cannot be loaded.
        """
        parts = urlsplit(identity.url)
        host = parts.hostname or ""
        context = await asyncio.to_thread(tls_context, identity)
        try:
            reader, writer = await asyncio.open_connection(
                host, parts.port or 443, ssl=context, server_hostname=identity.server_name or host
            )
        except (OSError, ValueError) as error:
            raise ApiServerUnavailableError(f"{where}: {cause_of(error)}") from error
        return cls(identity, reader, writer, where)

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent over this connection."""
        return self._http.reusable and not (self._reader.at_eof() or self._writer.is_closing())

    async def exchange(self, request: ApiRequest, max_bytes: int) -> tuple[int, dict[str, str], bytes]:
        """Send a request and return the status, headers and body of the answer.

        Raises:
            ClosedBeforeAnswerError: the connection was closed before an answer.
            ApiServerUnavailableError: the answer is malformed, incomplete or too large.
        """
        status, headers = await self.begin(request)
        body = await self.rest(max_bytes)
        return status, headers, body

    async def begin(self, request: ApiRequest) -> tuple[int, dict[str, str]]:
        """Send a request and return the status and headers of the answer.

        Raises:
            ClosedBeforeAnswerError: the connection was closed before an answer.
            ApiServerUnavailableError: the answer is malformed.
        """
        self._where = place_of(request)
        try:
            self._writer.write(self._encoded(request))
            await self._writer.drain()
            while not isinstance(event := await self._next_event(), h11.Response):
                pass
        except (OSError, TruncatedResponseError) as error:
            raise ClosedBeforeAnswerError from error
        except HttpProtocolError as error:
            raise self._incomplete(error) from error
        return event.status_code, {name.decode().lower(): value.decode("latin-1") for name, value in event.headers}

    async def rest(self, max_bytes: int) -> bytes:
        """Return the unread part of the answer's body.

        Raises:
            ApiServerUnavailableError: the answer is malformed, incomplete or too large.
        """
        body = bytearray()
        while (data := await self.next_data()) is not None:
            body += data
            if len(body) > max_bytes:
                raise ApiServerUnavailableError(f"{self._where}: answer has more than {max_bytes} bytes")
        return bytes(body)

    async def next_data(self) -> bytes | None:
        """Return the next part of the answer's body; ``None`` at the end of the body.

        Raises:
            ApiServerUnavailableError: the answer is malformed or incomplete.
        """
        try:
            while not isinstance(event := await self._next_event(), h11.Data | h11.EndOfMessage):
                pass
        except (OSError, HttpProtocolError, TruncatedResponseError) as error:
            raise self._incomplete(error) from error
        return bytes(event.data) if isinstance(event, h11.Data) else None

    def _incomplete(self, error: Exception) -> ApiServerUnavailableError:
        return ApiServerUnavailableError(f"{self._where}: incomplete answer: {cause_of(error)}")

    def _encoded(self, request: ApiRequest) -> bytes:
        parts = urlsplit(self.identity.url)
        headers = [
            ("Host", parts.netloc),
            ("Accept", JSON),
            ("User-Agent", f"nodeagent/{__version__}"),
        ]
        if request.body:
            headers.append(("Content-Type", request.content_type))
        if self.identity.token:
            headers.append(("Authorization", f"Bearer {self.identity.token}"))
        return self._http.encode(request.method, parts.path.rstrip("/") + request.target, headers, request.body)

    async def _next_event(self) -> h11.Response | h11.Data | h11.EndOfMessage:
        while (event := self._http.next_event()) is None:
            self._http.receive(await self._reader.read(PART_BYTES))
        return event

    def close(self) -> None:
        """Close the connection without waiting for the server."""
        self._writer.transport.abort()


def tls_context(identity: ApiIdentity) -> ssl.SSLContext:
    """Return a TLS context that verifies the server and presents the client certificate; blocking.

    Raises:
        ApiServerUnavailableError: the CA or the client certificate cannot be loaded.
    """
    try:
        context = ssl.create_default_context(cadata=identity.ca or None)
    except (ssl.SSLError, ValueError) as error:
        raise ApiServerUnavailableError(f"API server: cannot load the CA certificates: {_openssl(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Python 3.13 also requires extensions, such as key identifiers, that the CAs of older clusters lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    if identity.certificate:
        load_certificate(context, identity)
    return context


def load_certificate(context: ssl.SSLContext, identity: ApiIdentity) -> None:
    """Load the client certificate and key from a memfd, since OpenSSL reads only files and the key must not reach disk.

    Raises:
        ApiServerUnavailableError: the certificate or the key is invalid or encrypted.
    """
    try:
        with closing_descriptor(os.memfd_create("nodeagent-client", os.MFD_CLOEXEC)) as descriptor:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(identity.certificate.rstrip() + b"\n" + identity.key)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=_no_password)
    except (OSError, ValueError) as error:
        raise ApiServerUnavailableError(
            f"API server: cannot load the client certificate and its key: {_openssl(error)}"
        ) from error


def _no_password() -> str:
    """Reject an encrypted key; without this callback OpenSSL prompts for a password on the terminal.

    Raises:
        ValueError: always.
    """
    raise ValueError("the key is encrypted")


def _openssl(error: Exception) -> str:
    """Return the reason of an OpenSSL error, without OpenSSL source locations."""
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error) or type(error).__name__


def place_of(request: ApiRequest) -> str:
    """Return the method and path of a request, for error messages."""
    return f"API server: {request.method} {request.target.partition('?')[0]}"


def refusal(where: str, status: int, headers: dict[str, str], body: bytes) -> ApiServerRefusedError:
    """Return the error for a refused request. Source: Kubernetes API conventions, response status kind."""
    found, details = _decoded(body, ApiStatus), _decoded(body, _Detailed).details
    causes = details.causes[:_MAX_CAUSES]
    shown = (_shown(each.message) for each in causes)
    parts = (f"HTTP {status}", _shown(found.reason), _shown(found.message), *shown, _HINTS.get(status, ""))
    return ApiServerRefusedError(
        f"{where}: {'; '.join(each for each in parts if each)}",
        status,
        found.reason,
        _retry_after_s(headers),
        kind=details.kind,
        causes=tuple(each.reason for each in causes),
    )


def _decoded(body: bytes, kind: type[T]) -> T:
    """Return a part of a status object; an empty part if it is malformed."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return kind()


def _retry_after_s(headers: dict[str, str]) -> float | None:
    text = headers.get("retry-after", "").strip()
    return min(_MAX_RETRY_AFTER_S, float(text)) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def cause_of(error: BaseException | None) -> str:
    """Return the cause of a failed connection for error messages, with the checks to make where possible."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"server certificate not trusted: {error.verify_message}; check the CA, the server name and the clock"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {_openssl(error)}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError):  # asyncio raises it without a text
        return "connection closed by the server"
    return _shown(getattr(error, "strerror", None) or str(error)) or type(error).__name__


def _shown(text: str) -> str:
    """Return the escaped beginning of a text from the server; h11 errors quote malformed lines in full."""
    return shortened(escape(text), _MAX_SHOWN)


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
                self.close()
                raise ApiServerUnavailableError(
                    f"{place_of(request)}: no answer in {self._access.timeout_s:g} s"
                ) from error
            except BaseException:
                self.close()
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
        """Close the connection; the next request opens a new connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def _exchange(self, request: ApiRequest) -> tuple[int, dict[str, str], bytes]:
        identity = await self._credentials.current()
        connection = self._connection
        if connection is not None and connection.identity is identity and connection.reusable:
            try:
                return await connection.exchange(request, self._access.max_bytes)
            except ClosedBeforeAnswerError:
                pass  # the server has closed the idle connection
        self.close()
        self._connection = await ApiConnection.open(identity, place_of(request))
        try:
            return await self._connection.exchange(request, self._access.max_bytes)
        except ClosedBeforeAnswerError as error:
            raise ApiServerUnavailableError(
                f"{place_of(request)}: {cause_of(error.__cause__) if error.__cause__ else 'connection closed'}"
            ) from error


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


K = TypeVar("K", Node, Lease)
NODES: Final = "/api/v1/nodes"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces"
_CONFLICT: Final = 409
_CONFLICT_ATTEMPTS: Final = 5
MANAGER: Final = "nodeagent"
"""Field manager of the writes of the agent."""
FIELD_MANAGER: Final = f"fieldManager={MANAGER}"


class NodeApi:
    """API server requests for one node. Every request raises the errors of :meth:`ApiClient.send`."""

    def __init__(self, client: ApiClient, name: str) -> None:
        """Create the requests for the node ``name`` over ``client``."""
        self._client = client
        self._name = quote(name, safe="")

    async def get_node(self) -> Node | None:
        """Return the Node object; ``None`` if the node is not registered."""
        return await self._get(f"{NODES}/{self._name}", Node)

    async def create_node(self, node: Node) -> Node:
        """Create the Node object; return the stored object."""
        return await self._client.send(ApiRequest("POST", f"{NODES}?{FIELD_MANAGER}", msgspec.json.encode(node)), Node)

    async def patch_node(self, patch: Mapping[str, Any], *, dry_run: bool = False) -> Node:
        """Patch the metadata or spec of the Node; return the stored object, in a dry run the object without storage."""
        return await self._patch(f"{NODES}/{self._name}?{FIELD_MANAGER}{'&dryRun=All' if dry_run else ''}", patch)

    async def patch_status(self, patch: Mapping[str, Any]) -> Node:
        """Patch the status of the Node; return the stored object."""
        return await self._patch(f"{NODES}/{self._name}/status?{FIELD_MANAGER}", patch)

    async def get_lease(self) -> Lease | None:
        """Return the Lease of the node; ``None`` if the Lease does not exist."""
        return await self._get(f"{LEASES}/{self._name}", Lease)

    async def write_lease(self, lease: Lease) -> Lease:
        """Create the Lease, or replace it if ``lease`` has a resource version; return the stored object."""
        body = msgspec.json.encode(lease)
        if lease.metadata.resource_version:
            return await self._client.send(ApiRequest("PUT", f"{LEASES}/{self._name}?{FIELD_MANAGER}", body), Lease)
        return await self._client.send(ApiRequest("POST", f"{LEASES}?{FIELD_MANAGER}", body), Lease)

    async def create_event(self, body: Mapping[str, Any]) -> None:
        """Create an Event in the namespace of its metadata."""
        target = f"{EVENTS}/{quote(body['metadata']['namespace'], safe='')}/events?{FIELD_MANAGER}"
        await self._client.send(ApiRequest("POST", target, msgspec.json.encode(body)), msgspec.Raw)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    async def _patch(self, target: str, patch: Mapping[str, Any]) -> Node:
        body = msgspec.json.encode(patch)
        return await self._client.send(ApiRequest("PATCH", target, body, STRATEGIC_PATCH), Node)

    async def _get(self, target: str, kind: type[K]) -> K | None:
        try:
            return await self._client.send(ApiRequest("GET", target), kind)
        except ApiServerRefusedError as error:
            if error.status == 404:
                return None
            raise


class PatchPlan(Protocol):
    """Changes of the Node object."""

    @property
    def patch(self) -> Mapping[str, Any] | None:
        """Patch with the ``resourceVersion`` of the object that was read; ``None`` without changes."""


P = TypeVar("P", bound=PatchPlan)


async def patch_planned(nodes: NodeApi, plan: P, plan_again: Callable[[], Awaitable[P]]) -> P:
    """Patch the Node object as planned; after a conflict read, plan and patch again. Return the plan of the last patch.

    Raises:
        ApiServerError: a request failed, or the object changed during each of 5 attempts.
    """
    attempts = 1
    while plan.patch is not None:
        try:
            await nodes.patch_node(plan.patch)
            break
        except ApiServerRefusedError as error:
            if error.status != _CONFLICT or attempts == _CONFLICT_ATTEMPTS:
                raise
        attempts += 1
        plan = await plan_again()
    return plan
