"""Tests of undoing image removals on a real containerd."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.reading import load_settings
from nodeagent.gc.agent import open_agent
from nodeagent.host.filesystems import read_filesystem
from nodeagent.units import SystemClock
from tests.support import images, reclaim
from tests.support.command import nodeagent
from tests.support.containerd import LoopFs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

TAG = "registry.example.com/undo/app:v1"
SIZE_BYTES = 20 << 20


@pytest.fixture
def containerd(containerd_factory: ContainerdFactory) -> Containerd:
    made = containerd_factory(imagefs=LoopFs(300, "ext4"))
    image = images.image(TAG, layers=[images.busybox_layer(), images.blob("own", SIZE_BYTES)])
    made.import_images(images.write_oci(made.base / "undo.tar", image))
    return made


def configure(containerd: Containerd, window: str) -> Path:
    path = containerd.base / "nodeagent.toml"
    path.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
        f'[state]\ndirectory = "{containerd.base}/agent-state"\n[image_gc]\nhigh_threshold_percent = 1\n'
        f'low_threshold_percent = 0\nminimum_age = "0s"\nundo_window = "{window}"\n'
        'irreplaceable = "ignore"\n'
    )
    return path


def run(*words: str) -> dict[str, object]:
    ended = nodeagent("gc", *words, "-o", "json")
    assert ended.returncode in (0, 3), ended.stderr  # exit code 3: the low threshold cannot be reached
    found: dict[str, object] = json.loads(ended.stdout)
    return found


def available_bytes(containerd: Containerd) -> int:
    return read_filesystem(str(containerd.root), SystemClock()).available_bytes


def test_container_starts_from_a_restored_image_without_a_pull(containerd: Containerd) -> None:
    config = configure(containerd, "10m")
    before = containerd.ctr("images", "ls")
    before_bytes = available_bytes(containerd)
    report = run("images", "--yes", "--config", str(config))
    assert report["undo_until"]
    assert available_bytes(containerd) - before_bytes < SIZE_BYTES
    assert TAG not in containerd.ctr("images", "ls")
    assert SIZE_BYTES < int(str(report["undo_bytes"])) < 3 * SIZE_BYTES
    undone = run("undo", str(report["pass_id"]), "--config", str(config))
    assert undone["pass_id"] == report["pass_id"]
    assert containerd.ctr("images", "ls").split() == before.split()
    assert "nodeagent" not in containerd.ctr("leases", "ls")
    with containerd.pods() as pods:
        sandbox = pods.run_sandbox("after")
        container = pods.run_container(sandbox, "after", TAG, ["true"])
        assert pods.wait_exited(container).exit_code == 0
        pods.remove_made()


def test_end_of_the_window_frees_the_predicted_space(containerd: Containerd) -> None:
    config = configure(containerd, "1s")
    before_bytes = available_bytes(containerd)
    report = run("images", "--yes", "--config", str(config))
    expected = pytest.approx(report["undo_bytes"], rel=0.02, abs=1 << 20)

    def freed() -> bool:  # polled: containerd frees the bytes after the lease has expired
        asyncio.run(recover(config))
        is_leased = "nodeagent" in containerd.ctr("leases", "ls")
        return not is_leased and available_bytes(containerd) - before_bytes == expected

    reclaim.poll("the undo window has ended and its bytes are free", freed, timeout_s=20)
    assert nodeagent("gc", "undo", "--config", str(config)).returncode == 2


async def recover(config: Path) -> None:
    async with open_agent(load_settings(config, {}), record=True, dry_run=False) as agent:
        await agent.recovery.run()
