"""How runtime versions differ on the wire.

Source: answers of containerd 1.6.20, 1.7.24 and 2.1.9; for CRI-O its ``runtime_status.go``, ``sandbox_status.go`` and
``image_remove.go``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Profile:
    """One runtime version's habits.

    Attributes:
        runtime_name: as ``Version`` tells.
        runtime_version: as ``Version`` tells.
        tells_pinned: whether the image list marks pinned images.
        tells_sandbox_image: whether the verbose status holds ``sandboxImage``.
        tells_snapshotter: whether the verbose status holds the snapshotter.
        tells_resources: whether a container's status has its limits.
        fills_image_id: whether containers carry ``image_id`` besides ``image_ref``.
        mounts_images: whether mounts of images as volumes are told.
        has_runtime_config: whether ``RuntimeConfig`` is there.
        has_events: whether ``GetContainerEvents`` is there.
        has_handlers: whether the status lists runtime handlers and features.
        stops_missing: whether stopping what does not exist is a success.
        sandbox_leases: whether each sandbox has an empty lease of its own.
        containerd_api: whether containerd's own services are on the same socket.
        bare_ids: whether image ids come without ``sha256:``.
        refuses_used_images: whether an image that a container uses cannot be removed.
        tells_container_filesystems: whether ``ImageFsInfo`` names these, too.
    """

    runtime_name: str
    runtime_version: str
    tells_pinned: bool = True
    tells_sandbox_image: bool = True
    tells_snapshotter: bool = True
    tells_resources: bool = True
    fills_image_id: bool = False
    mounts_images: bool = False
    has_runtime_config: bool = False
    has_events: bool = True
    has_handlers: bool = False
    stops_missing: bool = True
    sandbox_leases: bool = False
    containerd_api: bool = True
    bare_ids: bool = False
    refuses_used_images: bool = False
    tells_container_filesystems: bool = False


PROFILES: Final[dict[str, Profile]] = {
    "1.6": Profile(
        "containerd",
        "1.6.20~ds1",
        tells_pinned=False,
        tells_resources=False,
        has_events=False,
        stops_missing=False,
    ),
    "1.7": Profile("containerd", "1.7.24"),
    "2.1": Profile(
        "containerd",
        "2.1.9",
        tells_sandbox_image=False,
        tells_snapshotter=False,
        mounts_images=True,
        has_runtime_config=True,
        has_handlers=True,
        sandbox_leases=True,
    ),
    "cri-o": Profile(
        "cri-o",
        "1.31.3",
        tells_snapshotter=False,
        fills_image_id=True,
        mounts_images=True,
        has_runtime_config=True,
        has_handlers=True,
        containerd_api=False,
        bare_ids=True,
        refuses_used_images=True,
        tells_container_filesystems=True,
    ),
}
