"""Pod facts merged from all sources; each fact is stored with its source.

Sources in order of precedence: API server, kubelet, static manifest, runtime, cgroup of the pod, inference, assumption.
If two sources differ, the contradiction is recorded and excludes the pod from eviction.

A mark that protects a pod (static, mirror, priority) is used only from a source that the author of the pod does not
control: the API server, the kubelet, the manifest directory, annotations written by a kubelet, or annotations in a
namespace that the configuration trusts. Other marks and malformed marks are ignored, with a sentence in ``ignored``. A
pod is never critical because of an OOM score, since the client that creates the container sets the score.

Facts are assumed only on a node without a kubelet, where the runtime is the only source: a pod that no source marks as
critical is assumed not to be critical. On a node managed by a kubelet, these facts are unknown without a pod list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final, TypeVar

from nodeagent.model import pressure
from nodeagent.model.pods import (
    CRITICAL_CLASS_PRIORITIES,
    CRITICAL_PRIORITY,
    ENDED,
    ContainerTraits,
    EmptyDirSpec,
    PodListSource,
    PodReading,
    PodSpec,
    RuntimePod,
)
from nodeagent.model.runtime import ANNOTATION_SOURCE, LABEL_POD_UID, Container, ContainerState, Sandbox
from nodeagent.pods.plan.definitions import (
    ANNOTATION_MIRROR,
    ANNOTATION_PRIORITY,
    PodDefinition,
    SpecIndex,
    read_marks,
    static_by_source,
)
from nodeagent.pods.plan.inference import inconsistencies, infer_qos, infer_request, sum_requests
from nodeagent.record import equal_fields

T = TypeVar("T")

ANNOTATION_GRACE: Final = "io.kubernetes.pod.terminationGracePeriod"
ANNOTATION_DELETION_GRACE: Final = "io.kubernetes.pod.deletionGracePeriod"

_NO_READING: Final = PodReading()


def merge_facts(  # noqa: PLR0913 - one argument for each source of facts
    pods: Iterable[RuntimePod],
    specs: SpecIndex,
    readings: Mapping[str, PodReading],
    *,
    memory_capacity_bytes: int | None,
    assume: bool,
    annotation_namespaces: AbstractSet[str] = frozenset(),
) -> tuple[pressure.PodFacts, ...]:
    """Return the merged facts of each pod, ordered by UID.

    Args:
        pods: pods of the runtime.
        specs: index of listed definitions and static manifests.
        readings: measured usage by pod UID.
        memory_capacity_bytes: memory of the node, from which the kubelet derives OOM scores; ``None`` if unknown.
        assume: whether missing facts are assumed (no kubelet on the node): a pod without a definition is not critical.
            If false, a kubelet created the pods and wrote the marks in their annotations.
        annotation_namespaces: namespaces in which marks in annotations are trusted even without a kubelet.
    """
    merged = (
        _Merger(pod, specs, memory_capacity_bytes, assume=assume, trusted=annotation_namespaces).facts(
            readings.get(pod.uid)
        )
        for pod in pods
    )
    return tuple(sorted(merged, key=attrgetter("uid")))


def ignored_marks(facts: Iterable[pressure.PodFacts]) -> Iterator[str]:
    """Yield a warning for each pod with ignored marks."""
    for pod in facts:
        if pod.ignored:
            yield f"pod {pod.namespace}/{pod.name}: {'; '.join(pod.ignored)}"


class _Merger:
    """Merge of all sources of facts about one pod."""

    def __init__(
        self,
        pod: RuntimePod,
        specs: SpecIndex,
        capacity_bytes: int | None,
        *,
        assume: bool,
        trusted: AbstractSet[str],
    ) -> None:
        self._pod = pod
        self._assume = assume
        self._trusted = pod.sandbox.namespace in trusted
        self._marks = read_marks(pod.sandbox.annotations)
        self._ignored: list[str] = list(self._marks.malformed)
        self._contradictions = list(pod.contradictions)
        self._defined = PodDefinition(
            self._well_formed(listed := specs.in_list(pod), _list_of(listed)),
            self._well_formed(specs.in_manifests(pod), "the static manifests"),
        )
        self._check_listed(specs)
        derived = infer_qos(pod)
        self._qos = self._best(self._defined.field(attrgetter("qos")), derived)
        self._check_qos(derived)
        self._requests = {
            each.id: infer_request(pod.traits.get(each.id), self._qos.value, capacity_bytes, assume=assume)
            for each in pod.running
        }

    def facts(self, reading: PodReading | None) -> pressure.PodFacts:
        """Return the merged facts of the pod."""
        static, mirror = self._static(), self._mirror()
        ranking = (each for each in (self._defined.verified, self._defined.manifest) if each is not None)
        priority_class = next((each.priority_class for each in ranking if each.priority_class), "")
        critical = self._critical()
        ephemeral = self._best(self._defined.field(attrgetter("ephemeral_request_bytes")), self._assumed(0))
        return pressure.PodFacts(
            uid=self._pod.uid,
            namespace=self._pod.sandbox.namespace,
            name=self._pod.sandbox.name,
            priority=self._priority(),
            priority_class=priority_class,
            qos=self._qos,
            static=static,
            mirror=mirror,
            critical=critical,
            memory_request_bytes=self._memory_request(),
            ephemeral_request_bytes=ephemeral,
            ephemeral_limit_bytes=next((each.ephemeral_limit_bytes for each in self._defined), None),
            ephemeral_limit_text=next((each.ephemeral_limit_text for each in self._defined), ""),
            termination_grace_s=self._grace(),
            usage=_usage(reading),
            containers=tuple(self._containers(reading or _NO_READING)),
            empty_dirs=self._empty_dirs(reading or _NO_READING),
            lifecycle=self._lifecycle(),
            contradictions=tuple(dict.fromkeys(self._contradictions)),
            ignored=tuple(dict.fromkeys(self._ignored)),
        )

    def _well_formed(self, spec: PodSpec | None, where: str) -> PodSpec | None:
        """Return a well-formed definition; for a malformed definition record a contradiction and return ``None``."""
        if spec is None or not spec.malformed:
            return spec
        self._contradictions.append(f"malformed in {where}: {spec.malformed}")
        return None

    def _assumed(self, value: T) -> pressure.Fact[T | None]:
        return pressure.Fact(value, pressure.FactSource.ASSUMED) if self._assume else pressure.UNKNOWN

    @staticmethod
    def _best(*facts: pressure.Fact[T | None]) -> pressure.Fact[T | None]:
        return next((fact for fact in facts if fact.value is not None), pressure.UNKNOWN)

    def _check_listed(self, specs: SpecIndex) -> None:
        if self._defined.listed is None:
            # The API server does not list pods of other CRI clients; a kubelet lists the pods of all its sources.
            from_source = specs.source is PodListSource.KUBELET or self._pod.sandbox.from_api_server
            if specs.has_list and from_source and specs.in_list(self._pod) is None:
                self._contradictions.append(f"not in the {specs.source}'s list")
            return
        sandbox, spec = self._pod.sandbox, self._defined.listed
        owner = spec.listed_by
        if (spec.namespace, spec.name) != (sandbox.namespace, sandbox.name):
            self._contradictions.append(
                f"the {owner} has {spec.namespace}/{spec.name}, the runtime {sandbox.namespace}/{sandbox.name}"
            )
        if specs.count(self._pod.uid) > 1:
            self._contradictions.append(f"UID more than once in the {owner}'s list")

    def _check_qos(self, derived: pressure.Fact[pressure.QosClass | None]) -> None:
        qos = self._qos
        by_cgroup = derived.value if derived.source is pressure.FactSource.CGROUP else None
        listed = self._defined.listed
        in_list = listed is not None
        if listed is not None and qos.source is self._defined.list_source and by_cgroup not in (None, qos.value):
            self._contradictions.append(f"the {listed.listed_by} has {qos.value}, the cgroup {by_cgroup}")
        if not in_list or by_cgroup is not None:
            self._contradictions += inconsistencies(self._pod, None if in_list else by_cgroup)

    def _static(self) -> pressure.Fact[bool | None]:
        """Return whether the pod is static, by the source annotation of the kubelet or by a static manifest."""
        verified = self._defined.verified
        from_list = None if verified is None else verified.annotations.get(ANNOTATION_SOURCE)
        listed = _fact(static_by_source(from_list), self._defined.list_source)
        if from_list is not None and listed.value is None:
            self._contradictions.append(
                f"{_list_of(verified)}: annotation {ANNOTATION_SOURCE} is {from_list[:40]!r}, not api, file or http"
            )
        defined = (
            pressure.UNKNOWN
            if self._defined.manifest is None
            else pressure.Fact(value=True, source=pressure.FactSource.MANIFEST)
        )
        annotated = _fact(self._marks.static, pressure.FactSource.CRI)
        unlisted = listed.value is None and defined.value is None
        if annotated.value and unlisted and not self._marks_count(ANNOTATION_SOURCE):
            annotated = pressure.UNKNOWN
        values = {fact.value for fact in (listed, annotated) if fact.value is not None}
        if len(values) > 1:
            self._contradictions.append(f"{_list_of(verified)} and the runtime differ on static")
        return self._best(listed, defined, annotated, self._assumed(value=False))

    def _mirror(self) -> pressure.Fact[bool | None]:
        if self._defined.verified is not None:
            return pressure.Fact(
                value=ANNOTATION_MIRROR in self._defined.verified.annotations, source=self._defined.list_source
            )
        if self._marks.mirror and not self._marks_count(ANNOTATION_MIRROR):
            return self._assumed(value=False)
        return pressure.Fact(value=self._marks.mirror, source=pressure.FactSource.CRI)

    def _marks_count(self, annotation: str) -> bool:
        """Return whether a mark in the annotations of the sandbox is trusted; record an untrusted mark as ignored."""
        if self._trusted or self._defined.verified is not None or not self._assume:
            return True
        self._ignored.append(
            f"annotation {annotation} has no effect in namespace {self._pod.sandbox.namespace}, which is not in "
            "eviction.annotation_namespaces"
        )
        return False

    def _critical(self) -> pressure.Fact[bool | None]:
        """Return whether the pod is critical by its priority or priority class.

        A pod without a definition is assumed not to be critical; the fact is unknown if the pod has no containers or a
        status was not read.
        """
        spec = self._defined.verified or self._defined.manifest
        if spec is None:
            containers = self._pod.running or self._pod.containers
            known = (
                self._pod.status_read and bool(containers) and all(each.id in self._pod.traits for each in containers)
            )
            return self._assumed(value=False) if known else pressure.UNKNOWN
        source = self._defined.list_source if self._defined.verified is not None else pressure.FactSource.MANIFEST
        by_class = spec.priority_class in CRITICAL_CLASS_PRIORITIES or (spec.priority or 0) >= CRITICAL_PRIORITY
        return pressure.Fact(by_class, source)

    def _priority(self) -> pressure.Fact[int | None]:
        """Return the pod priority; 0 for a definition without priority and priority class."""
        defined = self._defined.field(_priority_of, verified=True)
        if defined.value is not None or self._defined.verified is not None or self._defined.manifest is not None:
            return defined
        annotated = self._marks.priority
        # Pods of a kubelet have a Kubernetes priority, which the annotation must not override.
        if annotated is not None and (self._assume or self._trusted) and self._marks_count(ANNOTATION_PRIORITY):
            return pressure.Fact(annotated, pressure.FactSource.CRI)
        return self._assumed(0)

    def _memory_request(self) -> pressure.Fact[int | None]:
        guaranteed = self._pod.memory_min_bytes
        return self._best(
            self._defined.field(attrgetter("memory_request_bytes")),
            pressure.Fact(guaranteed, pressure.FactSource.CGROUP) if guaranteed else pressure.UNKNOWN,
            sum_requests(tuple(self._requests.values())),
            self._assumed(0) if not self._requests else pressure.UNKNOWN,
        )

    def _grace(self) -> pressure.Fact[float | None]:
        """Return the pod's termination grace period; without a definition the longest in container annotations."""
        defined = self._defined.field(attrgetter("termination_grace_s"))
        if defined.value is not None:
            return defined
        texts = (each.annotations.get(ANNOTATION_GRACE, "") for each in self._pod.running or self._pod.containers)
        seconds = [float(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 10]
        return pressure.Fact(max(seconds), pressure.FactSource.CRI) if seconds else pressure.UNKNOWN

    def _lifecycle(self) -> pressure.PodLifecycle:
        running, listed = self._pod.running, self._defined.listed
        if listed is not None and listed.phase in ENDED:
            return pressure.PodLifecycle.ENDING if running else pressure.PodLifecycle.FINISHED
        if listed is not None and listed.deleting:
            return pressure.PodLifecycle.ENDING
        if not self._pod.sandbox_ids or any(ANNOTATION_DELETION_GRACE in each.annotations for each in running):
            return pressure.PodLifecycle.ENDING
        return pressure.PodLifecycle.ACTIVE

    def _containers(self, reading: PodReading) -> Iterator[pressure.ContainerFacts]:
        specs = {each.name: each for spec in self._defined for each in spec.containers}
        for container in reversed(self._pod.running):
            spec = specs.get(container.name)
            request = self._requests.get(container.id, pressure.UNKNOWN).value
            yield pressure.ContainerFacts(
                name=container.name,
                memory_bytes=reading.container_memory_bytes.get(container.id),
                memory_request_bytes=request if spec is None else spec.memory_request_bytes,
                writable_bytes=reading.container_writable_bytes.get(container.id),
                logs_bytes=reading.container_logs_bytes.get(container.name),
                ephemeral_request_bytes=None if spec is None else spec.ephemeral_request_bytes,
                ephemeral_limit_bytes=None if spec is None or spec.init else spec.ephemeral_limit_bytes,
                memory_request_text="" if spec is None else spec.memory_request_text,
                ephemeral_request_text="" if spec is None else spec.ephemeral_request_text,
                ephemeral_limit_text="" if spec is None else spec.ephemeral_limit_text,
                memory_request_inferred=spec is None and request is not None,
            )

    def _empty_dirs(self, reading: PodReading) -> tuple[pressure.EmptyDirFacts, ...]:
        volumes = {name: EmptyDirSpec(name) for name in sorted(reading.empty_dir_bytes)}
        volumes |= {each.name: each for spec in self._defined for each in spec.empty_dirs}
        return tuple(
            pressure.EmptyDirFacts(each.name, reading.empty_dir_bytes.get(each.name), each.limit_bytes, each.limit_text)
            for each in volumes.values()
        )


def _list_of(spec: PodSpec | None) -> str:
    """Return the display name of the pod list that contains a pod definition; the kubelet's list for ``None``."""
    return f"the {PodListSource.KUBELET if spec is None else spec.listed_by}'s list"


def _fact(value: T | None, source: pressure.FactSource) -> pressure.Fact[T | None]:
    return pressure.UNKNOWN if value is None else pressure.Fact(value, source)


def _priority_of(spec: PodSpec) -> int | None:
    return 0 if spec.priority is None and not spec.priority_class else spec.priority


def _usage(reading: PodReading | None) -> pressure.PodUsage | None:
    if reading is None or reading == _NO_READING:
        return None
    fields = equal_fields(
        pressure.PodUsage,
        reading,
        writable=reading.writable or pressure.Footprint(),
        logs=reading.logs or pressure.Footprint(),
        volumes=reading.volumes or pressure.Footprint(),
    )
    return pressure.PodUsage(**fields)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UP: Final = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})


def group_pods(
    sandboxes: Iterable[Sandbox],
    containers: Iterable[Container],
    *,
    cgroup_parents: Mapping[str, str],
    traits: Mapping[str, ContainerTraits],
    memory_min_bytes: Mapping[str, int],
) -> tuple[RuntimePod, ...]:
    """Return the pods with a ready sandbox or a container that may be running, ordered by UID.

    A container is assigned to the pod of its sandbox. If its label has a different pod, a contradiction is recorded for
    both pods.

    Args:
        sandboxes: all sandboxes of the runtime.
        containers: all containers of the runtime.
        cgroup_parents: cgroup parent by sandbox id, if read.
        traits: container traits by container id, if read.
        memory_min_bytes: ``memory.min`` of the pod cgroup by sandbox id, if read.
    """
    by_id = {each.id: each for each in sandboxes}
    by_uid: defaultdict[str, list[Sandbox]] = defaultdict(list)
    for sandbox in by_id.values():
        by_uid[sandbox.uid or sandbox.id].append(sandbox)
    members: defaultdict[str, list[Container]] = defaultdict(list)
    contradictions: defaultdict[str, list[str]] = defaultdict(list)
    for container in containers:
        sandbox_of = by_id.get(container.sandbox_id)
        if sandbox_of is None:
            continue
        uid = sandbox_of.uid or sandbox_of.id
        members[uid].append(container)
        if sandbox_of.uid and container.pod_uid and container.pod_uid != sandbox_of.uid:
            detail = f"container {container.name} is in pod {sandbox_of.uid}, its label has pod {container.pod_uid}"
            contradictions[uid].append(detail)
            contradictions[container.pod_uid].append(detail)
    pods = []
    for uid, own in sorted(by_uid.items()):
        of_pod = tuple(sorted(members[uid], key=_newest_first))
        if any(each.ready for each in own) or any(each.state in _UP for each in of_pod):
            newest = sorted(own, key=lambda each: (not each.ready, *_newest_first(each)))
            main = newest[0]
            pods.append(
                RuntimePod(
                    uid=uid,
                    sandbox=main,
                    sandbox_ids=tuple(each.id for each in newest if each.ready),
                    containers=of_pod,
                    cgroup_parent=cgroup_parents.get(main.id, ""),
                    traits={each.id: traits[each.id] for each in of_pod if each.id in traits},
                    memory_min_bytes=memory_min_bytes.get(main.id),
                    contradictions=(*_disagreements(newest), *contradictions[uid]),
                    status_read=main.id in cgroup_parents,
                )
            )
    return tuple(pods)


def _newest_first(item: Sandbox | Container) -> tuple[float, str]:
    return -((item.created_at or _EPOCH) - _EPOCH).total_seconds(), item.id


def _disagreements(sandboxes: Sequence[Sandbox]) -> Iterator[str]:
    """Yield the contradictions between the sandboxes of one pod; the first sandbox is the reference."""
    main = sandboxes[0]
    if not main.uid:
        yield "sandbox has no pod UID"
    if sum(each.ready for each in sandboxes) > 1:
        yield "more than one ready sandbox"
    if any((each.namespace, each.name) != (main.namespace, main.name) for each in sandboxes):
        yield "sandboxes have different pod names"
    for each in sandboxes:
        labelled = each.labels.get(LABEL_POD_UID)
        if labelled and labelled != each.uid:
            yield f"sandbox has pod {each.uid}, its label pod {labelled}"


def sandbox_name(sandbox: Sandbox) -> str:
    """Return ``namespace/pod``, or the id of a sandbox without a name."""
    return f"{sandbox.namespace}/{sandbox.name}" if sandbox.name else sandbox.id
