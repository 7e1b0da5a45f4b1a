"""Grouping of CRI sandboxes and containers by pod, and their names."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from nodeagent.model.pods import RuntimePod
from nodeagent.model.runtime import LABEL_POD_UID, ContainerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nodeagent.model.pods import ContainerTraits
    from nodeagent.model.runtime import Container, Sandbox

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
