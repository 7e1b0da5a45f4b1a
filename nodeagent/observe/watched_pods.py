"""Pods of this node as watched at the API server, for every reader of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.plan.kubernetes.pod_watch import WatchState, is_current, pod_list, reading

if TYPE_CHECKING:
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

    def reset(self) -> None:
        """Forget the pods, as after the watch was disabled."""
        self.address, self.state = "", WatchState()
