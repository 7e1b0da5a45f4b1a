"""Signals during start and stop of the daemon, sent to daemon processes with a simulated runtime."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli import shutdown
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.host.systemd import UnitStop
from nodeagent.loops.unix_signals import BLOCKED
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
HANGUP = 1 << (signal.SIGHUP - 1)


@pytest.fixture(autouse=True)
def default_hangup() -> Iterator[None]:
    """Give SIGHUP its default action, which a child process inherits; a test run under nohup ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("n")
    path = directory / "config.toml"
    path.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{directory}/s"\n[state]\ndirectory = "{directory}/state"\n'
        f'[container_gc]\npod_log_root = "{directory}/pods"\ncontainer_log_root = "{directory}/containers"\n'
        '[control]\nsocket = ""\n[metrics]\nlisten = "off"\n[shutdown]\nenabled = "off"\n[eviction]\nenabled = "off"\n'
    )
    arguments = ["--socket", str(directory / "s"), "--root", str(directory), "--images", "3", "--containers", "3"]
    with subprocess.Popen([sys.executable, "-m", "tests.sim", *arguments], stdout=subprocess.DEVNULL, cwd=ROOT) as sim:
        try:
            poll("the simulated runtime is listening", (directory / "s").exists, timeout_s=30)
            yield path
        finally:
            sim.terminate()


@contextmanager
def started(
    config: Path, *options: str, before: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start ``nodeagent run``, wait until the process blocks its signals; yield the process and its log file."""
    log = config.with_name("log")
    command = [*before, sys.executable, "-m", "nodeagent", "run", *options, "--config", str(config)]
    with log.open("wb") as out, subprocess.Popen(command, stderr=out, cwd=ROOT) as process:
        try:
            poll("signals blocked", lambda: process.poll() is not None or blocked(process.pid), timeout_s=30)
            yield process, log
        finally:
            process.kill()


def masks(pid: int | str) -> dict[str, int]:
    """Return the masks of blocked, ignored and caught signals of a process.

    Source: proc(5), ``/proc/PID/status``.
    """
    lines = (each.partition(":\t") for each in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(value, 16) for name, _, value in lines if name in {"SigBlk", "SigIgn", "SigCgt"}}


def blocked(pid: int) -> bool:
    return all(masks(pid)["SigBlk"] & 1 << (number - 1) for number in BLOCKED)


def hang_up(process: subprocess.Popen[bytes]) -> bool:
    """Send SIGHUP; return whether the process was running and blocked, ignored or caught the signal."""
    if process.returncode is not None:  # reaped by the last send_signal
        return False
    mask = masks(process.pid)
    if process.poll() is not None:
        return False
    process.send_signal(signal.SIGHUP)
    return bool((mask["SigBlk"] | mask["SigIgn"] | mask["SigCgt"]) & HANGUP)


@pytest.mark.parametrize("attempt", range(2))
def test_hangups_from_start_to_exit_reload_and_never_kill(config: Path, attempt: int) -> None:
    del attempt
    with started(config) as (process, log):

        def reloaded() -> bool:
            assert hang_up(process), (process.poll(), log.read_text())
            return "config_reloaded" in log.read_text()

        poll("the daemon has reloaded", reloaded, timeout_s=60, interval_s=0)
        process.terminate()
        poll("the daemon has ended", lambda: not hang_up(process), timeout_s=30, interval_s=0)
        assert process.wait(30) == 0
        assert '"agent_stopped"' in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("options", "code"), [((), 0), (("--once",), 3)], ids=["daemon", "once"])
def test_stop_signal_during_the_start_is_orderly(
    config: Path, options: tuple[str, ...], code: int, number: signal.Signals
) -> None:
    with started(config, *options) as (process, log):
        process.send_signal(number)
        assert process.wait(60) == code, log.read_text()
        assert '"agent_stopped"' in log.read_text()
        assert "Traceback" not in log.read_text()
        assert "pass_finished" not in log.read_text()


def test_hangup_ends_a_single_pass_like_a_stop(config: Path) -> None:
    with started(config, "--once") as (process, _):
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 3


def test_single_pass_under_nohup_ignores_hangups(config: Path) -> None:
    with started(config, "--once", before=("nohup",)) as (process, log):
        while process.poll() is None:
            process.send_signal(signal.SIGHUP)
        assert process.returncode == 0
        assert "pass_finished" in log.read_text()


BLOCKED_THEN_HANDLED = """
import asyncio, os, signal, subprocess
from nodeagent.loops.unix_signals import handled, block_signals

async def main():
    received = asyncio.Event()
    with handled(asyncio.get_running_loop(), end=lambda: None, hangup=received.set, once=False):
        await asyncio.wait_for(received.wait(), 20)
        subprocess.run(["cat", "/proc/self/status"], check=True)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL

block_signals()
os.kill(os.getpid(), signal.SIGHUP)
asyncio.run(main())
"""


def test_blocked_hangup_is_delivered_to_the_handler_and_children_get_default_actions() -> None:
    command = [sys.executable, "-c", BLOCKED_THEN_HANDLED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    lines = ended.stdout.splitlines()
    own = [int(each.split()[1], 16) for each in lines if each.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    assert len(own) == 3
    assert not any(each & 1 << (number - 1) for each in own for number in BLOCKED)


def test_hangup_does_not_end_the_stop_command_of_the_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: str) -> UnitStop:
        os.kill(os.getpid(), signal.SIGHUP)
        return UnitStop("running")

    monkeypatch.setattr("nodeagent.host.systemd.read_unit_stop", read)
    before = signal.getsignal(signal.SIGHUP)
    try:
        shutdown.run_stop_hook(None, "nodeagent.service")
        os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_thread_that_never_returns_does_not_delay_the_exit() -> None:
    program = """
import asyncio, threading
from nodeagent.cli import run
from nodeagent.cli.reading import load_settings
from nodeagent.gc.executor import PassEnd

async def supervise(*_, **__):
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    return PassEnd.SHORTFALL

run.supervise = supervise
raise SystemExit(run._serve(load_settings(None, {}), once=False))
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == ExitCode.PARTIAL
