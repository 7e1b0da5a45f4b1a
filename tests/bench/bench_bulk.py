"""Removal time of many images: in bulk, and with one CRI call per image.

A real containerd on a loop-mounted ext4 with 200 small images of ten layers each, five of them shared. Both runs start
from the same copy of the filesystem. The bulk time includes the guards, the collection and the check of CRI's list; the
CRI time includes only the calls. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING

from nodeagent.act.agent import open_agent
from nodeagent.cli.session import load_settings
from nodeagent.plan.gc.scope import Scope
from tests.support import many
from tests.support.containerd import Containerd, LoopFs

if TYPE_CHECKING:
    from pathlib import Path


async def in_bulk(config: Path) -> tuple[int, float]:
    """Remove all unprotected images; return their number and the duration in seconds."""
    async with open_agent(load_settings(config, {}), record=False, dry_run=False) as agent:
        preview = await agent.collector.preview(Scope.IMAGES)
        began = time.perf_counter()
        report = await agent.collector.run(preview, trigger="bench", stop=asyncio.Event(), max_rounds=1)
        return len(report.removed), time.perf_counter() - began


def by_calls(containerd: Containerd) -> tuple[int, float]:
    """Remove the same images through CRI; return their number and the duration in seconds."""
    with containerd.pods() as pods:
        removable = [image.id for image in pods.list_images() if any("/going/" in tag for tag in image.tags)]
        began = time.perf_counter()
        for image_id in removable:
            pods.remove_image(image_id)
        return len(removable), time.perf_counter() - began


def main() -> None:
    """Print the removal times in bulk and by CRI calls, one line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--others", type=int, default=200, help="images that are kept")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with Containerd(imagefs=LoopFs(many.MINIMUM_MIB, "ext4")) as containerd:
        many.fill(containerd, options.images, options.others)
        config = many.configure(containerd)
        containerd.checkpoint()
        print(f"{'images':>8} {'bulk s':>8} {'calls s':>8} {'speed-up':>12}")
        for _ in range(options.runs):
            count, bulk_s = asyncio.run(in_bulk(config))
            containerd.rewind()
            called, calls_s = by_calls(containerd)
            containerd.rewind()
            print(f"{count:8} {bulk_s:8.2f} {calls_s:8.2f} {calls_s / bulk_s:12.1f}", flush=True)
            assert count == called


if __name__ == "__main__":
    main()
