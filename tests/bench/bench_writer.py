"""Time to the first victim beside a pod that writes at full speed, and the time of a bare reclaim-and-list round.

A real containerd has an image filesystem of 700 MiB, three unused images of 12 MiB, three other pods and the writer. A
hard threshold is met after the writer has written ``--written`` MiB. The time of the agent is that from the log event
``threshold_met`` to ``eviction_started``. The bare round makes a kubelet's calls beside the same writer, from the same
amount of available space on: the lists of containers, sandboxes and images, one RemoveImage call for each unused image,
the usage of the image filesystem, both lists again, and the statistics of the containers. The two alternate. The
benchmark requires root.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import reclaim
from tests.support.containerd import Containerd, LoopFs
from tests.support.pressed import MIB, UNUSED, PressedNode

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def pressed_node() -> Iterator[PressedNode]:
    """Yield a node with three quiet pods, three unused images, and a writer that waits for the file ``/go``."""
    with tempfile.TemporaryDirectory() as directory, Containerd(imagefs=LoopFs(700, "ext4")) as containerd:
        node = PressedNode(containerd, Path(directory))
        node.import_images(unused=True)
        for number in range(3):
            node.run_writer(f"quiet-{number}", 1)
        node.run_pod("writer", "touch /done; while [ ! -e /go ]; do sleep 0.02; done; dd if=/dev/zero of=/data bs=64k")
        yield node


def by_agent(written_mib: int) -> float:
    """Return the seconds from the met threshold to the choice of the writer by the daemon."""
    with pressed_node() as node:
        with node.daemon(f'hard = "imagefs.available<{node.available_bytes // MIB - written_mib}Mi"'):
            node.wait_passes(2)
            node.touch("writer", "/go")
            node.wait_for("evicted")
        events = node.events()
        assert [each["pod_name"] for each in node.events("evicted")] == ["writer"], events
        met, chosen = (
            next(datetime.fromisoformat(each["timestamp"]) for each in events if each["event"] == name)
            for name in ("threshold_met", "eviction_started")
        )
        return (chosen - met).total_seconds()


def by_calls(written_mib: int) -> float:
    """Return the seconds of the bare round."""
    with pressed_node() as node:
        pods, limit = node.pods, node.available_bytes - written_mib * MIB
        unused = [image.id for image in pods.list_images() if set(image.tags) & set(UNUSED)]
        node.touch("writer", "/go")
        reclaim.poll("the threshold is met", lambda: node.available_bytes < limit, interval_s=0.002)
        began = time.perf_counter()
        pods.list_containers(), pods.list_sandboxes(), pods.list_images()
        for image_id in unused:
            pods.remove_image(image_id)
        pods.call("ImageFsInfo")
        pods.list_sandboxes(), pods.list_containers()
        pods.call("ListContainerStats")
        return time.perf_counter() - began


def main() -> None:
    """Print both times of each run, then the median, minimum and maximum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--written", type=int, default=40, help="MiB written before the threshold is met")
    options = parser.parse_args()
    times: dict[str, list[float]] = {"agent": [], "bare round": []}
    for _ in range(options.runs):
        times["bare round"].append(by_calls(options.written))
        times["agent"].append(by_agent(options.written))
        print(*(f"{name} {taken[-1]:.3f} s" for name, taken in times.items()), sep=", ", flush=True)
    for name, taken in times.items():
        print(f"{name}: median {statistics.median(taken):.3f} s ({min(taken):.3f} to {max(taken):.3f})")
    ratio = statistics.median(mine / bare for mine, bare in zip(*times.values(), strict=True))
    print(f"agent relative to the bare round of the same run: median {ratio:.2f}")


if __name__ == "__main__":
    main()
