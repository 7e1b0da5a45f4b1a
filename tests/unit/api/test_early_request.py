"""Control API request sent before the imports of a command, and use of its response by the client."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from nodeagent.api import early_request
from nodeagent.api.client import ControlClient
from nodeagent.config.socket_path import VARIABLE
from tests.support.other_user import as_other_user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TARGET = "/v1/status"
RESPONSE = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"answer": 42}'


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the control socket set for this process."""
    for each in [each for each in os.environ if each.startswith("NODEAGENT_")]:
        monkeypatch.delenv(each)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "s"))
    return tmp_path / "s"


@contextmanager
def answering(path: Path) -> Iterator[list[bytes]]:
    """Respond to every connection within the block; yield the list of received requests."""
    received: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    request = connection.recv(1 << 16)
                    if request == b"end":
                        return
                    received.append(request)
                    connection.sendall(RESPONSE)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield received
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
                last.sendall(b"end")
            thread.join(20)


def test_request_sent_early_is_answered_without_another(path: Path) -> None:
    with answering(path) as received:
        early_request.send(TARGET)
        assert ControlClient(path).call("Status") == '{"answer": 42}'
    assert len(received) == 1


def test_request_sent_early_is_that_of_the_client(path: Path) -> None:
    with answering(path) as received:
        early_request.send(TARGET)
        for _ in range(2):
            ControlClient(path).call("Status")
    first, second = received
    assert first == second


def test_request_of_another_operation_is_not_used(path: Path) -> None:
    with answering(path) as received:
        early_request.send("/v1/images")
        assert ControlClient(path).call("Status") == '{"answer": 42}'
        assert early_request.take(str(path), TARGET) is None
        descriptor = early_request.take(str(path), "/v1/images")
        assert descriptor is not None
        os.close(descriptor)
    assert len(received) == 2


def test_nothing_is_sent_with_settings_in_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEAGENT_STATE__DIRECTORY", "/somewhere")
    with answering(path) as received:
        early_request.send(TARGET)
        assert early_request.take(str(path), TARGET) is None
    assert received == []


@pytest.mark.parametrize(
    "value", ["", "relative", "/missing", "/" + "a" * 200], ids=["disabled", "relative", "missing", "long"]
)
def test_failure_to_send_is_left_to_the_client(path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    early_request.send(TARGET)
    assert early_request.take(value, TARGET) is None
    assert early_request.take(str(path), TARGET) is None


def test_full_backlog_does_not_delay_the_command(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = []
        for _ in range(3):
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            try:
                waiting[-1].connect(str(path))
            except BlockingIOError:
                break
        early_request.send(TARGET)
        assert early_request.take(str(path), TARGET) is None
        for each in waiting:
            each.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="changing to another user requires root")
def test_server_of_another_user_receives_no_early_request(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        with as_other_user(54321):
            listener.listen()
        early_request.send(TARGET)
        assert early_request.take(str(path), TARGET) is None
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1) == b""
