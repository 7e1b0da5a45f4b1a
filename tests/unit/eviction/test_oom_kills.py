"""OOM kill events by pod and container."""

from __future__ import annotations

import io
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from nodeagent.eviction.pod_monitor import OomKillMonitor
from nodeagent.model.pods import ContainerHandle, PodHandle, PodInventory
from nodeagent.telemetry import logging as log
from tests.support.kernel_tree import add_cgroup, make_tree
from tests.unit.eviction.plan.cases import at, pod

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    make_tree(tmp_path)
    return tmp_path


def inventory(tree: Path) -> PodInventory:
    directory = f"{tree}/sys/fs/cgroup/web"
    containers = (
        ContainerHandle("id-app", "app", f"{directory}/app"),
        ContainerHandle("id-proxy", "proxy", f"{directory}/proxy"),
    )
    web = pod()
    return PodInventory((web,), (), {web.uid: PodHandle(web.uid, ("s1",), containers, directory)}, at(0))


def write_counts(tree: Path, *, web: int = 0, app: int = 0, proxy: int = 0) -> None:
    for name, kills in (("web", web), ("web/app", app), ("web/proxy", proxy)):
        add_cgroup(tree, name, kills=kills)


async def logged(tree: Path, monitor: OomKillMonitor, stream: io.StringIO) -> list[tuple[str, str, int]]:
    stream.truncate(0)
    stream.seek(0)
    await monitor.check(inventory(tree))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [(each["pod_name"], each["container"], each["processes"]) for each in lines]


async def test_kill_is_logged_once_with_its_container(tree: Path) -> None:
    stream = io.StringIO()
    monitor = OomKillMonitor(log.configure("json", "info", stream))
    write_counts(tree, web=5, app=3)
    assert await logged(tree, monitor, stream) == []
    write_counts(tree, web=7, app=4, proxy=1)
    assert await logged(tree, monitor, stream) == [("web", "app", 1), ("web", "proxy", 1)]
    assert await logged(tree, monitor, stream) == []


async def test_kill_is_logged_for_a_container_with_removed_cgroup(tree: Path) -> None:
    stream = io.StringIO()
    monitor = OomKillMonitor(log.configure("json", "info", stream))
    write_counts(tree)
    await monitor.check(inventory(tree))
    write_counts(tree, web=1)
    shutil.rmtree(tree / "sys/fs/cgroup/web/app")
    assert await logged(tree, monitor, stream) == [("web", "app", 1)]


async def test_kill_counted_by_the_pod_only_is_logged_for_the_pod(tree: Path) -> None:
    stream = io.StringIO()
    monitor = OomKillMonitor(log.configure("json", "info", stream))
    write_counts(tree)
    await monitor.check(inventory(tree))
    write_counts(tree, web=2)
    assert await logged(tree, monitor, stream) == [("web", "", 2)]


async def test_count_of_a_later_pod_starts_at_zero(tree: Path) -> None:
    stream = io.StringIO()
    monitor = OomKillMonitor(log.configure("json", "info", stream))
    await monitor.check(PodInventory((), (), {}, at(0)))
    write_counts(tree, web=1, app=1)
    assert await logged(tree, monitor, stream) == [("web", "app", 1)]


async def test_kill_is_not_logged_again_after_an_unreadable_count(tree: Path) -> None:
    stream = io.StringIO()
    monitor = OomKillMonitor(log.configure("json", "info", stream))
    write_counts(tree, web=3, app=3)
    await monitor.check(inventory(tree))
    for name in ("web", "web/app"):
        (tree / "sys/fs/cgroup" / name / "memory.events").unlink()
    assert await logged(tree, monitor, stream) == []
    write_counts(tree, web=3, app=3)
    assert await logged(tree, monitor, stream) == []
