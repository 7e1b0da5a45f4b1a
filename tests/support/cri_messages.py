"""CRI messages of the test harness, encoded from dictionaries and decoded to dictionaries.

The message types are created at run time in a separate descriptor pool, so that they cannot collide with the agent's
generated message types.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

Document = dict[str, Any]

# One message per line, with its fields as name=number:type. A leading * marks a list; "map" is a map of strings.
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
Mount container_path=1:string host_path=2:string readonly=3:bool propagation=5:int32 image=9:ImageSpec
KeyValue key=1:string value=2:string
LinuxContainerResources cpu_period=1:int64 cpu_quota=2:int64 cpu_shares=3:int64 memory_limit_in_bytes=4:int64 \
oom_score_adj=5:int64
Capability *add_capabilities=1:string *drop_capabilities=2:string
SecurityProfile profile_type=1:int32
LinuxContainerSecurityContext capabilities=1:Capability privileged=2:bool namespace_options=3:NamespaceOption \
run_as_user=5:Int64Value readonly_rootfs=7:bool no_new_privs=11:bool run_as_group=12:Int64Value \
seccomp=15:SecurityProfile
LinuxContainerConfig resources=1:LinuxContainerResources security_context=2:LinuxContainerSecurityContext
ContainerConfig metadata=1:ContainerMetadata image=2:ImageSpec *command=3:string *args=4:string *envs=6:KeyValue \
*mounts=7:Mount labels=9:map annotations=10:map log_path=11:string linux=15:LinuxContainerConfig
CreateContainerRequest pod_sandbox_id=1:string config=2:ContainerConfig sandbox_config=3:PodSandboxConfig
CreateContainerResponse container_id=1:string
ContainerRequest container_id=1:string
StopContainerRequest container_id=1:string timeout=2:int64
ExecSyncRequest container_id=1:string *cmd=2:string timeout=3:int64
ExecSyncResponse exit_code=3:int32
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
PullImageResponse image_ref=1:string
VersionResponse version=1:string runtime_name=2:string runtime_version=3:string runtime_api_version=4:string
"""

# request and response message of each method; the service is derived from the method
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
    "ExecSync": ("ExecSyncRequest", "ExecSyncResponse"),
    "ListContainers": ("Empty", "ListContainersResponse"),
    "ListContainerStats": ("Empty", "Empty"),
    "ContainerStatus": ("ContainerRequest", "ContainerStatusResponse"),
    "ListImages": ("Empty", "ListImagesResponse"),
    "ImageFsInfo": ("Empty", "Empty"),
    "RemoveImage": ("ImageRequest", "Empty"),
    "PullImage": ("ImageRequest", "PullImageResponse"),
}
_IMAGE_METHODS = {"ImageFsInfo", "ListImages", "RemoveImage", "PullImage"}


def path(method: str) -> str:
    """Return the gRPC path of a method."""
    service = "ImageService" if method in _IMAGE_METHODS else "RuntimeService"
    return f"/runtime.v1.{service}/{method}"


def encode(method: str, document: Document) -> bytes:
    """Return the encoded request of a method."""
    requested, _ = _METHODS[method]
    return json_format.ParseDict(document, _classes()[requested]()).SerializeToString()


def decode(method: str, raw: bytes) -> Document:
    """Return the decoded response of a method as a dictionary with all fields."""
    _, answered = _METHODS[method]
    return json_format.MessageToDict(
        _classes()[answered].FromString(raw),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


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
