"""Attacks by connections of one unprivileged user with write access, against a daemon in a separate process."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from nodeagent.api.client import ControlClient
from nodeagent.api.operations import LARGE_BODY_BYTES
from nodeagent.cluster.plan.workloads import Workload, static_pod
from nodeagent.errors import NodeAgentError
from nodeagent.schemas import SchemaId
from tests.support.reclaim import poll
from tests.support.simulated_daemon import SimulatedDaemon, simulated_daemon

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.security.conftest import Attacker

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


LOOPBACK: Final = 60
PROBES: Final = 20
FAILURE_THRESHOLD: Final = 3
"""Failed probes in a row after which a kubelet restarts the container. Source: default of ``failureThreshold``."""
METRICS: Final = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("attack", [b"", b"GET /met", METRICS], ids=["no bytes", "part of a request", "unread answers"])
def test_loopback_connections_of_a_user_starve_neither_probes_nor_scrapes(
    attacker: Attacker, tmp_path: Path, attack: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    reading, ready = os.pipe()

    def occupy() -> None:
        connections: list[socket.socket] = []
        while True:
            connections.append(socket.create_connection(("127.0.0.1", port)))
            connections[-1].sendall(attack)
            if len(connections) == LOOPBACK:
                os.write(ready, b"\n")
            if len(connections) > LOOPBACK:
                connections.pop(0).close()

    with simulated_daemon(tmp_path, metrics=f"127.0.0.1:{port}") as daemon:
        poll("metrics listener", lambda: scrape(port, "/healthz") == 200)  # it starts after the control socket
        pid = attacker.start(occupy)
        try:
            os.close(ready)
            assert os.read(reading, 1) == b"\n"
            answered = [scrape(port, path) == 200 for _ in range(PROBES) for path in ("/healthz", "/metrics")]
            # A connection that the full accept queue of a slow machine drops is repeated by the kernel after seconds.
            assert max(failures_in_a_row(answered[::2]), failures_in_a_row(answered[1::2])) < FAILURE_THRESHOLD
            assert printed_probe_succeeds(daemon)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reading)


def test_lack_of_file_descriptors_is_logged_once(attacker: Attacker, tmp_path: Path) -> None:
    del attacker  # requires root
    with simulated_daemon(tmp_path) as daemon:
        poll("end of a pass", lambda: "pass_finished" in daemon.log.read_text())  # all modules of a pass are imported
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (24, before[1]))
        with ExitStack() as clients:
            for _ in range(CONNECTIONS):
                client = clients.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(30)
                client.connect(str(daemon.control_socket))
            poll("refusal", lambda: "cannot accept connections: Too many open files" in daemon.log.read_text())
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        poll("answer", partial(answers, daemon))
    assert daemon.log.read_text().count("Too many open files; see") == 1
    assert "Traceback" not in daemon.log.read_text()


def answers(daemon: SimulatedDaemon) -> bool:
    try:
        ControlClient(daemon.control_socket).call("Version", {}, within_s=30)
    except NodeAgentError:
        return False
    return True


def failures_in_a_row(answered: Iterable[bool]) -> int:
    return max((len(list(run)) for is_answered, run in groupby(answered) if not is_answered), default=0)


def scrape(port: int, path: str) -> int:
    """Return the status of a response within the time limit of the printed probes; 0 without a response."""
    client = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        client.request("GET", path)
        return client.getresponse().status
    except (OSError, HTTPException):
        return 0
    finally:
        client.close()


def printed_probe_succeeds(daemon: SimulatedDaemon) -> bool:
    """Run the liveness probe of the printed manifest against a daemon."""
    (container,) = static_pod(Workload("image", "1"))["spec"]["containers"]
    (_, *arguments) = container["livenessProbe"]["exec"]["command"]
    environment = {**os.environ, "NODEAGENT_CONTROL__SOCKET": str(daemon.control_socket)}
    command = [sys.executable, "-m", "nodeagent", *arguments]
    ended = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, check=False)
    return (ended.returncode, ended.stdout) == (0, b"ok\n")


def memory_mib(pid: int, field: str) -> float:
    """Return the resident memory of a process in MiB: current (VmRSS) or the highest since its start (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))
