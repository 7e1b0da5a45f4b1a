"""Tests of the removal of many images in one transaction, through containerd's own image service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.reading import load_settings
from nodeagent.gc.agent import open_agent
from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.policy import Scope
from nodeagent.runtime.cri import CriClient
from tests.support import many
from tests.support.containerd import LoopFs

if TYPE_CHECKING:
    from nodeagent.gc.executor import PassReport
    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

COUNT = 60


def test_cri_list_agrees_after_a_bulk_removal_and_remaining_images_start(
    containerd_factory: ContainerdFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    containerd = containerd_factory(imagefs=LoopFs(many.MINIMUM_MIB, "ext4"))
    many.fill(containerd, COUNT)
    config = many.configure(containerd)

    async def unexpected(_client: CriClient, image: str) -> None:
        raise AssertionError(image)

    async def collect() -> PassReport:
        async with open_agent(load_settings(config, {}), record=True, dry_run=False) as agent:
            preview = await agent.collector.preview(Scope.IMAGES)
            return await agent.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)

    monkeypatch.setattr(CriClient, "remove_image", unexpected)
    report = asyncio.run(collect())
    assert len(report.removed) >= COUNT
    assert {result.outcome for result in report.results} == {Outcome.DONE}
    assert report.freed_bytes == pytest.approx(report.predicted_bytes, rel=0.02, abs=1 << 20)
    with containerd.pods() as pods:
        remaining = {tag for image in pods.list_images() for tag in image.tags}
        assert remaining == {many.KEPT, containerd.sandbox_image}
        sandbox = pods.run_sandbox("after")
        container = pods.run_container(sandbox, "after", many.KEPT, ["sh", "-c", "cat /lib/base0-0-3 > /dev/null"])
        assert pods.wait_exited(container).exit_code == 0
        pods.remove_made()
