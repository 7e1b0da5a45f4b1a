"""Tests of image GC on two image filesystems of a real containerd (overlayfs and native), each collected separately."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.host.filesystems import read_filesystem
from nodeagent.units import SystemClock
from tests.support import images
from tests.support.command import nodeagent
from tests.support.containerd import LoopFs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

SIZE_BYTES = 16 << 20
NUMBERS = (1, 2, 3)


def tag(store: str, number: int) -> str:
    return f"registry.example.com/{store}/app-{number}:v1"


@pytest.fixture
def containerd(containerd_factory: ContainerdFactory) -> Containerd:
    """Return a containerd with three overlayfs images and three later native images, on separate filesystems."""
    made = containerd_factory(imagefs=LoopFs(320, native_mib=160))
    for store in ("overlayfs", "native"):
        for number in NUMBERS:
            name = tag(store, number)
            layers = [images.blob(f"{store}-{number}", SIZE_BYTES, seed=number)]
            archive = images.write_oci(made.base / f"{store}-{number}.tar", images.image(name, layers=layers))
            made.import_images(archive, pulled=True, into=store)
    return made


def configure(containerd: Containerd) -> str:
    path = containerd.base / "nodeagent.toml"
    path.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
        f'[state]\ndirectory = "{containerd.base}/agent-state"\n[image_gc]\nhigh_threshold_percent = 85\n'
        'low_threshold_percent = 75\nminimum_age = "0s"\nundo_window = "0s"\n'
    )
    return str(path)


def fill(directory: Path, used_percent: int) -> Path:
    """Fill the filesystem of a directory until at least ``percent`` of it is used."""
    ballast, reading = directory / "ballast", read_filesystem(str(directory), SystemClock())
    wanted_bytes = reading.available_bytes - reading.capacity_bytes * (100 - used_percent) // 100
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, wanted_bytes + (1 << 20))
    return ballast


def collect(containerd: Containerd, *words: str) -> dict[str, Any]:
    ended = nodeagent("gc", "images", "-o", "json", "--config", configure(containerd), *words)
    assert ended.returncode in (0, 2), [each["detail"] for each in json.loads(ended.stdout)["results"]]
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def listed(containerd: Containerd) -> set[str]:
    names = {line.split()[0] for line in containerd.ctr("images", "ls").splitlines()[1:]}
    return {each for each in names if "/app-" in each and "@" not in each}


def test_each_image_filesystem_is_collected_for_itself(containerd: Containerd) -> None:
    everything = listed(containerd)
    assert len(everything) == 2 * len(NUMBERS)
    native = containerd.root / "io.containerd.snapshotter.v1.native"
    ballast = fill(native, 92)
    report = collect(containerd, "--yes")
    assert report["end"] == "complete", json.dumps(report)
    assert everything - listed(containerd) == {tag("native", 1), tag("native", 2)}
    assert read_filesystem(str(native), SystemClock()).used_percent <= 76
    (plan,) = report["plans"]
    assert [each["path"] for each in plan["targets"]] == [str(native)]
    ballast.unlink()
    fill(containerd.root, 92)
    before = listed(containerd)
    report = collect(containerd, "--yes")
    assert report["end"] == "complete"
    gone = before - listed(containerd)
    assert gone
    assert all("/overlayfs/" in each for each in gone)
    assert read_filesystem(str(containerd.root), SystemClock()).used_percent <= 76
    after = {each["path"]: each for each in report["filesystems"]}
    assert after[str(native)]["freed_bytes"] == 0
