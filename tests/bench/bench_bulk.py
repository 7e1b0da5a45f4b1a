"""Removal time of many images: by a pass of the agent, by concurrent RemoveImage calls, and by one after the other.

A real containerd on a loop-mounted ext4 with 200 small images of five layers each, two of them shared. All runs start
from the same copy of the filesystem, in turns, each round in another order. The time of the agent includes the guards,
the transactions, the garbage collection and the check of CRI's list. Its transactions wait for container creations in
progress: "waited" is the time in which all of them waited, and "agent, no wait" has a wait of zero, which removes also
the waits that delay later transactions. The times of the calls include nothing else. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nodeagent.act.agent import open_agent
from nodeagent.cli.session import load_settings
from nodeagent.plan.gc.scope import Scope
from tests.support import many
from tests.support.containerd import Containerd, LoopFs

if TYPE_CHECKING:
    from pathlib import Path


async def by_agent(config: Path, settings: dict[str, str]) -> tuple[int, float, float]:
    """Remove all unprotected images; return their number, the duration and the part spent waiting, in seconds."""
    async with open_agent(load_settings(config, settings), record=False, dry_run=False) as agent:
        preview = await agent.collector.preview(Scope.IMAGES)
        began = time.perf_counter()
        report = await agent.collector.run(preview, trigger="bench", stop=asyncio.Event(), max_rounds=1)
        return len(report.removed), time.perf_counter() - began, report.settled_s


def by_calls(containerd: Containerd, concurrency: int) -> tuple[int, float]:
    """Remove the same images through CRI; return their number and the duration in seconds."""
    with containerd.pods() as pods:
        removable = [image.id for image in pods.list_images() if any("/going/" in tag for tag in image.tags)]
        with ThreadPoolExecutor(concurrency) as pool:
            began = time.perf_counter()
            list(pool.map(pods.remove_image, removable))
            return len(removable), time.perf_counter() - began


def _figures(values: list[float]) -> str:
    return f"median {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Print the removal times of each round, then medians and extremes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--others", type=int, default=100, help="images that are kept")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    times: dict[str, list[float]] = {"agent": [], "agent, no wait": [], "at once": [], "one by one": []}
    with Containerd(imagefs=LoopFs(many.MINIMUM_MIB, "ext4")) as containerd:
        many.fill(containerd, options.images, options.others, shared=1, own=3)
        config = many.configure(containerd)
        containerd.checkpoint()
        print(" ".join(f"{name + ' s':>16}" for name in ("waited", *times)))
        for number in range(options.runs):
            settled_s = 0.0
            for name in (*list(times)[number % 4 :], *list(times)[: number % 4]):
                if name.startswith("agent"):
                    settings = {"image_gc.settle": "0s"} if name != "agent" else {}
                    count, agent_s, waited_s = asyncio.run(by_agent(config, settings))
                    settled_s = settled_s if settings else waited_s
                    times[name].append(agent_s)
                else:
                    count, calls_s = by_calls(containerd, options.images if name == "at once" else 1)
                    times[name].append(calls_s)
                assert count == options.images
                containerd.rewind()
            print(
                " ".join(f"{each:16.2f}" for each in (settled_s, *(taken[-1] for taken in times.values()))), flush=True
            )
    for name, values in times.items():
        ratio = statistics.median(each / own for each, own in zip(values, times["agent"], strict=True))
        print(f"{name}: {_figures(values)}, median of {ratio:.2f} times the agent's time of the same round")


if __name__ == "__main__":
    main()
