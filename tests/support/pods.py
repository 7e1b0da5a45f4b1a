"""CRI client in place of the kubelet: creates and lists pods and containers, as plain values.

The agent's own stubs are deliberately not used. They lack the calls that create pods, and a listing read through
the code under test would not be independent. The required messages are described here and built at run time in a
separate descriptor pool, so that they cannot collide with the generated ones.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

Document = dict[str, Any]

NODE = 2  # NamespaceMode.NODE
SANDBOX_STATES = ("READY", "NOTREADY")
CONTAINER_STATES = ("CREATED", "RUNNING", "EXITED", "UNKNOWN")

# One message per line: its fields as name=number:type. A leading * is a list, "map" is string to string.
_MESSAGES = """
Empty
Int64Value value=1:int64
UInt64Value value=1:uint64
ImageSpec image=1:string annotations=2:map
NamespaceOption network=1:int32 pid=2:int32 ipc=3:int32 target_id=4:string
LinuxSandboxSecurityContext namespace_options=1:NamespaceOption
LinuxPodSandboxConfig cgroup_parent=1:string security_context=2:LinuxSandboxSecurityContext
PodSandboxMetadata name=1:string uid=2:string namespace=3:string attempt=4:uint32
PodSandboxConfig metadata=1:PodSandboxMetadata hostname=2:string log_directory=3:string labels=6:map \
annotations=7:map linux=8:LinuxPodSandboxConfig
RunPodSandboxRequest config=1:PodSandboxConfig runtime_handler=2:string
RunPodSandboxResponse pod_sandbox_id=1:string
PodSandboxRequest pod_sandbox_id=1:string
PodSandbox id=1:string metadata=2:PodSandboxMetadata state=3:int32 created_at=4:int64 labels=5:map annotations=6:map
ListPodSandboxResponse *items=1:PodSandbox
ContainerMetadata name=1:string attempt=2:uint32
Mount container_path=1:string host_path=2:string readonly=3:bool
KeyValue key=1:string value=2:string
LinuxContainerResources cpu_period=1:int64 cpu_quota=2:int64 cpu_shares=3:int64 memory_limit_in_bytes=4:int64 \
oom_score_adj=5:int64
LinuxContainerSecurityContext namespace_options=3:NamespaceOption
LinuxContainerConfig resources=1:LinuxContainerResources security_context=2:LinuxContainerSecurityContext
ContainerConfig metadata=1:ContainerMetadata image=2:ImageSpec *command=3:string *args=4:string *envs=6:KeyValue \
*mounts=7:Mount labels=9:map annotations=10:map log_path=11:string linux=15:LinuxContainerConfig
CreateContainerRequest pod_sandbox_id=1:string config=2:ContainerConfig sandbox_config=3:PodSandboxConfig
CreateContainerResponse container_id=1:string
ContainerRequest container_id=1:string
StopContainerRequest container_id=1:string timeout=2:int64
Container id=1:string pod_sandbox_id=2:string metadata=3:ContainerMetadata image=4:ImageSpec image_ref=5:string \
state=6:int32 created_at=7:int64 labels=8:map annotations=9:map
ListContainersResponse *containers=1:Container
ContainerStatus id=1:string metadata=2:ContainerMetadata state=3:int32 created_at=4:int64 started_at=5:int64 \
finished_at=6:int64 exit_code=7:int32 image=8:ImageSpec image_ref=9:string reason=10:string message=11:string \
labels=12:map annotations=13:map log_path=15:string
ContainerStatusResponse status=1:ContainerStatus
Image id=1:string *repo_tags=2:string *repo_digests=3:string size=4:uint64 pinned=8:bool
ListImagesResponse *images=1:Image
ImageRequest image=1:ImageSpec
VersionResponse version=1:string runtime_name=2:string runtime_version=3:string runtime_api_version=4:string
"""

# method -> request and response message; the service follows from the method
_METHODS = {
    "Version": ("Empty", "VersionResponse"),
    "RunPodSandbox": ("RunPodSandboxRequest", "RunPodSandboxResponse"),
    "StopPodSandbox": ("PodSandboxRequest", "Empty"),
    "RemovePodSandbox": ("PodSandboxRequest", "Empty"),
    "ListPodSandbox": ("Empty", "ListPodSandboxResponse"),
    "CreateContainer": ("CreateContainerRequest", "CreateContainerResponse"),
    "StartContainer": ("ContainerRequest", "Empty"),
    "StopContainer": ("StopContainerRequest", "Empty"),
    "RemoveContainer": ("ContainerRequest", "Empty"),
    "ListContainers": ("Empty", "ListContainersResponse"),
    "ContainerStatus": ("ContainerRequest", "ContainerStatusResponse"),
    "ListImages": ("Empty", "ListImagesResponse"),
    "RemoveImage": ("ImageRequest", "Empty"),
}
_IMAGE_METHODS = {"ListImages", "RemoveImage"}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A created sandbox; ``config`` is the sent configuration, required again for the creation of a container."""

    id: str
    name: str
    namespace: str
    uid: str
    log_directory: Path | None
    config: Document = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Container:
    """A created container; ``log_file`` is the path of its log if the sandbox has a log directory."""

    id: str
    name: str
    attempt: int
    sandbox: Sandbox
    log_file: Path | None


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox in CRI's list; ``state`` is one of SANDBOX_STATES."""

    id: str
    name: str
    namespace: str
    uid: str
    attempt: int
    state: str
    created_at_ns: int
    labels: dict[str, str]
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A container in CRI's list; ``state`` is one of CONTAINER_STATES."""

    id: str
    sandbox_id: str
    name: str
    attempt: int
    image: str
    image_ref: str
    state: str
    created_at_ns: int
    labels: dict[str, str]
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """Exit of a container; times are 0 until it exits."""

    state: str
    exit_code: int
    reason: str
    started_at_ns: int
    finished_at_ns: int


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An image in CRI's list."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    size_bytes: int
    pinned: bool


class Pods:
    """A CRI client that creates pods as the kubelet does, on one socket.

    ``log_root`` replaces /var/log/pods: a sandbox gets ``<namespace>_<name>_<uid>`` below it by default.
    ``cgroup_parent`` is the default parent cgroup of sandboxes; all used parents are in ``cgroup_parents``.
    Calls raise ``grpc.RpcError``; each has a deadline of ``timeout_s``.
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
        """Make one CRI call with a document and return the response as a document with all fields."""
        requested, answered = _METHODS[method]
        service = "ImageService" if method in _IMAGE_METHODS else "RuntimeService"
        rpc: Callable[..., message.Message] = self._channel.unary_unary(
            f"/runtime.v1.{service}/{method}",
            request_serializer=lambda sent: sent.SerializeToString(),
            response_deserializer=_classes()[answered].FromString,
        )
        sent = json_format.ParseDict(dict(request or {}), _classes()[requested]())
        answer = rpc(sent, timeout=timeout_s or self.timeout_s, wait_for_ready=True)
        return json_format.MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )

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
        """Run a sandbox in the host's network namespace, with labels and logs of the kubelet.

        It has no ``kubernetes.io/config.source``, as pods of a node without a kubelet have none.
        ``labels`` and ``annotations`` override those of the kubelet. A second sandbox of the same pod takes the ``uid``
        of the first one and the next ``attempt``.
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
        resources: Mapping[str, int] | None = None,
    ) -> Container:
        """Create a container, not yet started; an empty ``command`` runs that of the image.

        ``log_path`` is relative to the sandbox's log directory, by default ``<name>/<attempt>.log``. ``mounts`` maps
        host paths to paths inside; ``resources`` are the fields of CRI's LinuxContainerResources.
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
            "mounts": [{"host_path": str(host), "container_path": inside} for host, inside in (mounts or {}).items()],
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
            "linux": {"resources": dict(resources or {}), "security_context": {"namespace_options": namespaces}},
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
        """Stop a container: SIGTERM, then SIGKILL after ``grace_s`` seconds; SIGKILL at once for 0."""
        self.call(
            "StopContainer", {"container_id": container.id, "timeout": grace_s}, timeout_s=self.timeout_s + grace_s
        )

    def wait_exited(self, container: Container, *, timeout_s: float = 10) -> ContainerExit:
        """Wait for the end of the container and return its exit; raises TimeoutError at the deadline."""
        deadline = time.monotonic() + timeout_s
        while (status := self.status(container.id)).state != "EXITED":
            if time.monotonic() > deadline:
                raise TimeoutError(f"container {container.name} is {status.state} after {timeout_s} s")
            time.sleep(0.01)  # polled, since no event reports a state change of another process
        return status

    def status(self, container_id: str) -> ContainerExit:
        got = self.call("ContainerStatus", {"container_id": container_id})["status"]
        return ContainerExit(
            CONTAINER_STATES[got["state"]],
            got["exit_code"],
            got["reason"],
            int(got["started_at"]),
            int(got["finished_at"]),
        )

    def stop_sandbox(self, sandbox: Sandbox) -> None:
        self.call("StopPodSandbox", {"pod_sandbox_id": sandbox.id})

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        """Remove a sandbox and its containers, stopping it first."""
        self.stop_sandbox(sandbox)
        self.call("RemovePodSandbox", {"pod_sandbox_id": sandbox.id})

    def remove_made(self) -> None:
        """Remove the remaining sandboxes of this client."""
        existing = {one.id for one in self.list_sandboxes()}
        while self.made:
            sandbox = self.made.pop()
            if sandbox.id in existing:
                self.remove_sandbox(sandbox)

    def remove_container(self, container: Container) -> None:
        self.call("RemoveContainer", {"container_id": container.id})

    def remove_image(self, image: str) -> None:
        self.call("RemoveImage", {"image": {"image": image}})

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
                int(one["created_at"]),
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
                int(one["created_at"]),
                one["labels"],
                one["annotations"],
            )
            for one in self.call("ListContainers")["containers"]
        ]


def link_log(links: Path, container: Container) -> Path:
    """Create the kubelet's symlink in /var/log/containers for a container's log, and return its path."""
    if container.log_file is None:
        raise ValueError(f"container {container.name} has no log file")
    sandbox = container.sandbox
    links.mkdir(parents=True, exist_ok=True)
    link = links / f"{sandbox.name}_{sandbox.namespace}_{container.name}-{container.id}.log"
    link.symlink_to(container.log_file)
    return link


def _pod_labels(name: str, namespace: str, uid: str) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.uid": uid,
    }


@cache
def _classes() -> dict[str, type[message.Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="test_cri.proto", package="runtime.v1", syntax="proto3")
    for line in _MESSAGES.strip().splitlines():
        name, *fields = line.split()
        described = file.message_type.add(name=name)
        for text in fields:
            _describe(described, text)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        described.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"runtime.v1.{described.name}"))
        for described in file.message_type
    }


def _describe(described: DescriptorProto, text: str) -> None:
    name, _, rest = text.partition("=")
    number, _, kind = rest.partition(":")
    added = described.field.add(name=name.removeprefix("*"), number=int(number))
    repeated = name.startswith("*") or kind == "map"
    added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
    if kind == "map":
        entry = described.nested_type.add(name=name.title().replace("_", "") + "Entry")
        entry.options.map_entry = True
        for part, key in enumerate(("key", "value"), start=1):
            entry.field.add(name=key, number=part, type="TYPE_STRING", label="LABEL_OPTIONAL")
        _refer(added, f".runtime.v1.{described.name}.{entry.name}")
    elif kind in {"string", "bool", "int32", "int64", "uint32", "uint64"}:
        added.type = added.Type.Value(f"TYPE_{kind.upper()}")
    else:
        _refer(added, f".runtime.v1.{kind}")


def _refer(added: FieldDescriptorProto, type_name: str) -> None:
    added.type = added.TYPE_MESSAGE
    added.type_name = type_name
