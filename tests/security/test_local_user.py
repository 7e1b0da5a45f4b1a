"""Attacks by an unprivileged user of the node, carried out by processes of that user."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.api.client import ControlClient, DaemonRefusedError
from nodeagent.errors import ConfigError, ObservationError
from nodeagent.gc.hold_file import HoldFile
from nodeagent.host.kubelet_traces import read_kubelet_traces
from nodeagent.host.sockets import port_owners
from nodeagent.kube.kubelet_pods import KubeletPods
from nodeagent.model.clock import TRUSTED
from nodeagent.model.kubernetes import KubeletAccess
from nodeagent.model.node import Hold
from nodeagent.settings.loading import load
from nodeagent.units import SystemClock
from tests.support.command import nodeagent
from tests.support.simulated_daemon import simulated_daemon
from tests.unit.control_node import serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.security.conftest import Attacker

ATTACK = "dry_run = false\n"
NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)


def write(path: Path) -> None:
    path.write_text(ATTACK)


def replace(path: Path) -> None:
    path.unlink()
    path.write_text(ATTACK)


def swap_directory(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.mkdir()
    (path / "10.toml").write_text(ATTACK)


@pytest.mark.parametrize(
    ("opened", "mode", "attack"),
    [
        ("config.d", 0o777, lambda etc: write(etc / "config.d" / "50.toml")),
        ("config.d", 0o1777, lambda etc: write(etc / "config.d" / "50.toml")),
        ("config.d/10.toml", 0o666, lambda etc: write(etc / "config.d" / "10.toml")),
        ("config.toml", 0o666, lambda etc: write(etc / "config.toml")),
        (".", 0o777, lambda etc: replace(etc / "config.toml")),
        (".", 0o777, lambda etc: swap_directory(etc / "config.d")),
    ],
    ids=["drop-in directory", "sticky drop-in directory", "drop-in", "file", "replaced file", "replaced directory"],
)
def test_configuration_that_a_local_user_could_write_is_refused(
    place: Path, attacker: Attacker, opened: str, mode: int, attack: Callable[[Path], None]
) -> None:
    etc = place / "etc"
    (etc / "config.d").mkdir(parents=True)
    for name in ("config.toml", "config.d/10.toml"):
        (etc / name).write_text("dry_run = true\n")
        (etc / name).chmod(0o644)
    for name in (".", "config.d"):
        (etc / name).chmod(0o755)
    assert not attacker.succeeds(partial(attack, etc))
    assert load(etc / "config.toml", environment={}).config.dry_run
    (etc / opened).chmod(mode)
    assert attacker.succeeds(partial(attack, etc))
    with pytest.raises(ConfigError, match="not trusted"):
        load(etc / "config.toml", environment={})
    for words in (("run", "--once"), ("doctor",)):
        ended = nodeagent(*words, "--config", str(etc / "config.toml"))
        assert ended.returncode != 0
        assert "not trusted" in (ended.stdout + ended.stderr).replace("\n", " ")


def test_link_of_root_moved_by_a_local_user_makes_no_writable_directory_trusted(
    place: Path, attacker: Attacker
) -> None:
    etc = place / "etc"
    (etc / "config.d").mkdir(parents=True)
    (etc / "config.toml").write_text("")
    (etc / "config.d" / "10.toml").write_text("dry_run = true\n")
    (etc / "config.d" / "20.toml").symlink_to("../config.toml")
    (etc / "config.d").chmod(0o777)

    def move() -> None:
        (etc / "config.d" / "20.toml").rename(etc / "config.d" / "..data")
        (etc / "config.d" / "10.toml").unlink()

    assert attacker.succeeds(move)
    with pytest.raises(ConfigError, match="not trusted"):
        load(etc / "config.toml", environment={})


def test_kubelet_of_a_local_user_receives_no_request(place: Path, attacker: Attacker) -> None:
    received = place / "received"
    received.mkdir()
    received.chmod(0o777)
    reading, ready = os.pipe()

    def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            os.write(ready, b"%d\n" % server.getsockname()[1])
            (received / "request").write_bytes(server.accept()[0].recv(1 << 16))

    pid = attacker.start(serve)
    port = int(os.read(reading, 16))
    for each in (reading, ready):
        os.close(each)
    access = KubeletAccess(url=f"http://127.0.0.1:{port}")
    with pytest.raises(ObservationError, match=f"run by user {attacker.uid}, not by root: no credentials sent"):
        asyncio.run(KubeletPods(access, port_owners).read())
    os.waitpid(pid, 0)
    assert (received / "request").read_bytes() == b""


def test_program_of_root_started_by_a_local_user_as_kubelet_is_no_kubelet(attacker: Attacker) -> None:
    user = attacker.uid
    program = Path("/usr/bin/su")
    if not program.is_file() or not program.stat().st_mode & stat.S_ISUID:
        pytest.skip("su is not installed")
    with subprocess.Popen(
        ["kubelet"],
        executable=program,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
        group=user,
        extra_groups=[],
        cwd="/",
    ) as started:
        try:
            status = Path(f"/proc/{started.pid}/status").read_text()
            if f"Uid:\t{user}\t0\t" not in status:
                pytest.skip("set-user-ID programs are disabled")
            found = read_kubelet_traces(SystemClock(), Path("/")).processes
            assert started.poll() is None
            assert started.pid not in {each.pid for each in found}
        finally:
            started.kill()


def test_control_socket_of_a_local_user_receives_no_command(place: Path, attacker: Attacker) -> None:
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    reading, ready = os.pipe()

    def serve() -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(shared / "s"))
            server.listen()
            os.write(ready, b"\n")
            (shared / "request").write_bytes(server.accept()[0].recv(1 << 16))

    pid = attacker.start(serve)
    os.read(reading, 1)
    for each in (reading, ready):
        os.close(each)
    with pytest.raises(DaemonRefusedError, match=f"uid {attacker.uid} is listening, not root"):
        ControlClient(shared / "s").call("Pause", {"seconds": 60, "why": "maintenance"})
    os.waitpid(pid, 0)
    assert (shared / "request").read_bytes() == b""


async def test_state_and_control_socket_are_closed_to_a_local_user(place: Path, attacker: Attacker) -> None:
    (place / "node").mkdir(mode=0o755)
    state = place / "node" / "state"
    HoldFile(state).add(Hold("", "r/a:1", "why", "me", NOW, NOW), TRUSTED)
    assert not attacker.can("-r", state)
    assert not any(attacker.can("-r", each) for each in state.iterdir())
    async with serving(place / "node") as node:
        node.path.parent.chmod(0o755)
        assert attacker.can("-e", node.path)
        assert not attacker.can("-r", node.path)
        assert not attacker.can("-w", node.path)  # a connection requires write access


def test_pipes_in_place_of_state_files_block_neither_start_nor_stop(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with simulated_daemon(tmp_path) as daemon:
        ControlClient(daemon.control_socket).call("Pause", {"seconds": 60, "why": "test"})
        ControlClient(daemon.control_socket).call("AddHold", {"image": "a", "seconds": 60})
    names = {*(each.name for each in state.iterdir() if each.is_file())}
    assert len(names) > 5
    for name in names:
        (state / name).unlink(missing_ok=True)
        os.mkfifo(state / name)
    with simulated_daemon(tmp_path) as daemon:
        ControlClient(daemon.control_socket).call("Status", {})
        os.kill(daemon.pid, signal.SIGTERM)
        os.waitid(os.P_PID, daemon.pid, os.WEXITED | os.WNOWAIT)
    assert "agent_stopped" in daemon.log.read_text()


def test_state_directory_of_another_user_is_reported(tmp_path: Path, attacker: Attacker) -> None:
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", attacker.uid, -1)
    with simulated_daemon(tmp_path) as daemon:
        ControlClient(daemon.control_socket).call("Status", {})
    assert f"is writable by uid {attacker.uid}" in daemon.log.read_text()
