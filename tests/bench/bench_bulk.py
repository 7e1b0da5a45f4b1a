"""Removal time of many images: by a pass of the agent, by concurrent and by sequential RemoveImage calls.

A real containerd on a loop-mounted ext4 filesystem has 200 small images of five layers each, of which two are shared.
All runs start from a copy of one filesystem; the variants alternate, in another order in each round. The time of the
agent includes the guards, the transactions, the garbage collection and the check of CRI's list. Its transactions wait
for container creations in progress: "waited" is the time during which all transactions waited, and "agent, no wait" has
a wait of zero, which also removes the waits that delay later transactions. "names alone" deletes the same names as the
agent and runs one garbage collection, without lease, guards, waits and checks. The times of the RemoveImage calls
include only the calls. The benchmark requires root.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nodeagent.cli.reading import load_settings
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.policy import Scope
from nodeagent.runtime.connection import RuntimeConnection, run_bounded
from nodeagent.runtime.containerd import ContainerdClient
from tests.support import many
from tests.support.containerd import Containerd, LoopFs

if TYPE_CHECKING:
    from pathlib import Path


async def by_agent(config: Path, settings: dict[str, str]) -> tuple[int, float, float]:
    """Remove all unprotected images by a pass; return their number, the duration and the waiting time in seconds."""
    async with open_agent(load_settings(config, settings), record=False, dry_run=False) as agent:
        preview = await agent.collector.preview(Scope.IMAGES)
        began = time.perf_counter()
        report = await agent.collector.run(preview, trigger="bench", stop=asyncio.Event(), max_rounds=1)
        return len(report.removed), time.perf_counter() - began, report.settled_s


async def by_names(containerd: Containerd) -> tuple[int, float]:
    """Delete the names of these images, the id last as the agent does; return the number of images and the seconds."""
    async with RuntimeConnection(f"unix://{containerd.socket}") as connection:
        client = ContainerdClient(connection)
        stored = await client.list_images()
        removable = {each.target for each in stored if "/going/" in each.name}
        images = [[each.name for each in stored if each.target == target] for target in removable]

        async def delete(names: list[str]) -> None:
            ids = [each for each in names if each.startswith("sha256:")]
            for group in ([each for each in names if each not in ids], ids):
                await asyncio.gather(*(client.delete_image(each, sync=False) for each in group))

        began = time.perf_counter()
        *others, last = images
        await run_bounded(delete, others)
        *tags, image_id = sorted(last, key=lambda name: name.startswith("sha256:"))
        await delete(tags)
        await client.delete_image(image_id, sync=True)
        return len(images), time.perf_counter() - began


def by_calls(containerd: Containerd, concurrency: int) -> tuple[int, float]:
    """Remove these images by CRI RemoveImage calls; return the number of images and the duration in seconds."""
    with containerd.pods() as pods:
        removable = [image.id for image in pods.list_images() if any("/going/" in tag for tag in image.tags)]
        with ThreadPoolExecutor(concurrency) as pool:
            began = time.perf_counter()
            list(pool.map(pods.remove_image, removable))
            return len(removable), time.perf_counter() - began


def _figures(values: list[float]) -> str:
    return f"median {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Print the removal times of each round, then the median, minimum and maximum of each variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--others", type=int, default=100, help="images that are kept")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    names = ("agent", "agent, no wait", "names alone", "at once", "one by one")
    times: dict[str, list[float]] = {name: [] for name in names}
    with Containerd(imagefs=LoopFs(many.MINIMUM_MIB, "ext4")) as containerd:
        many.fill(containerd, options.images, options.others, shared=1, own=3)
        config = many.configure(containerd)
        containerd.checkpoint()
        print(" ".join(f"{name + ' s':>16}" for name in ("waited", *times)))
        for number in range(options.runs):
            settled_s = 0.0
            for name in (*names[number % len(names) :], *names[: number % len(names)]):
                if name.startswith("agent"):
                    settings = {"image_gc.settle": "0s"} if name != "agent" else {}
                    count, agent_s, waited_s = asyncio.run(by_agent(config, settings))
                    settled_s = settled_s if settings else waited_s
                    times[name].append(agent_s)
                elif name == "names alone":
                    count, names_s = asyncio.run(by_names(containerd))
                    times[name].append(names_s)
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
