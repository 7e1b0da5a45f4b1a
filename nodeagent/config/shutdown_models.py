"""Settings models of graceful shutdown."""

from __future__ import annotations

from typing import Annotated, Literal

from nodeagent.config.fields import Duration, Seconds, Section, Switch, about, form
from nodeagent.plan.shutdown.phases import Phase, Selector, by_priority, check_phases, two_bands
from nodeagent.record import field
from nodeagent.units import parse_duration_s


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
        shutdown_phases(self)


def shutdown_phases(section: ShutdownSection) -> tuple[Phase, ...]:
    """Return the phases of a graceful shutdown, in order.

    Raises:
        ValueError: the phases are invalid; the message has the key and the allowed form.
    """
    if section.phases and section.by_priority:
        raise ValueError("by_priority and phases exclude each other: set one of them")
    key, form = "phases", "write unique names, ascending min_priority, seconds of at least 0"
    try:
        if section.phases:
            phases = tuple(
                Phase(each.name, each.seconds, each.min_priority, tuple(map(_selector, each.select)))
                for each in section.phases
            )
            check_phases(phases)
            return phases
        if section.by_priority:
            key, form = "by_priority", "write {min_priority, seconds}, ascending min_priority, seconds of at least 0"
            return by_priority([(each.min_priority, each.seconds) for each in section.by_priority])
    except ValueError as error:
        raise ValueError(f"{key}: {error}; {form}") from error
    return two_bands(parse_duration_s(section.grace_period), parse_duration_s(section.grace_period_critical))


def _selector(selector: PodSelector) -> Selector:
    return Selector(selector.namespaces, dict(selector.labels))
