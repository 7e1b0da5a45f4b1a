"""Attacks by connections of one unprivileged user with write access, against a daemon in a separate process."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from nodeagent.api.client import ControlClient
from nodeagent.api.operations import LARGE_BODY_BYTES
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from tests.security.conftest import Attacker
    from tests.support.simulated_daemon import SimulatedDaemon

CONNECTIONS: Final = 50
RSS_MIB: Final = 100
ANSWERS: Final = 5
HOST: Final = b"Host: nodeagent\r\n"
PASSES: Final = b"POST /v1/passes HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n"
BODY: Final = b'{"scope": "images", "plan": "' + b" " * LARGE_BODY_BYTES
ATTACKS: Final = {
    "no bytes": b"",
    "part of a request line": b"GET /v1/sta",
    "endless request line": b"GET /" + b"a" * (1 << 20),
    "endless headers": b"GET /v1/status HTTP/1.1\r\n" + b"X-A: b\r\n" * (1 << 17),
    "part of a body": PASSES % 1000 + b'{"scope": ',
    "part of a body of the largest size": PASSES % LARGE_BODY_BYTES + BODY[: LARGE_BODY_BYTES - 1],
    "body over its limit": PASSES % (LARGE_BODY_BYTES * 8) + BODY,
    "chunks": b"POST /v1/passes HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"1\r\n \r\n" * (1 << 18),
    "event streams": b"GET /v1/events HTTP/1.1\r\n" + HOST + b"\r\n",
    "unread answers": b"GET /v1/images HTTP/1.1\r\n" + HOST + b"\r\n",
}


def connect_again_and_again(ready: int, request: bytes) -> None:
    """Open connections without end and keep the last 50, each with the part of the request that the server accepts."""
    connections: list[socket.socket] = []
    while True:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(0.2)
        with suppress(OSError):
            client.connect("control.sock")
            client.sendall(request)
        connections.append(client)
        if len(connections) == CONNECTIONS:
            os.write(ready, b"\n")
        if len(connections) > CONNECTIONS:
            connections.pop(0).close()


@pytest.mark.parametrize("attack", ATTACKS)
def test_root_is_answered_within_bounded_memory_while_one_user_has_50_connections(
    member_daemon: SimulatedDaemon, attacker: Attacker, attack: str
) -> None:
    reading, ready = os.pipe()
    directory = os.open(member_daemon.control_socket.parent, os.O_PATH)  # the user cannot enter its parent directories

    def hold() -> None:
        os.fchdir(directory)
        connect_again_and_again(ready, ATTACKS[attack])

    pid = attacker.start(hold, group=65534)
    try:
        os.close(ready)
        assert os.read(reading, 1) == b"\n"
        for _ in range(ANSWERS):
            status = json.loads(ControlClient(member_daemon.control_socket).call("Status", {}))
            assert status["schema"] == SchemaId.STATUS
            assert memory_mib(member_daemon.pid, "VmRSS") < RSS_MIB
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for each in (reading, directory):
            os.close(each)
    assert memory_mib(member_daemon.pid, "VmHWM") < RSS_MIB, "at its highest"


def memory_mib(pid: int, field: str) -> float:
    """Return the resident memory of a process in MiB: current (VmRSS) or the highest since its start (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))
