"""Tests of imported images without a registry: kept under ``never``, removed after other images under ``last``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support import images
from tests.support.command import nodeagent
from tests.support.containerd import LoopFs

if TYPE_CHECKING:
    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

SIZE_BYTES = 8 << 20
IMPORTED = {f"registry.example.com/imported/app-{number}:v1" for number in range(2)}
ROUNDS = 3


def add(containerd: Containerd, tag: str, *, pulled: bool) -> None:
    layers = [images.blob(tag, SIZE_BYTES)]
    archive = images.write_oci(containerd.base / "image.tar", images.image(tag, layers=layers))
    containerd.import_images(archive, pulled=pulled)


def collect(containerd: Containerd, irreplaceable: str, *, low: int = 10, code: int = 3) -> list[str]:
    """Fill the image filesystem and run image GC; return the removed images in removal order.

    The exit code is 3 if the low threshold cannot be reached.
    """
    config = containerd.base / "nodeagent.toml"
    config.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
        f'[state]\ndirectory = "{containerd.base}/agent-state"\n[image_gc]\nhigh_threshold_percent = 50\n'
        f'low_threshold_percent = {low}\nminimum_age = "0s"\nundo_window = "0s"\nirreplaceable = "{irreplaceable}"\n'
    )
    containerd.fill(20 << 20)
    ended = nodeagent("gc", "images", "--yes", "-o", "json", "--config", str(config))
    assert ended.returncode == code, ended.stderr
    (containerd.root / "ballast").unlink()
    return [each["name"] for each in json.loads(ended.stdout)["results"] if each["outcome"] == "done"]


def test_imported_images_are_removed_last_and_only_if_the_low_threshold_is_reached(
    containerd_factory: ContainerdFactory,
) -> None:
    containerd = containerd_factory(imagefs=LoopFs(160))
    for tag in sorted(IMPORTED):  # imported first, so that these images are the oldest
        add(containerd, tag, pulled=False)
    for number in range(ROUNDS):
        pulled = {f"registry.example.com/pulled/app-{number}-{each}:v1" for each in range(2)}
        for tag in sorted(pulled):
            add(containerd, tag, pulled=True)
        last = number == ROUNDS - 1
        if not last:
            assert set(collect(containerd, ("never", "last")[number])) == pulled
            continue
        removed = collect(containerd, "last", low=40, code=0)
        assert set(removed[:2]) == pulled
        assert set(removed[2:]) == IMPORTED
