"""Tests of the revision of containerd's database: it changes with each record; otherwise no list call is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.reading import load_settings
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.policy import Scope
from nodeagent.host.database_revision import read_database_revision
from tests.support import images

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nodeagent.host.database_revision import DatabaseRevision
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import StorageGraph
    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

APP = "registry.example/app:1"
LISTS = {"content.List", "snapshots.List", "images.List", "leases.List", "namespaces.List"}


def revision(containerd: Containerd) -> DatabaseRevision:
    path = containerd.root / "io.containerd.metadata.v1.bolt/meta.db"
    found = read_database_revision(str(containerd.socket), str(path))
    assert found is not None
    return found


def create_container(containerd: Containerd) -> None:
    with containerd.pods() as pods:
        sandbox = pods.run_sandbox("pod", log_directory=containerd.log_root / "pod")
        pods.create_container(sandbox, "app", APP, ["sleep", "100"])


CHANGES: dict[str, Callable[[Containerd], object]] = {
    "tag": lambda each: each.ctr("images", "tag", APP, "registry.example/app:2"),
    "label": lambda each: each.ctr("images", "label", APP, "a=b"),
    "lease": lambda each: each.ctr("leases", "create", "--id", "of-the-test"),
    "end of the lease": lambda each: each.ctr("leases", "delete", "of-the-test"),
    "snapshot": lambda each: each.ctr("snapshots", "prepare", "of-the-test"),
    "removed snapshot": lambda each: each.ctr("snapshots", "rm", "of-the-test"),
    "container": create_container,
    "namespace": lambda each: each.ctr("namespaces", "create", "of-the-test"),
    "content": lambda each: each.ctr("images", "import", "--no-unpack", str(each.base / "app.tar"), namespace="other"),
    "removed name": lambda each: each.ctr("images", "rm", "registry.example/app:2"),
    "restart": lambda each: each.restart(),
}


@pytest.fixture
def containerd(containerd_factory: ContainerdFactory) -> Containerd:
    made = containerd_factory()
    made.import_images(images.write_oci(made.base / "app.tar", images.image(APP)))
    return made


def test_every_change_of_the_records_is_another_revision(containerd: Containerd) -> None:
    for name, change in CHANGES.items():
        before = revision(containerd)
        change(containerd)
        assert revision(containerd) != before, name


async def test_unchanged_records_are_not_listed_again_and_each_change_is_seen(
    containerd: Containerd, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
        f'[state]\ndirectory = "{tmp_path}/state"\n'
    )
    settings = load_settings(config, {})
    calls: set[str] = set()

    def count(name: str, _seconds: float, _status: str) -> None:
        calls.add(name)

    async with open_agent(settings, record=True, dry_run=True, observer_of_calls=count) as agent:

        async def observe() -> NodeSnapshot:
            calls.clear()
            return (await agent.preview(Scope.IMAGES)).snapshot

        async def observe_unchanged() -> StorageGraph | None:
            """Observe until no record is listed again, since a garbage collection can still change the database."""
            for _ in range(100):
                snapshot = await observe()
                if not LISTS & calls:
                    return snapshot.storage
            raise AssertionError(f"unchanged records are listed again: {sorted(calls)}")

        for name, change in CHANGES.items():
            await observe_unchanged()
            change(containerd)
            await observe()
            assert calls >= LISTS, name
            unchanged = await observe_unchanged()
            assert unchanged is not None
            async with open_agent(settings, record=False, dry_run=True) as another:
                assert (await another.preview(Scope.IMAGES)).snapshot.storage == unchanged, name
