"""Pod cache at a shutdown: pods created since the last update of the cache."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from nodeagent.config.validation import convert
from nodeagent.daemon.context import DaemonContext
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.settings.settings import Config
from nodeagent.shutdown import pods as pod_cache
from nodeagent.shutdown.pods import PodRuntime
from nodeagent.units import SystemClock
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

IMAGE = "registry.test/app:v1"
DEFINITION = (
    '{{"kind": "Pod", "metadata": {{"name": "{name}", "namespace": "default", "uid": "uid-{name}"}}, '
    '"spec": {{"priority": {priority}, "containers": [{{"name": "app", "image": "' + IMAGE + '"}}]}}}}'
)


class Node:
    """A simulated node with a directory of static pod manifests."""

    def __init__(self, directory: Path) -> None:
        self.sim = SimNode()
        self.sim.add_image(IMAGE, layers=[Layer("base", 1 << 20)])
        self.manifests = directory

    def start(self, name: str, priority: int) -> None:
        """Write the static manifest of a pod and start the pod."""
        (self.manifests / f"{name}.json").write_text(DEFINITION.format(name=name, priority=priority))
        sandbox = self.sim.add_pod(name, uid=f"uid-{name}")
        self.sim.add_container(sandbox, "app", IMAGE)


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[tuple[Node, PodRuntime, SimServer]]:
    node = Node(tmp_path)
    document = {
        "role": "standalone",
        "runtime": {"endpoint": f"unix://{tmp_path}/cri.sock"},
        "kubelet": {"manifests": str(tmp_path)},
        "state": {"directory": str(tmp_path / "state")},
    }
    async with SimServer(node.sim, tmp_path / "cri.sock") as server:
        settings, clock = convert(Config, document).settings(), SystemClock()
        context = DaemonContext(settings, structlog.get_logger(), clock, LoopStatuses(clock), PassLock(clock))
        await context.roles.evaluate(settings.role)
        runtime = PodRuntime(settings, context)
        try:
            yield node, runtime, server
        finally:
            await runtime.close()


def priorities(runtime: PodRuntime) -> dict[str, int | None]:
    return {each.pod.name: each.pod.priority for each in runtime.pods.pods}


async def test_pod_made_after_the_last_reading_has_its_priority_at_the_shutdown(tmp_path: Path) -> None:
    async with opened(tmp_path) as (node, runtime, _):
        node.start("web", 7)
        await runtime.pods.refresh()
        node.start("storage", 2_000_000)
        await runtime.pods.refresh_quickly()
        assert priorities(runtime) == {"web": 7, "storage": 2_000_000}


async def test_pods_known_before_require_only_the_lists_of_the_runtime(tmp_path: Path) -> None:
    async with opened(tmp_path) as (node, runtime, _):
        node.start("web", 7)
        await runtime.pods.refresh()
        node.start("web", 9)
        await runtime.pods.refresh_quickly()
        assert priorities(runtime) == {"web": 7}


async def test_stop_signal_of_an_image_is_read_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as (node, runtime, server):
        node.sim.add_image("registry.test/nginx:v1", layers=[Layer("nginx", 1 << 20)], stop_signal="SIGQUIT")
        ids = [
            node.sim.add_container(node.sim.add_pod(f"nginx-{index}"), "app", "registry.test/nginx:v1").id
            for index in range(2)
        ]
        node.start("web", 7)
        server.faults.fail("ImageStatus")
        await runtime.pods.refresh()
        assert runtime.pods.processes.stop_signals == {}, "the stop signal is TERM while the image is unreadable"
        await runtime.pods.refresh()
        await runtime.pods.refresh()
        assert runtime.pods.processes.stop_signals == dict.fromkeys(ids, 3)
        assert server.faults.count("ImageStatus") == 3


async def test_sources_that_hang_do_not_delay_a_new_pod_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_cache, "_NEW_PODS_WITHIN_S", 0.05)
    async with opened(tmp_path) as (node, runtime, server):
        node.start("web", 7)
        await runtime.pods.refresh()
        node.start("storage", 2_000_000)
        server.faults.delay("ContainerStatus", times=None)
        async with asyncio.timeout(5):
            await runtime.pods.refresh_quickly()
        assert set(priorities(runtime)) == {"web", "storage"}
