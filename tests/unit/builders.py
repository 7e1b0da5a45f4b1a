"""Shared builders of snapshots, so that a test contains only the relevant facts.

Sizes are in MiB and times in seconds before ``NOW`` unless the name has another unit.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from nodeagent.gc.plan.image_users import repository_of
from nodeagent.model.node import ContainerLogLink, LogTree, NodeSnapshot, PodLogDirectory, RuntimeInfo
from nodeagent.model.pods import PodList, PodListSource
from nodeagent.model.runtime import (
    Container,
    ContainerState,
    FsObservation,
    Image,
    ImageFilesystem,
    ImageUsage,
    PieceKind,
    ReferenceKind,
    Sandbox,
    StorageGraph,
    StoredPiece,
)
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodeagent.model.decision import Decision, Plan

NOW: Final = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
MIB: Final = 1024 * 1024
RUNTIME: Final = RuntimeInfo("containerd", "1.7.24", "v1", "unix:///run/containerd/containerd.sock")
DAY_S: Final = 86400.0


def ago(seconds: float) -> datetime:
    """Return the time ``seconds`` before ``NOW``; after ``NOW`` for negative ``seconds``."""
    return NOW - timedelta(seconds=seconds)


def digest(text: str) -> str:
    """Return a digest unique to ``text``, starting with readable characters."""
    return "sha256:" + text.encode().hex().ljust(64, "0")[:64]


def image(
    image_id: str,
    *tags: str,
    size_mib: int | None = 100,
    pinned: bool = False,
    digests: Sequence[str] = (),
) -> Image:
    """Return an image; without tags its tag is ``registry.example/ID:1``."""
    names = tags or (f"registry.example/{image_id.removeprefix('sha256:')}:1",)
    size_bytes = None if size_mib is None else size_mib * MIB
    return Image(image_id, names, tuple(digests), size_bytes, pinned)


def pulled_from(listed: Image) -> frozenset[str]:
    """Return the repositories of an image that was pulled under all its names."""
    return frozenset({repository_of(each) for each in listed.references} or {"registry.example/untagged"})


def used(last_s: float | None = None, *, seen_s: float = DAY_S) -> ImageUsage:
    """Return a recorded image use: last used ``last_s`` and first detected ``seen_s`` seconds ago."""
    return ImageUsage(ago(seen_s), None if last_s is None else ago(last_s))


def filesystem(
    used_percent: int = 50, *, capacity_mib: int = 1000, available_bytes: int | None = None
) -> FsObservation:
    """Return a reading of an image filesystem with this usage."""
    capacity_bytes = capacity_mib * MIB
    if available_bytes is None:
        available_bytes = capacity_bytes * (100 - used_percent) // 100
    return FsObservation("/var/lib/containerd", 7, capacity_bytes, available_bytes, 65536, 30000, NOW)


def container(
    container_id: str,
    *,
    pod: str = "web",
    name: str = "app",
    namespace: str = "shop",
    state: ContainerState = ContainerState.EXITED,
    created_s: float | None = 7200,
    finished_s: float | None = 3600,
    labelled: bool = True,
    sandbox_id: str | None = None,
    uid: str | None = None,
    **rest: Any,
) -> Container:
    """Return a container of ``pod``, with pod UID ``uid-POD`` and sandbox ``sb-POD`` by default."""
    labels = {
        "io.kubernetes.pod.name": pod,
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.uid": f"uid-{pod}" if uid is None else uid,
        "io.kubernetes.container.name": name,
    }
    exited = state is ContainerState.EXITED
    return Container(
        id=container_id,
        name=name,
        sandbox_id=f"sb-{pod}" if sandbox_id is None else sandbox_id,
        state=state,
        created_at=None if created_s is None else ago(created_s),
        finished_at=ago(finished_s) if exited and finished_s is not None else None,
        labels=labels if labelled else {},
        **rest,
    )


def synced(*uids: str) -> PodList:
    """Return a synced pod list of the API server with these pod UIDs."""
    return PodList(PodListSource.API_SERVER, frozenset(uids), synced=True, listed_at=ago(0))


def kubelet_list(*uids: str) -> PodList:
    """Return a pod list of the kubelet with these pod UIDs, marked as synced."""
    return PodList(PodListSource.KUBELET, frozenset(uids), synced=True)


def sandbox(
    pod: str = "web",
    *,
    sandbox_id: str | None = None,
    namespace: str = "shop",
    ready: bool = False,
    created_s: float | None = 7200,
    labelled: bool = True,
    **rest: Any,
) -> Sandbox:
    """Return a sandbox of ``pod``, with the id ``sb-POD`` by default."""
    return Sandbox(
        id=f"sb-{pod}" if sandbox_id is None else sandbox_id,
        name=pod,
        namespace=namespace,
        uid=f"uid-{pod}",
        ready=ready,
        created_at=None if created_s is None else ago(created_s),
        labels={"io.kubernetes.pod.uid": f"uid-{pod}"} if labelled else {},
        **rest,
    )


def log_directory(
    uid: str,
    *,
    pod: str = "web",
    namespace: str = "shop",
    modified_s: float = 3600,
    name: str | None = None,
    is_directory: bool = True,
    size_bytes: int | None = 4096,
    **tree: Any,
) -> PodLogDirectory:
    """Return a pod log directory for a pod UID; ``tree`` sets further fields of its ``LogTree``."""
    shown = f"{namespace}_{pod}_{uid}" if name is None else name
    return PodLogDirectory(shown, uid, is_directory, LogTree(ago(modified_s), "digest", **tree), size_bytes)


def log_link(container_id: str, *, modified_s: float = 3600, name: str | None = None) -> ContainerLogLink:
    """Return a container log symlink with a missing target."""
    shown = f"web_shop_app-{container_id}.log" if name is None else name
    return ContainerLogLink(
        shown, container_id, f"/var/log/pods/shop_web_uid-web/app/{container_id}.log", ago(modified_s)
    )


def piece(
    key: str,
    size_mib: int = 1,
    *,
    inodes: int = 1,
    references: Sequence[ReferenceKind] = (),
    snapshotter: str = "overlayfs",
) -> StoredPiece:
    """Return a stored snapshot, or a blob if ``snapshotter`` is empty."""
    kind = PieceKind.SNAPSHOT if snapshotter else PieceKind.BLOB
    return StoredPiece(key, kind, size_mib * MIB, inodes, tuple(references), snapshotter)


def image_filesystem(path: str, used_percent: int, *stores: str, capacity_mib: int = 1000) -> ImageFilesystem:
    """Return an image filesystem that contains these stores (snapshotters; empty for the content store)."""
    reading = replace(filesystem(used_percent, capacity_mib=capacity_mib), path=path, device_id=hash(path))
    return ImageFilesystem(path, frozenset(stores), reading)


def graph(pieces: Iterable[StoredPiece], references: Mapping[str, Sequence[str]]) -> StorageGraph:
    """Return a storage graph; ``references`` maps image ids to the keys of their pieces."""
    listed = tuple(pieces)
    at = {each.key: index for index, each in enumerate(listed)}
    return StorageGraph(listed, {image_id: tuple(at[key] for key in keys) for image_id, keys in references.items()})


def snapshot(
    *images: Image | tuple[Image, ImageUsage],
    **fields: Any,
) -> NodeSnapshot:
    """Return a snapshot of a node booted ten days ago.

    An image without usage was first detected a day ago and never used. Image use has been observed for ten years.
    """
    listed = tuple(each if isinstance(each, Image) else each[0] for each in images)
    usage = {
        each.id if isinstance(each, Image) else each[0].id: used() if isinstance(each, Image) else each[1]
        for each in images
    }
    defaults: dict[str, Any] = {
        "observed_at": NOW,
        "runtime": RUNTIME,
        "images": listed,
        "image_usage": usage,
        "image_use_observed_since": ago(3650 * DAY_S),
        "image_filesystem": filesystem(50),
        "image_sources": {each.id: pulled_from(each) for each in listed},
        "booted_at": ago(10 * DAY_S),
    }
    return NodeSnapshot(**(defaults | fields))


def removed(plan: Plan) -> list[str]:
    """Return the ids of the removals of a plan, in order."""
    return [decision.id for decision in plan.removals]


def decided(plan: Plan, item_id: str) -> Decision:
    """Return the decision on the item with this id; fail if the plan has none."""
    (decision,) = (each for each in plan.decisions if each.id == item_id)
    return decision


def codes(plan: Plan) -> dict[str, str]:
    """Return the reason code of each decision, by item id."""
    return {decision.id: decision.reason.code.value for decision in plan.decisions}
