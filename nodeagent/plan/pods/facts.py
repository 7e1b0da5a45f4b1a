"""Pod facts, merged from all sources; each fact has its source.

The order of precedence is: the kubelet, a static manifest, the runtime, the pod's cgroup, inference from these, and
assumption. If two sources differ, the pod gets a contradiction, which excludes it from eviction.

Assumption is for a node without a kubelet, where the runtime is the only source: a pod that no source marks as critical
is assumed to be ordinary. On a node managed by a kubelet these facts are unknown without the kubelet's list.
"""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

from nodeagent.model.pods import PodReading, PodSpec, RuntimePod
from nodeagent.model.pressure import (
    UNKNOWN,
    ContainerFacts,
    EmptyDirFacts,
    Fact,
    FactSource,
    Footprint,
    PodFacts,
    PodLifecycle,
    PodUsage,
    QosClass,
)
from nodeagent.model.priority import CRITICAL_CLASS_PRIORITIES, CRITICAL_PRIORITY, NODE_CRITICAL_PRIORITY
from nodeagent.model.shutdown import ShutdownPod
from nodeagent.model.workload import ANNOTATION_SOURCE
from nodeagent.plan.pods.inference import (
    inconsistencies,
    infer_critical,
    infer_qos,
    infer_requests,
    sum_requests,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


T = TypeVar("T")

ANNOTATION_MIRROR: Final = "kubernetes.io/config.mirror"
ANNOTATION_HASH: Final = "kubernetes.io/config.hash"
ANNOTATION_PRIORITY: Final = "nodeagent.dev/priority"
ANNOTATION_GRACE: Final = "io.kubernetes.pod.terminationGracePeriod"
ANNOTATION_DELETION_GRACE: Final = "io.kubernetes.pod.deletionGracePeriod"

_PRIORITIES: Final = range(-(2**31), 2**31)
_NO_READING: Final = PodReading()
_SOURCE_WORDS: Final = {
    FactSource.KUBELET: "kubelet /pods",
    FactSource.MANIFEST: "static manifest",
}


class SpecIndex:
    """Index of pod definitions in the kubelet's list and in the static manifests."""

    def __init__(
        self,
        kubelet: Sequence[PodSpec] | None = None,
        manifests: Sequence[PodSpec] = (),
        *,
        node_name: str = "",
        complete: bool = True,
    ) -> None:
        """Index both lists.

        Args:
            kubelet: the kubelet's pods; ``None`` without a list.
            manifests: the static pods.
            node_name: suffix of the names of static pods.
            complete: whether the kubelet's list has all of its pods; false for an outdated list.
        """
        self.has_list = kubelet is not None and complete
        self._by_uid: defaultdict[str, list[PodSpec]] = defaultdict(list)
        self._by_hash: dict[str, PodSpec] = {}
        for spec in kubelet or ():
            self._by_uid[spec.uid].append(spec)
            for key in (ANNOTATION_MIRROR, ANNOTATION_HASH):
                if spec.annotations.get(key):
                    self._by_hash.setdefault(spec.annotations[key], spec)
        self._manifests: dict[tuple[str, str], PodSpec] = {}
        for spec in manifests:
            for name in {spec.name, f"{spec.name}-{node_name.lower()}"}:
                self._manifests.setdefault((spec.namespace, name), spec)

    def in_kubelet(self, pod: RuntimePod) -> PodSpec | None:
        """Return the kubelet's entry of a pod by UID, or by the config hash of a static pod; ``None`` if absent."""
        known = self._by_uid.get(pod.uid)
        if known:
            return known[0]
        return self._by_hash.get(pod.uid) or self._by_hash.get(pod.sandbox.annotations.get(ANNOTATION_HASH, ""))

    def in_manifests(self, pod: RuntimePod) -> PodSpec | None:
        """Return the manifest of a static pod by namespace and name; ``None`` if absent.

        The kubelet appends the node's name to the pod's name. A pod from the API server is not a static pod.
        """
        if pod.sandbox.annotations.get(ANNOTATION_SOURCE) == "api":
            return None
        return self._manifests.get((pod.sandbox.namespace, pod.sandbox.name))

    def count(self, uid: str) -> int:
        """Return the number of entries with a UID in the kubelet's list."""
        return len(self._by_uid.get(uid, ()))


def merge_facts(
    pods: Iterable[RuntimePod],
    specs: SpecIndex,
    readings: Mapping[str, PodReading],
    *,
    memory_capacity_bytes: int | None,
    assume: bool,
) -> tuple[PodFacts, ...]:
    """Return the facts of each pod, ordered by UID.

    Args:
        pods: the pods of the runtime.
        specs: the definitions of the kubelet and the manifests.
        readings: the measurements, by UID.
        memory_capacity_bytes: of the node, from which the kubelet derives OOM scores; ``None`` if unknown.
        assume: whether a pod without definition is assumed to be ordinary.
    """
    merged = (_Merger(pod, specs, memory_capacity_bytes, assume=assume).facts(readings.get(pod.uid)) for pod in pods)
    return tuple(sorted(merged, key=attrgetter("uid")))


def shutdown_pods(
    facts: Iterable[PodFacts], pods: Iterable[RuntimePod], specs: SpecIndex | None = None
) -> tuple[ShutdownPod, ...]:
    """Return the shutdown planner's input for each pod of ``facts`` that is in ``pods``, in the order of ``facts``.

    An inferred or assumed priority is unknown to the shutdown planner, which has a rule of its own for it. Containers
    are in reverse order of creation, so that containers started first, such as sidecars, are stopped last.
    """
    by_uid = {pod.uid: pod for pod in pods}
    found = []
    for each in facts:
        pod = by_uid.get(each.uid)
        if pod is None:
            continue
        spec = specs.in_kubelet(pod) if specs is not None else None
        guessed = each.priority.source in (FactSource.INFERRED, FactSource.ASSUMED, FactSource.MISSING)
        static = each.static if each.static.value or not each.mirror.value else each.mirror
        critical = each.critical
        found.append(
            ShutdownPod(
                uid=each.uid,
                namespace=each.namespace,
                name=each.name,
                priority=None if guessed else each.priority.value,
                priority_source="" if guessed else _words(each.priority.source, f"annotation {ANNOTATION_PRIORITY}"),
                static=bool(static.value),
                static_source=_words(static.source, f"annotation {ANNOTATION_SOURCE}") if static.value else "",
                node_critical=bool(critical.value),
                node_critical_source=_words(critical.source, "oom_score_adj") if critical.value else "",
                labels=dict(spec.labels) if spec is not None else pod.labels,
                termination_grace_s=each.termination_grace_s.value,
                container_ids=tuple(container.id for container in pod.running),
            )
        )
    return tuple(found)


class _Merger:
    """Merges the sources of one pod."""

    def __init__(self, pod: RuntimePod, specs: SpecIndex, capacity_bytes: int | None, *, assume: bool) -> None:
        self._pod = pod
        self._kubelet = specs.in_kubelet(pod)
        self._verified = self._kubelet if self._kubelet is not None and self._kubelet.is_verified else None
        self._manifest = specs.in_manifests(pod)
        self._assume = assume
        self._annotations = pod.sandbox.annotations
        self._contradictions = list(pod.contradictions)
        self._check_listed(specs)
        derived = infer_qos(pod)
        self._qos = self._best(self._defined(attrgetter("qos")), derived)
        self._check_qos(derived)
        self._requests = infer_requests(pod, self._qos.value, capacity_bytes, assume=assume)

    def facts(self, reading: PodReading | None) -> PodFacts:
        """Return the merged facts."""
        static, mirror = self._static(), self._mirror()
        ranking = (each for each in (self._verified, self._manifest) if each is not None)
        priority_class = next((each.priority_class for each in ranking if each.priority_class), "")
        inferred = infer_critical(self._pod, self._qos.value)
        critical = self._critical(inferred)
        ephemeral = self._best(self._defined(attrgetter("ephemeral_request_bytes")), self._assumed(0))
        return PodFacts(
            uid=self._pod.uid,
            namespace=self._pod.sandbox.namespace,
            name=self._pod.sandbox.name,
            priority=self._priority(critical),
            priority_class=priority_class,
            qos=self._qos,
            static=static,
            mirror=mirror,
            critical=critical,
            memory_request_bytes=self._memory_request(),
            ephemeral_request_bytes=ephemeral,
            ephemeral_limit_bytes=next((each.ephemeral_limit_bytes for each in self._specs()), None),
            termination_grace_s=self._grace(),
            usage=_usage(reading),
            containers=tuple(self._containers(reading or _NO_READING)),
            empty_dirs=self._empty_dirs(reading or _NO_READING),
            lifecycle=self._lifecycle(),
            contradictions=tuple(dict.fromkeys(self._contradictions)),
        )

    def _specs(self) -> Iterator[PodSpec]:
        yield from (each for each in (self._kubelet, self._manifest) if each is not None)

    def _defined(self, get: Callable[[PodSpec], T | None], *, verified: bool = False) -> Fact[T | None]:
        """Return a field of the kubelet's definition, else of the manifest; ``verified`` excludes unverified lists."""
        listed = self._verified if verified else self._kubelet
        for spec, source in ((listed, FactSource.KUBELET), (self._manifest, FactSource.MANIFEST)):
            value = None if spec is None else get(spec)
            if value is not None:
                return Fact(value, source)
        return UNKNOWN

    def _assumed(self, value: T) -> Fact[T | None]:
        return Fact(value, FactSource.ASSUMED) if self._assume else UNKNOWN

    @staticmethod
    def _best(*facts: Fact[T | None]) -> Fact[T | None]:
        return next((fact for fact in facts if fact.value is not None), UNKNOWN)

    def _check_listed(self, specs: SpecIndex) -> None:
        if self._kubelet is None:
            if specs.has_list:
                self._contradictions.append("not in the kubelet's list")
            return
        sandbox, spec = self._pod.sandbox, self._kubelet
        if (spec.namespace, spec.name) != (sandbox.namespace, sandbox.name):
            self._contradictions.append(
                f"the kubelet has {spec.namespace}/{spec.name}, the runtime {sandbox.namespace}/{sandbox.name}"
            )
        if specs.count(self._pod.uid) > 1:
            self._contradictions.append("UID more than once in the kubelet's list")

    def _check_qos(self, derived: Fact[QosClass | None]) -> None:
        qos = self._qos
        by_cgroup = derived.value if derived.source is FactSource.CGROUP else None
        if self._kubelet is not None and qos.source is FactSource.KUBELET and by_cgroup not in (None, qos.value):
            self._contradictions.append(f"the kubelet has {qos.value}, the cgroup {by_cgroup}")
        if self._kubelet is None or by_cgroup is not None:
            self._contradictions += inconsistencies(self._pod, None if self._kubelet is not None else by_cgroup)

    def _static(self) -> Fact[bool | None]:
        """Return whether the pod is static; the kubelet annotates pods with their source."""
        from_list = self._verified.annotations.get(ANNOTATION_SOURCE) if self._verified is not None else None
        listed = _static(from_list, FactSource.KUBELET)
        defined = UNKNOWN if self._manifest is None else Fact(value=True, source=FactSource.MANIFEST)
        from_runtime = self._annotations.get(ANNOTATION_SOURCE)
        annotated = _static(from_runtime, FactSource.CRI)
        for text, fact, origin in ((from_list, listed, "the kubelet's list"), (from_runtime, annotated, "the runtime")):
            if text is not None and fact.value is None:
                self._contradictions.append(f"{origin}: annotation {ANNOTATION_SOURCE} is {text[:40]!r}")
        values = {fact.value for fact in (listed, annotated) if fact.value is not None}
        if len(values) > 1:
            self._contradictions.append("the kubelet and the runtime differ on static")
        fallback = UNKNOWN if from_runtime is not None else self._assumed(value=False)
        return self._best(listed, defined, annotated, fallback)

    def _mirror(self) -> Fact[bool | None]:
        if self._verified is not None and ANNOTATION_MIRROR in self._verified.annotations:
            return Fact(value=True, source=FactSource.KUBELET)
        if ANNOTATION_MIRROR in self._annotations:
            return Fact(value=True, source=FactSource.CRI)
        return Fact(value=False, source=FactSource.CRI if self._verified is None else FactSource.KUBELET)

    def _critical(self, inferred: Fact[bool | None]) -> Fact[bool | None]:
        spec = self._verified or self._manifest
        if spec is None:
            return inferred
        source = FactSource.KUBELET if self._verified is not None else FactSource.MANIFEST
        by_class = spec.priority_class in CRITICAL_CLASS_PRIORITIES or (spec.priority or 0) >= CRITICAL_PRIORITY
        if inferred.value and not by_class:
            self._contradictions.append("oom_score_adj is that of a critical pod, priority is not")
        return Fact(by_class, source)

    def _priority(self, critical: Fact[bool | None]) -> Fact[int | None]:
        """Return the priority; 0 for a definition with neither priority nor class."""
        defined = self._defined(_priority_of, verified=True)
        if defined.value is not None:
            return defined
        if self._verified is None and self._manifest is None:
            text = self._annotations.get(ANNOTATION_PRIORITY)
            # Pods of a kubelet have a Kubernetes priority, and tenants must not change it by this annotation.
            if text is not None and (self._assume or ANNOTATION_SOURCE not in self._annotations):
                return self._annotated_priority(text)
            if critical.value:
                return Fact(NODE_CRITICAL_PRIORITY, FactSource.INFERRED)
            return self._assumed(0)
        return UNKNOWN

    def _annotated_priority(self, text: str) -> Fact[int | None]:
        try:
            priority = int(text) if len(text) <= 11 else None
        except ValueError:
            priority = None
        if priority is None or priority not in _PRIORITIES:
            self._contradictions.append(f"annotation {ANNOTATION_PRIORITY} is {text[:40]!r}, not a 32-bit number")
            return UNKNOWN
        return Fact(priority, FactSource.CRI)

    def _memory_request(self) -> Fact[int | None]:
        guaranteed = self._pod.memory_min_bytes
        return self._best(
            self._defined(attrgetter("memory_request_bytes")),
            Fact(guaranteed, FactSource.CGROUP) if guaranteed else UNKNOWN,
            sum_requests(tuple(self._requests.values())),
            self._assumed(0) if not self._requests else UNKNOWN,
        )

    def _grace(self) -> Fact[float | None]:
        """Return the termination grace period of the pod; without definition the longest of its containers."""
        defined = self._defined(attrgetter("termination_grace_s"))
        if defined.value is not None:
            return defined
        texts = (each.annotations.get(ANNOTATION_GRACE, "") for each in self._pod.running or self._pod.containers)
        seconds = [float(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 10]
        return Fact(max(seconds), FactSource.CRI) if seconds else UNKNOWN

    def _lifecycle(self) -> PodLifecycle:
        running = self._pod.running
        if self._kubelet is not None and self._kubelet.phase in ("Succeeded", "Failed"):
            return PodLifecycle.ENDING if running else PodLifecycle.FINISHED
        if self._kubelet is not None and self._kubelet.deleting:
            return PodLifecycle.ENDING
        if not self._pod.sandbox_ids or any(ANNOTATION_DELETION_GRACE in each.annotations for each in running):
            return PodLifecycle.ENDING
        return PodLifecycle.ACTIVE

    def _containers(self, reading: PodReading) -> Iterator[ContainerFacts]:
        specs = {each.name: each for spec in self._specs() for each in spec.containers}
        for container in reversed(self._pod.running):
            spec = specs.get(container.name)
            request = self._requests.get(container.id, UNKNOWN).value
            yield ContainerFacts(
                name=container.name,
                memory_bytes=reading.container_memory_bytes.get(container.id),
                memory_request_bytes=request if spec is None else spec.memory_request_bytes,
                writable_bytes=reading.container_writable_bytes.get(container.id),
                logs_bytes=reading.container_logs_bytes.get(container.name),
                ephemeral_request_bytes=None if spec is None else spec.ephemeral_request_bytes,
                ephemeral_limit_bytes=None if spec is None else spec.ephemeral_limit_bytes,
            )

    def _empty_dirs(self, reading: PodReading) -> tuple[EmptyDirFacts, ...]:
        limits: dict[str, int | None] = dict.fromkeys(sorted(reading.empty_dir_bytes))
        limits |= {each.name: each.limit_bytes for spec in self._specs() for each in spec.empty_dirs}
        return tuple(EmptyDirFacts(name, reading.empty_dir_bytes.get(name), limit) for name, limit in limits.items())


def _static(value: str | None, source: FactSource) -> Fact[bool | None]:
    """Return whether a pod with that source annotation is static; unknown for any other value.

    Source: kubelet ``config.source``: ``api``, ``file`` or ``http``.
    """
    static = {"file": True, "http": True, "api": False}.get(value or "")
    return UNKNOWN if static is None else Fact(static, source)


def _priority_of(spec: PodSpec) -> int | None:
    return 0 if spec.priority is None and not spec.priority_class else spec.priority


def _words(source: FactSource, otherwise: str) -> str:
    return _SOURCE_WORDS.get(source, otherwise)


def _usage(reading: PodReading | None) -> PodUsage | None:
    if reading is None or reading == _NO_READING:
        return None
    return PodUsage(
        memory_bytes=reading.memory_bytes,
        swap_bytes=reading.swap_bytes,
        pids=reading.pids,
        writable=reading.writable or Footprint(),
        logs=reading.logs or Footprint(),
        volumes=reading.volumes or Footprint(),
        ephemeral_bytes=reading.ephemeral_bytes,
    )
