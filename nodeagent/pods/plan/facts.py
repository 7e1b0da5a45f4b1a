"""Pod facts merged from all sources; each fact is stored with its source.

Sources in order of precedence: API server, kubelet, static manifest, runtime, cgroup of the pod, inference, assumption.
If two sources differ, the contradiction is recorded and excludes the pod from eviction.

A mark that protects a pod (static, mirror, priority) is used only from a source that the author of the pod does not
control: the API server, the kubelet, the manifest directory, annotations written by a kubelet, or annotations in a
namespace that the configuration trusts. Other marks and malformed marks are ignored, with a sentence in ``ignored``. A
pod is never critical because of an OOM score, since the client that creates the container sets the score.

Facts are assumed only on a node without a kubelet, where the runtime is the only source: a pod that no source marks as
critical is assumed not to be critical. On a node managed by a kubelet, these facts are unknown without a pod list.

QoS class, criticality and memory requests are inferred from the pod cgroup: the kubelet derives cgroup and
``oom_score_adj`` from the pod definition, and the inference reverses the derivation. Values that do not match the
kubelet's rules were not set by a kubelet; the fact is then unknown, unless the caller allows assumptions.

The pods of a shutdown use all well-formed marks, since these only affect the stop order and exempt no pod.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final, NamedTuple, TypeGuard, TypeVar

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
from nodeagent.model.stops import ShutdownPod
from nodeagent.record import Record, equal_fields

ANNOTATION_MIRROR: Final = "kubernetes.io/config.mirror"
ANNOTATION_HASH: Final = "kubernetes.io/config.hash"
ANNOTATION_PRIORITY: Final = "nodeagent.dev/priority"
_PRIORITIES: Final = range(-(2**31), 2**31)
_SHOWN: Final = 40


class Marks(NamedTuple):
    """Marks read from annotations; ``None`` for an absent or malformed mark.

    Attributes:
        malformed: a sentence for each malformed mark.
    """

    static: bool | None = None
    mirror: bool = False
    priority: int | None = None
    malformed: tuple[str, ...] = ()


def read_marks(annotations: Mapping[str, str]) -> Marks:
    """Return the marks in the annotations of a sandbox.

    Source: kubelet ``config.source`` (``api``, ``file`` or ``http``) and ``config.mirror``.
    """
    malformed = []
    source, text = annotations.get(ANNOTATION_SOURCE), annotations.get(ANNOTATION_PRIORITY)
    static = static_by_source(source)
    if source is not None and static is None:
        malformed.append(f"annotation {ANNOTATION_SOURCE} is {source[:_SHOWN]!r}, not api, file or http")
    priority = None if text is None else _parsed_priority(text)
    if text is not None and priority is None:
        malformed.append(f"annotation {ANNOTATION_PRIORITY} is {text[:_SHOWN]!r}, not a 32-bit number")
    return Marks(static, ANNOTATION_MIRROR in annotations, priority, tuple(malformed))


def static_by_source(source: str | None) -> bool | None:
    """Return whether a pod with this config source is static; ``None`` for an unknown source."""
    return {"file": True, "http": True, "api": False}.get(source or "")


def _parsed_priority(text: str) -> int | None:
    try:
        priority = int(text) if len(text) <= 11 and text.isascii() else None
    except ValueError:
        return None
    # The test for ``None`` is first: ``in`` on a range compares a value that is not an integer with every element.
    return priority if priority is not None and priority in _PRIORITIES else None


T = TypeVar("T")
_SOURCES: Final = {
    PodListSource.API_SERVER: pressure.FactSource.API_SERVER,
    PodListSource.KUBELET: pressure.FactSource.KUBELET,
}


class SpecIndex:
    """Index of pod definitions from a list of this node's pods and from static manifests.

    Attributes:
        source: source of the pod list.
        has_list: whether the pod list is complete, so that a pod missing in the list contradicts the runtime.
    """

    def __init__(
        self,
        listed: Sequence[PodSpec] | None = None,
        manifests: Sequence[PodSpec] = (),
        *,
        node_name: str = "",
        complete: bool = True,
        source: PodListSource = PodListSource.KUBELET,
    ) -> None:
        """Index the listed pods and the static manifests.

        Args:
            listed: pods of the list; ``None`` without a list.
            manifests: definitions in the static manifests.
            node_name: node name, which the kubelet appends to the names of static pods.
            complete: whether the list contains all pods of its source; false for an outdated list.
            source: source of the list; individual pods may have another source (``PodSpec.listed_by``).
        """
        self.source = source
        unnamed = any(spec.malformed and not spec.uid for spec in listed or ())
        self.has_list = listed is not None and complete and not unnamed
        self._by_uid: defaultdict[str, list[PodSpec]] = defaultdict(list)
        self._by_hash: dict[str, PodSpec] = {}
        for spec in listed or ():
            if spec.malformed and not spec.uid:
                continue
            self._by_uid[spec.uid].append(spec)
            for key in (ANNOTATION_MIRROR, ANNOTATION_HASH):
                if spec.annotations.get(key):
                    self._by_hash.setdefault(spec.annotations[key], spec)
        self._manifests: dict[tuple[str, str], PodSpec] = {}
        for spec in manifests:
            for name in {spec.name, f"{spec.name}-{node_name.lower()}"}:
                self._manifests.setdefault((spec.namespace, name), spec)

    def in_list(self, pod: RuntimePod) -> PodSpec | None:
        """Return the listed definition of a pod, by UID or by the config hash of a static pod; ``None`` if absent."""
        known = self._by_uid.get(pod.uid)
        if known:
            return known[0]
        return self._by_hash.get(pod.uid) or self._by_hash.get(pod.sandbox.annotations.get(ANNOTATION_HASH, ""))

    def in_manifests(self, pod: RuntimePod) -> PodSpec | None:
        """Return the manifest of a static pod by namespace and name; ``None`` if absent.

        The kubelet appends the node name to the name of a static pod. A pod from the API server is not a static pod.
        """
        if pod.sandbox.annotations.get(ANNOTATION_SOURCE) == "api":
            return None
        return self._manifests.get((pod.sandbox.namespace, pod.sandbox.name))

    def count(self, uid: str) -> int:
        """Return the number of pods in the list with this UID."""
        return len(self._by_uid.get(uid, ()))


class PodDefinition(Record):
    """Well-formed definitions of one pod.

    Attributes:
        listed: definition in the list of the API server or the kubelet; ``None`` if absent.
        manifest: definition in the static manifests; ``None`` if absent.
    """

    listed: PodSpec | None
    manifest: PodSpec | None

    @property
    def verified(self) -> PodSpec | None:
        """The listed definition if the identity of the list's server was verified; otherwise ``None``."""
        return self.listed if self.listed is not None and self.listed.is_verified else None

    @property
    def list_source(self) -> pressure.FactSource:
        """Source of the facts in the listed definition."""
        return pressure.FactSource.KUBELET if self.listed is None else _SOURCES[self.listed.listed_by]

    def __iter__(self) -> Iterator[PodSpec]:
        """Iterate over the existing definitions in order of precedence."""
        return (each for each in (self.listed, self.manifest) if each is not None)

    def field(self, get: Callable[[PodSpec], T | None], *, verified: bool = False) -> pressure.Fact[T | None]:
        """Return a field of the listed definition, otherwise of the manifest.

        With ``verified``, a definition in an unverified list is ignored. The fact is unknown without a value.
        """
        listed = self.verified if verified else self.listed
        for spec, source in ((listed, self.list_source), (self.manifest, pressure.FactSource.MANIFEST)):
            value = None if spec is None else get(spec)
            if value is not None:
                return pressure.Fact(value, source)
        return pressure.UNKNOWN


_GUARANTEED_SCORE: Final = -997
_BEST_EFFORT_SCORE: Final = 1000
_LOWEST_BURSTABLE: Final = 3
_CGROUPFS: Final = re.compile(r"(?:^|/)kubepods(?:/(burstable|besteffort))?/pod([^/]+)/?")
_SYSTEMD: Final = re.compile(r"(?:^|[/-])kubepods(?:-(burstable|besteffort))?-pod([^/-]+)\.slice/?")
_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_CLASSES: Final = {
    None: pressure.QosClass.GUARANTEED,
    "burstable": pressure.QosClass.BURSTABLE,
    "besteffort": pressure.QosClass.BEST_EFFORT,
}


def qos_of_cgroup(cgroup_parent: str) -> tuple[pressure.QosClass | None, str]:
    """Return QoS class and pod UID from a cgroup parent; ``None`` and empty if not created by a kubelet.

    The UID is also empty if its part of the path is not a valid UID.

    Source: kubelet ``podContainerManagerImpl.GetPodContainerName``; systemd slice names have underscores for dashes.
    """
    match = _CGROUPFS.search(cgroup_parent) or _SYSTEMD.search(cgroup_parent)
    if match is None or match.end() != len(cgroup_parent):
        return None, ""
    uid = match[2].replace("_", "-")
    return _CLASSES[match[1]], uid if _UID.fullmatch(uid) else ""


def infer_qos(pod: RuntimePod) -> pressure.Fact[pressure.QosClass | None]:
    """Return the QoS class from the pod cgroup, otherwise from OOM scores; unknown if a kubelet set neither of them."""
    by_cgroup, _ = qos_of_cgroup(pod.cgroup_parent)
    if by_cgroup is not None:
        return pressure.Fact(by_cgroup, pressure.FactSource.CGROUP)
    scores = {each.oom_score_adj if each is not None else None for each in _traits(pod)}
    if scores == {_BEST_EFFORT_SCORE}:
        return pressure.Fact(pressure.QosClass.BEST_EFFORT, pressure.FactSource.INFERRED)
    if scores and all(score is not None and _is_burstable(score) for score in scores):
        return pressure.Fact(pressure.QosClass.BURSTABLE, pressure.FactSource.INFERRED)
    return pressure.UNKNOWN


def infer_critical(pod: RuntimePod, qos: pressure.QosClass | None) -> pressure.Fact[bool | None]:
    """Return whether a container has a lower OOM score than the QoS class of the pod implies.

    In a Guaranteed pod, the score -997 of a container with a memory limit is no evidence, since every Guaranteed
    container has this score and a limit. The fact is unknown for a pod without containers, or if the score of a
    container is unknown.

    Source: kubelet ``GetContainerOOMScoreAdjust``: -997 for Guaranteed and for node-critical pods.
    """
    verdicts = [_is_critical(each, qos) for each in _traits(pod)]
    if any(verdicts):
        return pressure.Fact(value=True, source=pressure.FactSource.INFERRED)
    if not verdicts or None in verdicts:
        return pressure.UNKNOWN
    return pressure.Fact(value=False, source=pressure.FactSource.INFERRED)


def infer_request(
    traits: ContainerTraits | None, qos: pressure.QosClass | None, capacity_bytes: int | None, *, assume: bool
) -> pressure.Fact[int | None]:
    """Return the memory request of a container, inferred from its OOM score and its memory limit.

    A Burstable score corresponds to a range of requests, one thousandth of the node memory wide; the lowest score to a
    request of up to the whole memory. The upper end of the range is returned, in favour of the pod, or the limit if it
    is lower. If a kubelet did not set the score, the limit
    is returned, since a request defaults to the limit. Without a limit, the request is 0 if ``assume``, otherwise
    unknown.
    """
    score = traits.oom_score_adj if traits is not None else None
    if qos is pressure.QosClass.BEST_EFFORT and not _is_burstable(score):
        return pressure.Fact(0, pressure.FactSource.INFERRED)
    if traits is None:
        return pressure.UNKNOWN
    limit_bytes = traits.memory_limit_bytes
    if qos is pressure.QosClass.GUARANTEED or score == _GUARANTEED_SCORE:
        return pressure.Fact(limit_bytes, pressure.FactSource.INFERRED) if limit_bytes else pressure.UNKNOWN
    if _is_burstable(score):
        return _burstable_request(score, capacity_bytes, limit_bytes)
    if score == _BEST_EFFORT_SCORE or limit_bytes:
        return pressure.Fact(0 if score == _BEST_EFFORT_SCORE else limit_bytes, pressure.FactSource.INFERRED)
    return pressure.Fact(0, pressure.FactSource.ASSUMED) if assume else pressure.UNKNOWN


def _burstable_request(score: int, capacity_bytes: int | None, limit_bytes: int | None) -> pressure.Fact[int | None]:
    if capacity_bytes is None:
        return pressure.UNKNOWN
    upper_bytes = capacity_bytes if score == _LOWEST_BURSTABLE else capacity_bytes * (1001 - score) // 1000
    return pressure.Fact(min(upper_bytes, limit_bytes) if limit_bytes else upper_bytes, pressure.FactSource.INFERRED)


def sum_requests(requests: Sequence[pressure.Fact[int | None]]) -> pressure.Fact[int | None]:
    """Return the sum of requests with the weakest source; unknown if a request is unknown or the list is empty."""
    total, source = 0, pressure.FactSource.INFERRED
    for fact in requests:
        if fact.value is None:
            return pressure.UNKNOWN
        total += fact.value
        if fact.source is pressure.FactSource.ASSUMED:
            source = pressure.FactSource.ASSUMED
    return pressure.Fact(total, source) if requests else pressure.UNKNOWN


def inconsistencies(pod: RuntimePod, qos: pressure.QosClass | None) -> list[str]:
    """Return the contradictions between the cgroup, the OOM scores and the UID of a pod."""
    found = []
    _, uid = qos_of_cgroup(pod.cgroup_parent)
    if uid and uid != pod.uid.replace("_", "-"):
        found.append(f"cgroup has pod {uid}")
    scores = {each.oom_score_adj for each in _traits(pod) if each is not None and each.oom_score_adj is not None}
    if qos is pressure.QosClass.GUARANTEED and any(score >= _LOWEST_BURSTABLE for score in scores):
        found.append("cgroup is Guaranteed, oom_score_adj is not")
    if qos is pressure.QosClass.BEST_EFFORT and any(_is_burstable(score) for score in scores):
        found.append("cgroup is BestEffort, oom_score_adj is Burstable")
    return found


def _traits(pod: RuntimePod) -> list[ContainerTraits | None]:
    """Return the traits of running containers, or of all if none is running; ``None`` for unread traits."""
    return [pod.traits.get(each.id) for each in pod.running or pod.containers]


def _is_critical(traits: ContainerTraits | None, qos: pressure.QosClass | None) -> bool | None:
    if traits is None or traits.oom_score_adj is None:
        return None
    if traits.oom_score_adj >= 0:
        return False
    if qos is not pressure.QosClass.GUARANTEED or traits.oom_score_adj != _GUARANTEED_SCORE:
        return True
    return None if traits.memory_limit_bytes is None else not traits.memory_limit_bytes


def _is_burstable(score: int | None) -> TypeGuard[int]:
    return score is not None and _LOWEST_BURSTABLE <= score < _BEST_EFFORT_SCORE


_WORDS: Final = {
    pressure.FactSource.API_SERVER: "API server",
    pressure.FactSource.KUBELET: "kubelet /pods",
    pressure.FactSource.MANIFEST: "static manifest",
}
_GUESSED: Final = frozenset({pressure.FactSource.INFERRED, pressure.FactSource.ASSUMED, pressure.FactSource.MISSING})


def shutdown_pods(
    facts: Iterable[pressure.PodFacts], pods: Iterable[RuntimePod], specs: SpecIndex | None = None
) -> tuple[ShutdownPod, ...]:
    """Return the shutdown planner's input for each pod in both ``facts`` and ``pods``, in the order of ``facts``.

    An inferred or assumed priority is passed as unknown, since the shutdown planner has a separate rule for unknown
    priorities. Unlike in evictions, annotations of all pods and OOM scores are used: they change the stop order, but
    exempt no pod. Containers are in reverse order of creation, so that containers started first, such as sidecars, are
    stopped last.
    """
    by_uid = {pod.uid: pod for pod in pods}
    return tuple(
        _shutdown_pod(each, by_uid[each.uid], specs.in_list(by_uid[each.uid]) if specs is not None else None)
        for each in facts
        if each.uid in by_uid
    )


def _shutdown_pod(facts: pressure.PodFacts, pod: RuntimePod, spec: PodSpec | None) -> ShutdownPod:
    priority, priority_source = _stop_priority(facts, pod)
    static_source, critical_source = _static_source(facts, pod), _critical_source(facts, pod)
    return ShutdownPod(
        uid=facts.uid,
        namespace=facts.namespace,
        name=facts.name,
        priority=priority,
        priority_source=priority_source,
        static=bool(static_source),
        static_source=static_source,
        node_critical=bool(critical_source),
        node_critical_source=critical_source,
        labels=dict(spec.labels) if spec is not None and not spec.malformed else pod.labels,
        termination_grace_s=facts.termination_grace_s.value,
        container_ids=tuple(container.id for container in pod.running),
    )


def _stop_priority(facts: pressure.PodFacts, pod: RuntimePod) -> tuple[int | None, str]:
    """Return the pod priority and its source; ``None`` and empty if unknown."""
    if facts.priority.source not in _GUESSED:
        return facts.priority.value, _words(facts.priority.source, f"annotation {ANNOTATION_PRIORITY}")
    annotations = pod.sandbox.annotations
    annotated = read_marks(annotations).priority if facts.priority.source is pressure.FactSource.ASSUMED else None
    return (None, "") if annotated is None else (annotated, f"annotation {ANNOTATION_PRIORITY}")


def _static_source(facts: pressure.PodFacts, pod: RuntimePod) -> str:
    """Return the source of the fact that a pod is a static pod or a mirror pod; empty for any other pod."""
    marks = read_marks(pod.sandbox.annotations)
    for fact, annotation, marked in (
        (facts.static, ANNOTATION_SOURCE, marks.static is True),
        (facts.mirror, ANNOTATION_MIRROR, marks.mirror),
    ):
        if fact.value:
            return _words(fact.source, f"annotation {annotation}")
        if marked and fact.source in _GUESSED:
            return f"annotation {annotation}"
    return ""


def _critical_source(facts: pressure.PodFacts, pod: RuntimePod) -> str:
    """Return the source of the fact that a pod is node-critical; empty if it is not node-critical."""
    if facts.critical.value:
        return _words(facts.critical.source, "priority class")
    if facts.critical.source in _GUESSED and infer_critical(pod, facts.qos.value).value:
        return "oom_score_adj"
    return ""


def _words(source: pressure.FactSource, otherwise: str) -> str:
    return _WORDS.get(source, otherwise)


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
        # A container without a log directory has no logs, if the log directory of the pod was read completely.
        no_logs = None if reading.logs is None or reading.logs.is_lower_bound else 0
        for container in reversed(self._pod.running):
            spec = specs.get(container.name)
            request = self._requests.get(container.id, pressure.UNKNOWN).value
            yield pressure.ContainerFacts(
                name=container.name,
                memory_bytes=reading.container_memory_bytes.get(container.id),
                memory_request_bytes=request if spec is None else spec.memory_request_bytes,
                writable_bytes=reading.container_writable_bytes.get(container.id),
                logs_bytes=reading.container_logs_bytes.get(container.name, no_logs),
                ephemeral_request_bytes=None if spec is None else spec.ephemeral_request_bytes,
                ephemeral_limit_bytes=None if spec is None else spec.ephemeral_limit_bytes,
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
