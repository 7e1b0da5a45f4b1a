"""Measuring what fills the image filesystem: the readings behind a breakdown.

Nothing is decided on it, so a reading that fails leaves its part out; walking is bounded in time.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError, ObservationError, RuntimeRequestError
from nodeagent.host.disk_usage import Tree, TreeReader, mount_point
from nodeagent.host.kubelet_files import KUBELET_ROOT
from nodeagent.plan.gc.storage_breakdown import Measured, Walk, break_down
from nodeagent.runtime.metadata_graph import run_bounded

if TYPE_CHECKING:
    from nodeagent.model import FsObservation, NodeSnapshot, UnreferencedPiece
    from nodeagent.observe.node_snapshot import Observer
    from nodeagent.plan.gc.storage_breakdown import Breakdown
    from nodeagent.runtime.containerd import ContainerdClient
    from nodeagent.runtime.containerd_records import StoredContainer

POD_VOLUMES: Final = KUBELET_ROOT / "pods"
LARGEST: Final = 10


async def survey(  # noqa: PLR0913 - the readers of three rooms
    snapshot: NodeSnapshot,
    observer: Observer,
    containerd: ContainerdClient | None,
    pod_log_root: Path,
    *,
    within_s: float,
    walk: bool = True,
) -> Breakdown:
    """Return what fills the image filesystem of a snapshot.

    Args:
        snapshot: of all there is, storage included where the runtime tells.
        observer: that made it.
        containerd: its own services, if they may be asked.
        pod_log_root: where pod logs are.
        within_s: how long directories may be walked.
        walk: whether they are walked at all; without it logs, volumes and other data count as not container data.

    Raises:
        ObservationError: the image filesystem cannot be read.
    """
    filesystem = snapshot.image_filesystem
    if filesystem is None:
        raise ObservationError(snapshot.image_filesystem_error or "there is no reading of the image filesystem")
    loose: tuple[UnreferencedPiece, ...] = ()
    with suppress(NodeAgentError):
        loose = await observer.find_unreferenced()
    writable = dict(snapshot.writable_bytes)
    if containerd is not None and snapshot.storage is not None:
        with suppress(RuntimeRequestError):
            writable.update(await _writable(containerd))
    measured = Measured(loose=loose, writable_bytes=writable)
    if walk:
        measured = await asyncio.to_thread(_walk, measured, filesystem, pod_log_root, time.monotonic() + within_s)
    return break_down(snapshot, filesystem, measured)


async def _writable(containerd: ContainerdClient) -> dict[str, int]:
    """Return what the writable layer of each container occupies, sandboxes included."""
    stored = [each for each in await containerd.list_containers() if each.snapshotter and each.snapshot_key]

    async def usage(each: StoredContainer) -> int:
        with suppress(RuntimeRequestError):
            return (await containerd.snapshot_usage(each.snapshotter, each.snapshot_key)).size_bytes
        return 0

    sizes = await run_bounded(usage, stored)
    return {each.id: size for each, size in zip(stored, sizes, strict=True)}


def _walk(measured: Measured, filesystem: FsObservation, pod_log_root: Path, deadline_s: float) -> Measured:
    """Return the measurements with those of directories that lie on the image filesystem."""
    reader = TreeReader(filesystem.device_id, deadline_s)
    logs = reader.measure(str(pod_log_root)) if _on(pod_log_root, filesystem) else None
    volumes = []
    if _on(POD_VOLUMES, filesystem):
        with suppress(OSError):
            volumes = [reader.measure(str(each)) for each in sorted(POD_VOLUMES.iterdir())]
    image_path = Path(filesystem.path)
    known = (image_path, image_path.parent / "io.containerd.content.v1.content", pod_log_root, POD_VOLUMES)
    largest = reader.largest(mount_point(filesystem.path), [str(each) for each in known], LARGEST)
    return Measured(
        measured.loose,
        measured.writable_bytes,
        _as_walk(logs) if logs is not None else None,
        tuple(map(_as_walk, volumes)),
        tuple(map(_as_walk, largest)),
    )


def _on(path: Path, filesystem: FsObservation) -> bool:
    try:
        return os.stat(path).st_dev == filesystem.device_id  # noqa: PTH116 - one call, no object
    except OSError:
        return False


def _as_walk(tree: Tree) -> Walk:
    return Walk(tree.path, tree.size_bytes, tree.complete)
