"""Tests of the daemon on a real containerd: kills, restarts, a full disk, dry runs and the grace period of a policy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from nodeagent.store.database import Store
from tests.support import reclaim
from tests.support.command import ROOT
from tests.support.worn_commands import Document, configure, gc, tags
from tests.support.worn_node import KEPT, PINNED, USED_DEAD, USED_RUNNING, WornNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real


@contextmanager
def daemon(node: WornNode, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the daemon with short intervals and its log in a file; assert that SIGTERM ends it."""
    if "interval" not in node.config.read_text():
        configure(
            node, "[container_gc]", '[image_gc]\ninterval = "1s"\nminimum_age = "1s"\n\n[container_gc]\ninterval = "1s"'
        )
    command = [sys.executable, "-m", "nodeagent", "run", "--config", str(node.config)]
    with log.open("ab") as out, subprocess.Popen(command, stderr=out, cwd=ROOT) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                assert process.wait(timeout=60) == 0


def events(log: Path, name: str) -> list[Document]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [event for event in map(json.loads, filter(None, lines)) if event["event"] == name]


def test_full_state_directory_disables_only_the_recording_until_it_recovers(worn: WornNode, tmp_path: Path) -> None:
    state, log = tmp_path / "state", tmp_path / "log"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(state)], check=True)
    try:
        (state / "full").write_bytes(b"x" * (256 << 10))
        configure(worn, str(worn.containerd.base / "agent-state"), str(state))
        before = tags(worn)
        report = gc(worn, "images", "--yes")
        assert report["end"] == "complete"
        assert any("continuing in memory" in warning for warning in report["warnings"]), report["warnings"]
        removed = before - tags(worn)
        assert removed
        with daemon(worn, log):
            reclaim.poll("the degraded store is logged", lambda: bool(events(log, "store_degraded")), timeout_s=30)
            (state / "full").unlink()
            reclaim.poll("the store has recovered", lambda: bool(events(log, "store_recovered")), timeout_s=30)
        assert len(events(log, "store_degraded")) == 1
        assert Store(state, read_only=True).usage()
        assert {KEPT, PINNED, USED_RUNNING, USED_DEAD, worn.containerd.sandbox_image} <= tags(worn)
    finally:
        subprocess.run(["umount", str(state)], check=True)


def test_daemon_continues_after_kills_and_restarts_of_the_runtime(worn: WornNode, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with daemon(worn, log) as process:
        reclaim.poll("a removal is logged", lambda: bool(events(log, "removal")), timeout_s=30)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
    with daemon(worn, log):
        reclaim.poll("image collection is complete", lambda: worn.used_percent <= 80, timeout_s=30)
        worn.containerd.stop()
        reclaim.poll(
            "the unavailable runtime is logged", lambda: bool(events(log, "runtime_unavailable")), timeout_s=30
        )
        worn.containerd.start()
        reclaim.poll("the available runtime is logged", lambda: bool(events(log, "runtime_available")), timeout_s=90)
    assert {KEPT, PINNED, USED_RUNNING, USED_DEAD, worn.containerd.sandbox_image} <= tags(worn)
    lost = events(log, "runtime_unavailable")
    assert len(lost) <= 2, "each loop logs each change once"
    assert events(log, "agent_stopped")
    assert not events(log, "pass_crashed")


def test_daemon_in_a_dry_run_removes_nothing(worn: WornNode, tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = (tags(worn), {each.id for each in worn.pods.list_containers()})
    configure(worn, 'role = "standalone"', 'role = "standalone"\ndry_run = true')
    with daemon(worn, log):
        reclaim.poll(
            "images are listed as removals",
            lambda: any(e["kind"] == "image" for e in events(log, "would_remove")),
            timeout_s=30,
        )
        reclaim.poll(
            "containers, too", lambda: any(e["kind"] == "container" for e in events(log, "would_remove")), timeout_s=30
        )
        passes = len(events(log, "pass_finished"))
        reclaim.poll("further passes", lambda: len(events(log, "pass_finished")) > passes + 4, timeout_s=60)
    planned = [(each["id"], each["reason"]) for each in events(log, "would_remove")]
    assert len(planned) == len(set(planned)), "a planned removal is logged once, not in every pass"
    assert (tags(worn), {each.id for each in worn.pods.list_containers()}) == before


def test_switch_to_active_removes_nothing_before_the_end_of_the_grace_period(worn: WornNode, tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = (tags(worn), {each.id for each in worn.pods.list_containers()})
    configure(worn, 'role = "standalone"', 'role = "standalone"\ndry_run = true\nreload_grace = "1h"')
    with daemon(worn, log) as process:
        reclaim.poll("it works", lambda: bool(events(log, "pass_finished")), timeout_s=30)
        configure(worn, "dry_run = true", "dry_run = false")
        process.send_signal(signal.SIGHUP)
        reclaim.poll("it waits", lambda: bool(events(log, "reload_grace_started")), timeout_s=30)
        passes = len(events(log, "pass_finished"))
        reclaim.poll("the dry run continues", lambda: len(events(log, "pass_finished")) > passes + 4, timeout_s=60)
        assert (tags(worn), {each.id for each in worn.pods.list_containers()}) == before
        assert events(log, "removal") == []
        configure(worn, 'reload_grace = "1h"', 'reload_grace = "1s"')
        process.send_signal(signal.SIGHUP)
        reclaim.poll("it removes", lambda: bool(events(log, "removal")), timeout_s=60)
    named = [json.loads(line)["event"] for line in log.read_text().splitlines() if line]
    assert named.index("reload_grace_ended") < named.index("removal")
    started = events(log, "reload_grace_started")[0]
    assert (started["items"] > 0, "container" in started["effect"]) == (True, True)
