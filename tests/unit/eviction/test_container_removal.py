"""Removal of an evicted pod's containers, and confirmation that they are removed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import RuntimeRequestError, RuntimeUnavailableError, RuntimeUnsupportedError
from nodeagent.eviction.container_removal import CriContainerCleaner
from nodeagent.eviction.plan.effects import Victim
from nodeagent.host.pod_logs import RemovalRefusedError
from nodeagent.model.node import LogOpeners, LogTree
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from tests.unit.builders import NOW, container, sandbox

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime
    from pathlib import Path

    from nodeagent.eviction.container_removal import CleanupResult
    from nodeagent.model.runtime import Container, Sandbox

RUNNING, EXITED, CREATED, UNKNOWN = (
    ContainerState.RUNNING,
    ContainerState.EXITED,
    ContainerState.CREATED,
    ContainerState.UNKNOWN,
)
VICTIM = Victim("uid-web", "shop", "web", ("sb-web",), verified=True)


@dataclass
class Runtime:
    """A fake runtime with the evicted pod (one exited container, one container of an older sandbox) and another pod."""

    containers: list[Container] = field(
        default_factory=lambda: [
            container("exited"),
            container("bystander", pod="other", state=RUNNING),
            container("older", sandbox_id="sb-web-older"),
        ]
    )
    sandboxes: list[Sandbox] = field(default_factory=lambda: [sandbox(ready=True), sandbox("other", ready=True)])
    calls: list[str] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    changed: dict[str, ContainerState] = field(default_factory=dict)
    files: dict[str, tuple[Path, ...]] = field(default_factory=dict)

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        return tuple(self.sandboxes)

    async def list_containers(self) -> tuple[Container, ...]:
        return tuple(self.containers)

    async def get_container(self, container_id: str) -> Container | None:
        found = next((each for each in self.containers if each.id == container_id), None)
        return None if found is None else replace(found, state=self.changed.get(container_id, found.state))

    async def stop_sandbox(self, sandbox_id: str) -> None:
        self.call("stop", sandbox_id)
        self.sandboxes = [replace(each, ready=each.ready and each.id != sandbox_id) for each in self.sandboxes]

    async def remove_container(self, container_id: str) -> None:
        self.call("remove", container_id)
        self.containers = [each for each in self.containers if each.id != container_id]

    async def remove_sandbox(self, sandbox_id: str) -> None:
        self.call("remove", sandbox_id)
        self.sandboxes = [each for each in self.sandboxes if each.id != sandbox_id]
        for path in self.files.pop(sandbox_id, ()):
            path.unlink()

    async def collect_garbage(self) -> None:
        self.call("collect", "garbage")

    def call(self, action: str, target: str) -> None:
        self.calls.append(f"{action} {target}")
        if target in self.errors:
            raise self.errors[target]


def request_error(method: str) -> RuntimeRequestError:
    return RuntimeRequestError(method, "target", "INTERNAL", "failed")


def make_cleaner(runtime: Runtime) -> CriContainerCleaner:
    return CriContainerCleaner(runtime, runtime.collect_garbage)


@pytest.mark.difference("pod-status")
async def test_only_containers_of_the_victims_sandboxes_are_removed() -> None:
    runtime = Runtime()
    done = await make_cleaner(runtime).clean_up(VICTIM)
    assert (done.confirmed, done.removed, done.detail) == (True, 1, "")
    assert sorted(runtime.calls) == ["collect garbage", "remove exited", "stop sb-web"]
    assert [each.id for each in runtime.containers] == ["bystander", "older"]


async def test_layer_still_on_the_disk_is_not_confirmed(tmp_path: Path) -> None:
    layer, removed = tmp_path / "fs", tmp_path / "removed"
    layer.mkdir()
    victim = replace(VICTIM, layers=(str(removed), str(layer)))
    runtime = Runtime()
    done = await make_cleaner(runtime).clean_up(victim)
    assert not done.confirmed
    assert done.detail == f"1 writable layer(s) still on the disk: {layer}"
    layer.rmdir()
    again = await make_cleaner(runtime).clean_up(victim)
    assert (again.confirmed, again.removed) == (True, 0)


@pytest.mark.parametrize(("kib", "removed"), [(4, False), (2048, True)], ids=["few bytes", "filled"])
async def test_sandbox_with_a_filled_file_is_removed_and_another_one_is_kept(
    tmp_path: Path, kib: int, removed: bool
) -> None:
    path = tmp_path / "sb-web" / "hostname"
    path.parent.mkdir()
    path.write_bytes(b"x" * (kib << 10))
    foreign = tmp_path / "other" / "hostname"
    foreign.parent.mkdir()
    foreign.write_bytes(b"x")
    runtime = Runtime(files={"sb-web": (path,)})
    victim = replace(VICTIM, sandbox_files=(str(path), str(foreign), str(tmp_path / "sb-web/missing"), "/nul\0"))
    done = await make_cleaner(runtime).clean_up(victim)
    assert (done.confirmed, done.detail) == (True, "")
    assert ("remove sb-web" in runtime.calls) is removed
    assert path.exists() is not removed
    assert "sb-other" in {each.id for each in runtime.sandboxes}


async def test_filled_file_of_a_sandbox_that_cannot_be_removed_is_not_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "sb-web" / "hostname"
    path.parent.mkdir()
    path.write_bytes(b"x" * (2 << 20))
    runtime = Runtime(files={"sb-web": (path,)})
    runtime.errors["sb-web"] = request_error("StopPodSandbox")
    victim = replace(VICTIM, sandbox_files=(str(path),))
    assert not (await make_cleaner(runtime).clean_up(victim)).confirmed
    assert "remove sb-web" not in runtime.calls  # containerd removes only stopped sandboxes
    del runtime.errors["sb-web"]
    assert (await make_cleaner(runtime).clean_up(victim)).confirmed


@pytest.mark.parametrize("layers", [(), ("/nonexistent/fs",)], ids=["layers-unknown", "layers-removed"])
@pytest.mark.parametrize("collection", ["fails", "not-available"])
async def test_removal_without_a_garbage_collection_is_confirmed_by_known_layers_only(
    layers: tuple[str, ...], collection: str
) -> None:
    runtime = Runtime()
    runtime.errors["garbage"] = request_error("leases.Delete")
    cleaner = CriContainerCleaner(runtime, runtime.collect_garbage if collection == "fails" else None)
    done = await cleaner.clean_up(replace(VICTIM, layers=layers))
    assert done.confirmed is bool(layers)
    assert ("garbage" in done.detail) is not bool(layers)


async def test_removal_is_confirmed_by_a_runtime_without_leases() -> None:
    runtime = Runtime()
    runtime.errors["garbage"] = RuntimeUnsupportedError("leases.Create", "", "UNIMPLEMENTED", "")
    assert (await make_cleaner(runtime).clean_up(VICTIM)).confirmed


async def test_failed_removal_is_reported_and_other_containers_are_removed() -> None:
    runtime = Runtime()
    runtime.containers.insert(0, container("stuck"))
    runtime.errors["stuck"] = request_error("RemoveContainer")
    done = await make_cleaner(runtime).clean_up(VICTIM)
    assert (done.confirmed, done.removed) == (False, 1)
    assert "RemoveContainer" in done.detail
    assert "not removed: app (stuck, exited)" in done.detail
    del runtime.errors["stuck"]
    assert (await make_cleaner(runtime).clean_up(VICTIM)).confirmed


@pytest.mark.parametrize("state", [RUNNING, UNKNOWN])
async def test_new_active_container_is_kept_with_its_sandbox(state: ContainerState) -> None:
    runtime = Runtime()
    runtime.containers.append(container("again", state=state))
    done = await make_cleaner(runtime).clean_up(VICTIM)
    assert not done.confirmed
    assert runtime.calls == ["remove exited", "collect garbage"]
    assert "again" in done.detail


@pytest.mark.parametrize("state", [RUNNING, UNKNOWN])
async def test_container_that_became_active_before_its_removal_is_kept(state: ContainerState) -> None:
    runtime = Runtime()
    runtime.changed["exited"] = state
    done = await make_cleaner(runtime).clean_up(VICTIM)
    assert not done.confirmed
    assert "remove exited" not in runtime.calls


async def test_created_container_is_removed_once_its_sandbox_is_stopped() -> None:
    runtime = Runtime()
    runtime.containers.append(container("new", state=CREATED))
    runtime.errors["sb-web"] = request_error("StopPodSandbox")
    first = await make_cleaner(runtime).clean_up(VICTIM)
    assert (first.confirmed, first.removed) == (False, 1)
    assert "StopPodSandbox" in first.detail
    del runtime.errors["sb-web"]
    second = await make_cleaner(runtime).clean_up(VICTIM)
    assert (second.confirmed, second.removed) == (True, 1)


async def test_hanging_sandbox_stop_does_not_delay_the_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.eviction.container_removal.STOP_WAIT_S", 0.01)
    runtime, never = Runtime(), asyncio.Event()

    async def hang(sandbox_id: str) -> None:
        runtime.calls.append(f"stop {sandbox_id}")
        await never.wait()

    runtime.stop_sandbox = hang  # type: ignore[method-assign]
    cleaner = make_cleaner(runtime)
    first, second = await cleaner.clean_up(VICTIM), await cleaner.clean_up(VICTIM)
    assert (first.confirmed, first.removed, second.confirmed) == (True, 1, True)
    assert "no answer to StopPodSandbox" in first.detail
    assert runtime.calls.count("stop sb-web") == 1
    never.set()
    await asyncio.sleep(0)


async def test_running_container_of_an_unverified_victim_is_kept() -> None:
    runtime = Runtime()
    runtime.containers[0] = replace(runtime.containers[0], state=RUNNING)
    done = await make_cleaner(runtime).clean_up(replace(VICTIM, verified=False))
    assert (done.confirmed, done.running, runtime.calls) == (False, True, [])
    runtime.containers[0] = container("exited")
    assert (await make_cleaner(runtime).clean_up(replace(VICTIM, verified=False))).confirmed


async def test_loss_of_the_runtime_raises_an_error() -> None:
    runtime = Runtime()

    async def disconnect() -> tuple[Container, ...]:
        raise RuntimeUnavailableError("no connection")

    runtime.list_containers = disconnect  # type: ignore[method-assign]
    with pytest.raises(RuntimeUnavailableError):
        await make_cleaner(runtime).clean_up(VICTIM)


async def test_layer_whose_removal_failed_before_is_removed_as_an_orphan(tmp_path: Path) -> None:
    layer = tmp_path / "fs"
    layer.mkdir()
    orphans = []

    async def remove_orphans(layers: Collection[str]) -> None:
        orphans.append(tuple(layers))
        layer.rmdir()

    async def collect() -> None:
        """Collect nothing, since the snapshot is already removed."""

    cleaner = CriContainerCleaner(Runtime(), collect, remove_orphans)
    done = await cleaner.clean_up(replace(VICTIM, layers=(str(layer),)))
    assert (done.confirmed, done.detail, orphans) == (True, "", [(str(layer),)])


async def test_layer_is_reported_after_a_failed_removal_of_orphans(tmp_path: Path) -> None:
    async def remove_orphans(_: Collection[str]) -> None:
        raise RuntimeUnsupportedError("Cleanup", "", "UNIMPLEMENTED", "")

    cleaner = CriContainerCleaner(Runtime(), None, remove_orphans)
    done = await cleaner.clean_up(replace(VICTIM, layers=(str(tmp_path),)))
    assert not done.confirmed
    assert str(tmp_path) in done.detail


# ---- logs


@dataclass
class Logs:
    """A fake log directory of the victim, removed after its containers."""

    runtime: Runtime
    tree: LogTree | None = field(default_factory=lambda: LogTree(NOW, "digest"))
    error: Exception | None = None

    def read_pod_directory(self, name: str) -> LogTree | None:
        assert name == WITH_LOGS.log_directory
        assert "exited" not in {each.id for each in self.runtime.containers}
        return self.tree

    def remove_pod_directory(self, name: str, uid: str, changed_at: datetime) -> int:
        assert (name, uid, changed_at) == (WITH_LOGS.log_directory, "uid-web", NOW)
        if self.error is not None:
            raise self.error
        self.tree = None
        return 4096


WITH_LOGS = replace(VICTIM, log_directory="shop_web_uid-web")


async def remove_with_logs(logs: Logs, victim: Victim = WITH_LOGS) -> CleanupResult:
    return await CriContainerCleaner(logs.runtime, logs.runtime.collect_garbage, logs=logs).clean_up(victim)


@pytest.mark.difference("evicted-logs")
async def test_logs_are_removed_with_the_containers_before_the_removal_is_confirmed() -> None:
    logs = Logs(Runtime(sandboxes=[sandbox(ready=True, created_s=1)]))
    done = await remove_with_logs(logs)
    assert (done.confirmed, done.detail, logs.tree) == (True, "", None)


@pytest.mark.difference("evicted-logs")
async def test_logs_are_kept_if_the_eviction_was_not_for_their_filesystem() -> None:
    logs = Logs(Runtime())
    assert (await remove_with_logs(logs, VICTIM)).confirmed
    assert logs.tree is not None


async def test_logs_without_a_directory_are_confirmed() -> None:
    assert (await remove_with_logs(Logs(Runtime(), None))).confirmed
    removed_meanwhile = Logs(Runtime(), error=FileNotFoundError())
    assert (await remove_with_logs(removed_meanwhile)).confirmed


@pytest.mark.parametrize(
    ("changes", "error", "sandboxes", "detail"),
    [
        ({"openers": LogOpeners.WRITERS, "openers_detail": "/x/0.log"}, None, (), "open for writing: /x/0.log"),
        ({"problem": "more than 100000 entries"}, None, (), "more than 100000 entries"),
        ({}, RemovalRefusedError("changed after it was read"), (), "changed after it was read"),
        ({}, None, (sandbox(sandbox_id="sb-new", ready=True),), "the pod has another sandbox"),
    ],
    ids=["writer", "incomplete", "refused", "created again"],
)
async def test_logs_that_cannot_be_removed_are_not_confirmed_and_removed_later(
    changes: dict[str, Any], error: Exception | None, sandboxes: tuple[Sandbox, ...], detail: str
) -> None:
    logs = Logs(Runtime(), LogTree(NOW, "digest", **changes), error)
    logs.runtime.sandboxes += sandboxes
    done = await remove_with_logs(logs)
    assert (done.confirmed, done.detail) == (False, f"logs kept: {detail}")
    assert logs.tree is not None
    logs.tree, logs.error = LogTree(NOW, "digest"), None
    logs.runtime.sandboxes = [each for each in logs.runtime.sandboxes if each.id != "sb-new"]
    assert (await remove_with_logs(logs)).confirmed


async def test_logs_with_a_reader_are_removed_and_confirmed_by_the_next_attempt() -> None:
    logs = Logs(Runtime(), LogTree(NOW, "digest", openers=LogOpeners.READERS, openers_detail="/x/0.log"))
    done = await remove_with_logs(logs)
    assert (done.confirmed, done.detail, logs.tree) == (False, "logs removed, but open: /x/0.log", None)
    assert (await remove_with_logs(logs)).confirmed


async def test_logs_of_a_container_that_remains_are_kept() -> None:
    logs = Logs(Runtime())
    logs.runtime.errors["exited"] = request_error("RemoveContainer")
    assert not (await remove_with_logs(logs)).confirmed
    assert logs.tree is not None
