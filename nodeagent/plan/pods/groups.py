"""The runtime's sandboxes and containers, put together to pods."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from nodeagent.model.pods import RuntimePod
from nodeagent.model.workload import LABEL_POD_UID, ContainerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nodeagent.model.pods import ContainerTraits
    from nodeagent.model.workload import Container, Sandbox

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
    """Return the pods that have something up, by UID: a ready sandbox, or a container that may run.

    A container belongs to the pod of its sandbox; where its label names another, both are told to be contradictory.

    Args:
        sandboxes: all the runtime lists.
        containers: all the runtime lists.
        cgroup_parents: by sandbox id, as far as read.
        traits: by container id, as far as read.
        memory_min_bytes: by sandbox id, as far as read.
    """
    homes = {each.id: each for each in sandboxes}
    by_uid: defaultdict[str, list[Sandbox]] = defaultdict(list)
    for sandbox in homes.values():
        by_uid[sandbox.uid or sandbox.id].append(sandbox)
    inside: defaultdict[str, list[Container]] = defaultdict(list)
    wrong: defaultdict[str, list[str]] = defaultdict(list)
    for container in containers:
        home = homes.get(container.sandbox_id)
        if home is None:
            continue
        uid = home.uid or home.id
        inside[uid].append(container)
        if home.uid and container.pod_uid and container.pod_uid != home.uid:
            why = f"container {container.name} runs in pod {home.uid} and is labelled as of pod {container.pod_uid}"
            wrong[uid].append(why)
            wrong[container.pod_uid].append(why)
    pods = []
    for uid, own in sorted(by_uid.items()):
        of_pod = tuple(sorted(inside[uid], key=_newest_first))
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
                    contradictions=(*_disagreements(newest), *wrong[uid]),
                )
            )
    return tuple(pods)


def _newest_first(item: Sandbox | Container) -> tuple[float, str]:
    return -((item.created_at or _EPOCH) - _EPOCH).total_seconds(), item.id


def _disagreements(sandboxes: Sequence[Sandbox]) -> Iterator[str]:
    """Yield what is contradictory among the sandboxes of one pod, the main one first."""
    main = sandboxes[0]
    if not main.uid:
        yield "its sandbox has no pod UID"
    if sum(each.ready for each in sandboxes) > 1:
        yield "it has more than one ready sandbox"
    if any((each.namespace, each.name) != (main.namespace, main.name) for each in sandboxes):
        yield "its sandboxes name different pods"
    for each in sandboxes:
        labelled = each.labels.get(LABEL_POD_UID)
        if labelled and labelled != each.uid:
            yield f"its sandbox says pod {each.uid}, its label pod {labelled}"
