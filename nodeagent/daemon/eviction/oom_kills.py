"""Telling what the kernel killed for want of memory, by pod and container."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.host.cgroups import read_oom_kills

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.model.pods import PodInventory


class OomKillMonitor:
    """Compares counts of kills, look by look.

    The first look only takes note of them; a cgroup that comes later began with none.

    A container's cgroup goes with it, so the pod's own counts too: a kill that only the pod's count shows is told
    with the container that is gone since, if there is just one.

    Source: kernel cgroup-v2.rst, ``oom_kill`` of ``memory.events``, which counts what is below as well.
    """

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._counts: dict[str, int] | None = None

    async def check(self, seen: PodInventory) -> None:
        """Tell every kill in these pods since the last look."""
        directories = _directories(seen)
        counts = await asyncio.to_thread(_read, directories)
        if self._counts is None:
            self._counts = counts
            return
        for pod in seen.facts:
            handle = seen.handles[pod.uid]
            rose = [(each, self._rise(each.cgroup, counts)) for each in handle.containers]
            by_container = [(each, count) for each, count in rose if count]
            in_pod = self._rise(handle.cgroup, counts)
            if not by_container and in_pod:
                gone = [each for each in handle.containers if each.cgroup is not None and each.cgroup not in counts]
                by_container = [(gone[0], in_pod)] if len(gone) == 1 else []
                if not by_container:
                    self._tell(pod.uid, pod.namespace, pod.name, "", "", in_pod)
            for container, count in by_container:
                self._tell(pod.uid, pod.namespace, pod.name, container.name, container.id, count)
        kept = {key: count for key, count in self._counts.items() if key in directories}  # unread, maybe, but there
        self._counts = kept | counts

    def _rise(self, cgroup: str | None, counts: dict[str, int]) -> int:
        if cgroup is None or cgroup not in counts or self._counts is None:
            return 0
        return max(0, counts[cgroup] - self._counts.get(cgroup, 0))

    def _tell(self, uid: str, namespace: str, name: str, container: str, container_id: str, count: int) -> None:  # noqa: PLR0913, PLR0917 - the fields of one event
        self._logger.error(
            "oom_kill",
            pod_uid=uid,
            pod_namespace=namespace,
            pod_name=name,
            container=container,
            container_id=container_id,
            processes=count,
        )


def _directories(seen: PodInventory) -> frozenset[str]:
    return frozenset(
        each
        for handle in seen.handles.values()
        for each in (handle.cgroup, *(container.cgroup for container in handle.containers))
        if each is not None
    )


def _read(directories: frozenset[str]) -> dict[str, int]:
    found = ((directory, read_oom_kills(directory)) for directory in directories)
    return {directory: count for directory, count in found if count is not None}
