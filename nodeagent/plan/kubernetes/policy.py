"""Configured parts of a node's registration and status, apart from the objects of the API: settings import them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping


class RegistrationPolicy(Record):
    """Configured part of a registration.

    Attributes:
        labels: labels beside those of host name, architecture and system.
        provider_id: id of the machine at its provider; empty for none.
        unschedulable: whether the node is registered cordoned.
        taint: whether the node is registered with the taint ``nodeagent.dev/no-kubelet``.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    provider_id: str = ""
    unschedulable: bool = True
    taint: bool = True


class Reservation(Record):
    """Resources that pods cannot use, beside the hard eviction thresholds."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    ephemeral_bytes: int = 0


NO_RESERVATION: Final = Reservation()
