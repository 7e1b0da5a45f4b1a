"""Tests of eviction with two image filesystems of a real containerd: only items on a full filesystem are removed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.eviction.signals import EvictionSignalReader
from nodeagent.host.filesystems import filesystem_id, read_filesystem
from nodeagent.model.runtime import ImageFilesystem
from nodeagent.units import SystemClock
from tests.support import images
from tests.support.command import nodeagent
from tests.support.containerd import LoopFs
from tests.support.pressed import MIB, PressedNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

HANDLER = """
[plugins."io.containerd.cri.v1.images".runtime_platforms.other]
  platform = "linux/amd64"
  snapshotter = "native"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.other]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = "native"
"""
UNUSED_OF = {"overlayfs": "pressed.test/overlayfs:v1", "native": "pressed.test/native:v1"}


@pytest.fixture
def node(containerd_factory: ContainerdFactory, tmp_path: Path) -> PressedNode:
    """Return a node with a runtime handler for the snapshotter ``native``, and an unused image of each snapshotter."""
    node = PressedNode(containerd_factory(imagefs=LoopFs(900, native_mib=300), config=HANDLER), tmp_path)
    node.import_images()
    for store, tag in UNUSED_OF.items():
        unused = images.image(tag, layers=[images.blob(store, 12 * MIB)])
        node.containerd.import_images(images.write_oci(tmp_path / f"{store}.tar", unused), pulled=True, into=store)
    return node


def ask(node: PressedNode, *words: str) -> dict[str, Any]:
    answer = nodeagent(*words, "-o", "json", "--config", str(node.directory / "nodeagent.toml"))
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.containerd("2.1")
def test_second_image_filesystem_is_relieved_by_its_own_images_and_pods_only(node: PressedNode) -> None:
    native = node.containerd.root / "io.containerd.snapshotter.v1.native"
    node.run_writer("first-writer", 60)
    node.run_writer("second-quiet", 1, runtime_handler="other")
    node.run_writer("second-writer", 80, runtime_handler="other")
    usage = os.statvfs(native)
    limit = f"imagefs.available<{usage.f_bavail * usage.f_frsize // MIB + 50}Mi"
    node.configure(f'hard = "{limit}"')
    met = [one["text"] for each in ask(node, "pressure")["signals"] for one in each["thresholds"] if one["met"]]
    assert met == [f"{limit} on {native}"]
    preview = ask(node, "evict", "--dry-run")
    assert preview["reclaim_first"][1] == f"unused-images on {native}"
    assert {each["name"]: each["reason"]["code"] for each in preview["plan"]["decisions"]} == {
        "default/second-writer": "low-on-resource",
        "default/second-quiet": "ranked-later",
        "default/first-writer": "layers-elsewhere",
    }
    with node.daemon(f'hard = "{limit}"'):
        node.wait_for("threshold_cleared", timeout_s=90)
        node.wait_passes(2)
    assert [each["pod_name"] for each in node.events("evicted")] == ["second-writer"]
    assert node.running() == {"first-writer", "second-quiet"}
    assert node.tags() & set(UNUSED_OF.values()) == {UNUSED_OF["overlayfs"]}
    assert not node.events("reclaim_failed")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "mounted"
    LoopFs(16).mount(tmp_path / "loop.img", point)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--quiet", "--recursive", str(point)], check=False)


def test_bound_read_only_and_unmounted_filesystems_are_observed_as_such(mounted: Path, tmp_path: Path) -> None:
    clock, bound = SystemClock(), mounted / "bound"
    bound.mkdir()
    subprocess.run(["mount", "--bind", str(mounted), str(bound)], check=True)
    several = [
        ImageFilesystem(str(each), frozenset({each.name}), read_filesystem(str(each), clock))
        for each in (tmp_path, mounted, bound)
    ]
    reader = EvictionSignalReader(EvictionSettings(), clock, pod_log_root=tmp_path)
    layout = reader.resolve_layout(SignalPaths(str(tmp_path), str(tmp_path), str(tmp_path)), several)
    assert [(each.path, each.device_id) for each in layout.others] == [(str(mounted), filesystem_id(str(bound)))]

    def other_paths() -> tuple[set[str], str]:
        readings = asyncio.run(reader.read(layout))
        return {each.path for each in readings.observations if each.path}, " ".join(readings.unread)

    assert other_paths()[0] == {str(mounted)}
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    paths, unread = other_paths()
    assert (paths, "is read-only" in unread) == (set(), True)
    subprocess.run(["umount", "--recursive", str(mounted)], check=True)
    paths, unread = other_paths()
    assert (paths, "is on another filesystem than before" in unread) == (set(), True)
