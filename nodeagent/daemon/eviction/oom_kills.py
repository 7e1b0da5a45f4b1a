"""Log events for OOM kills of the kernel, by pod and container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.guarded_call import call_kernel
from nodeagent.host.cgroups import read_oom_kills

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.model.pods import PodInventory


class OomKillMonitor:
    """Compares the OOM kill counts of cgroups between checks.

    The first check records the counts only; the count of a cgroup created later started at 0.

    The cgroup of a container is removed with the container, so that the count of the pod cgroup is compared too. A kill
    counted only by the pod cgroup is logged for the container with a removed cgroup, if exactly one was removed.

    Source: kernel cgroup-v2.rst, ``oom_kill`` of ``memory.events``, which counts descendants as well.
    """

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._counts: dict[str, int] | None = None

    async def check(self, pods: PodInventory) -> None:
        """Log every OOM kill in these pods since the last check."""
        directories = _directories(pods)
        counts = await call_kernel(_read, directories)
        if self._counts is None:
            self._counts = counts
            return
        for pod in pods.facts:
            handle = pods.handles[pod.uid]
            increases = [(each, self._increase(each.cgroup, counts)) for each in handle.containers]
            by_container = [(each, count) for each, count in increases if count]
            in_pod = self._increase(handle.cgroup, counts)
            if not by_container and in_pod:
                removed = [each for each in handle.containers if each.cgroup is not None and each.cgroup not in counts]
                by_container = [(removed[0], in_pod)] if len(removed) == 1 else []
                if not by_container:
                    self._log(pod.uid, pod.namespace, pod.name, "", "", in_pod)
            for container, count in by_container:
                self._log(pod.uid, pod.namespace, pod.name, container.name, container.id, count)
        kept = {
            key: count for key, count in self._counts.items() if key in directories
        }  # counts of cgroups of listed pods that were unreadable in this check
        self._counts = kept | counts

    def _increase(self, cgroup: str | None, counts: dict[str, int]) -> int:
        if cgroup is None or cgroup not in counts or self._counts is None:
            return 0
        return max(0, counts[cgroup] - self._counts.get(cgroup, 0))

    def _log(self, uid: str, namespace: str, name: str, container: str, container_id: str, count: int) -> None:  # noqa: PLR0913, PLR0917 - the fields of one event
        self._logger.error(
            "oom_kill",
            pod_uid=uid,
            pod_namespace=namespace,
            pod_name=name,
            container=container,
            container_id=container_id,
            processes=count,
        )


def _directories(pods: PodInventory) -> frozenset[str]:
    return frozenset(
        each
        for handle in pods.handles.values()
        for each in (handle.cgroup, *(container.cgroup for container in handle.containers))
        if each is not None
    )


def _read(directories: frozenset[str]) -> dict[str, int]:
    found = ((directory, read_oom_kills(directory)) for directory in directories)
    return {directory: count for directory, count in found if count is not None}
