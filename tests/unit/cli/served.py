"""A simulated node with its daemon, served by another thread, so that commands run in the main thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from tests.sim.filesystem import SimFilesystem
from tests.unit.control_node import Node, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.sim.node import SimNode


@contextmanager
def served_in_thread(tmp_path: Path, sim: SimNode) -> Iterator[Node]:
    """Serve the runtime and the control API of a node with a simulated filesystem; yield the node."""
    ready = threading.Event()
    served: list[Node] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    failures: list[BaseException] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with serving(tmp_path, sim=sim) as node:
            served.append(node)
            loops.append((asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - re-raised in the main thread
            failures.append(error)
        finally:
            ready.set()

    filesystem = SimFilesystem(sim)
    with (
        mock.patch("nodeagent.gc.agent_parts.read_filesystem", filesystem.read_filesystem),
        mock.patch("nodeagent.daemon.node_filesystems.read_filesystem", filesystem.read_node_filesystem),
    ):
        thread = threading.Thread(target=run)
        thread.start()
        ready.wait()
        try:
            if served:
                yield served[0]
        finally:
            for loop, stop in loops:
                loop.call_soon_threadsafe(stop.set)
            thread.join()
    if failures:
        raise failures[0]
