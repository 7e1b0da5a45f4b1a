"""State of a simulated node: images, pods, containers and the image filesystem.

Images, pods and disk usage share the clock and the metadata store, and tests use them through one object. ``SimNode``
therefore inherits from ``SimImages`` (``images``), and ``SimImages`` from ``SimDisk`` (``disk``).
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar, Unpack

from nodeagent.model.runtime import (
    LABEL_CONTAINER_NAME,
    LABEL_POD_NAME,
    LABEL_POD_NAMESPACE,
    LABEL_POD_UID,
    ContainerState,
    PieceKind,
)
from nodeagent.record import replace
from tests.sim.disk import GIB, DiskProperties
from tests.sim.images import SimImages
from tests.sim.store import Snapshot, SnapshotKind
from tests.sim.workload import ContainerResources, QosClass, SimContainer, SimImage, SimSandbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime


_T = TypeVar("_T")

PAUSE: Final = "registry.k8s.io/pause:3.9"
_WRITABLE_BYTES: Final = 20480  # size of an empty writable layer: files of overlayfs and the runtime
_WRITABLE_INODES: Final = 8


class SimNode(SimImages):
    """Mutable state of a node; time, container exits and garbage collections change only by method calls.

    Returned records are frozen; methods take records or ids and replace them.

    Attributes:
        pod_log_root: root directory of pod logs.
        sandbox_image: configured pause image.
    """

    def __init__(
        self,
        *,
        memory_bytes: int = 16 * GIB,
        sandbox_image: str = PAUSE,
        seed: int = 0,
        **disk: Unpack[DiskProperties],
    ) -> None:
        """Create a node without images and pods; all ids are derived from ``seed``."""
        super().__init__(**disk)
        self.memory_bytes = memory_bytes
        self.pod_log_root = "/var/log/pods"
        self.sandbox_image = sandbox_image
        self.sandboxes: dict[str, SimSandbox] = {}
        self.containers: dict[str, SimContainer] = {}
        self._seed = seed
        self._id_count = 0
        self._containers_of: dict[str, dict[str, None]] = {}

    def add_pod(
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
            uid: pod UID; for a further sandbox of a pod, the UID of its first sandbox.
            attempt: attempt number of the sandbox.
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
            annotations={**(_pod_annotations(created_at, source) if labelled else {}), **(annotations or {})},
            runtime_handler=runtime_handler,
        )
        self.sandboxes[sandbox.id] = sandbox
        self._containers_of[sandbox.id] = {}
        pause = self.images.get(self.resolve_image(self.sandbox_image) or "")
        self._put_writable(sandbox.id, pause, 0, created_at)
        self._changed()
        return sandbox

    def add_container(
        self,
        sandbox: SimSandbox | str,
        name: str,
        image: str,
        *,
        state: ContainerState = ContainerState.RUNNING,
        attempt: int = 0,
        age_s: float = 0,
        ended_s: float | None = None,
        memory_request_bytes: int = 0,
        volume_images: Iterable[str] = (),
        labelled: bool = True,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **resources: Unpack[ContainerResources],
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
            memory_request_bytes: memory request, from which ``oom_score_adj`` is derived unless ``resources`` has it.
            volume_images: references of images mounted as volumes.
            labelled: whether the container has the labels and annotations of the kubelet.
            labels: labels in addition to the kubelet's.
            annotations: annotations in addition to the kubelet's.
            resources: usage, limits and exit code.

        Raises:
            ValueError: the sandbox or the image does not exist.
        """
        pod = self._sandbox(sandbox)
        created_at = self.now - timedelta(seconds=age_s)
        exited = state is ContainerState.EXITED
        resources.setdefault("oom_score_adj", self._oom_score_adj(pod, memory_request_bytes))
        resources["exit_code"] = resources.get("exit_code", 0) if exited else 0
        container = SimContainer(
            id=self._next_id(),
            name=name,
            sandbox_id=pod.id,
            attempt=attempt,
            state=state,
            image_name=image,
            image_id=self._existing_image(image),
            created_at=created_at,
            started_at=None if state is ContainerState.CREATED else created_at,
            finished_at=self.now - timedelta(seconds=age_s if ended_s is None else ended_s) if exited else None,
            pid=4712 + len(self.containers),
            volume_images=tuple(volume_images),
            labels={**(_container_labels(pod, name) if labelled else {}), **(labels or {})},
            annotations={**(_container_annotations(attempt) if labelled else {}), **(annotations or {})},
            **resources,
        )
        return self._put_container(container)

    def users_of(self, image_id: str) -> tuple[SimContainer, ...]:
        """Return the containers created from an image."""
        return tuple(container for container in self.containers.values() if container.image_id == image_id)

    def start_container(
        self, image: str, *, name: str = "late", sandbox: SimSandbox | str | None = None
    ) -> SimContainer:
        """Start a container at the current time, by default in a new pod; for tests of races with an image removal."""
        return self.add_container(sandbox or self.add_pod(f"{name}-{self._id_count}"), name, image)

    def exit_container(self, container: SimContainer | str, exit_code: int = 0) -> SimContainer:
        """Set a container to exited at the current time and return it."""
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
        """Return a container by id or unique id prefix; ``None`` for an unknown container."""
        return _by_prefix(self.containers, container_id)

    def find_sandbox(self, sandbox_id: str) -> SimSandbox | None:
        """Return a sandbox by id or unique id prefix; ``None`` for an unknown sandbox."""
        return _by_prefix(self.sandboxes, sandbox_id)

    def stop_container(self, container_id: str) -> bool:
        """Stop a container unless it has exited; return whether the container exists."""
        known = self.find_container(container_id)
        if known is not None and known.state in (ContainerState.RUNNING, ContainerState.UNKNOWN):
            self.exit_container(known, 143)
        return known is not None

    def remove_container(self, container_id: str) -> None:
        """Kill a running container and remove it with its writable layer; ignore an unknown container.

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
        """Stop a sandbox and its containers; return whether the sandbox exists."""
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
        """Remove a sandbox with its containers, even if they are running; ignore an unknown sandbox.

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

    def _existing_image(self, reference: str) -> str:
        image_id = self.resolve_image(reference)
        if image_id is None:
            raise ValueError(f"unknown image {reference}")
        return image_id

    def _put_container(self, container: SimContainer) -> SimContainer:
        self.containers[container.id] = container
        self._containers_of[container.sandbox_id][container.id] = None
        image = self.images[container.image_id]
        self._put_writable(container.id, image, container.writable_bytes, container.created_at)
        self._changed()
        return container

    def _put_writable(self, key: str, image: SimImage | None, writable_bytes: int, at: datetime) -> None:
        parent = image.chain_id if image is not None else ""
        size_bytes = _WRITABLE_BYTES + writable_bytes
        self.store.add_reference((PieceKind.SNAPSHOT, key))
        self.store.put_snapshot(Snapshot(key, parent, SnapshotKind.ACTIVE, size_bytes, _WRITABLE_INODES, at))

    def _remove_writable(self, key: str) -> None:
        """Remove a writable layer; its bytes and parent snapshots remain until the next garbage collection."""
        if key in self.store.snapshots:
            self.store.remove_snapshot(key)
        self.store.remove_reference((PieceKind.SNAPSHOT, key))

    def _oom_score_adj(self, pod: SimSandbox, request_bytes: int) -> int:
        """Return the OOM score adjustment that the kubelet sets. Source: kubelet ``GetContainerOOMScoreAdjust``."""
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


def _pod_annotations(seen_at: datetime, source: str) -> dict[str, str]:
    return {
        "kubernetes.io/config.seen": seen_at.isoformat(),
        **({"kubernetes.io/config.source": source} if source else {}),
    }


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
