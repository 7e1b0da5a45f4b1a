"""Fuzz targets for inputs from the node: manifests, kubelet, runtime, journal and terminal.

A malformed object must never hide other objects: inputs with lists are read together with a valid object.
"""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent._proto.containerd.types.descriptor_pb2 import Descriptor
from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.doctor.plan.containerd import check_containerd_config
from nodeagent.doctor.plan.node import Grade
from nodeagent.errors import ConfigError, ObservationError
from nodeagent.gc.plan.consistency import RuntimeLists, SuspicionKind, find_suspicions
from nodeagent.gc.plan.planner import plan_all
from nodeagent.gc.plan.policy import GCPolicy
from nodeagent.host.containerd_config import ContainerdFiles, read_containerd_config
from nodeagent.kube.kubelet_pods import ManifestReader, parse_pod_list
from nodeagent.model.decision import ItemKind
from nodeagent.model.node import NodeSnapshot, RuntimeInfo
from nodeagent.model.runtime import ContainerState, FsObservation, ListContradiction
from nodeagent.parsing import parse_json
from nodeagent.runtime.containerd import decode_blob, decode_snapshot, decode_stored_image
from nodeagent.runtime.cri import (
    decode_container,
    decode_container_details,
    decode_container_usage,
    decode_filesystem,
    decode_image,
    decode_sandbox,
    decode_sandbox_details,
    decode_status,
    decode_stop_signal,
    merge_images,
)
from nodeagent.runtime.namespace_lists import SNAPSHOTS, Inventory, Stored
from nodeagent.settings.kubelet_import import KIND, import_kubelet, read_kubelet
from nodeagent.shutdown.plan.planner import signal_number
from nodeagent.telemetry.logging import encode
from nodeagent.text import display_width, encodable, escape, to_json
from tests.fuzz.target import DefectError, Target
from tests.support.containerd_trees import MAIN, TREES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from google.protobuf.message import Message

NOW: Final = datetime(2026, 1, 10, 12, tzinfo=UTC)
_POD: Final = {"kind": "Pod", "metadata": {"name": "good", "uid": "u-1"}, "spec": {"containers": [{"name": "a"}]}}
_FULL_POD: Final = {
    "kind": "Pod",
    "metadata": {
        "name": "web",
        "namespace": "shop",
        "uid": "0f1e2d3c",
        "labels": {"app": "web"},
        "annotations": {"nodeagent.dev/priority": "5"},
        "deletionGracePeriodSeconds": 30,
    },
    "spec": {
        "priority": 1000,
        "priorityClassName": "high",
        "terminationGracePeriodSeconds": 30,
        "overhead": {"memory": "1Mi"},
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "i", "image": {"reference": "r/b:1"}}],
        "initContainers": [{"name": "i", "image": "r/i:1", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "r/a:1", "resources": {"requests": {"memory": "64Mi", "cpu": "0.5"}}}],
    },
    "status": {"qosClass": "Burstable", "phase": "Running"},
}


def manifest(directory: Path, data: bytes) -> bool:
    """Read a manifest file beside a valid manifest file; return whether there is no warning."""
    (directory / "a.yaml").write_bytes(data)
    (directory / "b.json").write_text(json.dumps(_POD))
    found = ManifestReader(directory).read()
    if not any(each.name == "good" and not each.malformed for each in found.pods):
        raise DefectError("a malformed manifest hides another one")
    if any(len(each) > 2000 or escape(each) != each for each in found.warnings if each.isprintable()):
        raise DefectError("a warning is too long")
    return not found.warnings


_MANIFEST_SEEDS: Final = (
    json.dumps(_FULL_POD).encode(),
    b"kind: Pod\nmetadata:\n  name: etcd\nspec:\n  priority: 7\n  containers:\n  - name: etcd\n    image: r/etcd:3\n",
    b"kind: Pod\nmetadata: &m {name: x, labels: &l {a: b}}\nspec: {containers: [&c {name: c}, {<<: *c, image: i}]}\n",
    b"kind: PodList\nitems:\n- {metadata: {name: a}, spec: {}}\n- {metadata: {name: b}, spec: {priority: !!int '4'}}\n",
    b"%YAML 1.1\n---\nkind: Pod\nmetadata: {name: d}\nspec:\n  x: !!binary aGk=\n  y: [1_0, 0x1f, 1:30, .inf]\n",
)


def kubelet_pods(data: bytes) -> bool:
    """Parse a pod list of the kubelet with an additional valid pod; return whether all pods are well-formed."""
    try:
        document = parse_json(data)
        pods = parse_pod_list(document, "kubelet")
    except (ValueError, ObservationError):
        return False
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        found = parse_pod_list({**document, "items": [*document["items"], _POD]}, "kubelet")
        if len(found) != len(document["items"]) + 1 or found[-1].malformed:
            raise DefectError("a malformed pod hides another one")
    return not any(each.malformed for each in pods)


def kubelet_config(data: bytes) -> bool:
    """Import a kubelet configuration and check that the result is TOML; return whether the import succeeds."""
    try:
        imported = import_kubelet(read_kubelet(data.decode("utf-8", "replace")))
    except ConfigError:
        return False
    imported.to_toml()
    return True


def containerd_config(directory: Path, data: bytes) -> bool:
    """Read a main file of containerd that imports itself, and check its findings; return whether it has no fault."""
    (directory / "config.toml").write_bytes(data)
    config = read_containerd_config(ContainerdFiles("/config.toml", is_named=True, root=directory))
    if config is None or not (config.files or config.faults):
        raise DefectError("neither lines nor a fault")
    count = data.count(b"\n") + 1
    if any(not 1 <= line.number <= count for file in config.files for line in file):
        raise DefectError("a line has a number outside of the file")
    for version in ("1.6.20", "1.7.24", "2.1.9", "2.3.0"):
        first, *_ = check_containerd_config(config, version, sandbox_image=None, snapshotter="overlayfs")
        if config.faults and first.verdict is not Grade.WARNING:
            raise DefectError("settings are stated in spite of a fault")
    return not config.faults


_KUBELET_CONFIG: Final = {
    "kind": KIND,
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "imageGCHighThresholdPercent": 85,
    "imageGCLowThresholdPercent": 80,
    "imageMinimumGCAge": "2m",
    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%"},
    "evictionSoft": {"memory.available": "200Mi"},
    "evictionSoftGracePeriod": {"memory.available": "1m30s"},
    "evictionMinimumReclaim": {"imagefs.available": "2Gi"},
    "evictionPressureTransitionPeriod": "5m",
    "shutdownGracePeriod": "30s",
    "shutdownGracePeriodCriticalPods": "10s",
    "shutdownGracePeriodByPodPriority": [{"priority": 0, "shutdownGracePeriodSeconds": 5}],
    "readOnlyPort": 10255,
    "maxPods": 110,
}


_NEVER_EXPLAINED: Final = (SuspicionKind.DUPLICATE_ID, SuspicionKind.ID_MISSING)


def runtime(data: bytes) -> bool:
    """Decode responses of the runtime, check them and plan all removals; return whether an object is listed.

    The responses are given as JSON of their messages, or as encoded bytes after a letter that selects the message type.
    """
    kind = data[0] - ord("a") if data else -1
    if kind in range(len(_ANSWERS)):
        return _decoded(_ANSWERS[kind], data[1:])
    try:
        document = parse_json(data)
    except ValueError:
        return False
    lists = {kind: _messages(document, kind, message) for kind, message in _LISTED.items()}
    images = merge_images(map(decode_image, lists["images"]))
    containers = tuple(map(decode_container, lists["containers"]))
    sandboxes = tuple(map(decode_sandbox, lists["sandboxes"]))
    suspicions = find_suspicions(RuntimeLists(images, containers, sandboxes))
    snapshot = NodeSnapshot(
        observed_at=NOW,
        runtime=RuntimeInfo("containerd", "1.7", "v1", "unix:///s"),
        images=images,
        containers=containers,
        sandboxes=sandboxes,
        image_filesystem=FsObservation("/var/lib/containerd", 7, 1 << 30, 1, 65536, 30000, NOW),
        contradictions=tuple(ListContradiction(each.detail) for each in suspicions if each.kind in _NEVER_EXPLAINED),
    )
    plan = plan_all(snapshot, GCPolicy())
    removed = {(each.kind, each.id) for made in plan.plans for each in made.removals}
    for each in containers:
        used = {(ItemKind.IMAGE, each.image_ref), (ItemKind.IMAGE, each.image_id), (ItemKind.CONTAINER, each.id)}
        if each.state is ContainerState.RUNNING and removed & used:
            raise DefectError(f"removal of a running container or of its image: {each}")
    if any(not identity for _, identity in removed):
        raise DefectError("removal of an object without id")
    return bool(images or containers or sandboxes)


def _messages(document: object, kind: str, message: type[Message]) -> list[Any]:
    items = document.get(kind) if isinstance(document, dict) else None
    found = []
    for each in items if isinstance(items, list) else ():
        try:
            found.append(ParseDict(each, message(), ignore_unknown_fields=True))
        except Exception:  # noqa: BLE001 - protobuf raises various errors for messages that cannot be encoded
            continue
    return found


def _decoded(answer: tuple[type[Message], Callable[[Any], object]], data: bytes) -> bool:
    kind, decode = answer
    try:
        message = kind.FromString(data)
    except DecodeError:
        return False
    decode(message)
    return True


_ANSWERS: Final[tuple[tuple[type[Message], Callable[[Any], object]], ...]] = (
    (api.ListImagesResponse, lambda answer: [decode_image(each) for each in answer.images]),
    (api.ListContainersResponse, lambda answer: [decode_container(each) for each in answer.containers]),
    (api.ListPodSandboxResponse, lambda answer: [decode_sandbox(each) for each in answer.items]),
    (api.ContainerStatusResponse, decode_container_details),
    (api.PodSandboxStatusResponse, decode_sandbox_details),
    (api.StatusResponse, decode_status),
    (api.ListContainerStatsResponse, lambda answer: [decode_container_usage(each) for each in answer.stats]),
    (api.ImageStatusResponse, lambda answer: signal_number(decode_stop_signal(answer))),
    (api.ImageFsInfoResponse, lambda answer: [decode_filesystem(each) for each in answer.image_filesystems]),
    (images_pb2.Image, decode_stored_image),
    (content_pb2.Info, decode_blob),
    (snapshots_pb2.Info, decode_snapshot),
)
_LISTED: Final[dict[str, type[Message]]] = {
    "images": api.Image,
    "containers": api.Container,
    "sandboxes": api.PodSandbox,
}


def _runtime_seeds() -> tuple[bytes, ...]:
    images: list[dict[str, Any]] = [
        {"id": f"sha256:{letter * 64}", "repo_tags": [f"r/{letter}:1"], "size": "1000", "pinned": False}
        for letter in "abc"
    ]
    ended = 1_700_000_000_000_000_000
    containers: list[dict[str, Any]] = [
        {
            "id": f"c{number}",
            "pod_sandbox_id": "s1",
            "metadata": {"name": "app", "attempt": number},
            "image": {"image": images[0]["id"]},
            "image_ref": images[0]["id"],
            "state": state,
            "created_at": str(ended),
            "labels": {"io.kubernetes.pod.uid": "u", "io.kubernetes.container.name": "app"},
        }
        for number, state in enumerate(("CONTAINER_EXITED", "CONTAINER_RUNNING", "CONTAINER_EXITED"))
    ]
    sandboxes = [
        {
            "id": identity,
            "metadata": {"name": "web", "namespace": "shop", "uid": uid},
            "state": state,
            "created_at": str(ended),
        }
        for identity, uid, state in (("s1", "u", "SANDBOX_READY"), ("s2", "v", "SANDBOX_NOTREADY"))
    ]
    document = {"images": images, "containers": containers, "sandboxes": sandboxes}
    info = json.dumps({"config": {"linux": {"resources": {"oom_score_adj": 5}}}, "pid": 5, "image": "r/a:1"})
    stop = json.dumps({"imageSpec": {"config": {"StopSignal": "SIGRTMIN+3"}}})
    filesystem = {"timestamp": str(ended), "fs_id": {"mountpoint": "/v"}, "used_bytes": {"value": "5"}}
    status = {"status": containers[1] | {"finished_at": str(ended)}, "info": {"info": info}}
    messages: tuple[Message, ...] = (
        ParseDict({"images": images}, api.ListImagesResponse()),
        ParseDict({"containers": containers}, api.ListContainersResponse()),
        ParseDict({"items": sandboxes}, api.ListPodSandboxResponse()),
        ParseDict(status, api.ContainerStatusResponse(), ignore_unknown_fields=True),
        ParseDict({"status": sandboxes[0], "info": {"info": info}}, api.PodSandboxStatusResponse()),
        ParseDict({"image": images[0], "info": {"info": stop}}, api.ImageStatusResponse(), ignore_unknown_fields=True),
        ParseDict({"image_filesystems": [filesystem]}, api.ImageFsInfoResponse()),
    )
    return (
        json.dumps(document).encode(),
        *(
            bytes([ord("a") + [kind for kind, _ in _ANSWERS].index(type(each))]) + each.SerializeToString()
            for each in messages
        ),
    )


_MAX_PAIRS: Final = 200
_CHAIN: Final = 100


def image_graph(data: bytes) -> bool:
    """Follow the references of blobs and snapshots; cycles, missing objects and long chains must not hang or fail.

    The input is pairs of letters: each pair is a reference from the first object to the second. Capitals are snapshots,
    other letters are blobs, and a digit in the second place starts a long chain of blobs.
    """
    blobs: dict[str, Any] = {}
    snapshots: dict[str, Any] = {}
    data = data[: _MAX_PAIRS * 2]
    for first, second in zip(data[::2], data[1::2], strict=False):
        source, target = chr(first), chr(second)
        chain = [source, *(f"{target}-{number}" for number in range(_CHAIN))] if target.isdigit() else [source, target]
        for key, value in pairwise(chain):
            if key.isupper():
                snapshots[key] = decode_snapshot(snapshots_pb2.Info(name=key, parent=value))
            else:
                kind = "snapshot.overlayfs" if value.isupper() else f"content.l.{len(blobs) % 3}"
                labels = {f"containerd.io/gc.ref.{kind}": value, "containerd.io/gc.bref.content": source}
                blobs[key] = decode_blob(content_pb2.Info(digest=key, labels=labels))
    stored = Stored(blobs, {"overlayfs": snapshots})
    name = decode_stored_image(images_pb2.Image(name="r/a:1", target=Descriptor(digest="a")))
    inventory = Inventory(stored, images=(name,))
    reached = inventory.referenced_by_images(inventory.images)
    for node in reached:
        if any(each not in reached for each in stored.edges.get(node, ())):
            raise DefectError(f"a reference of {node} was not followed")
    inventory.referenced_by_unknown_labels()
    return any(node.kind == SNAPSHOTS + "overlayfs" for node in reached)


def terminal(data: bytes) -> bool:
    """Escape a text for a terminal and as JSON; return whether escaping changed it.

    The result must be printable, must be unchanged by a second escape, and as JSON must have the value of the text.
    """
    text = data.decode("utf-8", "surrogateescape")
    shown = escape(text)
    if not shown.isprintable() or escape(shown) != shown or display_width(shown) < 0:
        raise DefectError(f"not printable: {shown[:100]!r}")
    document = to_json({"text": text}, indent=2)
    if any(escape(each) != each for each in document.split("\n")):
        raise DefectError(f"JSON is not printable: {document[:100]!r}")
    if json.loads(document)["text"] != encodable(text):
        raise DefectError(f"JSON has another text: {document[:100]!r}")
    return shown != text


def journal(data: bytes) -> bool:
    """Encode a journal entry and check that its fields can be decoded; return whether it has several fields.

    The input has one field per line as KEY=VALUE, with NUL in place of line breaks in a value.
    """
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    fields = {key: value.replace("\0", "\n") for key, _, value in (each.partition("=") for each in lines)}
    rest, found = encode(fields), []
    while rest:
        key, _, rest = rest.partition(b"\n")
        if b"=" in key:
            value = key.partition(b"=")[2]
        else:
            (size,) = struct.unpack("<Q", rest[:8])
            value, rest = rest[8 : 8 + size], rest[9 + size :]
        found.append(value)
    if found != [encodable(each).encode() for each in fields.values()]:
        raise DefectError("an entry has other fields")
    return len(fields) > 1


def node_targets(directory: Path) -> dict[str, Target]:
    """Return the fuzz targets by name; the targets write files to ``directory``."""
    manifests = directory / "manifests"
    manifests.mkdir()
    containerd = directory / "containerd"
    containerd.mkdir()
    names = ("version-1", "version-2-both-tables", "version-3", "inline-tables", "long-values", "misspelt", "disabled")
    trees = tuple(TREES[each][MAIN].encode() for each in names)
    pods = json.dumps({"kind": "PodList", "items": [_FULL_POD, _POD]}).encode()
    hostile = "é\u202e\x1b[31m\n\udcff\u200b\U000e0041한".encode("utf-8", "surrogateescape")
    return {
        "manifest": Target(lambda data: manifest(manifests, data), _MANIFEST_SEEDS),
        "kubelet-pods": Target(kubelet_pods, (pods,)),
        "kubelet-config": Target(kubelet_config, (json.dumps(_KUBELET_CONFIG).encode(),)),
        "containerd-config": Target(lambda data: containerd_config(containerd, data), trees),
        "runtime": Target(runtime, _runtime_seeds()),
        "image-graph": Target(image_graph, (b"abbcaAABBC", b"aAAA", b"abbaaA", b"a0b1aA")),
        "terminal": Target(terminal, (hostile,)),
        "journal": Target(journal, (b"MESSAGE=text\nCODE=1\nPOD_NAME=a\0b", b"A=\nB=" + hostile.replace(b"\n", b"\0"))),
    }
