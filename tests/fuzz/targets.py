"""Fuzz targets: each accepts an input, or rejects it with the documented error; any other result is a defect."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime
from functools import cache, partial
from http import HTTPStatus
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from nodeagent.api.common import Document, DocumentError, decode, encode
from nodeagent.api.operations import OPERATIONS
from nodeagent.api.requests import REQUESTS, parse_request, request_type
from nodeagent.cli.listing import CONTAINERS, IMAGES, PODS, ListOptions
from nodeagent.cli.lists import ListRequest
from nodeagent.daemon.http.connection import (
    JSON,
    Deadlines,
    HttpConnection,
    Receipt,
    RefusedRequestError,
    Request,
    Response,
    Route,
    Router,
    Service,
    problem,
)
from nodeagent.errors import StoreError, UsageError
from nodeagent.gc.documents.lists import Containers, Images, ListDocument, Pods
from nodeagent.gc.hold_file import HoldFile
from nodeagent.gc.plan.saved_plan import compare, find_drift, parse_plan, refusal_of, seal
from nodeagent.model.clock import TRUSTED
from nodeagent.model.node import Hold
from tests.fuzz.api_server_target import api_server_target
from tests.fuzz.node_targets import node_targets
from tests.fuzz.target import DefectError, Target
from tests.support.modules import import_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.cli.listing import ListView

NOW: Final = datetime(2026, 1, 10, 12, tzinfo=UTC)
_BODY_BYTES: Final = 4096
_RECEIPT: Final = Receipt(lambda: None, lambda _: True)
_CONTINUE: Final = b"HTTP/1.1 100 \r\n\r\n"


# ---- HTTP server


class _Pipe:
    """Stream writer of a connection to a client that reads all output without delay."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.transport = self

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        del high, low

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        pass

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


async def _answer(name: str, request: Request) -> Response:
    texts = {**request.query, **request.variables}
    fields = parse_request(request_type(name), texts, request.body)
    shown = {"operation": name, "fields": msgspec.to_builtins(fields), "query": dict(request.query)}
    return Response(HTTPStatus.OK, json.dumps(shown).encode(), JSON)


async def _authorise(request: Request) -> None:
    if "x-deny" in request.headers:
        raise RefusedRequestError(problem(HTTPStatus.FORBIDDEN, "access denied"))


def _fail(_: Request, error: Exception) -> Response:
    if not isinstance(error, UsageError):
        raise DefectError(f"handler: {error!r}") from error
    return problem(HTTPStatus.BAD_REQUEST, str(error))


@cache
def _service() -> Service:
    routes: dict[str, Route] = {}
    for path in dict.fromkeys(each.path for each in OPERATIONS.values()):
        here = {name: each for name, each in OPERATIONS.items() if each.path == path}
        routes[path] = Route(
            {each.method: partial(_answer, name) for name, each in here.items()},
            {each.method: min(each.body_bytes, _BODY_BYTES) for each in here.values()},
        )
    return Service(Router(routes), _authorise, _fail, Deadlines(read_s=60, answer_s=60, write_s=60))


async def http(data: bytes) -> bool:
    """Send bytes to the HTTP server and check that its output is one complete HTTP response or empty."""
    sent = await _exchange(data)
    if not sent:
        return False
    head, _, body = sent.removeprefix(_CONTINUE).partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    if not status.startswith(b"HTTP/1.1 ") or b"connection: close" not in {each.lower() for each in headers}:
        raise DefectError(f"not a response: {sent[:200]!r}")
    if body:
        json.loads(body)
    return status.split()[1] == b"200"


async def _exchange(data: bytes) -> bytes:
    reader, pipe = asyncio.StreamReader(), _Pipe()
    reader.feed_data(data)
    reader.feed_eof()
    connection = HttpConnection(_service(), reader, cast("asyncio.StreamWriter", pipe), None, _RECEIPT)
    with suppress(OSError):  # the client closed the connection within its request
        await connection.serve()
    return bytes(pipe.sent)


HTTP_SEEDS: Final = (
    *(
        f"{each.method} {each.path} HTTP/1.1\r\nHost: nodeagent\r\n".encode()
        + (b"Content-Length: 2\r\n\r\n{}" if each.body_bytes else b"\r\n")
        for each in OPERATIONS.values()
    ),
    b"GET /v1/history?seconds=3600&image=nginx%3A1&limit=5&quiet=true HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/plans/images?lasts_seconds=60 HTTP/1.0\r\n\r\n",
    b"HEAD /v1/status HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n",
    b'POST /v1/holds HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"ima\r\n8\r\nge": ""}\r\n0\r\n\r\n',
    b"PUT /v1/pause HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    b"DELETE /v1/holds/1 HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\nGET /v1/status HTTP/1.1\r\n\r\n",
)


# ---- requests and documents of the control API


def request(data: bytes) -> bool:
    """Parse a request, ``OPERATION FIELD=VALUE&...`` on the first line, then the body; return whether it is valid."""
    line, _, body = data.partition(b"\n")
    name, _, texts = line.decode("latin-1").partition(" ")
    fields = dict(each.partition("=")[::2] for each in texts.split("&") if each)
    try:
        parse_request(request_type(name), fields, body)
    except UsageError:
        return False
    return True


_REQUEST_SEEDS: Final = (
    b"Plan scope=images&lasts_seconds=60\n",
    b"History seconds=3600.5&image=nginx&limit=10&quiet=true\n",
    b'AddHold \n{"image": "r/a:1", "seconds": 7200, "why": "debugging", "by": "ann"}',
    b"RemoveHold id=1\n",
    b'Pause \n{"seconds": 1800, "why": "maintenance"}',
    b'Trigger loop=images\n{"wait": true}',
    b'Apply \n{"scope": "all", "rounds": 3}',
    b"Status \n",
    *(f"{name} \n".encode() for name in REQUESTS),
)


@cache
def _kinds() -> tuple[type[Document], ...]:
    """Return every document class of the control API."""
    import_all()
    found: list[type[Document]] = []
    waiting: list[type[Document]] = [Document]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("nodeagent.") and isinstance(kind.__struct_config__.tag, str):
            found.append(kind)
    return tuple(sorted(found, key=lambda each: str(each.__struct_config__.tag)))


def document(data: bytes) -> bool:
    """Decode a document of the class selected by the first byte, check its round trip; return whether it is valid."""
    kind = _kinds()[(data[:1] or b"\0")[0] % len(_kinds())]
    try:
        found = decode(data[1:], kind)
    except DocumentError:
        return False
    text = encode(found)
    if encode(decode(text, kind)) != text:
        raise DefectError(f"{kind.__name__} differs after a round trip")
    if any(ord(each) < 0x20 and each != "\n" for each in text):
        raise DefectError(f"{kind.__name__}: control character in JSON")
    return True


def _example(schema: dict[str, Any], definitions: dict[str, Any], depth: int = 0) -> Any:  # noqa: PLR0911 - by type
    """Return a valid value of a JSON schema."""
    if "$ref" in schema:
        return _example(definitions[schema["$ref"].rpartition("/")[2]], definitions, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        choices = [each for each in schema["anyOf"] if each.get("type") != "null"]
        may_be_absent = len(choices) < len(schema["anyOf"])
        return None if may_be_absent and depth > 6 else _example(choices[-1], definitions, depth + 1)
    kind = schema.get("type")
    if kind == "object":
        return {
            name: _example(each, definitions, depth + 1)
            for name, each in schema.get("properties", {}).items()
            if name in schema.get("required", ()) or depth < 4
        }
    if kind == "array":
        return [] if depth > 6 or "items" not in schema else [_example(schema["items"], definitions, depth + 1)]
    texts: dict[object, object] = {"integer": 5, "number": 0.5, "boolean": True, "null": None}
    return texts.get(kind, "2026-01-10T12:00:00.000Z" if schema.get("format") == "date-time" else "text")


@cache
def _document_seeds() -> tuple[bytes, ...]:
    seeds = []
    for number, kind in enumerate(_kinds()):
        schema = msgspec.json.schema(kind)
        example = _example(schema, schema.get("$defs", {}))
        seeds.append(bytes([number]) + json.dumps(example).encode())
    return tuple(seeds)


# ---- saved plans and the hold file


def saved_plan(data: bytes) -> bool:
    """Parse and compare a saved plan, with a new id if it is an object; return whether it is valid."""
    text = data.decode("utf-8", "surrogateescape")
    with suppress(ValueError):
        parse_plan(text)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(body, dict):
        return False
    try:
        saved = parse_plan(json.dumps(seal({key: each for key, each in body.items() if key not in ("schema", "id")})))
    except (ValueError, RecursionError):
        return False
    if compare(saved, saved):
        raise DefectError("a plan differs from itself")
    refusal_of(saved, NOW, saved.node)
    find_drift(saved, (), frozenset())
    return True


def _plan_seed() -> bytes:
    decision: dict[str, Any] = {
        "kind": "image",
        "id": "sha256:0",
        "name": "r/a:1",
        "verdict": "remove",
        "frees_bytes": 5,
        "digest": "sha256:1",
    }
    reason = {"code": "least-recently-used", "sentence": "least recently used"}
    log: dict[str, Any] = {
        "kind": "pod-log-directory",
        "id": "a_b_c",
        "name": "a_b_c",
        "verdict": "keep",
        "frees_bytes": None,
        "digest": "sha256:2",
    }
    body: dict[str, Any] = {
        "made_at": "2026-01-10T12:00:00+00:00",
        "expires_at": "2026-01-10T13:00:00+00:00",
        "node": "node-1",
        "scope": "all",
        "decisions": [decision | {"reason": reason}, log | {"reason": reason, "id_base64": "YV9iX/8="}],
    }
    return json.dumps(seal(body)).encode()


def hold_file(directory: Path, data: bytes) -> bool:
    """Read a hold file and add a hold to it; return whether both succeed. An unreadable file must remain unchanged."""
    path, file, hold = directory / "holds.json", HoldFile(directory), Hold("", "r/a:1", "why", "me", NOW, NOW)
    path.write_bytes(data)
    try:
        holds = file.read()
    except StoreError:
        with suppress(StoreError):
            file.add(hold, TRUSTED)
            raise DefectError("a hold was added to an unreadable file") from None
        if path.read_bytes() != data:
            raise DefectError("an unreadable file was replaced") from None
        return False
    try:
        placed = file.add(hold, TRUSTED)
    except StoreError:  # another hold contains a text that is not UTF-8
        return False
    if placed.id in {each.id for each in holds} or placed not in file.read():
        raise DefectError("an added hold has the id of another one, or is missing")
    return True


_HOLD = {
    "id": "3",
    "image": "r/a:1",
    "why": "debugging",
    "by": "ann",
    "placed_at": "2026-01-10T12:00:00+00:00",
    "until": "2027-01-10T12:00:00+00:00",
}
_HOLD_SEEDS: Final = (
    json.dumps(
        {"schema": "nodeagent/holds/v1", "last_id": 7, "holds": [_HOLD, _HOLD | {"id": "a", "image": ""}]}
    ).encode(),
    json.dumps({"schema": "nodeagent/holds/v1", "holds": []}).encode(),
)


# ---- list filters


@cache
def _lists() -> tuple[tuple[ListView[Any], ListDocument], ...]:
    by_kind = dict(zip(_kinds(), _document_seeds(), strict=True))
    views: tuple[tuple[ListView[Any], type[ListDocument]], ...] = (
        (IMAGES, Images),
        (CONTAINERS, Containers),
        (PODS, Pods),
    )
    return tuple(
        (view, decode(by_kind[kind][1:].replace(b'"text"', b'"registry.example/a[b]*:1"'), kind))
        for view, kind in views
    )


def list_filter(data: bytes) -> bool:
    """Print a list with filters; return whether the filters are valid.

    The first line of the input selects the list, the output format and the order; each further line is a filter.
    """
    first, *filters = data.decode("utf-8", "surrogateescape").split("\n")
    number, _, rest = first.partition(" ")
    form, _, order = rest.partition(" ")
    view, rows = _lists()[len(number) % len(_lists())]
    known = form if form in ("table", "wide", "json", "yaml", "name") else "table"
    out, errors = StringIO(), StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            ListRequest.of(view, ListOptions(known, order, tuple(filters))).print(
                rows, empty="none", now=rows.observed_at
            )
    except UsageError:
        return False
    if known in ("table", "wide") and "\x1b" in out.getvalue() + errors.getvalue():
        raise DefectError("a control character was printed")
    return True


_FILTER_SEEDS: Final = (
    b" table \nname=registry.example/*\nverdict=keep",
    b"a wide -name\nname!=*[ab]*\nnamespace=text",
    b"aa json uid\nname=reg?stry*",
    b" name size\nreason=[!a]*\nreason!=in-use-*",
)


@contextmanager
def open_targets() -> Iterator[dict[str, Target]]:
    """Return all fuzz targets by name."""
    memory = "/dev/shm" if "TMPDIR" not in os.environ and Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="nodeagent-fuzz-", dir=memory) as directory,
        asyncio.Runner() as runner,
        api_server_target(Path(directory) / "api-server", runner) as api_server,
    ):
        yield {
            "http": Target(lambda data: runner.run(http(data)), HTTP_SEEDS),
            "request": Target(request, _REQUEST_SEEDS),
            "document": Target(document, _document_seeds()),
            "saved-plan": Target(saved_plan, (_plan_seed(),)),
            "hold-file": Target(partial(hold_file, Path(directory)), _HOLD_SEEDS),
            "list-filter": Target(list_filter, _FILTER_SEEDS),
            "api-server": api_server,
            **node_targets(Path(directory)),
        }
