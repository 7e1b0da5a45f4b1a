"""CRI client in place of the kubelet: creates and lists pods and containers as plain values.

The agent's gRPC stubs are deliberately not used. They lack the calls that create pods, and lists decoded by the code
under test would not be independent of it; ``cri`` has separate message types.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import grpc

from tests.support import cri_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.support.cri_messages import Document

NODE = 2  # CRI NamespaceMode.NODE
SANDBOX_STATES = ("READY", "NOTREADY")
CONTAINER_STATES = ("CREATED", "RUNNING", "EXITED", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Created sandbox; ``config`` is the sent configuration, which is also required to create a container."""

    id: str
    name: str
    namespace: str
    uid: str
    log_directory: Path | None
    config: Document = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Container:
    """Created container; ``log_file`` is the path of its log if the sandbox has a log directory."""

    id: str
    name: str
    attempt: int
    sandbox: Sandbox
    log_file: Path | None


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """Sandbox in CRI's list; ``state`` is a value of SANDBOX_STATES."""

    id: str
    name: str
    namespace: str
    uid: str
    attempt: int
    state: str
    labels: dict[str, str]
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """Container in CRI's list; ``state`` is a value of CONTAINER_STATES."""

    id: str
    sandbox_id: str
    name: str
    attempt: int
    image: str
    image_ref: str
    state: str
    labels: dict[str, str]
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """Exit code and termination reason of a container."""

    state: str
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Image in CRI's list."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    size_bytes: int
    pinned: bool


class Pods:
    """CRI client on one socket that creates pods as the kubelet does.

    ``log_root`` replaces /var/log/pods: by default, the log directory of a sandbox is ``<namespace>_<name>_<uid>``
    below it. ``cgroup_parent`` is the default parent cgroup of sandboxes; all used parents are in ``cgroup_parents``.
    Calls raise ``grpc.RpcError``; each call has a deadline of ``timeout_s``.
    """

    def __init__(
        self, socket: Path, *, log_root: Path | None = None, cgroup_parent: str = "", timeout_s: float = 30
    ) -> None:
        self.log_root = log_root
        self.cgroup_parent = cgroup_parent
        self.cgroup_parents: set[str] = set()
        self.timeout_s = timeout_s
        self.made: list[Sandbox] = []
        self._channel = grpc.insecure_channel(
            f"unix://{socket}",
            options=[
                ("grpc.default_authority", "localhost"),
                ("grpc.max_receive_message_length", 64 << 20),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 200),
            ],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def call(
        self, method: str, request: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Document:
        """Make one CRI call with the request as a dictionary; return the response as a dictionary with all fields."""
        rpc: Callable[..., Document] = self._channel.unary_unary(
            cri_messages.path(method),
            request_serializer=bytes,
            response_deserializer=partial(cri_messages.decode, method),
        )
        sent = cri_messages.encode(method, dict(request or {}))
        return rpc(sent, timeout=timeout_s or self.timeout_s, wait_for_ready=True)

    def run_sandbox(
        self,
        name: str,
        *,
        namespace: str = "default",
        uid: str = "",
        attempt: int = 0,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        log_directory: Path | None = None,
        cgroup_parent: str | None = None,
        host_pid: bool = False,
        runtime_handler: str = "",
    ) -> Sandbox:
        """Run a sandbox in the host's network namespace, with the labels and the log directory of the kubelet.

        The sandbox has no annotation ``kubernetes.io/config.source``, as a pod on a node without a kubelet. ``labels``
        and ``annotations`` override those of the kubelet. A second sandbox of a pod requires the ``uid`` of its first
        sandbox and the next ``attempt``.
        """
        uid = uid or str(uuid.uuid4())
        if log_directory is None and self.log_root is not None:
            log_directory = self.log_root / f"{namespace}_{name}_{uid}"
        if log_directory is not None:
            log_directory.mkdir(parents=True, exist_ok=True)
        parent = self.cgroup_parent if cgroup_parent is None else cgroup_parent
        if parent:
            self.cgroup_parents.add(parent)
        config: Document = {
            "metadata": {"name": name, "uid": uid, "namespace": namespace, "attempt": attempt},
            "log_directory": str(log_directory or ""),
            "labels": {**_pod_labels(name, namespace, uid), **(labels or {})},
            "annotations": {
                "kubernetes.io/config.seen": "2024-01-01T00:00:00.000000000Z",
                **(annotations or {}),
            },
            "linux": {
                "cgroup_parent": parent,
                "security_context": {"namespace_options": {"network": NODE, "pid": NODE if host_pid else 1}},
            },
        }
        answer = self.call("RunPodSandbox", {"config": config, "runtime_handler": runtime_handler})
        sandbox = Sandbox(answer["pod_sandbox_id"], name, namespace, uid, log_directory, config)
        self.made.append(sandbox)
        return sandbox

    def create_container(
        self,
        sandbox: Sandbox,
        name: str,
        image: str,
        command: Sequence[str] = (),
        *,
        attempt: int = 0,
        log_path: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[Path, str] | None = None,
        image_volumes: Mapping[str, str] | None = None,
        resources: Mapping[str, int] | None = None,
        more_mounts: Sequence[Document] = (),
        security: Mapping[str, Any] | None = None,
    ) -> Container:
        """Create a container without starting it; an empty ``command`` selects the command of the image.

        ``log_path`` is relative to the sandbox's log directory, by default ``<name>/<attempt>.log``. ``mounts`` maps
        host paths to container paths, ``image_volumes`` maps image references to container paths (containerd 2.1 and
        later); ``resources`` are the fields of CRI's LinuxContainerResources; ``more_mounts`` and ``security`` are
        messages of CRI.
        """
        log_path = f"{name}/{attempt}.log" if log_path is None else log_path
        log_file = sandbox.log_directory / log_path if sandbox.log_directory and log_path else None
        if log_file is not None:
            log_file.parent.mkdir(parents=True, exist_ok=True)
        namespaces = sandbox.config["linux"]["security_context"]["namespace_options"]
        config: Document = {
            "metadata": {"name": name, "attempt": attempt},
            "image": {"image": image},
            "command": list(command),
            "envs": [{"key": key, "value": value} for key, value in (env or {}).items()],
            "mounts": [*_mounts(mounts or {}, image_volumes or {}), *more_mounts],
            "labels": {
                "io.kubernetes.container.name": name,
                **_pod_labels(sandbox.name, sandbox.namespace, sandbox.uid),
                **(labels or {}),
            },
            "annotations": {
                "io.kubernetes.container.hash": "1a2b3c4d",
                "io.kubernetes.container.restartCount": str(attempt),
                "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
                "io.kubernetes.container.terminationMessagePolicy": "File",
                "io.kubernetes.pod.terminationGracePeriod": "30",
                **(annotations or {}),
            },
            "log_path": log_path if log_file else "",
            "linux": {
                "resources": dict(resources or {}),
                "security_context": {"namespace_options": namespaces, **(security or {})},
            },
        }
        answer = self.call(
            "CreateContainer", {"pod_sandbox_id": sandbox.id, "config": config, "sandbox_config": sandbox.config}
        )
        return Container(answer["container_id"], name, attempt, sandbox, log_file)

    def start(self, container: Container) -> None:
        self.call("StartContainer", {"container_id": container.id})

    def run_container(
        self, sandbox: Sandbox, name: str, image: str, command: Sequence[str] = (), *, attempt: int = 0
    ) -> Container:
        """Create and start a container."""
        container = self.create_container(sandbox, name, image, command, attempt=attempt)
        self.start(container)
        return container

    def stop(self, container: Container, *, grace_s: int = 0) -> None:
        """Stop a container by SIGTERM, and by SIGKILL after ``grace_s`` seconds; with 0, only by SIGKILL."""
        self.call(
            "StopContainer", {"container_id": container.id, "timeout": grace_s}, timeout_s=self.timeout_s + grace_s
        )

    def execute(self, container_id: str, *command: str) -> None:
        """Run a command in a container; fail unless its exit code is 0."""
        done = self.call("ExecSync", {"container_id": container_id, "cmd": list(command), "timeout": 60}, timeout_s=90)
        assert done["exit_code"] == 0, f"{command} exited with {done['exit_code']}"

    def wait_exited(self, container: Container, *, timeout_s: float = 10) -> ContainerExit:
        """Wait for the exit of a container and return it.

        Raises:
            TimeoutError: the container has not exited within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while (status := self.status(container.id)).state != "EXITED":
            if time.monotonic() > deadline:
                raise TimeoutError(f"container {container.name} is {status.state} after {timeout_s} s")
            time.sleep(0.01)  # polled, since CRI events are not read here
        return status

    def status(self, container_id: str) -> ContainerExit:
        got = self.call("ContainerStatus", {"container_id": container_id})["status"]
        return ContainerExit(
            CONTAINER_STATES[got["state"]],
            got["exit_code"],
            got["reason"],
        )

    def stop_sandbox(self, sandbox: Sandbox) -> None:
        self.call("StopPodSandbox", {"pod_sandbox_id": sandbox.id})

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        """Stop and remove a sandbox and its containers."""
        self.stop_sandbox(sandbox)
        self.call("RemovePodSandbox", {"pod_sandbox_id": sandbox.id})

    def remove_made(self) -> None:
        """Remove the remaining sandboxes that this client created."""
        existing = {one.id for one in self.list_sandboxes()}
        while self.made:
            sandbox = self.made.pop()
            if sandbox.id in existing:
                self.remove_sandbox(sandbox)

    def remove_container(self, container: Container) -> None:
        self.call("RemoveContainer", {"container_id": container.id})

    def remove_image(self, image: str) -> None:
        self.call("RemoveImage", {"image": {"image": image}})

    def pull_image(self, image: str) -> str:
        """Pull an image; return the image reference in CRI's response, an id or a name by digest."""
        return str(self.call("PullImage", {"image": {"image": image}})["image_ref"])

    def version(self) -> tuple[str, str]:
        """Return the runtime's name and version."""
        got = self.call("Version")
        return got["runtime_name"], got["runtime_version"]

    def list_images(self) -> list[ImageInfo]:
        images = [
            ImageInfo(i["id"], tuple(i["repo_tags"]), tuple(i["repo_digests"]), int(i["size"]), i["pinned"])
            for i in self.call("ListImages")["images"]
        ]
        return sorted(images, key=lambda image: image.id)

    def list_sandboxes(self) -> list[SandboxInfo]:
        return [
            SandboxInfo(
                one["id"],
                one["metadata"]["name"],
                one["metadata"]["namespace"],
                one["metadata"]["uid"],
                one["metadata"]["attempt"],
                SANDBOX_STATES[one["state"]],
                one["labels"],
                one["annotations"],
            )
            for one in self.call("ListPodSandbox")["items"]
        ]

    def list_containers(self) -> list[ContainerInfo]:
        return [
            ContainerInfo(
                one["id"],
                one["pod_sandbox_id"],
                one["metadata"]["name"],
                one["metadata"]["attempt"],
                one["image"]["image"],
                one["image_ref"],
                CONTAINER_STATES[one["state"]],
                one["labels"],
                one["annotations"],
            )
            for one in self.call("ListContainers")["containers"]
        ]


def link_log(links: Path, container: Container) -> Path:
    """Create the kubelet's symbolic link in /var/log/containers to a container's log; return the path of the link."""
    if container.log_file is None:
        raise ValueError(f"container {container.name} has no log file")
    sandbox = container.sandbox
    links.mkdir(parents=True, exist_ok=True)
    link = links / f"{sandbox.name}_{sandbox.namespace}_{container.name}-{container.id}.log"
    link.symlink_to(container.log_file)
    return link


def _mounts(mounts: Mapping[Path, str], image_volumes: Mapping[str, str]) -> Iterator[Document]:
    for host, inside in mounts.items():
        yield {"host_path": str(host), "container_path": inside}
    for image, inside in image_volumes.items():
        yield {"image": {"image": image}, "container_path": inside, "readonly": True}


def _pod_labels(name: str, namespace: str, uid: str) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.uid": uid,
    }
