"""Section ``kubernetes``: the Node object and the access to the Kubernetes API server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from nodeagent.cluster.plan.registration import (
    NO_RESERVATION,
    TAINT_EFFECTS,
    TAINT_KEYS,
    RegistrationPolicy,
    Reservation,
)
from nodeagent.config.validation import Check, Count, Duration, OptionalPath, ProviderId, Section, Switch, about, form
from nodeagent.errors import ConfigError
from nodeagent.model.kubernetes import ApiAccess, NodeAddress
from nodeagent.model.node import Role
from nodeagent.record import Record, field
from nodeagent.units import parse_bytes, parse_duration_s, parse_quantity

_RESERVED_FORM: Final = 'list of RESOURCE=QUANTITY, such as "cpu=200m,memory=512Mi,ephemeral-storage=1Gi"'
_LABELS_FORM: Final = 'list of NAME=VALUE, such as "example.com/pool=edge,zone=a"'
_ADDRESSES_FORM: Final = 'list of TYPE=ADDRESS, such as "ExternalIP=192.0.2.10,InternalDNS=node-1.example.com"'
_TAINTS_FORM: Final = 'list of KEY:EFFECT, such as "nodeagent.dev/image-gc-degraded:NoSchedule"'
_LABEL_PART: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_PREFIX: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
ALWAYS: Final = "always"
"""Value of ``register_node`` with which a deleted Node object is created again."""
_REGISTER_FORM: Final = 'true, false or "always"'
CLIENT_CERTIFICATE_FILE: Final = "api-client.pem"
_MIN_FAILED_S: Final = 60.0
_MAX_CPU_MILLIS: Final = 10**9


def parse_node_ips(text: str) -> tuple[str, ...]:
    """Return the IP addresses in a comma-separated list, at most one of each family.

    Raises:
        ValueError: an entry is not an IP address, or two addresses have the same family.
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


def parse_addresses(text: str) -> tuple[NodeAddress, ...]:
    """Return the addresses in a comma-separated list, in its order.

    Raises:
        ValueError: a type is unknown, an address is invalid for its type, or an entry is repeated.

    Source: Kubernetes, ``NodeAddressType``; ``InternalIP`` and ``Hostname`` are of other settings.
    """
    found: list[NodeAddress] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        kind, _, address = part.partition("=")
        if kind == "ExternalIP":
            try:
                address = str(ipaddress.ip_address(address))
            except ValueError:
                raise ValueError(f"{part!r}: not an IP address") from None
        elif kind not in ("InternalDNS", "ExternalDNS") or not _LABEL_PREFIX.fullmatch(address):
            raise ValueError(f"{part!r}: write a {_ADDRESSES_FORM}; types: ExternalIP, InternalDNS, ExternalDNS")
        if (entry := NodeAddress(type=kind, address=address)) in found:
            raise ValueError(f"{part} is repeated")
        found.append(entry)
    return tuple(found)


def parse_reserved(text: str) -> Reservation:
    """Return the reserved resources in a comma-separated list.

    Raises:
        ValueError: a resource is unknown or repeated, or a quantity is invalid.

    Source: KubeletConfiguration ``systemReserved`` and ``kubeReserved``.
    """
    values: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, amount = (each.strip() for each in part.partition("="))
        if not equals or name not in ("cpu", "memory", "ephemeral-storage"):
            raise ValueError(f"{part!r}: write a {_RESERVED_FORM}")
        if name in values:
            raise ValueError(f"{name} is repeated")
        values[name] = _cpu_millis(amount) if name == "cpu" else parse_bytes(amount)
    return Reservation(values.get("cpu", 0), values.get("memory", 0), values.get("ephemeral-storage", 0))


def parse_labels(text: str) -> dict[str, str]:
    """Return the node labels in a comma-separated list.

    Raises:
        ValueError: a name or a value is invalid, or a name is repeated.

    Source: Kubernetes, labels and selectors, syntax and character set.
    """
    labels: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = part.partition("=")
        prefix, slash, rest = name.rpartition("/")
        valid = _LABEL_PART.fullmatch(rest) and (not slash or _LABEL_PREFIX.fullmatch(prefix))
        if not equals or not valid or (value and not _LABEL_PART.fullmatch(value)):
            raise ValueError(f"{part!r}: write a {_LABELS_FORM}")
        if name in labels:
            raise ValueError(f"{name} is repeated")
        labels[name] = value
    return labels


def parse_condition_taints(text: str) -> dict[str, str]:
    """Return the effect of each taint in a comma-separated list, by key.

    Raises:
        ValueError: a key is not of a condition of the agent or is repeated, or an effect is not permitted.
    """
    taints: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, _, effect = part.partition(":")
        if key not in TAINT_KEYS.values():
            raise ValueError(f"{part!r}: the key must be one of {', '.join(TAINT_KEYS.values())}; {_TAINTS_FORM}")
        if effect not in TAINT_EFFECTS:
            raise ValueError(f"{part!r}: the effect must be {' or '.join(TAINT_EFFECTS)}; {_TAINTS_FORM}")
        if key in taints:
            raise ValueError(f"{key} is repeated")
        taints[key] = effect
    return taints


def register_mode(value: object) -> object:
    """Return a valid value of ``register_node``.

    Raises:
        ValueError: the value is neither a switch nor ``always``.
    """
    if isinstance(value, bool) or value == ALWAYS:
        return value
    raise ValueError(f"must be {_REGISTER_FORM}")


def _cpu_millis(text: str) -> int:
    millis = int(parse_quantity(text) * 1000)
    if millis > _MAX_CPU_MILLIS:
        raise ValueError(f"cpu={text}: more than a million CPUs")
    return millis


class KubernetesSettings(Record):
    """Validated settings of the Node object and of the API server access.

    Attributes:
        node_ips: IP addresses of the node; empty to detect them.
        addresses: addresses of other types than ``InternalIP`` and ``Hostname``.
        labels_file: file with further labels; ``None`` without one.
        reservation: resources that pods cannot use.
        max_pods: number of pods that the scheduler may place on the node.
        register_node: whether the agent registers the node if no kubelet manages the node.
        register_again: whether the agent creates a deleted Node object again.
        watch_pods: whether the pods of this node are watched at the API server.
        publish_conditions: whether the agent's own conditions are applied to the Node object.
        condition_taints: effect of each configured taint that follows a condition of the agent, by key.
        publish_events: whether Events about the node and its pods are created.
        publish_pod_status: whether the status of pods that ended is written if no kubelet manages the node.
        evict_pods: whether pods are evicted through the API server beside a kubelet.
        override_disruption_budgets: whether a pod may be deleted despite its disruption budget as the last resort.
        delete_failed_after_s: age in seconds from which failed pods of this node are deleted; 0 to keep them.
        access: access to the API server; ``None`` if no API server is configured.
        registration: configured part of the Node object.
    """

    node_ips: tuple[str, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    labels_file: Path | None = None
    reservation: Reservation = NO_RESERVATION
    max_pods: int = 0
    register_node: bool = False
    register_again: bool = False
    watch_pods: bool = False
    publish_conditions: bool = False
    condition_taints: Mapping[str, str] = field(default_factory=dict)
    publish_events: bool = False
    publish_pod_status: bool = False
    evict_pods: bool = False
    override_disruption_budgets: bool = False
    delete_failed_after_s: float = 0.0
    access: ApiAccess | None = None
    registration: RegistrationPolicy = field(default_factory=RegistrationPolicy)

    @property
    def delete_failed_after(self) -> bool:
        """Whether failed pods of this node are deleted."""
        return self.delete_failed_after_s > 0

    def off_because(self, role: Role, evidence: str = "") -> str:
        """Return the reason that the agent does not register the node, for display; empty if it does.

        Beside a kubelet registration is refused even if configured: two processes would update one Node object.

        Args:
            role: role of the agent on this node.
            evidence: evidence for the role, quoted in the reason.
        """
        if not self.register_node or self.access is None:
            return "not enabled"
        if role is Role.BESIDE_KUBELET:
            shown = f" ({evidence})" if evidence else ""
            return f"kubernetes.register_node = true is refused: a kubelet manages this node{shown} and registers it"
        return ""


class KubernetesSection(Section):
    """Node object and access to the Kubernetes API server."""

    register_node: Annotated[
        bool | Literal["always"],
        Check(register_mode, any_type=True),
        form(_REGISTER_FORM),
        about(
            "Whether the daemon registers this node and sends its heartbeats. Refused beside a kubelet, and "
            "suspended in a dry run. A Node object that is deleted meanwhile is created again only by a restart or a "
            'reload that changes settings; with "always" after 10 s or longer. The API server must be allowed in the '
            "unit (IPAddressAllow)."
        ),
    ] = False
    watch_pods: Annotated[
        Switch,
        about(
            "Whether the daemon watches the pods of this node at the API server: the best source of priority, "
            "requests and QoS, and beside a kubelet the only proof that a pod is deleted."
        ),
    ] = False
    publish_conditions: Annotated[
        Switch,
        about(
            "Whether the daemon adds conditions of its own to the Node object: nodeagent.dev/ImageGCDegraded, "
            "ContainerGCDegraded and ShortageExpected. Also beside a kubelet, whose conditions are not changed."
        ),
    ] = False
    condition_taints: Annotated[
        str,
        Check(parse_condition_taints),
        form(_TAINTS_FORM),
        about(
            "Taints that the daemon sets while the condition of the same name is true, and removes otherwise: "
            "nodeagent.dev/image-gc-degraded, nodeagent.dev/container-gc-degraded; effects: NoSchedule, "
            "PreferNoSchedule. Requires publish_conditions, and a service account, since a node certificate may not "
            "change taints."
        ),
    ] = ""
    publish_events: Annotated[
        Switch,
        about(
            "Whether the daemon creates Events about pods and the node, for evictions, expected shortages, failed "
            "passes and shutdowns. "
            "Events about a registered node are created in any case."
        ),
    ] = False
    publish_pod_status: Annotated[
        Switch,
        about(
            "Whether the daemon writes the phase Failed to the status of pods that it evicted or stopped at a "
            "shutdown, or that ended with an unclean stop of the node: without a kubelet no other component reports "
            "them. Requires register_node and watch_pods."
        ),
    ] = False
    evict_pods: Annotated[
        Switch,
        about(
            "Whether pods are evicted through the API server beside a kubelet, with their disruption budgets "
            "respected. Requires watch_pods. Without a kubelet pods are evicted through the runtime."
        ),
    ] = False
    override_disruption_budgets: Annotated[
        Switch,
        about(
            "Whether a pod may be deleted with grace period 0 despite its disruption budget, as the last resort at "
            "a hard threshold. Requires evict_pods."
        ),
    ] = False
    delete_failed_after: Annotated[
        Duration,
        about(
            "Minimum age, since the last status change, of failed pods of this node that are deleted at the API "
            "server. Only pods that failed by an eviction or a shutdown and have a controller are deleted. 0 "
            "disables; otherwise at least 1m."
        ),
    ] = "0s"
    kubeconfig: Annotated[
        OptionalPath,
        about(
            "kubeconfig with server, CA and credentials of its current context. Mutually exclusive with the five "
            "settings below. TLS is always verified; plug-ins that run a program are refused."
        ),
    ] = ""
    server: Annotated[
        str, form("https://HOST:PORT"), about("URL of the API server; in a pod https://kubernetes.default.svc.")
    ] = ""
    ca_file: Annotated[
        OptionalPath,
        about("File with the CA certificates of the API server. Empty: the CA certificates of the system."),
    ] = ""
    token_file: Annotated[
        OptionalPath, about("File with a bearer token, such as that of a service account; read again when it changes.")
    ] = ""
    certificate_file: Annotated[
        OptionalPath, about("File with a client certificate, PEM, optionally with its key; read again when it changes.")
    ] = ""
    key_file: Annotated[
        OptionalPath, about("File with the key of the client certificate. Empty: in certificate_file.")
    ] = ""
    bootstrap_token_file: Annotated[
        OptionalPath,
        about(
            "File with a bootstrap token, with which the daemon requests a client certificate for the node and then "
            "renews it. Requires server; excludes token_file and certificate_file. In a dry run nothing is requested."
        ),
    ] = ""
    labels: Annotated[
        str,
        Check(parse_labels),
        form(_LABELS_FORM),
        about(
            "Labels of the registered node, such as topology.kubernetes.io/zone. A label of another value that the "
            "agent did not set is kept."
        ),
    ] = ""
    labels_file: Annotated[
        OptionalPath,
        about(
            "File with further labels, a line NAME=VALUE each, with precedence over labels; read again every 10 s. "
            "While it is unreadable no label is changed."
        ),
    ] = ""
    provider_id: Annotated[
        ProviderId,
        form("PROVIDER://ID, or empty"),
        about("Id of the machine at its provider (spec.providerID); an existing id is kept."),
    ] = ""
    unschedulable: Annotated[
        Switch,
        about(
            "Register the node cordoned, since no kubelet starts the pods that are bound to the node. After a change "
            "to false the node is uncordoned if the agent cordoned it; the cordon of an operator is kept."
        ),
    ] = True
    no_kubelet_taint: Annotated[
        Switch, about("Register the node with the taint nodeagent.dev/no-kubelet (NoSchedule and NoExecute).")
    ] = True
    node_ip: Annotated[
        str,
        Check(parse_node_ips),
        form("IP addresses, at most one of each family, or empty"),
        about(
            "IP addresses of the node. Empty: of each family, the first address on the interface of the default route."
        ),
    ] = ""
    addresses: Annotated[
        str,
        Check(parse_addresses),
        form(_ADDRESSES_FORM),
        about("Further addresses of the node. Types: ExternalIP, InternalDNS, ExternalDNS."),
    ] = ""
    reserved: Annotated[
        str,
        Check(parse_reserved),
        form(_RESERVED_FORM),
        about(
            "Resources that pods cannot use, such as systemReserved and kubeReserved of a kubelet. The hard "
            "eviction thresholds on memory.available and nodefs.available are subtracted as well."
        ),
    ] = ""
    max_pods: Annotated[
        Count,
        about(
            "Pod capacity in the node status. With 0 the scheduler binds no pod to this node, not even a pod that "
            "tolerates every taint: no kubelet would start the pod."
        ),
    ] = 0

    def __post_init__(self) -> None:
        if self.evict_pods and not self.watch_pods:
            raise ValueError("evict_pods = true requires watch_pods = true: the watch proves which pod is evicted")
        if self.publish_pod_status and not (self.register_node and self.watch_pods):
            raise ValueError(
                "publish_pod_status = true requires register_node and watch_pods = true: the watch proves which pod is "
                "bound to the registered node"
            )
        if self.condition_taints and not self.publish_conditions:
            raise ValueError("condition_taints requires publish_conditions = true: the condition states the reason")
        if self.override_disruption_budgets and not self.evict_pods:
            raise ValueError("override_disruption_budgets = true requires evict_pods = true")
        if 0 < parse_duration_s(self.delete_failed_after) < _MIN_FAILED_S:
            raise ValueError(f"delete_failed_after = {self.delete_failed_after!r}: must be 0 or at least 1m")
        try:
            self._access(Path("/"))
        except ConfigError as error:
            raise ValueError(str(error)) from error

    def settings(self, state_directory: Path) -> KubernetesSettings:
        """Return the settings of a valid section; a requested client certificate is stored in ``state_directory``."""
        return KubernetesSettings(
            register_node=bool(self.register_node),
            register_again=self.register_node == ALWAYS,
            watch_pods=self.watch_pods,
            publish_conditions=self.publish_conditions,
            condition_taints=parse_condition_taints(self.condition_taints),
            publish_events=self.publish_events,
            publish_pod_status=self.publish_pod_status,
            evict_pods=self.evict_pods,
            override_disruption_budgets=self.override_disruption_budgets,
            delete_failed_after_s=parse_duration_s(self.delete_failed_after),
            access=self._access(state_directory),
            registration=RegistrationPolicy(
                labels=parse_labels(self.labels),
                provider_id=self.provider_id,
                unschedulable=self.unschedulable,
                taint=self.no_kubelet_taint,
            ),
            node_ips=parse_node_ips(self.node_ip),
            addresses=parse_addresses(self.addresses),
            labels_file=Path(self.labels_file) if self.labels_file else None,
            reservation=parse_reserved(self.reserved),
            max_pods=self.max_pods,
        )

    def _access(self, state_directory: Path) -> ApiAccess | None:
        """Return the access to the API server; ``None`` without kubeconfig and server.

        Raises:
            ConfigError: the settings contradict each other.
        """
        files = (self.ca_file, self.token_file, self.certificate_file, self.key_file)
        if not self.kubeconfig and not self.server:
            if any(files) or self.bootstrap_token_file:
                raise ConfigError("credentials without server: set server, or kubeconfig alone")
            for name in ("register_node", "watch_pods", "publish_conditions", "publish_events", "evict_pods"):
                if getattr(self, name):
                    raise ConfigError(f"{name} = true requires kubeconfig or server")
            if parse_duration_s(self.delete_failed_after):
                raise ConfigError("delete_failed_after requires kubeconfig or server")
            return None
        ca_file, token_file, certificate_file, key_file = (Path(each) if each else None for each in files)
        if self.bootstrap_token_file:
            if self.kubeconfig or token_file or certificate_file or key_file:
                raise ConfigError("bootstrap_token_file excludes kubeconfig, token_file and certificate_file")
            certificate_file = state_directory / CLIENT_CERTIFICATE_FILE
        return ApiAccess(
            kubeconfig=Path(self.kubeconfig) if self.kubeconfig else None,
            url=self.server,
            ca_file=ca_file,
            token_file=token_file,
            certificate_file=certificate_file,
            key_file=key_file,
            bootstrap_token_file=Path(self.bootstrap_token_file) if self.bootstrap_token_file else None,
        )
