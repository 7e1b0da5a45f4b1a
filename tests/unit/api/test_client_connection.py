"""Control API client with a full listen backlog, and with servers that stop during a response."""

from __future__ import annotations

import os
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from nodeagent.api.client import ControlClient, DaemonRefusedError, DaemonUnavailableError
from tests.support.other_user import as_other_user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        bound.listen(0)
        yield bound


def fill(path: Path) -> list[socket.socket]:
    """Open connections until the listen backlog is full; return them."""
    made: list[socket.socket] = []
    while True:
        each = socket.socket(socket.AF_UNIX)
        each.setblocking(False)
        try:
            each.connect(str(path))
        except BlockingIOError:
            each.close()
            return made
        made.append(each)


def test_client_waits_for_a_free_slot_in_the_backlog(listener: socket.socket, tmp_path: Path) -> None:
    waiting = fill(tmp_path / "s")
    connected = threading.Event()

    def connect() -> None:
        ControlClient(tmp_path / "s").probe()
        connected.set()

    client = threading.Thread(target=connect)
    client.start()
    accepted = [listener.accept()[0] for _ in waiting]
    client.join(20)
    assert connected.is_set()
    for each in (*waiting, *accepted):
        each.close()


@pytest.mark.parametrize(
    ("path", "mode", "group", "required"),
    [
        ("/run/s", 0o660, 1, "members of group daemon have access; use sudo, or 'usermod -aG daemon "),
        ("/run/s", 0o600, 1, "only root has access; use sudo"),
        ("/run/s", 0o660, 0, "only root has access; use sudo"),
        ("/run/s", 0o660, 1 << 30, "members of group nodeagent have access"),
        ("/run", 0o750, 1, "members of group daemon have access; use sudo, or 'usermod -aG daemon "),
        ("/run", 0o700, 1, "only root has access; use sudo"),
        ("", 0o660, 1, "members of group nodeagent have access"),
    ],
    ids=[
        *("group", "no-access-of-group", "group-root", "group-without-name"),
        *("closed-directory", "closed-directory-without-access-of-group", "unreadable"),
    ],
)
def test_denied_connection_names_the_group_of_the_socket(
    monkeypatch: pytest.MonkeyPatch, path: str, mode: int, group: int, required: str
) -> None:
    def deny(*_: object) -> None:
        raise PermissionError

    def status(read: str) -> SimpleNamespace:
        assert read in ("/run/s", "/run")
        if read != path:
            raise PermissionError
        return SimpleNamespace(st_mode=mode, st_gid=group)

    with monkeypatch.context() as patch:
        patch.setattr("socket.socket.connect", deny)
        patch.setattr("os.stat", status)
        with pytest.raises(DaemonRefusedError) as error:
            ControlClient("/run/s").probe()
    assert required in str(error.value)


def test_full_backlog_is_an_error_that_names_it(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.api.client._CONNECT_WITHIN_S", 1)
    waiting = fill(tmp_path / "s")
    with pytest.raises(DaemonUnavailableError, match="connection not accepted by the daemon in 1 s"):
        ControlClient(tmp_path / "s").probe()
    assert listener.fileno() >= 0
    for each in waiting:
        each.close()


def test_stream_cut_by_a_stop_of_the_daemon_is_a_lost_connection(listener: socket.socket, tmp_path: Path) -> None:
    def answer() -> None:
        connection = listener.accept()[0]
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n")

    server = threading.Thread(target=answer)
    server.start()
    documents = ControlClient(tmp_path / "s").stream("Events")
    assert next(documents) == "{}"
    with pytest.raises(DaemonUnavailableError, match="connection to the daemon lost"):
        next(documents)
    server.join(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="changing to another user requires root")
def test_server_of_another_user_receives_no_request(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        with as_other_user(54321):
            bound.listen()
        with pytest.raises(DaemonRefusedError, match=r"uid 54321 is listening, not root; check control\.socket"):
            ControlClient(tmp_path / "s").call("Pause", {"seconds": 60, "why": "maintenance"})
        with bound.accept()[0] as connection:
            assert connection.recv(1) == b""
