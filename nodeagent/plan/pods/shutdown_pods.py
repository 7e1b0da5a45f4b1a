"""Conversion of pod facts to the input of the shutdown planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import FactSource
from nodeagent.model.shutdown import ShutdownPod
from nodeagent.model.workload import ANNOTATION_SOURCE
from nodeagent.plan.pods.annotations import ANNOTATION_MIRROR, ANNOTATION_PRIORITY, read_marks
from nodeagent.plan.pods.inference import infer_critical

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model.pods import PodSpec, RuntimePod
    from nodeagent.model.pressure import PodFacts
    from nodeagent.plan.pods.definitions import SpecIndex

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
