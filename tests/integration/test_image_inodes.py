"""Image GC for inodes on a real containerd: a store with few bytes and many files reaches the low threshold."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.support import images
from tests.support.command import nodeagent
from tests.support.containerd import LoopFs
from tests.support.images import File, Image, Layer

if TYPE_CHECKING:
    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

INODES = 4096
NAMES = 6
INGESTS = 8
"""Most inodes that finished imports still occupy; containerd removes them later."""


@pytest.mark.parametrize("seed", range(2))
def test_store_with_many_files_is_collected_to_the_low_threshold_of_inodes(
    containerd_factory: ContainerdFactory, seed: int
) -> None:
    counts = random.Random(seed)
    containerd = containerd_factory(imagefs=LoopFs(300, inodes=INODES))
    base = Layer(tuple(File(f"base/{number}", 1) for number in range(200)))
    for number in range(NAMES):
        own = Layer(tuple(File(f"own/{number}/{each}", 1) for each in range(counts.randrange(300, 500))))
        archive = images.write_oci(
            containerd.base / f"{number}.tar", Image((f"registry.example.com/app-{number}:v1",), (base, own))
        )
        containerd.ctr("images", "import", str(archive.path))
    state = os.statvfs(containerd.root)
    used = 100 - state.f_ffree * 100 // state.f_files
    high, low = used - 1, used - 25
    config = containerd.base / "nodeagent.toml"
    config.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
        f'[state]\ndirectory = "{containerd.base}/agent-state"\n[image_gc]\nhigh_threshold_inodes_percent = {high}\n'
        f'low_threshold_inodes_percent = {low}\nminimum_age = "0s"\nundo_window = "0s"\nirreplaceable = "ignore"\n'
        f'[container_gc]\npod_log_root = "{containerd.log_root}"\ncontainer_log_root = "{containerd.base}/none"\n'
    )
    preview = nodeagent("gc", "images", "--dry-run", "--config", str(config)).stdout
    assert "TOTAL  INODES  REASON" in preview
    assert f" of {state.f_files} inodes (high {high}%, low {low}%)" in preview
    ended = nodeagent("gc", "images", "--yes", "-o", "json", "--config", str(config))
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    removed = [each for each in report["results"] if each["outcome"] == "done"]
    names = [each["name"] for each in removed]
    details = {key: each["reason"]["details"][key] for each in removed for key in each["reason"]["details"]}
    assert details == {"inodes_used_percent": pytest.approx(used, abs=1), "low_inodes_percent": low}
    assert names == [f"registry.example.com/app-{number}:v1" for number in range(len(removed))]
    after = os.statvfs(containerd.root)
    assert after.f_ffree - state.f_ffree == pytest.approx(sum(each["frees_inodes"] for each in removed), abs=INGESTS)
    wanted = state.f_files * (100 - low) // 100
    assert after.f_ffree >= wanted
    assert after.f_ffree - removed[-1]["frees_inodes"] < wanted  # no image more than needed
    assert report["plans"][0]["wanted_inodes"] == pytest.approx(wanted - state.f_ffree, abs=INGESTS)
