"""Tests of pinning the sandbox image on a real containerd: the label has an effect only if CRI reports the pin."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.cli.doctor import fix_pin
from nodeagent.record import replace
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.containerd import ContainerdClient, is_pinned
from nodeagent.runtime.cri import CriClient
from nodeagent.settings.loading import load

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.integration.conftest import ContainerdFactory


async def test_label_of_a_pin_is_set_without_other_changes(
    containerd_factory: ContainerdFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    containerd = containerd_factory()
    overrides = {"runtime.endpoint": f"unix://{containerd.socket}"}
    settings = replace(load(None, overrides, {}).config.settings(), state_directory=tmp_path)
    async with RuntimeConnection(str(containerd.socket)) as connection:
        client, name = ContainerdClient(connection), containerd.sandbox_image
        before = await client.get_image(name)
        await asyncio.to_thread(fix_pin, settings)
        after = await client.get_image(name)
        reported = {
            each for image in await CriClient(connection).list_images() if image.pinned for each in image.references
        }
    printed = capsys.readouterr().err
    assert before is not None
    assert after is not None
    if "not changed: not reported" in printed:  # containerd 2 pins the sandbox image without the agent
        assert name in reported
        return
    assert is_pinned(after)
    assert {**before.labels, **after.labels} == dict(after.labels)
    assert after.target == before.target
    assert (name in reported) == ("has the pinned label" not in printed)
