"""Real containerd with many small images on a few shared base images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support import images
from tests.support.images import File, Image, Layer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.containerd import Containerd

REGISTRY = "registry.example.com"
KEPT = f"{REGISTRY}/kept/app:1"
MINIMUM_MIB = 1500


def fill(containerd: Containerd, going: int, staying: int = 0, *, shared: int = 4, own: int = 5) -> None:
    """Import ``going`` removable and ``staying`` protected images, and ``KEPT``.

    ``KEPT`` has no own layer: it shares all its layers with an eighth of the images.

    Each image has a busybox layer, ``shared`` layers common to an eighth of the images, and ``own`` layers.
    """
    bases = [
        (images.busybox_layer(), *(_layer(f"base{number}-{step}", 8, 9_000) for step in range(shared)))
        for number in range(8)
    ]
    made = [
        Image(
            (f"{REGISTRY}/{'going' if number < going else 'staying'}/app{number}:v1",),
            (*bases[number % 8], *(_layer(f"app{number}-{step}", 3, 9_000) for step in range(own))),
        )
        for number in range(going + staying)
    ]
    kept = Image((KEPT,), bases[0])
    containerd.import_images(images.write_oci(containerd.base / "many.tar", kept, *made))


def configure(containerd: Containerd) -> Path:
    """Write an agent configuration that removes all unused images except protected ones; return its path."""
    path = containerd.base / "nodeagent.toml"
    path.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
        f'[state]\ndirectory = "{containerd.base}/agent-state"\n'
        '[image_gc]\nhigh_threshold_percent = 1\nlow_threshold_percent = 0\nminimum_age = "0s"\n'
        'irreplaceable = "ignore"\n'
        f'[protect]\nimages = ["{KEPT}", "{REGISTRY}/staying/*"]\n'
    )
    return path


def _layer(name: str, count: int, size_bytes: int) -> Layer:
    return Layer(tuple(File(f"lib/{name}-{number}", size_bytes + number) for number in range(count)), 0)
