"""The record and the forecast on a real containerd: growing pods are named beside image churn, with the right time.

Time is that of a manual clock, a minute for each line; the bytes are written by containers and measured on disk.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from nodeagent.api.outlook import OutlookDocument
from nodeagent.model.outlook import GrowthCategory, Outlook, ThresholdKind
from tests.support import images, reclaim
from tests.support.containerd import LoopFs
from tests.support.pressed import MIB, PressedNode

if TYPE_CHECKING:
    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

NAMED_WITHIN_MINUTES: Final = 10
MINUTES: Final = 25
WRITTEN_MIB: Final = 5
IMAGE_MIB: Final = 3
ROOT: Final = Path(__file__).parents[2]


def run_growing(node: PressedNode, name: str, file: str, volume: Path | None = None) -> None:
    """Run a pod that appends to a file whenever ``/go`` exists."""
    append = f"dd if=/dev/zero bs=1M count={WRITTEN_MIB} 2>/dev/null >> {file}"
    command = f"(while :; do if [ -e /go ]; then rm /go; {append}; fi; sleep 0.02; done) & true"
    if volume is None:
        node.run_pod(name, command)
    else:
        volume.mkdir(parents=True)
        node.run_pod(name, command, mounts={volume: "/vol"}, pod_uid=volume.parts[-4])


def write(node: PressedNode, name: str, data: Path, times: int) -> None:
    """Let the container of a pod append to its file, and wait until it has done so for this number of times."""
    node.touch(name, "/go")
    size_bytes = times * WRITTEN_MIB * MIB
    reclaim.poll(f"{name} has written", lambda: data.exists() and data.stat().st_size == size_bytes, timeout_s=30)


def import_unused(node: PressedNode, number: int) -> None:
    made = images.image(f"churn.test/app:v{number}", layers=[images.blob(f"churn{number}", IMAGE_MIB * MIB)])
    node.containerd.import_images(images.write_oci(node.directory / "churn.tar", made))


def test_growing_pods_are_named_beside_image_churn_with_the_time_of_the_threshold(
    containerd_factory: ContainerdFactory, tmp_path: Path
) -> None:
    node = PressedNode(containerd_factory(imagefs=LoopFs(700)), tmp_path)
    node.with_single_filesystem()
    node.import_images()
    volume = node.containerd.root / "pods" / str(uuid.uuid4()) / "volumes" / "kubernetes.io~empty-dir" / "data"
    run_growing(node, "layer", "/data")
    run_growing(node, "volume", "/vol/data", volume)
    node.run_writer("rests", 30)
    files = {"layer": node.layer(node.created["layer"]) / "data", "volume": volume / "data"}
    config = node.configure('hard = "nodefs.available<20%"')
    config.write_text(config.read_text().replace("[image_gc]\nenabled = false", "[image_gc]"))
    command = [*node.with_mounted_nodefs(), sys.executable, "-m", "tests.support.recorder_process", str(config)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for minute in range(1, MINUTES + 1):
            for name, file in files.items():
                write(node, name, file, minute)
            if minute % 3 == 0:
                import_unused(node, minute)
            print("images" if minute % 5 == 1 else "", file=process.stdin, flush=True)
            outlooks = msgspec.json.decode(process.stdout.readline(), type=list[OutlookDocument])
            if minute in (NAMED_WITHIN_MINUTES, MINUTES):
                check(next(each for each in outlooks if each.resource == "nodefs.available"), node)
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def check(found: OutlookDocument, node: PressedNode) -> None:
    """Check that both pods are named, with equal shares, and that the threshold is expected at the true time."""
    named = [(each.part, each.category) for each in found.growth if each.part.startswith("default/")]
    assert sorted(named) == [
        ("default/layer writable layer", GrowthCategory.WRITABLE),
        ("default/volume volumes", GrowthCategory.VOLUMES),
    ]
    shares = [each.share for each in found.growth]
    assert sum(shares) == pytest.approx(1)
    assert all(each.share > 0.3 for each in found.growth if each.part.startswith("default/"))
    (hard,) = [each for each in found.forecasts if each.threshold is ThresholdKind.HARD]
    assert hard.outlook is Outlook.RANGE
    unused = sum(each.size_bytes for each in node.pods.list_images() if any("churn" in tag for tag in each.tags))
    true_s = (hard.used - (found.used - unused)) / (len(node.created) - 1) / (WRITTEN_MIB * MIB / 60)
    print(f"after {found.observed_at}: expected in {hard.expected_s} s, true {true_s:.0f} s, growth {found.growth}")
    assert hard.expected_s == pytest.approx(true_s, rel=0.2)
    assert hard.earliest_s is not None
    assert hard.earliest_s < true_s
    assert hard.latest_s is None or true_s < hard.latest_s
