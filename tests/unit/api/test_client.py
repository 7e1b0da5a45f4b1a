"""Control API client with failing, incorrect and outdated servers."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from nodeagent.api.client import ControlClient, DaemonRefusedError, DaemonUnavailableError, encode_request
from nodeagent.api.operations import OPERATIONS, ProblemType
from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS_OF_HTTP_2 = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00"


@contextmanager
def answering(path: Path, *answers: bytes) -> Iterator[ControlClient]:
    """Send these responses to successive connections, regardless of the request."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(20)

        def serve() -> None:
            for each in answers:
                connection, _ = listener.accept()
                with connection, suppress(BrokenPipeError):  # the client disconnects without reading the response
                    connection.recv(1 << 16)
                    connection.sendall(each)

        thread = threading.Thread(target=serve)
        thread.start()
        yield ControlClient(path)
        thread.join(20)


def response(status: str, document: object) -> bytes:
    body = json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def problem(status: int, kind: str) -> bytes:
    return response(f"{status} X", {"type": kind, "title": "X", "status": status, "detail": "the reason"})


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(403, ProblemType.ACCESS), DaemonRefusedError),
        (problem(400, ProblemType.USAGE), UsageError),
        (problem(409, ProblemType.BUSY), PassBusyError),
        (problem(503, ProblemType.RUNTIME), RuntimeUnavailableError),
        (problem(409, ProblemType.FAILED), NodeAgentError),
        (problem(429, "about:blank"), NodeAgentError),
    ],
    ids=["access", "usage", "busy", "runtime", "failed", "other"],
)
def test_problem_document_raises_its_error(tmp_path: Path, answer: bytes, error: type[NodeAgentError]) -> None:
    with answering(tmp_path / "s", answer) as client, pytest.raises(error, match="the reason") as caught:
        client.call("Status")
    assert type(caught.value) is error


def test_error_of_an_unsupported_operation_names_both_versions(tmp_path: Path) -> None:
    status = response("200 OK", {"agent": {"version": "0.1.9"}})
    with (
        answering(tmp_path / "s", problem(404, "about:blank"), status) as client,
        pytest.raises(
            NodeAgentError,
            match=r"daemon version 0\.1\.9 does not support PreviewReload, command version .* restart the daemon",
        ),
    ):
        client.call("PreviewReload")


def test_daemon_of_version_0_1_is_named_as_the_possible_cause(tmp_path: Path) -> None:
    with (
        answering(tmp_path / "s", SETTINGS_OF_HTTP_2) as client,
        pytest.raises(NodeAgentError, match=r"no HTTP response .* version 0\.1"),
    ):
        client.call("Status")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"], ids=["none", "cut"])
def test_closed_connection_is_reported(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "s", answer) as client, pytest.raises(NodeAgentError, match=str(tmp_path / "s")):
        client.call("Status")


def test_last_line_of_a_failed_stream_is_raised_after_its_documents(tmp_path: Path) -> None:
    failure = b'{"problem": {"type": "urn:nodeagent:problem:runtime-unavailable", "detail": "the reason"}}\n'
    sent = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"n": 1}\n' + failure
    with answering(tmp_path / "s", sent) as client:
        documents = client.stream("Apply")
        assert next(documents) == '{"n": 1}'
        with pytest.raises(RuntimeUnavailableError, match="the reason"):
            next(documents)


def test_missing_daemon_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnavailableError, match="no agent listening"):
        ControlClient(tmp_path / "s").call("Status")


@pytest.mark.parametrize(
    ("operation", "fields", "target", "body"),
    [
        ("Status", {}, "/v1/status", b""),
        ("Plan", {"scope": "all", "lasts_seconds": 5.0}, "/v1/plans/all?lasts_seconds=5.0", b""),
        ("Plan", {"scope": "all", "lasts_seconds": 0}, "/v1/plans/all", b""),
        ("RemoveHold", {"id": "a/b c"}, "/v1/holds/a%2Fb%20c", b""),
        ("History", {"quiet": True, "image": "a&b"}, "/v1/history?quiet=true&image=a%26b", b""),
        ("Trigger", {"loop": "images", "wait": True}, "/v1/loops/images/trigger", b'{"wait": true}'),
        ("Pause", {"seconds": 60, "why": "ä"}, "/v1/pause", b'{"seconds": 60, "why": "\\u00e4"}'),
    ],
    ids=["none", "query", "defaults-are-omitted", "escaped-path", "escaped-query", "path-and-body", "beyond-ascii"],
)
def test_fields_become_path_query_or_body(operation: str, fields: dict[str, object], target: str, body: bytes) -> None:
    assert encode_request(OPERATIONS[operation], fields) == (target, body)


@pytest.mark.parametrize("operation", ["Pause", "History", "RemoveHold"])
def test_text_that_is_not_utf_8_is_refused(operation: str) -> None:
    with pytest.raises(UsageError, match="why is not UTF-8"):
        encode_request(OPERATIONS[operation], {"why": "\udcff"})
