"""Removal of an evicted pod's containers, and its confirmation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from nodeagent.act.eviction.container_removal import CriClearer
from nodeagent.errors import RuntimeRequestError, RuntimeUnavailableError, RuntimeUnsupportedError
from nodeagent.model import ContainerState
from nodeagent.plan.eviction.effects import Victim
from tests.unit.builders import container, sandbox

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from nodeagent.model import Container, Sandbox

RUNNING, EXITED, CREATED, UNKNOWN = (
    ContainerState.RUNNING,
    ContainerState.EXITED,
    ContainerState.CREATED,
    ContainerState.UNKNOWN,
)
VICTIM = Victim("uid-web", "shop", "web", ("sb-web",), verified=True)


@dataclass
class Runtime:
    """Has a victim with one ended container, a pod beside it, and an older sandbox of the victim's."""

    containers: list[Container] = field(
        default_factory=lambda: [
            container("ended"),
            container("beside", pod="other", state=RUNNING),
            container("older", sandbox_id="sb-web-older"),
        ]
    )
    sandboxes: list[Sandbox] = field(default_factory=lambda: [sandbox(ready=True), sandbox("other", ready=True)])
    calls: list[str] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    became: dict[str, ContainerState] = field(default_factory=dict)

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        return tuple(self.sandboxes)

    async def list_containers(self) -> tuple[Container, ...]:
        return tuple(self.containers)

    async def get_container(self, container_id: str) -> Container | None:
        found = next((each for each in self.containers if each.id == container_id), None)
        return None if found is None else replace(found, state=self.became.get(container_id, found.state))

    async def stop_sandbox(self, sandbox_id: str) -> None:
        self.call("stop", sandbox_id)
        self.sandboxes = [replace(each, ready=each.ready and each.id != sandbox_id) for each in self.sandboxes]

    async def remove_container(self, container_id: str) -> None:
        self.call("remove", container_id)
        self.containers = [each for each in self.containers if each.id != container_id]

    async def collect_garbage(self) -> None:
        self.call("collect", "garbage")

    def call(self, what: str, target: str) -> None:
        self.calls.append(f"{what} {target}")
        if target in self.errors:
            raise self.errors[target]


def refused(method: str) -> RuntimeRequestError:
    return RuntimeRequestError(method, "it", "INTERNAL", "no")


def clearer(runtime: Runtime) -> CriClearer:
    return CriClearer(runtime, runtime.collect_garbage)


async def test_only_containers_of_the_victims_sandboxes_are_removed_and_it_is_confirmed() -> None:
    runtime = Runtime()
    done = await clearer(runtime).clear(VICTIM)
    assert (done.confirmed, done.removed, done.detail) == (True, 1, "")
    assert sorted(runtime.calls) == ["collect garbage", "remove ended", "stop sb-web"]
    assert [each.id for each in runtime.containers] == ["beside", "older"]


async def test_layer_still_on_the_disk_is_not_confirmed(tmp_path: Path) -> None:
    layer, gone = tmp_path / "fs", tmp_path / "gone"
    layer.mkdir()
    victim = replace(VICTIM, layers=(str(gone), str(layer)))
    runtime = Runtime()
    done = await clearer(runtime).clear(victim)
    assert not done.confirmed
    assert done.detail == f"1 writable layer(s) still on the disk: {layer}"
    layer.rmdir()
    again = await clearer(runtime).clear(victim)
    assert (again.confirmed, again.removed) == (True, 0)


@pytest.mark.parametrize("layers", [(), ("/nonexistent/fs",)], ids=["layers-unknown", "layers-removed"])
@pytest.mark.parametrize("how", ["fails", "not-offered"])
async def test_without_a_garbage_collection_only_known_layers_confirm(layers: tuple[str, ...], how: str) -> None:
    runtime = Runtime()
    runtime.errors["garbage"] = refused("leases.Delete")
    made = CriClearer(runtime, runtime.collect_garbage if how == "fails" else None)
    done = await made.clear(replace(VICTIM, layers=layers))
    assert done.confirmed is bool(layers)
    assert ("garbage" in done.detail) is not bool(layers)


async def test_runtime_without_such_a_call_removed_the_layer_before_it_answered() -> None:
    runtime = Runtime()
    runtime.errors["garbage"] = RuntimeUnsupportedError("leases.Create", "", "UNIMPLEMENTED", "")
    assert (await clearer(runtime).clear(VICTIM)).confirmed


async def test_removal_that_fails_is_reported_and_the_others_go_on() -> None:
    runtime = Runtime()
    runtime.containers.insert(0, container("stuck"))
    runtime.errors["stuck"] = refused("RemoveContainer")
    done = await clearer(runtime).clear(VICTIM)
    assert (done.confirmed, done.removed) == (False, 1)
    assert "RemoveContainer" in done.detail
    assert "not removed: app (stuck, exited)" in done.detail
    del runtime.errors["stuck"]
    assert (await clearer(runtime).clear(VICTIM)).confirmed


@pytest.mark.parametrize("state", [RUNNING, UNKNOWN])
async def test_container_that_appeared_meanwhile_is_kept_with_its_sandbox(state: ContainerState) -> None:
    runtime = Runtime()
    runtime.containers.append(container("again", state=state))
    done = await clearer(runtime).clear(VICTIM)
    assert not done.confirmed
    assert runtime.calls == ["remove ended", "collect garbage"]
    assert "again" in done.detail


@pytest.mark.parametrize("state", [RUNNING, UNKNOWN])
async def test_container_that_runs_by_the_time_of_its_removal_is_kept(state: ContainerState) -> None:
    runtime = Runtime()
    runtime.became["ended"] = state
    done = await clearer(runtime).clear(VICTIM)
    assert not done.confirmed
    assert "remove ended" not in runtime.calls


async def test_created_container_is_removed_once_its_sandbox_is_stopped() -> None:
    runtime = Runtime()
    runtime.containers.append(container("new", state=CREATED))
    runtime.errors["sb-web"] = refused("StopPodSandbox")
    first = await clearer(runtime).clear(VICTIM)
    assert (first.confirmed, first.removed) == (False, 1)
    assert "StopPodSandbox" in first.detail
    del runtime.errors["sb-web"]
    second = await clearer(runtime).clear(VICTIM)
    assert (second.confirmed, second.removed) == (True, 1)


async def test_sandbox_that_does_not_stop_keeps_no_space_occupied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.act.eviction.container_removal.STOP_WAIT_S", 0.01)
    runtime, never = Runtime(), asyncio.Event()

    async def hang(sandbox_id: str) -> None:
        runtime.calls.append(f"stop {sandbox_id}")
        await never.wait()

    runtime.stop_sandbox = hang  # type: ignore[method-assign]
    made = clearer(runtime)
    first, second = await made.clear(VICTIM), await made.clear(VICTIM)
    assert (first.confirmed, first.removed, second.confirmed) == (True, 1, True)
    assert "StopPodSandbox was not answered" in first.detail
    assert runtime.calls.count("stop sb-web") == 1
    never.set()
    await asyncio.sleep(0)


async def test_victim_whose_stop_was_not_verified_is_not_touched_while_it_runs() -> None:
    runtime = Runtime()
    runtime.containers[0] = replace(runtime.containers[0], state=RUNNING)
    done = await clearer(runtime).clear(replace(VICTIM, verified=False))
    assert (done.confirmed, done.running, runtime.calls) == (False, True, [])
    runtime.containers[0] = container("ended")
    assert (await clearer(runtime).clear(replace(VICTIM, verified=False))).confirmed


async def test_lost_runtime_is_raised() -> None:
    runtime = Runtime()

    async def lost() -> tuple[Container, ...]:
        raise RuntimeUnavailableError("gone")

    runtime.list_containers = lost  # type: ignore[method-assign]
    with pytest.raises(RuntimeUnavailableError):
        await clearer(runtime).clear(VICTIM)


async def test_layer_whose_removal_failed_before_is_removed_as_an_orphan(tmp_path: Path) -> None:
    layer = tmp_path / "fs"
    layer.mkdir()
    asked = []

    async def remove_orphans(layers: Collection[str]) -> None:
        asked.append(tuple(layers))
        layer.rmdir()

    async def collect() -> None:
        """Collect nothing: the snapshot itself was removed before."""

    made = CriClearer(Runtime(), collect, remove_orphans)
    done = await made.clear(replace(VICTIM, layers=(str(layer),)))
    assert (done.confirmed, done.detail, asked) == (True, "", [(str(layer),)])


async def test_layer_that_stays_after_the_removal_of_orphans_failed_is_reported(tmp_path: Path) -> None:
    async def remove_orphans(_: Collection[str]) -> None:
        raise RuntimeUnsupportedError("Cleanup", "", "UNIMPLEMENTED", "")

    made = CriClearer(Runtime(), None, remove_orphans)
    done = await made.clear(replace(VICTIM, layers=(str(tmp_path),)))
    assert not done.confirmed
    assert str(tmp_path) in done.detail
