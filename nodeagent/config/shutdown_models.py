"""Settings models of graceful shutdown."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nodeagent.config.fields import Duration, Seconds, Section, Switch
from nodeagent.plan.shutdown.phases import Phase, Selector, by_priority, check_phases, two_bands
from nodeagent.units import parse_duration_s


class PriorityBand(Section):
    """Shutdown time of pods with a priority of at least ``min_priority`` and below the next band."""

    min_priority: Annotated[int, Field(strict=True)]
    seconds: Seconds


class PodSelector(Section):
    """Selector of the pods that are in any of the namespaces and have all of the labels."""

    namespaces: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)


class ShutdownPhase(Section):
    """One phase of a graceful shutdown."""

    name: str
    seconds: Seconds
    min_priority: Annotated[int, Field(strict=True)] | None = None
    select: tuple[PodSelector, ...] = ()


class ShutdownSection(Section):
    """Graceful shutdown of the node."""

    enabled: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether the daemon delays a shutdown and stops pods in order. auto: on a node without a kubelet. "
        "Beside a kubelet graceful shutdown is disabled even if on, since the kubelet restarts stopped containers; use "
        "the kubelet's shutdownGracePeriod.",
    )
    grace_period: Duration = Field(
        "30s",
        description="Total shutdown time of all pods. Phases are scaled down to logind's InhibitDelayMaxSec (5s by "
        "default). 0 disables.",
    )
    grace_period_critical: Duration = Field(
        "10s",
        description="Part of grace_period reserved for critical pods (priority 2000000000 and higher), stopped last.",
    )
    by_priority: Annotated[
        tuple[PriorityBand, ...],
        Field(json_schema_extra={"form": "list of {min_priority = NUMBER, seconds = NUMBER}, ascending"}),
    ] = Field(
        (),
        description="Phases by pod priority; replaces the two periods above. A pod is in the phase with the highest "
        "min_priority that does not exceed the priority of the pod; a pod with a priority below every min_priority is "
        "in the first phase.",
    )
    phases: Annotated[
        tuple[ShutdownPhase, ...],
        Field(
            json_schema_extra={
                "form": "list of {name = TEXT, seconds = NUMBER, min_priority = NUMBER, "
                "select = [{namespaces = [TEXT], labels = {KEY = TEXT}}]}, in order"
            }
        ),
    ] = Field(
        (),
        description="Named phases; replaces the periods and by_priority. A phase with select also includes the "
        "selected pods of earlier phases, for example to stop network and storage last; its min_priority is optional.",
    )

    restart_logind: Switch = Field(
        True,
        description="Restart logind if it runs without a system bus connection, as after a restart of dbus. Without "
        "the connection, logind announces no shutdown.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        shutdown_phases(self)
        return self


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
