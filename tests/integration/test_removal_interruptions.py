"""Tests of image removals interrupted by SIGKILL of the agent, by restarts of containerd, and by a full disk.

``NODEAGENT_TEST_RUNS`` is the number of interruptions in the tests with the ``campaign`` mark; ``NODEAGENT_TEST_SEED``
determines the times of the interruptions.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.reading import load_settings
from nodeagent.errors import NodeAgentError
from nodeagent.gc import pass_state as measurement
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.policy import Scope
from tests.support.containerd import LoopFs
from tests.support.races import RaceField

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

UNDO_WINDOW_S = 1
SEED = int(os.environ.get("NODEAGENT_TEST_SEED", "0"))
RUNS = int(os.environ.get("NODEAGENT_TEST_RUNS", "4"))
PASSES = max(1, RUNS // 4)


def leases(containerd: Containerd) -> list[str]:
    return [line for line in containerd.ctr("leases", "ls").splitlines() if "nodeagent" in line]


def recover(config: Path) -> None:
    """Restore interrupted removals as the daemon does at its start."""

    async def run() -> None:
        async with open_agent(load_settings(config, {}), record=True, dry_run=False) as agent:
            await agent.recovery.run()

    asyncio.run(run())


def collect(config: Path) -> None:
    """Run an image GC pass; ignore its failure if the runtime becomes unavailable."""

    async def run() -> None:
        async with open_agent(load_settings(config, {}), record=True, dry_run=False) as agent:
            preview = await agent.collector.preview(Scope.IMAGES)
            await agent.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)

    try:
        asyncio.run(run())
    except NodeAgentError:
        return


def fill(path: Path, available_bytes: int) -> bool:
    """Grow a file until its filesystem has ``available_bytes`` available; return whether the filesystem is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while (usage := os.statvfs(path)).f_bavail * usage.f_frsize > available_bytes:
            file.write(bytes(usage.f_frsize * max(1, min(256, usage.f_bavail - 64))))
            os.fsync(file.fileno())
    return os.statvfs(path).f_bavail == 0


def check(containerd: Containerd, field: RaceField) -> None:
    assert leases(containerd) == []
    assert field.partial() == {}
    assert field.incomplete() == []


@pytest.mark.campaign
def test_agent_killed_during_a_removal_leaves_every_image_whole_or_removed(
    containerd_factory: ContainerdFactory,
) -> None:
    containerd = containerd_factory(imagefs=LoopFs(700, "ext4"))
    field = RaceField(containerd)
    config = field.configure(f'undo_window = "{UNDO_WINDOW_S}s"\n')
    chosen = random.Random(SEED)
    command = [sys.executable, "-m", "nodeagent", "gc", "images", "--yes", "--config", str(config)]
    final = [*command, "--undo-window", "0s"]
    span_s = 0.0
    interrupted = 0
    for number in range(RUNS + 1):
        field.import_missing()
        began = time.perf_counter()
        with subprocess.Popen(
            final if number % 2 else command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as agent:
            if number:
                time.sleep(chosen.uniform(span_s * 0.3, span_s * 0.95))
                agent.kill()
            agent.wait()
        if not number:
            span_s = time.perf_counter() - began
        interrupted += bool(leases(containerd))
        recover(config)
        if leases(containerd):  # a lease keeps the content of removed images until the undo window ends
            time.sleep(UNDO_WINDOW_S)
            recover(config)
        check(containerd, field)
    print(f"{RUNS} kills, {interrupted} with an open removal")


@pytest.mark.campaign
def test_restart_of_containerd_during_a_removal_leaves_every_image_whole_or_removed(
    containerd_factory: ContainerdFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    containerd = containerd_factory(imagefs=LoopFs(700, "ext4"))
    field = RaceField(containerd)
    config = field.configure()
    chosen = random.Random(SEED)
    interrupted = 0
    for number in range(RUNS):
        field.import_missing()
        agent = threading.Thread(target=collect, args=(config,))
        agent.start()
        time.sleep(chosen.uniform(0.1, 1.5))
        (containerd.kill if number % 2 else containerd.stop)()
        containerd.start()
        agent.join()
        interrupted += bool(leases(containerd))
        recover(config)
        check(containerd, field)
    print(f"{RUNS} restarts, {interrupted} with an open removal")


@pytest.mark.campaign
def test_removals_on_a_full_disk_leave_every_image_whole_or_removed(
    containerd_factory: ContainerdFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    containerd = containerd_factory(imagefs=LoopFs(120, "ext4", reserved_percent=0))
    field = RaceField(containerd)
    config = field.configure()
    chosen = random.Random(SEED)
    removed = full = 0
    for number in range(PASSES):
        field.import_missing()
        before = len(field.names())
        full += fill(containerd.root / "full", chosen.choice([0, 4, 8, 16, 64]) << 10 if number % 2 else 0)
        collect(config)
        removed += before - len(field.names())
        (containerd.root / "full").unlink()
        recover(config)
        check(containerd, field)
    print(f"{PASSES} passes, {full} on a full disk, {removed} image names removed")
    assert removed
