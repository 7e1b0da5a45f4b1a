"""Builders of pods, one for each source of pod facts; sizes are in MiB unless the name has another unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nodeagent.model.pods import ContainerSpec, ContainerTraits, PodSpec, RuntimePod
from nodeagent.model.runtime import Container, ContainerState, Sandbox
from nodeagent.pods.plan.facts import SpecIndex, group_pods, merge_facts
from tests.unit.builders import MIB, ago

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.model.pods import PodReading
    from nodeagent.model.pressure import PodFacts

UID: Final = "0b5a1c9e-1111-4222-8333-abcdefabcdef"
CAPACITY_BYTES: Final = 16384 * MIB
API: Final = {"kubernetes.io/config.source": "api"}
GRACE: Final = {"io.kubernetes.pod.terminationGracePeriod": "30"}


def parent(qos: str = "burstable", uid: str = UID) -> str:
    """Return the cgroup parent of a pod as named by the kubelet; QoS class ``guaranteed`` has no own directory."""
    return f"/kubepods/pod{uid}" if qos == "guaranteed" else f"/kubepods/{qos}/pod{uid}"


def traits(score: int | None = 999, limit: float | None = 0) -> ContainerTraits:
    """Return container traits with an OOM score adjustment and a memory limit in MiB."""
    return ContainerTraits(score, None if limit is None else int(limit * MIB))


def runtime_pod(
    *scores: ContainerTraits | None,
    qos: str = "burstable",
    uid: str = UID,
    name: str = "web",
    namespace: str = "shop",
    annotations: Mapping[str, str] = API,
    labels: Mapping[str, str] | None = None,
    state: ContainerState = ContainerState.RUNNING,
    container_annotations: Mapping[str, str] = GRACE,
    ready: bool = True,
    cgroup_parent: str | None = None,
    memory_min: float = 0,
) -> RuntimePod:
    """Return a pod with one container per argument, oldest first; ``None`` is a container with unread status."""
    own = {"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": namespace}
    sandbox = Sandbox(
        f"sb-{uid}",
        name,
        namespace,
        uid,
        ready,
        created_at=ago(7200),
        labels=own | dict(labels or {}),
        annotations=annotations,
    )
    containers = [
        Container(
            f"c{number}-{uid}",
            f"c{number}",
            sandbox.id,
            state,
            created_at=ago(3600 - number),
            labels=own,
            annotations=container_annotations,
        )
        for number, _ in enumerate(scores)
    ]
    (pod,) = group_pods(
        [sandbox],
        containers,
        cgroup_parents={sandbox.id: parent(qos, uid) if cgroup_parent is None else cgroup_parent},
        traits={each.id: known for each, known in zip(containers, scores, strict=True) if known is not None},
        memory_min_bytes={sandbox.id: int(memory_min * MIB)},
    )
    return pod


def spec(name: str = "web", *, uid: str = UID, namespace: str = "shop", **fields: Any) -> PodSpec:
    """Return a pod definition, by default of a pod from the API server."""
    return PodSpec(uid, namespace, name, **({"annotations": API} | fields))


def container_spec(name: str, request: float = 0, *, ephemeral_limit: float = 0) -> ContainerSpec:
    """Return a container of a pod definition, with memory request and ephemeral storage limit in MiB."""
    return ContainerSpec(name, int(request * MIB), ephemeral_limit_bytes=int(ephemeral_limit * MIB))


def merged(
    pod: RuntimePod,
    *,
    kubelet: Sequence[PodSpec] | None = None,
    manifests: Sequence[PodSpec] = (),
    reading: PodReading | None = None,
    assume: bool = True,
    node_name: str = "node-1",
    complete: bool = True,
    trusted: frozenset[str] = frozenset(),
) -> PodFacts:
    """Return the facts of a pod, merged from all given sources."""
    specs = SpecIndex(kubelet, manifests, node_name=node_name, complete=complete)
    readings = {} if reading is None else {pod.uid: reading}
    (facts,) = merge_facts(
        [pod],
        specs,
        readings,
        memory_capacity_bytes=CAPACITY_BYTES,
        assume=assume,
        annotation_namespaces=trusted,
    )
    return facts
