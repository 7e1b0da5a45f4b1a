"""Preview of a reload, with a simulated runtime and the signals of this machine."""

from __future__ import annotations

import asyncio
import io
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.reload_preview import WITHIN_S, log_reload_effect, preview_effect
from nodeagent.gc.agent import open_agent
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.model.node import Role
from nodeagent.model.runtime import ContainerState
from nodeagent.pods.plan.role import ABSENT_S
from nodeagent.pods.role import RoleWatch
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from nodeagent.telemetry import logging as log
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.unit.kubelet_double import KUBELET, NO_KUBELET, KubeletDouble

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.settings.settings import Settings

IMAGE = "registry.example/app:v1"
ALWAYS_MET = "nodefs.available<99.9999%"
QUIET: dict[str, str | int] = {"eviction.enabled": "off"}
KEEPS_ALL: dict[str, str | int] = {"container_gc.max_per_pod_container": 9}
KEEPS_NONE: dict[str, str | int] = {"container_gc.max_per_pod_container": 0}


def evicting(hard: str, soft: str = "", grace: str = "") -> dict[str, str | int]:
    return {
        "eviction.enabled": "on",
        "eviction.hard": hard,
        "eviction.soft": soft,
        "eviction.soft_grace_period": grace,
    }


def made(tmp_path: Path, change: dict[str, str | int]) -> Settings:
    path = tmp_path / "config.toml"
    path.write_text(
        f'role = "standalone"\n[container_gc]\nminimum_age = "0s"\npod_log_root = "{tmp_path}/pods"\n'
        f'container_log_root = "{tmp_path}/containers"\n'
    )
    values = {"runtime.endpoint": f"unix://{tmp_path}/cri.sock", "state.directory": str(tmp_path / "state")}
    return checked(Origin(path, tuple({**values, **change}.items())))


async def effect(
    tmp_path: Path,
    earlier: dict[str, str | int],
    later: dict[str, str | int],
    *,
    slow: bool = False,
    lost: bool = False,
    stop: asyncio.Event | None = None,
) -> list[dict[str, Any]]:
    """Return the log events of a reload preview from ``earlier`` to ``later`` settings.

    Args:
        tmp_path: directory of configuration, state and socket.
        earlier: settings before the reload.
        later: settings after the reload.
        slow: whether the container list hangs, with a short timeout of the preview.
        lost: whether the runtime is unavailable after its first report of the image filesystem.
        stop: event that stops the preview.
    """
    sim = SimNode()
    sim.root_path = str(tmp_path)
    sim.add_image(IMAGE, layers=[Layer("base", 1 << 20)])
    sandbox = sim.add_pod("web")
    for number in range(2):
        sim.add_container(sandbox, "app", IMAGE, state=ContainerState.EXITED, age_s=3600 + number)
    stream = io.StringIO()
    logger = log.configure("json", "info", stream)
    settings = made(tmp_path, later)
    async with (
        SimServer(sim, tmp_path / "cri.sock") as server,
        open_agent(settings, record=False, dry_run=settings.dry_run) as agent,
    ):
        if slow:
            server.faults.delay("ListContainers")
        if lost:
            refuse = partial(server.faults.fail, "ImageFsInfo", status="UNAVAILABLE", times=None)
            server.faults.after("ImageFsInfo", refuse)
        before, within_s = made(tmp_path, earlier), 0.05 if slow else WITHIN_S
        preview = log_reload_effect(agent, before, logger, stop or asyncio.Event(), within_s=within_s)
        await asyncio.wait_for(preview, 5)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("earlier", "later", "items"),
    [
        (KEEPS_ALL, KEEPS_ALL, None),
        (KEEPS_ALL, KEEPS_NONE, 2),
        (KEEPS_NONE, KEEPS_ALL, None),
        (KEEPS_NONE, KEEPS_NONE, None),
        ({**KEEPS_NONE, "dry_run": True}, KEEPS_NONE, 2),
        (KEEPS_NONE, {**KEEPS_NONE, "dry_run": True}, None),
        ({**KEEPS_ALL, "dry_run": True}, KEEPS_ALL, None),
        ({**KEEPS_NONE, "container_gc.enabled": False}, KEEPS_NONE, 2),
        ({**KEEPS_NONE, "dry_run": True}, {**KEEPS_NONE, "container_gc.enabled": False}, None),
    ],
)
async def test_additional_removals_of_the_later_settings_are_logged(
    tmp_path: Path, earlier: dict[str, str | int], later: dict[str, str | int], items: int | None
) -> None:
    found = await effect(tmp_path, QUIET | earlier, QUIET | later)
    assert [(each["event"], each["items"]) for each in found] == (
        [] if items is None else [("reload_removes_more", items)]
    )


@pytest.mark.parametrize(
    ("earlier", "later", "logged"),
    [
        (QUIET, evicting(ALWAYS_MET), [f"{ALWAYS_MET} (at once)"]),
        (QUIET, evicting("nodefs.available<1Ki"), None),
        (evicting(ALWAYS_MET), evicting(ALWAYS_MET), None),
        (evicting(ALWAYS_MET), QUIET, None),
        ({**evicting(ALWAYS_MET), "dry_run": True}, evicting(ALWAYS_MET), [f"{ALWAYS_MET} (at once)"]),
        (
            evicting("", ALWAYS_MET, "nodefs.available=2m"),
            evicting(ALWAYS_MET, "", ""),
            [f"{ALWAYS_MET} (at once)"],
        ),
        (
            evicting("nodefs.available<1Ki"),
            evicting("nodefs.available<1Ki", ALWAYS_MET, "nodefs.available=2m"),
            [f"{ALWAYS_MET} (after 120 s)"],
        ),
    ],
)
async def test_additional_met_thresholds_of_the_later_settings_are_logged(
    tmp_path: Path, earlier: dict[str, str | int], later: dict[str, str | int], logged: list[str] | None
) -> None:
    found = await effect(tmp_path, KEEPS_ALL | earlier, KEEPS_ALL | later)
    evicts = [each["thresholds"] for each in found if each["event"] == "reload_evicts_more"]
    assert evicts == ([] if logged is None else [logged])


@pytest.mark.parametrize(("absent_s", "met"), [(1.0, False), (ABSENT_S, True)])
async def test_preview_keeps_the_role_of_a_kubelet_that_stopped_recently(
    tmp_path: Path, absent_s: float, met: bool
) -> None:
    kubelet = KubeletDouble(KUBELET)
    clock = kubelet.clock
    settings = replace(made(tmp_path, evicting(ALWAYS_MET)), role=None)
    context = DaemonContext(
        settings, log.configure("json", "info", io.StringIO()), clock, LoopStatuses(clock), PassLock(clock)
    )
    context.roles = RoleWatch(clock, reader=kubelet)
    await context.roles.evaluate(None)
    kubelet.set(NO_KUBELET)
    await context.roles.evaluate(None)
    clock.seconds += absent_s
    async with SimServer(SimNode(), tmp_path / "cri.sock"):
        found = await preview_effect(settings, replace(settings, dry_run=True), context)
    assert [each.threshold.text for each in found.thresholds] == ([ALWAYS_MET] if met else [])


async def test_preview_of_another_role_does_not_change_the_role_in_force(tmp_path: Path) -> None:
    kubelet, stream = KubeletDouble(), io.StringIO()
    clock, logger = kubelet.clock, log.configure("json", "info", stream)
    settings = made(tmp_path, KEEPS_ALL)
    context = DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))
    context.roles = RoleWatch(clock, logger, reader=kubelet)
    before = await context.roles.evaluate(Role.STANDALONE)
    async with SimServer(SimNode(), tmp_path / "cri.sock"):
        await preview_effect(replace(settings, role=Role.BESIDE_KUBELET), settings, context)
    assert context.roles.current == before
    assert stream.getvalue() == ""


async def test_slow_runtime_delays_a_reload_only_until_the_timeout(tmp_path: Path) -> None:
    (event,) = await effect(tmp_path, KEEPS_ALL, KEEPS_NONE, slow=True)
    assert (event["event"], event["error"]) == ("reload_effect_unknown", "cannot read the node: timeout after 0.05 s")


async def test_stop_ends_the_preview_without_an_effect(tmp_path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    assert await effect(tmp_path, KEEPS_ALL, KEEPS_NONE, slow=True, stop=stop) == []


async def test_exception_in_a_preview_gives_an_unknown_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr("nodeagent.daemon.reload_preview.plans_for", bug)
    (event,) = await effect(tmp_path, KEEPS_ALL, KEEPS_NONE)
    assert (event["event"], event["error"]) == ("reload_effect_unknown", "internal error: KeyError('bug')")


async def test_preview_keeps_its_earlier_parts_after_a_loss_of_the_runtime(tmp_path: Path) -> None:
    found = await effect(tmp_path, KEEPS_ALL, KEEPS_NONE | evicting(ALWAYS_MET), lost=True)
    assert [each["event"] for each in found] == ["reload_removes_more", "reload_effect_unknown"]
