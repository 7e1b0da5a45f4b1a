"""Settings of the node's part in a Kubernetes cluster."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from nodeagent.config.fields import Count, Section
from nodeagent.config.kubernetes import KubernetesSettings
from nodeagent.plan.node_status import Reservation
from nodeagent.units import parse_bytes, parse_quantity

_RESERVED_FORM: Final = 'list of RESOURCE=QUANTITY, such as "cpu=200m,memory=512Mi,ephemeral-storage=1Gi"'
_MAX_CPU_MILLIS: Final = 10**9


def parse_node_ips(text: str) -> tuple[str, ...]:
    """Return the IP addresses in a list, at most one of each family.

    Raises:
        ValueError: not an address, or two of one family.
    """
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        try:
            found.append(ipaddress.ip_address(part))
        except ValueError:
            raise ValueError(f"{part!r} is not an IP address (names are not resolved)") from None
    if len({each.version for each in found}) < len(found):
        raise ValueError("at most one address of each family, such as 192.0.2.10,2001:db8::10")
    return tuple(map(str, found))


def parse_reserved(text: str) -> Reservation:
    """Return the reserved resources in a list.

    Raises:
        ValueError: unknown resource, invalid quantity, or a resource given twice.

    Source: KubeletConfiguration ``systemReserved`` and ``kubeReserved``.
    """
    values: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, amount = (each.strip() for each in part.partition("="))
        if not equals or name not in ("cpu", "memory", "ephemeral-storage"):
            raise ValueError(f"{part!r}: write a {_RESERVED_FORM}")
        if name in values:
            raise ValueError(f"{name} is given twice")
        values[name] = _cpu_millis(amount) if name == "cpu" else parse_bytes(amount)
    return Reservation(values.get("cpu", 0), values.get("memory", 0), values.get("ephemeral-storage", 0))


def _cpu_millis(text: str) -> int:
    millis = int(parse_quantity(text) * 1000)
    if millis > _MAX_CPU_MILLIS:
        raise ValueError(f"cpu={text}: more than a million CPUs")
    return millis


def _checked_node_ips(text: str) -> str:
    parse_node_ips(text)
    return text


def _checked_reserved(text: str) -> str:
    parse_reserved(text)
    return text


class KubernetesSection(Section):
    """The node in a Kubernetes cluster."""

    node_ip: Annotated[
        str,
        AfterValidator(_checked_node_ips),
        Field(json_schema_extra={"form": "IP addresses, at most one of each family, or empty"}),
    ] = Field(
        "",
        description="IP addresses of the node. Empty: of each family, the first address on the interface of the "
        "default route.",
    )
    reserved: Annotated[str, AfterValidator(_checked_reserved), Field(json_schema_extra={"form": _RESERVED_FORM})] = (
        Field(
            "",
            description="Resources that pods cannot use, such as systemReserved and kubeReserved of a kubelet. The "
            "hard eviction thresholds on memory.available and nodefs.available are subtracted as well.",
        )
    )
    max_pods: Count = Field(
        0,
        description="Capacity of pods in the node status. 0, since no kubelet starts the pods that the scheduler "
        "places here: then not even a pod that tolerates every taint is bound to this node.",
    )


def kubernetes_settings(section: KubernetesSection) -> KubernetesSettings:
    """Return the settings of a valid section."""
    return KubernetesSettings(
        node_ips=parse_node_ips(section.node_ip),
        reservation=parse_reserved(section.reserved),
        max_pods=section.max_pods,
    )
