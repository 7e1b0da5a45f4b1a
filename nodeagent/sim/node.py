"""State of a simulated node: images, pods, containers and the image filesystem.

The class exceeds the usual size: images, pods and disk usage share ids, clock and metadata store, and tests address all
of them through one object. ``add_pod`` and ``add_container`` are long because of their parameters, one per configurable
property.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from nodeagent.model import ContainerState, PieceKind
from nodeagent.model.workload import (
    LABEL_CONTAINER_NAME,
    LABEL_POD_NAME,
    LABEL_POD_NAMESPACE,
    LABEL_POD_UID,
)
from nodeagent.plan.gc.image_references import normalise, repository_of
from nodeagent.sim.clock import SimClock
from nodeagent.sim.content import build_artifact, build_image
from nodeagent.sim.store import (
    SNAPSHOTTER,
    Blob,
    ImageName,
    MetadataStore,
    RefusedError,
    Snapshot,
    SnapshotKind,
    on_disk,
)
from nodeagent.sim.workload import QosClass, SimContainer, SimImage, SimSandbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from nodeagent.sim.content import BuiltImage, Layer

_T = TypeVar("_T")

PAUSE: Final = "registry.k8s.io/pause:3.9"
GIB: Final = 1024**3
_WRITABLE_BYTES: Final = 20480  # size of an unused writable layer with the files of overlayfs and the runtime
_WRITABLE_INODES: Final = 8
_SOURCE_LABEL: Final = "containerd.io/distribution.source."
_FILE_BYTES: Final = 16384


class SimNode:
    """Mutable state of a node. It changes by method calls only, including time, exits and garbage collections.

    Returned records are frozen; methods take records or ids and replace them.

    Attributes:
        clock: manual clock; ``now`` is its wall time.
        store: containerd's metadata.
        capacity_bytes: size of the image filesystem.
        other_bytes: usage of the image filesystem by other data.
        root_path: containerd's root directory, the mount point of the image filesystem.
        pod_log_root: root directory of pod logs.
        sandbox_image: configured pause image.
        revision: number of changes.
    """

    def __init__(  # noqa: PLR0913 - the properties of a machine
        self,
        *,
        clock: SimClock | None = None,
        capacity_bytes: int = 40 * GIB,
        other_bytes: int = 0,
        inodes: int = 0,
        other_inodes: int = 0,
        memory_bytes: int = 16 * GIB,
        root_path: str = "/var/lib/containerd",
        sandbox_image: str = PAUSE,
        seed: int = 0,
    ) -> None:
        """Create an empty node; ``inodes`` 0 allocates one per 16 KiB, as ext4 does; ids derive from ``seed``."""
        self.clock = clock or SimClock()
        self.store = MetadataStore()
        self.capacity_bytes = capacity_bytes
        self.other_bytes = other_bytes
        self.inodes = inodes or capacity_bytes // _FILE_BYTES
        self.other_inodes = other_inodes
        self.memory_bytes = memory_bytes
        self.root_path = root_path
        self.pod_log_root = "/var/log/pods"
        self.sandbox_image = sandbox_image
        self.revision = 0

        self.images: dict[str, SimImage] = {}
        self.sandboxes: dict[str, SimSandbox] = {}
        self.containers: dict[str, SimContainer] = {}
        self._seed = seed
        self._id_count = 0
        self._image_of_target: dict[str, SimImage] = {}
        self._nameless: dict[str, SimImage] = {}
        self._names_of: dict[str, dict[str, None]] = {}
        self._containers_of: dict[str, dict[str, None]] = {}

    # ---- time and disk ----

    @property
    def now(self) -> datetime:
        """Wall time of the clock."""
        return self.clock.now()

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.clock.advance(seconds)

    @property
    def imagefs_path(self) -> str:
        """Mount point in containerd's response to ``ImageFsInfo``."""
        return f"{self.root_path}/io.containerd.snapshotter.v1.{SNAPSHOTTER}"

    @property
    def used_bytes(self) -> int:
        """Used bytes of the image filesystem."""
        return self.other_bytes + self.store.used_bytes

    @property
    def available_bytes(self) -> int:
        """Available bytes of the image filesystem, never below 0."""
        return max(0, self.capacity_bytes - self.used_bytes)

    @property
    def inodes_free(self) -> int:
        """Free inodes of the image filesystem, never below 0."""
        return max(0, self.inodes - self.other_inodes - self.store.inodes_used)

    def fill_to(self, used_percent: float) -> None:
        """Resize other data so that ``used_percent`` of the filesystem is used.

        Raises:
            ValueError: container data alone exceeds it.
        """
        other = int(self.capacity_bytes * used_percent / 100) - self.store.used_bytes
        if other < 0:
            raise ValueError(f"container data alone exceeds {used_percent} percent")
        self.other_bytes = other

    def collect_garbage(self) -> int:
        """Run the garbage collector; return the freed bytes."""
        before = self.store.used_bytes
        self.store.collect()
        self._changed()
        return before - self.store.used_bytes

    # ---- images ----

    def add_image(  # noqa: PLR0913 - the properties of an image
        self,
        *tags: str,
        layers: Sequence[Layer],
        age_s: float = 0,
        pinned: bool = False,
        variant: str | None = None,
        digest_only: bool = False,
        index: bool = False,
        docker: bool = False,
        unpacked: bool = True,
        layer_blobs: bool = True,
        imported: bool = False,
    ) -> SimImage:
        """Pull an image and return it; a tag of another image moves to this one.

        Args:
            tags: references in one or several repositories; at least one.
            layers: layers, bottom first; existing layers are shared.
            age_s: seconds since the pull.
            pinned: whether the runtime marks the image as pinned.
            variant: distinguishes images of the same layers; the first tag by default.
            digest_only: whether to omit the tags, as after a pull by digest or after the tag moved.
            index: whether the names refer to a multi-platform index.
            docker: whether to use Docker's media types.
            unpacked: whether the layers have snapshots.
            layer_blobs: whether the compressed layers are kept (containerd's ``discard_unpacked_layers`` removes them).
            imported: whether the image is imported from an archive instead.
        """
        at = self.now - timedelta(seconds=age_s)
        built = build_image(layers, variant=tags[0] if variant is None else variant, index=index, docker=docker)
        for key, parent, layer in zip(built.chain_ids, ("", *built.chain_ids), layers, strict=False):
            if unpacked:
                size_bytes = on_disk(layer.size_bytes)
                committed = Snapshot(key, parent, SnapshotKind.COMMITTED, size_bytes, layer.inode_count, at)
                self.store.put_snapshot(committed)
            if layer_blobs:
                labels = {"containerd.io/uncompressed": layer.diff_id}
                self.store.put_blob(Blob(layer.blob_digest, layer.blob_bytes, at, labels))
        chain_id = built.chain_ids[-1] if unpacked and built.chain_ids else ""
        self._put_documents(built, chain_id, at, {} if imported else _source_labels(tags))
        config, target = built.config.descriptor, built.target.descriptor
        image = self.images.get(config.digest) or SimImage(
            config.digest,
            target.digest,
            chain_id,
            config.size_bytes + built.manifest.descriptor.size_bytes + sum(layer.blob_bytes for layer in layers),
            tuple(layer.diff_id for layer in layers),
        )
        image = replace(image, pinned=image.pinned or pinned)
        self.images[image.id] = self._image_of_target[target.digest] = image
        labels = {"io.cri-containerd.image": "managed"}
        if pinned:
            labels["io.cri-containerd.pinned"] = "pinned"
        digests = dict.fromkeys(f"{repository_of(tag)}@{target.digest}" for tag in tags)
        for name in (*(() if digest_only else tags), *digests, config.digest):
            self.set_name(ImageName(name, target, at, at, labels))
        return self.images[image.id]

    def add_artifact(
        self, name: str, files: Sequence[Layer], *, artifact_type: str = "application/vnd.example.thing.v1"
    ) -> str:
        """Pull an OCI artifact, absent from CRI's image list; return its digest."""
        built = build_artifact(files, artifact_type)
        for file in files:
            self.store.put_blob(Blob(file.blob_digest, file.blob_bytes, self.now))
        self._put_documents(built, "", self.now, _source_labels((name,)))
        self.set_name(ImageName(name, built.target.descriptor, self.now, self.now))
        return built.target.descriptor.digest

    def resolve_image(self, reference: str) -> str | None:
        """Return the image id of a name, an id or a unique id prefix; ``None`` for an unknown one."""
        for image_id in (reference, f"sha256:{reference}"):
            if image_id in self.images:
                return image_id
        if not reference:
            return None
        for name in (reference, normalise(reference)):
            known = self.store.names.get(name)
            if known is not None:
                image = self._image_of_target.get(known.target.digest)
                return image.id if image is not None else None
        prefix = "sha256:" + reference.removeprefix("sha256:")
        found = [image_id for image_id in self.images if image_id.startswith(prefix)]
        return found[0] if len(found) == 1 else None

    def names_of(self, image_id: str) -> tuple[str, ...]:
        """Return all names of an image, in the order of creation."""
        return tuple(self._names_of.get(image_id, ()))

    def users_of(self, image_id: str) -> tuple[SimContainer, ...]:
        """Return the containers created from an image."""
        return tuple(container for container in self.containers.values() if container.image_id == image_id)

    def remove_image(self, reference: str) -> None:
        """Remove all names of an image, even of one in use, and collect garbage once.

        An unknown reference succeeds. The parent snapshots of a container are kept.

        Raises:
            RefusedError: empty reference.

        Source: containerd's CRI ``RemoveImage``.
        """
        if not reference:
            raise RefusedError("UNKNOWN", 'can not resolve "" locally: ambiguous digest string')
        image_id = self.resolve_image(reference)
        if image_id is None:
            return
        for name in self.names_of(image_id):
            self.delete_image_name(name)
        self.store.collect()

    def delete_image_name(self, name: str, *, sync: bool = False) -> None:
        """Delete one image name; with ``sync`` also collect garbage.

        Raises:
            RefusedError: unknown name.

        Source: containerd's image service, ``Delete``.
        """
        known = self.store.delete_name(name)
        image = self._image_of_target.get(known.target.digest)
        if image is not None:
            self._delete_name(image.id, name)
        if sync:
            self.store.collect()
        self._changed()

    # ---- pods ----

    def add_pod(  # noqa: PLR0913 - the properties of a pod
        self,
        name: str,
        *,
        namespace: str = "default",
        uid: str = "",
        attempt: int = 0,
        ready: bool = True,
        age_s: float = 0,
        qos: QosClass = QosClass.BEST_EFFORT,
        source: str = "",
        cgroup_parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        labelled: bool = True,
        runtime_handler: str = "",
    ) -> SimSandbox:
        """Run a sandbox and return it.

        Args:
            name: pod name.
            namespace: pod namespace.
            uid: pod UID; for a further sandbox of the same pod, that of the first.
            attempt: attempt of the sandbox.
            ready: whether the sandbox is ready.
            age_s: seconds since creation.
            qos: QoS class, part of the cgroup path.
            source: the kubelet's source of the pod: ``api``, ``file`` for static pods, empty without a kubelet.
            cgroup_parent: overrides the cgroup path of ``qos``.
            labels: labels in addition to the kubelet's.
            annotations: annotations in addition to the kubelet's.
            labelled: whether the sandbox has the labels and annotations of the kubelet.
            runtime_handler: runtime handler.
        """
        uid = uid or str(uuid.UUID(self._next_id()[:32], version=4))
        created_at = self.now - timedelta(seconds=age_s)
        own = {LABEL_POD_NAME: name, LABEL_POD_NAMESPACE: namespace, LABEL_POD_UID: uid} if labelled else {}
        kubelet_annotations = {"kubernetes.io/config.seen": created_at.isoformat()}
        if source:
            kubelet_annotations["kubernetes.io/config.source"] = source
        level = "" if qos is QosClass.GUARANTEED else f"/{qos.value}"
        sandbox = SimSandbox(
            id=self._next_id(),
            name=name,
            namespace=namespace,
            uid=uid,
            attempt=attempt,
            ready=ready,
            created_at=created_at,
            image=self.sandbox_image,
            cgroup_parent=f"/kubepods{level}/pod{uid}" if cgroup_parent is None else cgroup_parent,
            labels={**own, **(labels or {})},
            annotations={**(kubelet_annotations if labelled else {}), **(annotations or {})},
            runtime_handler=runtime_handler,
        )
        self.sandboxes[sandbox.id] = sandbox
        self._containers_of[sandbox.id] = {}
        pause = self.images.get(self.resolve_image(self.sandbox_image) or "")
        self._put_writable(sandbox.id, pause, 0, created_at)
        self._changed()
        return sandbox

    def add_container(  # noqa: PLR0913 - the properties of a container
        self,
        sandbox: SimSandbox | str,
        name: str,
        image: str,
        *,
        state: ContainerState = ContainerState.RUNNING,
        attempt: int = 0,
        age_s: float = 0,
        ended_s: float | None = None,
        exit_code: int = 0,
        writable_bytes: int = 0,
        working_set_bytes: int = 0,
        memory_request_bytes: int = 0,
        memory_limit_bytes: int = 0,
        oom_score_adj: int | None = None,
        cpu_shares: int = 2,
        volume_images: Iterable[str] = (),
        labelled: bool = True,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> SimContainer:
        """Create a container in a sandbox and return it.

        Args:
            sandbox: sandbox or its id.
            name: container name in the pod.
            image: reference of an existing image.
            state: state; an exited container ended ``ended_s`` ago, by default at its creation.
            attempt: number of previous restarts.
            age_s: seconds since creation.
            ended_s: seconds since the exit.
            exit_code: exit code of an exited container.
            writable_bytes: size of the writable layer.
            working_set_bytes: memory usage while running.
            memory_request_bytes: memory request, from which ``oom_score_adj`` derives.
            memory_limit_bytes: memory limit; 0 for none.
            oom_score_adj: overrides the kubelet's value.
            cpu_shares: CPU shares, which the kubelet derives from the request.
            volume_images: references of images mounted as volumes.
            labelled: whether the container has the labels and annotations of the kubelet.
            labels: labels in addition to the kubelet's.
            annotations: annotations in addition to the kubelet's.

        Raises:
            ValueError: unknown sandbox or image.
        """
        pod = self._sandbox(sandbox)
        image_id = self.resolve_image(image)
        if image_id is None:
            raise ValueError(f"unknown image {image}")
        created_at = self.now - timedelta(seconds=age_s)
        exited = state is ContainerState.EXITED
        started = state is not ContainerState.CREATED
        container = SimContainer(
            id=self._next_id(),
            name=name,
            sandbox_id=pod.id,
            attempt=attempt,
            state=state,
            image_name=image,
            image_id=image_id,
            created_at=created_at,
            started_at=created_at if started else None,
            finished_at=self.now - timedelta(seconds=age_s if ended_s is None else ended_s) if exited else None,
            exit_code=exit_code if exited else 0,
            writable_bytes=writable_bytes,
            working_set_bytes=working_set_bytes,
            oom_score_adj=self._oom_score_adj(pod, memory_request_bytes) if oom_score_adj is None else oom_score_adj,
            pid=4712 + len(self.containers),
            memory_limit_bytes=memory_limit_bytes,
            cpu_shares=cpu_shares,
            volume_images=tuple(volume_images),
            labels={**(_container_labels(pod, name) if labelled else {}), **(labels or {})},
            annotations={**(_container_annotations(attempt) if labelled else {}), **(annotations or {})},
        )
        self.containers[container.id] = container
        self._containers_of[pod.id][container.id] = None
        self._put_writable(container.id, self.images[image_id], writable_bytes, created_at)
        self._changed()
        return container

    def start_container(
        self, image: str, *, name: str = "late", sandbox: SimSandbox | str | None = None
    ) -> SimContainer:
        """Start a container now, in a new pod by default; for tests of races with an image removal."""
        return self.add_container(sandbox or self.add_pod(f"{name}-{self._id_count}"), name, image)

    def exit_container(self, container: SimContainer | str, exit_code: int = 0) -> SimContainer:
        """Exit a running container now."""
        known = self._container(container)
        exited = replace(known, state=ContainerState.EXITED, finished_at=self.now, exit_code=exit_code)
        self.containers[known.id] = exited
        self._changed()
        return exited

    def grow_container(self, container: SimContainer | str, size_bytes: int) -> None:
        """Increase the size of a container's writable layer."""
        known = self._container(container)
        self.containers[known.id] = replace(known, writable_bytes=known.writable_bytes + size_bytes)
        layer = self.store.get_snapshot(known.id)
        self.store.resize_snapshot(replace(layer, size_bytes=layer.size_bytes + size_bytes))
        self._changed()

    def containers_of(self, sandbox_id: str) -> tuple[SimContainer, ...]:
        """Return the containers of a sandbox, oldest first."""
        return tuple(self.containers[each] for each in self._containers_of.get(sandbox_id, ()))

    def find_container(self, container_id: str) -> SimContainer | None:
        """Return a container by id or unique id prefix; ``None`` for an unknown one."""
        return _by_prefix(self.containers, container_id)

    def find_sandbox(self, sandbox_id: str) -> SimSandbox | None:
        """Return a sandbox by id or unique id prefix; ``None`` for an unknown one."""
        return _by_prefix(self.sandboxes, sandbox_id)

    def stop_container(self, container_id: str) -> bool:
        """Stop a container unless it has exited; return whether it exists."""
        known = self.find_container(container_id)
        if known is not None and known.state in (ContainerState.RUNNING, ContainerState.UNKNOWN):
            self.exit_container(known, 143)
        return known is not None

    def remove_container(self, container_id: str) -> None:
        """Remove a container and its writable layer, after a kill if it is running; ignore an unknown one.

        Source: CRI ``RemoveContainer``, which must force and be idempotent.
        """
        known = self.find_container(container_id)
        if known is None:
            return
        if known.running:
            self.exit_container(known, 137)
        del self.containers[known.id]
        self._containers_of[known.sandbox_id].pop(known.id, None)
        self._remove_writable(known.id)
        self._changed()

    def stop_sandbox(self, sandbox_id: str) -> bool:
        """Stop a sandbox and its containers; return whether it exists."""
        known = self.find_sandbox(sandbox_id)
        if known is None:
            return False
        for container in self.containers_of(known.id):
            self.stop_container(container.id)
        if known.ready:
            self.sandboxes[known.id] = replace(known, ready=False)
            self._changed()
        return True

    def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox with its containers, even if they are running; ignore an unknown one.

        Source: CRI ``RemovePodSandbox``, which must force and be idempotent.
        """
        known = self.find_sandbox(sandbox_id)
        if known is None:
            return
        self.stop_sandbox(known.id)
        for container in self.containers_of(known.id):
            self.remove_container(container.id)
        del self.sandboxes[known.id], self._containers_of[known.id]
        self._remove_writable(known.id)
        self._changed()

    def log_directory(self, sandbox: SimSandbox) -> str:
        """Return the log directory of a pod."""
        return f"{self.pod_log_root}/{sandbox.log_directory_name}"

    def log_path(self, container: SimContainer) -> str:
        """Return the path of a container's current log."""
        pod = self.sandboxes[container.sandbox_id]
        return f"{self.log_directory(pod)}/{container.name}/{container.attempt}.log"

    # ---- internals ----

    def _changed(self) -> None:
        self.revision += 1

    def _next_id(self) -> str:
        self._id_count += 1
        return hashlib.sha256(f"{self._seed} {self._id_count}".encode()).hexdigest()

    def _sandbox(self, sandbox: SimSandbox | str) -> SimSandbox:
        sandbox_id = sandbox if isinstance(sandbox, str) else sandbox.id
        if sandbox_id not in self.sandboxes:
            raise ValueError(f"unknown sandbox {sandbox_id}")
        return self.sandboxes[sandbox_id]

    def _container(self, container: SimContainer | str) -> SimContainer:
        container_id = container if isinstance(container, str) else container.id
        if container_id not in self.containers:
            raise ValueError(f"unknown container {container_id}")
        return self.containers[container_id]

    def _put_documents(self, built: BuiltImage, chain_id: str, at: datetime, sources: Mapping[str, str]) -> None:
        """Store the documents of an image with the labels of a pull and those used by containerd's collector."""
        config_digest = built.config.descriptor.digest
        for document in built.documents:
            stored = self.store.blobs.get(document.descriptor.digest)
            if stored is not None:  # pulled again, under other names perhaps
                for name, repositories in sources.items():
                    known = [each for each in stored.labels.get(name, "").split(",") if each]
                    stored.labels[name] = ",".join(dict.fromkeys((*known, *repositories.split(","))))
                continue
            labels = dict(sources)
            references = [(PieceKind.BLOB, child.digest) for child in document.children]
            for number, child in enumerate(document.children):
                key = "config" if child.digest == config_digest else f"l.{number - 1}"
                if document is not built.manifest:
                    key = f"m.{number}"
                labels[f"containerd.io/gc.ref.content.{key}"] = child.digest
            if document is built.config and chain_id:
                labels[f"containerd.io/gc.ref.snapshot.{SNAPSHOTTER}"] = chain_id
                references.append((PieceKind.SNAPSHOT, chain_id))
            descriptor = document.descriptor
            blob = Blob(descriptor.digest, descriptor.size_bytes, at, labels, tuple(references), document.data)
            self.store.put_blob(blob)

    def set_name(self, name: ImageName) -> None:
        """Add or move a name of an image, as a pull or a tag does."""
        before = self.store.names.get(name.name)
        self.store.set_name(name)
        if before is not None and before.target.digest != name.target.digest:
            image = self._image_of_target.get(before.target.digest)
            if image is not None:
                self._delete_name(image.id, name.name)
        image = self._image_of_target.get(name.target.digest) or self._revived(name.target.digest)
        if image is not None:
            self._names_of.setdefault(image.id, {})[name.name] = None
            self._update_names(image.id)
        self._changed()

    def _delete_name(self, image_id: str, name: str) -> None:
        names = self._names_of[image_id]
        names.pop(name, None)
        if names:
            self._update_names(image_id)
            return
        removed = self.images.pop(image_id)
        del self._names_of[image_id], self._image_of_target[removed.target_digest]
        self._nameless[removed.target_digest] = removed

    def _revived(self, target_digest: str) -> SimImage | None:
        """Return an image whose names were deleted, if its content was not collected since."""
        image = self._nameless.pop(target_digest, None)
        if image is None or any(each not in self.store.blobs for each in (target_digest, image.id)):
            return None
        self.images[image.id] = self._image_of_target[target_digest] = image
        return image

    def _update_names(self, image_id: str) -> None:
        """Update the tags and digests in the record of an image."""
        names = [name for name in self._names_of[image_id] if not name.startswith("sha256:")]
        image = replace(
            self.images[image_id],
            repo_tags=tuple(sorted(name for name in names if "@" not in name)),
            repo_digests=tuple(sorted(name for name in names if "@" in name)),
        )
        self.images[image_id] = self._image_of_target[image.target_digest] = image

    def _put_writable(self, key: str, image: SimImage | None, writable_bytes: int, at: datetime) -> None:
        parent = image.chain_id if image is not None else ""
        size_bytes = _WRITABLE_BYTES + writable_bytes
        self.store.add_reference((PieceKind.SNAPSHOT, key))
        self.store.put_snapshot(Snapshot(key, parent, SnapshotKind.ACTIVE, size_bytes, _WRITABLE_INODES, at))

    def _remove_writable(self, key: str) -> None:
        """Remove a writable layer; its bytes and parents remain until the next collection."""
        if key in self.store.snapshots:
            self.store.remove_snapshot(key)
        self.store.remove_reference((PieceKind.SNAPSHOT, key))

    def _oom_score_adj(self, pod: SimSandbox, request_bytes: int) -> int:
        """Return the kubelet's OOM score adjustment. Source: kubelet ``GetContainerOOMScoreAdjust``."""
        if f"/{QosClass.BEST_EFFORT.value}/" in pod.cgroup_parent:
            return 1000
        if f"/{QosClass.BURSTABLE.value}/" not in pod.cgroup_parent:
            return -997
        return min(999, max(3, 1000 - 1000 * request_bytes // self.memory_bytes))


def _by_prefix(records: Mapping[str, _T], prefix: str) -> _T | None:
    known = records.get(prefix)
    if known is not None or not prefix:
        return known
    found = [key for key in records if key.startswith(prefix)]
    return records[found[0]] if len(found) == 1 else None


def _source_labels(references: Iterable[str]) -> dict[str, str]:
    """Return the distribution source labels of a pull under these names."""
    repositories: dict[str, dict[str, None]] = {}
    for reference in references:
        host, _, path = repository_of(normalise(reference)).partition("/")
        repositories.setdefault(_SOURCE_LABEL + host.partition(":")[0], {})[path] = None
    return {label: ",".join(paths) for label, paths in repositories.items()}


def _container_labels(pod: SimSandbox, name: str) -> dict[str, str]:
    return {
        LABEL_CONTAINER_NAME: name,
        LABEL_POD_NAME: pod.name,
        LABEL_POD_NAMESPACE: pod.namespace,
        LABEL_POD_UID: pod.uid,
    }


def _container_annotations(attempt: int) -> dict[str, str]:
    return {
        "io.kubernetes.container.hash": "1a2b3c4d",
        "io.kubernetes.container.restartCount": str(attempt),
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "30",
    }
