"""Differences between the responses of runtime versions.

Source: responses of containerd 1.6.20, 1.7.24 and 2.1.9; for CRI-O the files ``runtime_status.go``,
``sandbox_status.go`` and ``image_remove.go``.
"""

from __future__ import annotations

from typing import Final

from nodeagent.record import Record


class Profile(Record):
    """Behaviour of one runtime version.

    Attributes:
        runtime_name: name in the response of ``Version``.
        runtime_version: version in the response of ``Version``.
        reports_pinned: whether the image list contains the pinned flag.
        reports_sandbox_image: whether the verbose status contains ``sandboxImage``.
        reports_snapshotter: whether the verbose status contains the snapshotter.
        reports_resources: whether container statuses contain resource limits.
        reports_image_id: whether containers have ``image_id`` in addition to ``image_ref``.
        reports_image_volumes: whether container statuses contain image volume mounts.
        reports_handlers: whether the status contains runtime handlers and features.
        reports_container_filesystems: whether ``ImageFsInfo`` contains container filesystems.
        checks_delete_target: whether ``Images.Delete`` compares the target digest, as containerd 2.0 and later do.
        stops_missing: whether stopping a missing container or sandbox succeeds.
        sandbox_leases: whether each sandbox has an empty lease.
        streams_lists: whether the runtime also serves the streaming list calls of CRI (KEP-5825).
        containerd_api: whether the socket also serves containerd's own API.
        bare_ids: whether image ids have no ``sha256:`` prefix.
        refuses_used_images: whether the removal of an image in use fails.
    """

    runtime_name: str
    runtime_version: str
    reports_pinned: bool = True
    reports_sandbox_image: bool = True
    reports_snapshotter: bool = True
    reports_resources: bool = True
    reports_image_id: bool = False
    reports_image_volumes: bool = False
    reports_handlers: bool = False
    checks_delete_target: bool = False
    stops_missing: bool = True
    sandbox_leases: bool = False
    streams_lists: bool = False
    containerd_api: bool = True
    bare_ids: bool = False
    refuses_used_images: bool = False
    reports_container_filesystems: bool = False


PROFILES: Final[dict[str, Profile]] = {
    "1.6": Profile(
        "containerd",
        "1.6.20~ds1",
        reports_pinned=False,
        reports_resources=False,
        stops_missing=False,
    ),
    "1.7": Profile("containerd", "1.7.24"),
    "2.1": Profile(
        "containerd",
        "2.1.9",
        reports_sandbox_image=False,
        reports_snapshotter=False,
        reports_image_volumes=True,
        checks_delete_target=True,
        reports_handlers=True,
        sandbox_leases=True,
    ),
    "cri-o": Profile(
        "cri-o",
        "1.31.3",
        reports_snapshotter=False,
        reports_image_id=True,
        reports_image_volumes=True,
        reports_handlers=True,
        containerd_api=False,
        bare_ids=True,
        refuses_used_images=True,
        reports_container_filesystems=True,
    ),
}
