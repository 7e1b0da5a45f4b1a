"""What the kernel killed, by pod and container."""

from __future__ import annotations

import io
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from nodeagent.daemon.eviction.oom_kills import OomKillMonitor
from nodeagent.model.pods import ContainerHandle, PodHandle, PodInventory
from nodeagent.telemetry import logging as log
from tests.support.kernel_tree import add_cgroup, make_tree
from tests.unit.plan.eviction.cases import at, pod

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    make_tree(tmp_path)
    return tmp_path


def seen(tree: Path) -> PodInventory:
    directory = f"{tree}/sys/fs/cgroup/web"
    containers = (
        ContainerHandle("id-app", "app", f"{directory}/app"),
        ContainerHandle("id-proxy", "proxy", f"{directory}/proxy"),
    )
    web = pod()
    return PodInventory((web,), (), {web.uid: PodHandle(web.uid, ("s1",), containers, directory)}, at(0))


def count(tree: Path, *, web: int = 0, app: int = 0, proxy: int = 0) -> None:
    for name, kills in (("web", web), ("web/app", app), ("web/proxy", proxy)):
        add_cgroup(tree, name, kills=kills)


async def told(tree: Path, watch: OomKillMonitor, stream: io.StringIO) -> list[tuple[str, str, int]]:
    stream.truncate(0)
    stream.seek(0)
    await watch.check(seen(tree))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [(each["pod_name"], each["container"], each["processes"]) for each in lines]


async def test_kills_are_told_once_and_by_container(tree: Path) -> None:
    stream = io.StringIO()
    watch = OomKillMonitor(log.configure("json", "info", stream))
    count(tree, web=5, app=3)
    assert await told(tree, watch, stream) == []
    count(tree, web=7, app=4, proxy=1)
    assert await told(tree, watch, stream) == [("web", "app", 1), ("web", "proxy", 1)]
    assert await told(tree, watch, stream) == []


async def test_a_container_that_went_with_its_cgroup_is_named(tree: Path) -> None:
    stream = io.StringIO()
    watch = OomKillMonitor(log.configure("json", "info", stream))
    count(tree)
    await watch.check(seen(tree))
    count(tree, web=1)
    shutil.rmtree(tree / "sys/fs/cgroup/web/app")
    assert await told(tree, watch, stream) == [("web", "app", 1)]


async def test_a_kill_that_no_container_shows_is_told_of_the_pod(tree: Path) -> None:
    stream = io.StringIO()
    watch = OomKillMonitor(log.configure("json", "info", stream))
    count(tree)
    await watch.check(seen(tree))
    count(tree, web=2)
    assert await told(tree, watch, stream) == [("web", "", 2)]


async def test_a_pod_that_comes_later_began_with_none(tree: Path) -> None:
    stream = io.StringIO()
    watch = OomKillMonitor(log.configure("json", "info", stream))
    await watch.check(PodInventory((), (), {}, at(0)))
    count(tree, web=1, app=1)
    assert await told(tree, watch, stream) == [("web", "app", 1)]


async def test_a_count_that_cannot_be_read_for_once_is_not_told_again(tree: Path) -> None:
    stream = io.StringIO()
    watch = OomKillMonitor(log.configure("json", "info", stream))
    count(tree, web=3, app=3)
    await watch.check(seen(tree))
    for name in ("web", "web/app"):
        (tree / "sys/fs/cgroup" / name / "memory.events").unlink()
    assert await told(tree, watch, stream) == []
    count(tree, web=3, app=3)
    assert await told(tree, watch, stream) == []
