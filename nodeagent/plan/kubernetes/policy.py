"""Settings of node registration and status, separate from the API objects for import by the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping

TAINT_KEYS: Final = {"images": "nodeagent.dev/image-gc-degraded", "containers": "nodeagent.dev/container-gc-degraded"}
"""Key of the taint that follows the node condition of a loop, by loop name."""
TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule")


class RegistrationPolicy(Record):
    """Settings of node registration.

    Attributes:
        labels: labels in addition to host name, architecture and operating system.
        provider_id: ``spec.providerID`` of the node; empty for no id.
        unschedulable: whether the node is registered cordoned.
        taint: whether the node is registered with the taint ``nodeagent.dev/no-kubelet``.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    provider_id: str = ""
    unschedulable: bool = True
    taint: bool = True


class Reservation(Record):
    """Resources reserved for the system, subtracted from allocatable in addition to the hard eviction thresholds."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    ephemeral_bytes: int = 0


NO_RESERVATION: Final = Reservation()
