"""Kubernetes API objects, limited to the fields that the agent reads or writes, and the access to the API server.

Fields without a value are omitted in JSON, so that one type serves full objects and patches. Unknown fields are ignored
when an object is decoded, and are not lost, because the agent changes objects of other owners by patches only.

Source: Kubernetes API, ``core/v1`` and ``coordination.k8s.io/v1``.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from msgspec import UNSET, Struct, UnsetType, field

from nodeagent.errors import ConfigError
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.pressure import NodeCondition
    from nodeagent.model.runtime import Image

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
ARCH_LABEL: Final = "kubernetes.io/arch"
OS_LABEL: Final = "kubernetes.io/os"
NO_KUBELET_TAINT: Final = "nodeagent.dev/no-kubelet"
REGISTERED_ANNOTATION: Final = "nodeagent.dev/registered"
"""Set on a Node that the agent created or adopted; its value is ``created`` or ``adopted``."""


class ApiObject(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base class of the API objects and their parts."""


class OwnerReference(ApiObject, frozen=True):
    """Reference to the owner of an object; the API server deletes the object after the deletion of its owner."""

    api_version: str
    kind: str
    name: str
    uid: str


class ObjectMeta(ApiObject, frozen=True):
    """Metadata of an object.

    Attributes:
        resource_version: version of the object as read; a write with this version fails with status 409 if the object
            has changed.
        deletion_timestamp: set while the object is being deleted.
    """

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()


class Taint(ApiObject, frozen=True):
    """A taint of a node; key and effect together are unique."""

    key: str
    effect: str
    value: str = ""
    time_added: str = ""


class NodeSpec(ApiObject, frozen=True):
    """The desired state of a node."""

    provider_id: str = field(name="providerID", default="")
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeAddress(ApiObject, frozen=True):
    """An address of a node, such as ``InternalIP``."""

    type: str
    address: str


class StatusCondition(ApiObject, frozen=True):
    """A condition of a node; ``status`` is ``True``, ``False`` or ``Unknown``."""

    type: str
    status: str
    last_heartbeat_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class NodeSwap(ApiObject, frozen=True):
    """Swap of a node, in bytes."""

    capacity: int


class NodeSystemInfo(ApiObject, frozen=True, omit_defaults=False):
    """Identity and versions of a node; the API requires every string field, so that unknown values are empty."""

    machine_id: str = field(name="machineID", default="")
    system_uuid: str = field(name="systemUUID", default="")
    boot_id: str = field(name="bootID", default="")
    kernel_version: str = ""
    os_image: str = field(name="osImage", default="")
    container_runtime_version: str = ""
    kubelet_version: str = ""
    kube_proxy_version: str = ""
    operating_system: str = ""
    architecture: str = ""
    swap: NodeSwap | UnsetType = UNSET


class ContainerImage(ApiObject, frozen=True):
    """An image on a node, with its names and its size in bytes."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeStatus(ApiObject, frozen=True):
    """The observed state of a node."""

    addresses: tuple[NodeAddress, ...] = ()
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[StatusCondition, ...] = ()
    node_info: NodeSystemInfo | None = None
    images: tuple[ContainerImage, ...] = ()


class Node(ApiObject, frozen=True):
    """A Node object."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(ApiObject, frozen=True):
    """Holder and last renewal of a Lease.

    Attributes:
        renew_time: RFC 3339 time with exactly six fractional digits of the second, as the API requires.
    """

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    renew_time: str = ""


class Lease(ApiObject, frozen=True):
    """A Lease, the heartbeat of a node."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class Certificate(Record):
    """Facts of an X.509 certificate.

    Attributes:
        subject: attributes of the subject, such as ``CN=system:node:NAME``.
        not_before: start of validity, aware UTC.
        not_after: end of validity, aware UTC.
    """

    subject: tuple[str, ...]
    not_before: datetime
    not_after: datetime


class Machine(Record):
    """Identity and resources of the machine; an unreadable text is empty, an unreadable number ``None``.

    Attributes:
        name: host name in lower case.
        addresses: IP addresses of the node, at most one of each family, IPv4 first.
        cpu_millis: thousandths of the CPUs that are online; like ``memory_bytes`` at most the lowest limit of a cgroup
            above the pods.
        hugepages: pairs of page size and reserved total, in bytes, ascending.
        architecture: in Go's spelling, such as ``amd64``.
        unread: failed readings, each with its path and cause.
    """

    name: str
    addresses: tuple[str, ...] = ()
    cpu_millis: int | None = None
    memory_bytes: int | None = None
    swap_bytes: int | None = None
    hugepages: tuple[tuple[int, int], ...] = ()
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    kernel_version: str = ""
    os_image: str = ""
    architecture: str = ""
    unread: tuple[str, ...] = ()


class NodeFacts(Record):
    """Facts of one observation of a node, from which the node status is computed.

    Attributes:
        name: name of the Node object.
        ephemeral_bytes: size of nodefs; ``None`` if unread.
        runtime_version: name and version of the runtime, such as ``containerd://1.6.20``; empty while the runtime does
            not answer.
        not_ready: reasons that the node is not ready, as worded by the kubelet; empty if the node is ready.
        images: all images; ``None`` while the runtime does not list images.
        pressure: active pressure conditions; ``None`` if thresholds are not evaluated.
        agent_version: version of the agent.
        unread: failed readings, each with its path or call and the cause.
    """

    name: str
    machine: Machine
    observed_at: datetime
    ephemeral_bytes: int | None = None
    runtime_version: str = ""
    not_ready: tuple[str, ...] = ()
    images: tuple[Image, ...] | None = None
    pressure: frozenset[NodeCondition] | None = None
    agent_version: str = ""
    unread: tuple[str, ...] = ()


_FORM: Final = "expected https://HOST[:PORT][/PATH]"


class ApiAccess(Record):
    """Address and credentials of the API server, from a kubeconfig or from separate files. TLS is always verified.

    Attributes:
        kubeconfig: kubeconfig file, whose current context is used; ``None`` to use the other fields.
        url: ``https://HOST:PORT``.
        ca_file: CA certificates of the server; ``None`` for the system's CA certificates.
        token_file: file with the bearer token, such as a service account token; read again when the file changes.
        certificate_file: client certificate in PEM form, with or without its key.
        key_file: key of the client certificate; ``None`` if the certificate file contains the key.
        bootstrap_token_file: file with the bootstrap token, with which the agent requests the certificate in
            ``certificate_file``; ``None`` for other credentials.
        timeout_s: seconds within which the complete answer must arrive.
        max_bytes: maximum size of an answer's body.
    """

    kubeconfig: Path | None = None
    url: str = ""
    ca_file: Path | None = None
    token_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    bootstrap_token_file: Path | None = None
    timeout_s: float = 10.0
    max_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        """Check the fields against each other.

        Raises:
            ConfigError: a kubeconfig is set together with other fields, the URL is invalid, credentials are missing, or
                ``key_file`` is set without ``certificate_file``.
        """
        files = (self.ca_file, self.token_file, self.certificate_file, self.key_file)
        if self.kubeconfig is not None:
            if self.url or any(files):
                raise ConfigError("kubeconfig excludes server, ca_file, token_file, certificate_file and key_file")
            return
        check_server_url(self.url)
        if self.token_file is None and self.certificate_file is None:
            raise ConfigError("server is set without credentials: set token_file or certificate_file")
        if self.key_file is not None and self.certificate_file is None:
            raise ConfigError("key_file is set without certificate_file")


def check_server_url(url: str) -> None:
    """Check the URL of an API server.

    Raises:
        ConfigError: the URL is not an https URL of a host, with at most a port and a path.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme == "https" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known or parts.query or parts.fragment or parts.username is not None or not url.isprintable() or " " in url:
        shown = "(with credentials)" if "@" in url else repr(url)
        raise ConfigError(f"server = {shown}: {_FORM}")


class KubeletAccess(Record):
    """Address and credentials of the kubelet API.

    Attributes:
        url: ``https://HOST:10250``, or ``http://HOST:10255`` for the read-only port, to which no credentials are sent.
        token_file: file with the bearer token; read for each request, because tokens are rotated.
        certificate_file: client certificate in PEM form, with or without its key.
        key_file: key of the client certificate; ``None`` if the certificate file contains the key.
        ca_file: CA of the serving certificate; ``None`` for the system's CAs.
        server_name: name in the serving certificate, if the name differs from the URL's host.
        insecure: whether to skip TLS verification; rejected with a token, which any server at the address would
            receive.
        timeout_s: seconds within which the complete response must arrive.
        max_bytes: maximum size of the response body.
    """

    url: str = "https://127.0.0.1:10250"
    token_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    server_name: str = ""
    insecure: bool = False
    timeout_s: float = 5.0
    max_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        """Check the fields against each other.

        Raises:
            ConfigError: the URL is invalid, credentials would be sent over plain HTTP, a token would be sent to a
                server that is not verified, or ``key_file`` is set without ``certificate_file``.
        """
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            known = False
        if not known or parts.path not in ("", "/") or parts.query or parts.username:
            raise ConfigError(f"kubelet url = {self.url!r}: expected https://HOST:10250 or http://HOST:10255")
        if parts.scheme == "http" and (self.token_file or self.certificate_file):
            raise ConfigError(f"kubelet url = {self.url!r}: credentials are not sent over plain http; use https")
        if self.insecure and self.token_file:
            raise ConfigError(
                "kubelet token_file is set with insecure = true: a token is not sent to a server that is not verified; "
                "set ca_file (and server_name if the name differs) instead of insecure"
            )
        if self.key_file and not self.certificate_file:
            raise ConfigError("kubelet key_file is set without certificate_file")

    @property
    def is_verified(self) -> bool:
        """Whether the serving certificate is verified, so that only the kubelet can answer."""
        return urlsplit(self.url).scheme == "https" and not self.insecure


class TlsFiles(Record):
    """Files of a TLS listener, as absolute paths.

    Attributes:
        certificate: certificate of the server and its intermediate CAs, PEM.
        key: key of the certificate, PEM, not encrypted.
        client_ca: CA certificates of the clients, PEM; empty to accept clients without a certificate.
    """

    certificate: str
    key: str
    client_ca: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all configured TLS files."""
        return (self.certificate, self.key, *((self.client_ca,) if self.client_ca else ()))
