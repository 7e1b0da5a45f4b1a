"""``nodeagent doctor --fix-pin`` on simulated versions of containerd."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli import doctor as pin_fix
from nodeagent.cli.doctor import fix_pin, runtime_findings
from nodeagent.doctor.plan.node import Grade
from nodeagent.errors import NodeAgentError
from nodeagent.record import replace
from nodeagent.settings.loading import load
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.profiles import PROFILES
from tests.sim.server import SimServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.settings.settings import Settings

PAUSE = "registry.test/pause:3.9"
HONOURED, IGNORED = PROFILES["1.7"], PROFILES["1.6"]


@asynccontextmanager
async def served(tmp_path: Path, *, honoured: bool = True, present: bool = True) -> AsyncIterator[Settings]:
    """Serve a node beside a kubelet with an unpinned sandbox image; yield the settings of the agent."""
    sim = SimNode()
    sim.root_path = str(tmp_path)
    sim.sandbox_image = PAUSE
    sim.add_image(PAUSE if present else "registry.test/other:1", layers=[Layer("pause", 1 << 20)])
    overrides = {"runtime.endpoint": f"unix://{tmp_path}/s", "role": "beside-kubelet"}
    made = replace(load(None, overrides, {}).config.settings(), state_directory=tmp_path / "state")
    async with SimServer(sim, tmp_path / "s", profile=HONOURED if honoured else IGNORED):
        yield made


async def verdict(settings: Settings) -> Grade:
    findings = await asyncio.to_thread(lambda: list(runtime_findings(settings)))
    return next(each.verdict for each in findings if each.check == "sandbox-image")


async def test_sandbox_image_is_pinned_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with served(tmp_path) as settings:
        assert await verdict(settings) is Grade.WARNING
        await asyncio.to_thread(fix_pin, settings)
        assert capsys.readouterr().err == f"nodeagent: pinned {PAUSE}\n"
        assert await verdict(settings) is Grade.OK
        await asyncio.to_thread(fix_pin, settings)
        assert capsys.readouterr().err == f"nodeagent: sandbox image not changed: {PAUSE} is pinned\n"


async def test_label_that_the_runtime_ignores_is_no_pin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pin_fix, "_INTERVAL_S", 0.0)
    async with served(tmp_path, honoured=False) as settings:
        await asyncio.to_thread(fix_pin, settings)
        assert f"{PAUSE} has the pinned label, but the runtime does not report it" in capsys.readouterr().err
        assert await verdict(settings) is Grade.WARNING


async def test_missing_sandbox_image_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with served(tmp_path, present=False) as settings:
        await asyncio.to_thread(fix_pin, settings)
    assert capsys.readouterr().err == f"nodeagent: sandbox image not changed: {PAUSE} not found on the node\n"


async def test_pin_without_containerd_is_an_error(tmp_path: Path) -> None:
    async with served(tmp_path) as settings:
        with pytest.raises(NodeAgentError, match="containerd_api is off"):
            await asyncio.to_thread(fix_pin, replace(settings, containerd_api=False))
