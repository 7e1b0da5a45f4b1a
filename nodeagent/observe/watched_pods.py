"""Pods of this node as watched at the API server, for every reader of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.host.node import node_name
from nodeagent.plan.kubernetes.pod_watch import WatchState, is_current, pod_list, reading, restored

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.clock import Clock
    from nodeagent.model.pod_list import PodList, PodListReading
    from nodeagent.model.pods import PodSpec


class WatchedPods:
    """The latest state of the watch; it outlives reloads and outages of the API server.

    Attributes:
        address: of the list, for display; empty while no watch is configured.
        state: the latest state; the task of the watch replaces it.
    """

    def __init__(self, clock: Clock) -> None:
        """Create pods without a watch."""
        self._clock = clock
        self.address = ""
        self.state = WatchState()

    @property
    def configured(self) -> bool:
        """Whether the pods are watched."""
        return bool(self.address)

    @property
    def is_current(self) -> bool:
        """Whether the pods are those of the API server now."""
        return self.configured and is_current(self.state, self._clock.monotonic_s())

    @property
    def is_complete(self) -> bool:
        """Whether the pods are current, and none is unreadable."""
        return self.is_current and not self.state.unnamed

    @property
    def pods(self) -> tuple[PodSpec, ...]:
        """The pods as known last, current or not; none of another node."""
        if not self.configured or (self.state.listed_s is not None and self.state.foreign):
            return ()
        return tuple(self.state.pods.values())

    def pod_list(self) -> PodList | None:
        """Return the list for the planners; ``None`` without one."""
        if not self.configured:
            return None
        return pod_list(self.state, self._clock.monotonic_s(), self._clock.now())

    def reading(self) -> PodListReading | None:
        """Return the state of the watch, for display; ``None`` while none is configured."""
        return reading(self.state, self.address, self._clock.monotonic_s()) if self.configured else None

    def warn(self, warnings: list[str]) -> None:
        """Add a warning while the pods are not current, and one for malformed pods."""
        if self.configured and not self.is_current:
            warnings.append("pods watched at the API server are outdated; see pod list in nodeagent status")
        malformed = [each.malformed for each in self.pods if each.malformed]
        if malformed:
            more = f" and {len(malformed) - 1} more" if len(malformed) > 1 else ""
            warnings.append(f"malformed pod in the API server's list, kept: {malformed[0]}{more}")

    def reset(self) -> None:
        """Forget the pods, as after the watch was disabled."""
        self.address, self.state = "", WatchState()


def list_address(node: str) -> str:
    """Return the name of the list of a node, for display."""
    return f"API server, pods of {node}"


def restore_pods(watched: WatchedPods, directory: Path, configured_name: str) -> None:
    """Use the pods of an earlier run of the agent as facts until the first list; blocking.

    Args:
        watched: gets the pods.
        directory: of the agent's state.
        configured_name: name of the node; empty for the host name.

    Raises:
        StoreError: the stored pods cannot be read.
    """
    from nodeagent.store.watched_pods import read_watched_pods  # noqa: PLC0415 - not without a watch

    name = node_name(configured_name)
    watched.address = list_address(name)
    stored = read_watched_pods(directory, name)
    if stored is not None:
        watched.state = restored(stored.pods, stored.at)
