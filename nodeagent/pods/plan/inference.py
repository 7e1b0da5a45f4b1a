"""Inference of QoS class, criticality and memory requests from the pod cgroup; the pods of a shutdown.

The kubelet derives cgroup and ``oom_score_adj`` from the pod definition; this module reverses the derivation. Values
that do not match the kubelet's rules were not set by a kubelet; the fact is then unknown, unless the caller allows
assumptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeGuard

from nodeagent.model.pressure import UNKNOWN, Fact, FactSource, PodFacts, QosClass
from nodeagent.model.runtime import ANNOTATION_SOURCE
from nodeagent.model.stops import ShutdownPod
from nodeagent.pods.plan.definitions import ANNOTATION_MIRROR, ANNOTATION_PRIORITY, SpecIndex, read_marks

if TYPE_CHECKING:
    from nodeagent.model.pods import ContainerTraits, PodSpec, RuntimePod

_GUARANTEED_SCORE: Final = -997
_BEST_EFFORT_SCORE: Final = 1000
_LOWEST_BURSTABLE: Final = 3
_CGROUPFS: Final = re.compile(r"(?:^|/)kubepods(?:/(burstable|besteffort))?/pod([^/]+)/?")
_SYSTEMD: Final = re.compile(r"(?:^|[/-])kubepods(?:-(burstable|besteffort))?-pod([^/-]+)\.slice/?")
_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_CLASSES: Final = {None: QosClass.GUARANTEED, "burstable": QosClass.BURSTABLE, "besteffort": QosClass.BEST_EFFORT}


def qos_of_cgroup(cgroup_parent: str) -> tuple[QosClass | None, str]:
    """Return QoS class and pod UID from a cgroup parent; ``None`` and empty if not created by a kubelet.

    The UID is also empty if its part of the path is not a valid UID.

    Source: kubelet ``podContainerManagerImpl.GetPodContainerName``; systemd slice names have underscores for dashes.
    """
    match = _CGROUPFS.search(cgroup_parent) or _SYSTEMD.search(cgroup_parent)
    if match is None or match.end() != len(cgroup_parent):
        return None, ""
    uid = match[2].replace("_", "-")
    return _CLASSES[match[1]], uid if _UID.fullmatch(uid) else ""


def infer_qos(pod: RuntimePod) -> Fact[QosClass | None]:
    """Return the QoS class from the pod cgroup, otherwise from OOM scores; unknown if a kubelet set neither of them."""
    by_cgroup, _ = qos_of_cgroup(pod.cgroup_parent)
    if by_cgroup is not None:
        return Fact(by_cgroup, FactSource.CGROUP)
    scores = {each.oom_score_adj if each is not None else None for each in _traits(pod)}
    if scores == {_BEST_EFFORT_SCORE}:
        return Fact(QosClass.BEST_EFFORT, FactSource.INFERRED)
    if scores and all(score is not None and _is_burstable(score) for score in scores):
        return Fact(QosClass.BURSTABLE, FactSource.INFERRED)
    return UNKNOWN


def infer_critical(pod: RuntimePod, qos: QosClass | None) -> Fact[bool | None]:
    """Return whether a container has a lower OOM score than the QoS class of the pod implies.

    In a Guaranteed pod, the score -997 of a container with a memory limit is no evidence, since every Guaranteed
    container has this score and a limit. The fact is unknown for a pod without containers, or if the score of a
    container is unknown.

    Source: kubelet ``GetContainerOOMScoreAdjust``: -997 for Guaranteed and for node-critical pods.
    """
    verdicts = [_is_critical(each, qos) for each in _traits(pod)]
    if any(verdicts):
        return Fact(value=True, source=FactSource.INFERRED)
    if not verdicts or None in verdicts:
        return UNKNOWN
    return Fact(value=False, source=FactSource.INFERRED)


def infer_request(
    traits: ContainerTraits | None, qos: QosClass | None, capacity_bytes: int | None, *, assume: bool
) -> Fact[int | None]:
    """Return the memory request of a container, inferred from its OOM score and its memory limit.

    A Burstable score corresponds to a range of requests, one thousandth of the node memory wide; the lowest score to a
    request of up to the whole memory. The upper end of the range is returned, in favour of the pod, or the limit if it
    is lower. If a kubelet did not set the score, the limit
    is returned, since a request defaults to the limit. Without a limit, the request is 0 if ``assume``, otherwise
    unknown.
    """
    score = traits.oom_score_adj if traits is not None else None
    if qos is QosClass.BEST_EFFORT and not _is_burstable(score):
        return Fact(0, FactSource.INFERRED)
    if traits is None:
        return UNKNOWN
    limit_bytes = traits.memory_limit_bytes
    if qos is QosClass.GUARANTEED or score == _GUARANTEED_SCORE:
        return Fact(limit_bytes, FactSource.INFERRED) if limit_bytes else UNKNOWN
    if _is_burstable(score):
        return _burstable_request(score, capacity_bytes, limit_bytes)
    if score == _BEST_EFFORT_SCORE or limit_bytes:
        return Fact(0 if score == _BEST_EFFORT_SCORE else limit_bytes, FactSource.INFERRED)
    return Fact(0, FactSource.ASSUMED) if assume else UNKNOWN


def _burstable_request(score: int, capacity_bytes: int | None, limit_bytes: int | None) -> Fact[int | None]:
    if capacity_bytes is None:
        return UNKNOWN
    upper_bytes = capacity_bytes if score == _LOWEST_BURSTABLE else capacity_bytes * (1001 - score) // 1000
    return Fact(min(upper_bytes, limit_bytes) if limit_bytes else upper_bytes, FactSource.INFERRED)


def sum_requests(requests: Sequence[Fact[int | None]]) -> Fact[int | None]:
    """Return the sum of requests with the weakest source; unknown if a request is unknown or the list is empty."""
    total, source = 0, FactSource.INFERRED
    for fact in requests:
        if fact.value is None:
            return UNKNOWN
        total += fact.value
        if fact.source is FactSource.ASSUMED:
            source = FactSource.ASSUMED
    return Fact(total, source) if requests else UNKNOWN


def inconsistencies(pod: RuntimePod, qos: QosClass | None) -> list[str]:
    """Return the contradictions between the cgroup, the OOM scores and the UID of a pod."""
    found = []
    _, uid = qos_of_cgroup(pod.cgroup_parent)
    if uid and uid != pod.uid.replace("_", "-"):
        found.append(f"cgroup has pod {uid}")
    scores = {each.oom_score_adj for each in _traits(pod) if each is not None and each.oom_score_adj is not None}
    if qos is QosClass.GUARANTEED and any(score >= _LOWEST_BURSTABLE for score in scores):
        found.append("cgroup is Guaranteed, oom_score_adj is not")
    if qos is QosClass.BEST_EFFORT and any(_is_burstable(score) for score in scores):
        found.append("cgroup is BestEffort, oom_score_adj is Burstable")
    return found


def _traits(pod: RuntimePod) -> list[ContainerTraits | None]:
    """Return the traits of running containers, or of all if none is running; ``None`` for unread traits."""
    return [pod.traits.get(each.id) for each in pod.running or pod.containers]


def _is_critical(traits: ContainerTraits | None, qos: QosClass | None) -> bool | None:
    if traits is None or traits.oom_score_adj is None:
        return None
    if traits.oom_score_adj >= 0:
        return False
    if qos is not QosClass.GUARANTEED or traits.oom_score_adj != _GUARANTEED_SCORE:
        return True
    return None if traits.memory_limit_bytes is None else not traits.memory_limit_bytes


def _is_burstable(score: int | None) -> TypeGuard[int]:
    return score is not None and _LOWEST_BURSTABLE <= score < _BEST_EFFORT_SCORE


_WORDS: Final = {
    FactSource.API_SERVER: "API server",
    FactSource.KUBELET: "kubelet /pods",
    FactSource.MANIFEST: "static manifest",
}
_GUESSED: Final = frozenset({FactSource.INFERRED, FactSource.ASSUMED, FactSource.MISSING})


def shutdown_pods(
    facts: Iterable[PodFacts], pods: Iterable[RuntimePod], specs: SpecIndex | None = None
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


def _shutdown_pod(facts: PodFacts, pod: RuntimePod, spec: PodSpec | None) -> ShutdownPod:
    priority, priority_source = _priority(facts, pod)
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


def _priority(facts: PodFacts, pod: RuntimePod) -> tuple[int | None, str]:
    """Return the pod priority and its source; ``None`` and empty if unknown."""
    if facts.priority.source not in _GUESSED:
        return facts.priority.value, _words(facts.priority.source, f"annotation {ANNOTATION_PRIORITY}")
    annotations = pod.sandbox.annotations
    annotated = read_marks(annotations).priority if facts.priority.source is FactSource.ASSUMED else None
    return (None, "") if annotated is None else (annotated, f"annotation {ANNOTATION_PRIORITY}")


def _static_source(facts: PodFacts, pod: RuntimePod) -> str:
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


def _critical_source(facts: PodFacts, pod: RuntimePod) -> str:
    """Return the source of the fact that a pod is node-critical; empty if it is not node-critical."""
    if facts.critical.value:
        return _words(facts.critical.source, "priority class")
    if facts.critical.source in _GUESSED and infer_critical(pod, facts.qos.value).value:
        return "oom_score_adj"
    return ""


def _words(source: FactSource, otherwise: str) -> str:
    return _WORDS.get(source, otherwise)
