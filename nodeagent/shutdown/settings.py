"""Section ``shutdown``: graceful shutdown of the node."""

from __future__ import annotations

from typing import Annotated, Literal

from nodeagent.config.validation import Duration, Seconds, Section, Switch, about, form
from nodeagent.model.node import Role
from nodeagent.record import Record, field
from nodeagent.shutdown.plan.planner import Phase, Selector, by_priority, check_phases, two_bands
from nodeagent.units import parse_duration_s


class ShutdownSettings(Record):
    """Validated settings of graceful shutdown.

    Attributes:
        enabled: whether graceful shutdown is enabled; ``None`` to follow the role of the agent.
        phases: all phases in order; empty disables graceful shutdown.
        restart_logind: whether a logind without a system bus connection is restarted.
    """

    enabled: bool | None = None
    phases: tuple[Phase, ...] = ()
    restart_logind: bool = True

    def off_because(self, role: Role, evidence: str = "") -> str:
        """Return the reason for disabled graceful shutdown, for display; empty if graceful shutdown is enabled.

        Beside a kubelet graceful shutdown is disabled even if ``enabled``: the kubelet restarts each container within a
        second.

        Args:
            role: role of the agent on this node.
            evidence: evidence for the role, quoted in the reason.
        """
        if self.enabled is False:
            return 'shutdown.enabled = "off"'
        if not self._has_time:
            return "no phase has a configured time"
        if role is Role.BESIDE_KUBELET:
            refused = 'shutdown.enabled = "on" is refused: ' if self.enabled else ""
            shown = f" ({evidence})" if evidence else ""
            return f"{refused}a kubelet manages this node{shown}; it restarts stopped pods, use its shutdownGracePeriod"
        return ""

    def refused(self, role: Role) -> bool:
        """Return whether graceful shutdown is configured "on" and refused beside a kubelet."""
        return self.enabled is True and self._has_time and role is Role.BESIDE_KUBELET

    @property
    def _has_time(self) -> bool:
        return any(phase.requested_ms for phase in self.phases)


class PriorityBand(Section):
    """Shutdown time of pods with a priority of at least ``min_priority`` and below the next band."""

    min_priority: int
    seconds: Seconds


class PodSelector(Section):
    """Selector of the pods that are in any of the namespaces and have all of the labels."""

    namespaces: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


class ShutdownPhase(Section):
    """One phase of a graceful shutdown."""

    name: str
    seconds: Seconds
    min_priority: int | None = None
    select: tuple[PodSelector, ...] = ()


class ShutdownSection(Section):
    """Graceful shutdown of the node."""

    enabled: Annotated[
        Literal["auto", "on", "off"],
        about(
            "Whether the daemon delays a shutdown and stops pods in order. auto: on a node without a kubelet. "
            "Beside a kubelet graceful shutdown is disabled even if on, since the kubelet restarts stopped "
            "containers; use the kubelet's shutdownGracePeriod."
        ),
    ] = "auto"
    grace_period: Annotated[
        Duration,
        about(
            "Total shutdown time of all pods. Phases are scaled down to logind's InhibitDelayMaxSec (5s by "
            "default). 0 disables."
        ),
    ] = "30s"
    grace_period_critical: Annotated[
        Duration,
        about("Part of grace_period reserved for critical pods (priority 2000000000 and higher), stopped last."),
    ] = "10s"
    by_priority: Annotated[
        tuple[PriorityBand, ...],
        form("list of {min_priority = NUMBER, seconds = NUMBER}, ascending"),
        about(
            "Phases by pod priority; replaces the two periods above. A pod is in the phase with the highest "
            "min_priority that does not exceed the priority of the pod; a pod with a priority below every "
            "min_priority is in the first phase."
        ),
    ] = ()
    phases: Annotated[
        tuple[ShutdownPhase, ...],
        form(
            "list of {name = TEXT, seconds = NUMBER, min_priority = NUMBER, "
            "select = [{namespaces = [TEXT], labels = {KEY = TEXT}}]}, in order"
        ),
        about(
            "Named phases; replaces the periods and by_priority. A phase with select also includes the selected "
            "pods of earlier phases, for example to stop network and storage last; its min_priority is optional."
        ),
    ] = ()

    restart_logind: Annotated[
        Switch,
        about(
            "Restart logind if it runs without a system bus connection, as after a restart of dbus. Without the "
            "connection, logind announces no shutdown."
        ),
    ] = True

    def __post_init__(self) -> None:
        self._phases()

    def settings(self) -> ShutdownSettings:
        """Return the settings of a valid section."""
        enabled = {"auto": None, "on": True, "off": False}[self.enabled]
        return ShutdownSettings(enabled, self._phases(), self.restart_logind)

    def _phases(self) -> tuple[Phase, ...]:
        """Return the phases of a graceful shutdown, in order.

        Raises:
            ValueError: the phases are invalid; the message has the key and the allowed form.
        """
        if self.phases and self.by_priority:
            raise ValueError("by_priority and phases exclude each other: set one of them")
        key, form = "phases", "write unique names, ascending min_priority, seconds of at least 0"
        try:
            if self.phases:
                phases = tuple(
                    Phase(each.name, each.seconds, each.min_priority, tuple(map(_selector, each.select)))
                    for each in self.phases
                )
                check_phases(phases)
                return phases
            if self.by_priority:
                key, form = (
                    "by_priority",
                    "write {min_priority, seconds}, ascending min_priority, seconds of at least 0",
                )
                return by_priority([(each.min_priority, each.seconds) for each in self.by_priority])
        except ValueError as error:
            raise ValueError(f"{key}: {error}; {form}") from error
        return two_bands(parse_duration_s(self.grace_period), parse_duration_s(self.grace_period_critical))


def _selector(selector: PodSelector) -> Selector:
    return Selector(selector.namespaces, dict(selector.labels))
