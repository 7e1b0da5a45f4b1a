"""The pods that are up, from the runtime's two lists and from what is remembered of them.

When the node goes down there is no time to ask anybody but the runtime. What richer sources told before stays true of
a pod, and of a pod that nobody told of before its labels and annotations have to do.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nodeagent.model import ContainerState, ShutdownPod
from nodeagent.model.workload import LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodeagent.model import Container, Sandbox

ANNOTATION_PRIORITY: Final = "nodeagent.dev/priority"
ANNOTATION_SOURCE: Final = "kubernetes.io/config.source"
ANNOTATION_MIRROR: Final = "kubernetes.io/config.mirror"
ANNOTATION_GRACE: Final = "io.kubernetes.pod.terminationGracePeriod"

_OWN_LABELS: Final = frozenset({LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID})
_UP: Final = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})


@dataclass(frozen=True, slots=True)
class PodUp:
    """A pod with something running.

    Attributes:
        pod: its containers are those that run, or may.
        sandbox_ids: its ready sandboxes.
    """

    pod: ShutdownPod
    sandbox_ids: tuple[str, ...] = ()


def pods_up(
    sandboxes: Iterable[Sandbox], containers: Iterable[Container], known: Mapping[str, ShutdownPod]
) -> tuple[PodUp, ...]:
    """Return the pods with a ready sandbox or a container that may run, by UID, then in the runtime's order.

    A container belongs to the pod of its sandbox, one without a sandbox to the pod that its label names.

    Args:
        sandboxes: all the runtime lists.
        containers: all the runtime lists.
        known: what was told of pods before, by UID; their containers are replaced by those that run now.
    """
    homes = {each.id: each for each in sandboxes}
    ready: defaultdict[str, list[Sandbox]] = defaultdict(list)
    inside: defaultdict[str, list[Container]] = defaultdict(list)
    for sandbox in homes.values():
        if sandbox.ready:
            ready[sandbox.uid or sandbox.id].append(sandbox)
    named: dict[str, Sandbox | Container] = {uid: own[0] for uid, own in ready.items()}
    for container in containers:
        home = homes.get(container.sandbox_id)
        uid = (home.uid or home.id) if home is not None else container.pod_uid
        if container.state in _UP and uid:
            inside[uid].append(container)
            named.setdefault(uid, home if home is not None else container)
    found = []
    for uid, source in named.items():
        told = known.get(uid)
        pod = told if told is not None else _described(uid, source, inside[uid])
        ids = tuple(each.id for each in inside[uid])
        found.append(PodUp(replace(pod, container_ids=ids), tuple(each.id for each in ready[uid])))
    return tuple(found)


def _described(uid: str, source: Sandbox | Container, containers: Sequence[Container]) -> ShutdownPod:
    """Return what labels and annotations tell of a pod."""
    annotations = source.annotations
    origin = annotations.get(ANNOTATION_SOURCE, "")
    static = origin in ("file", "http") or ANNOTATION_MIRROR in annotations
    priority = _number(annotations.get(ANNOTATION_PRIORITY, ""))
    graces = [_number(each.annotations.get(ANNOTATION_GRACE, "")) for each in containers]
    labels = source.labels
    return ShutdownPod(
        uid=uid,
        namespace=getattr(source, "namespace", "") or labels.get(LABEL_POD_NAMESPACE, ""),
        name=labels.get(LABEL_POD_NAME, "") or source.name,
        priority=priority,
        priority_source=f"annotation {ANNOTATION_PRIORITY}" if priority is not None else "",
        static=static,
        static_source=f"annotation {ANNOTATION_SOURCE}={origin}" if static else "",
        labels={key: value for key, value in labels.items() if key not in _OWN_LABELS},
        termination_grace_s=max((float(each) for each in graces if each is not None and each >= 0), default=None),
    )


def _number(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -(2**31) <= number < 2**31 else None
