"""Real control plane and kubelet on a separate node, from the binaries in ``KUBE_BIN_DIR``."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tests.support import reclaim
from tests.support.certificates import Authority
from tests.support.cluster_node import ADDRESS, CONTAINERD, NAME, ClusterNode, Part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BINARIES: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
VARIABLE: Final = "KUBE_BIN_DIR"
SERVER: Final = "https://127.0.0.1:6443"
JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
STRATEGIC: Final = "application/strategic-merge-patch+json"
NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/namespaces/default/pods"
LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NAME}"
EVENTS: Final = "/apis/events.k8s.io/v1/events"
_START_S: Final = 120.0
_PORT: Final = 6443
SERVICE_ADDRESS: Final = "10.96.0.1"
_NAMES: Final = (
    f"DNS:localhost,DNS:kubernetes,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:{ADDRESS},IP:{SERVICE_ADDRESS}"
)
_AUDIT_POLICY: Final = (
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n"
)
_COMPACT: Final = """
import json, urllib.request
def post(path, **body):
    return json.load(urllib.request.urlopen("http://127.0.0.1:2379/v3/" + path, json.dumps(body).encode()))
revision = post("maintenance/status")["header"]["revision"]
post("kv/compaction", revision=revision, physical=True)
"""

Document = dict[str, Any]


def binary_directory() -> Path | None:
    """Return the directory with the Kubernetes binaries; ``None`` if no directory is configured."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else None


def unavailable(binaries: Sequence[str] = BINARIES) -> str | None:
    """Return the reason why these Kubernetes binaries cannot run on this machine; ``None`` if they can."""
    directory = binary_directory()
    if directory is None:
        return f"{VARIABLE} names no directory with {', '.join(binaries)}"
    missing = [name for name in binaries if not os.access(directory / name, os.X_OK)]
    if missing:
        return f"not in {VARIABLE}: {', '.join(missing)}"
    return None if os.geteuid() == 0 else "a real cluster requires root"


def start_kubelet(node: ClusterNode, directory: Path, *options: str, **settings: object) -> Part:
    """Start the kubelet in ``directory`` on a node, with ``settings`` in addition to those that the node requires."""
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "cgroupDriver": "cgroupfs",
        "resolvConf": "",
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        **settings,
    }
    path = "/var/lib/kubelet/config.yaml"
    node.path(path).write_text(json.dumps(config))
    common = (f"--config={path}", f"--hostname-override={NAME}", f"--node-ip={ADDRESS}")
    return node.start("kubelet", str(directory / "kubelet"), *common, *options)


class RefusedError(Exception):
    """Refusal of a test's request by the API server."""

    def __init__(self, status: int, document: Document) -> None:
        super().__init__(f"{status} {document.get('message')}")
        self.status = status
        self.document = document


class _RelayConnection(http.client.HTTPSConnection):
    """HTTPS connection over a Unix socket that is relayed to the API server."""

    def __init__(self, path: Path, context: ssl.SSLContext) -> None:
        super().__init__("127.0.0.1", _PORT, timeout=30, context=context)
        self._path = path
        self._tls = context

    def connect(self) -> None:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(30)
        try:
            plain.connect(str(self._path))
            self.sock = self._tls.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise


class Cluster:
    """Control plane on a node; tests start the components that they need."""

    def __init__(self, node: ClusterNode, directory: Path) -> None:
        self.node = node
        self.binaries = directory
        self.authority = Authority(node.base / "pki")
        for name, subject in {
            "server": "/CN=kube-apiserver",
            "admin": "/O=system:masters/CN=admin",
            "manager": "/CN=system:kube-controller-manager",
            "scheduler": "/CN=system:kube-scheduler",
            "node": f"/O=system:nodes/CN=system:node:{NAME}",
            "kubelet-server": f"/CN={NAME}",
            "service-accounts": "/CN=service-accounts",
        }.items():
            self.authority.issue(name, subject, names=_NAMES, days=30)  # avoids the expiry warning of doctor
        self._socket = node.base / "api.sock"

    def __enter__(self) -> Self:
        self.start_api_server()
        self.node.start_module("relay", "tests.support.unix_relay", str(self._socket), str(_PORT))
        reclaim.poll("the API server is ready", self._is_ready, timeout_s=_START_S, interval_s=0.2)
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, since all processes end with the node."""

    def join(self, node: ClusterNode) -> Path:
        """Relay the API server into the network of a further node; return the kubeconfig of the node's certificate."""
        node.start_module("relay", "tests.support.unix_relay", str(_PORT), str(self._socket))
        self.authority.issue(node.name, f"/O=system:nodes/CN=system:node:{node.name}", days=30)
        return self.kubeconfig(node.name)

    def file(self, name: str) -> str:
        """Return the path of a certificate or key file."""
        return str(self.authority.directory / name)

    def kubeconfig(self, identity: str, *, token: str = "") -> Path:
        """Write a kubeconfig with a client certificate or with a token; return its path."""
        user = {"token": token} if token else {}
        if not token:
            user = {"client-certificate": self.file(f"{identity}.crt"), "client-key": self.file(f"{identity}.key")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [
                {"name": "test", "cluster": {"server": SERVER, "certificate-authority": str(self.authority.ca_file)}}
            ],
            "users": [{"name": identity, "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": identity}}],
        }
        path = self.node.base / f"{identity}.kubeconfig"
        path.write_text(json.dumps(document))
        path.chmod(0o600)
        return path

    def start(self, name: str, *options: str) -> Part:
        """Start a Kubernetes binary in the node."""
        return self.node.start(name, str(self.binaries / name), *options)

    def start_api_server(self) -> None:
        """Start etcd and the API server unless they are running."""
        if "etcd" not in self.node.parts:
            self.start(
                "etcd",
                "--data-dir=/run/etcd",
                "--unsafe-no-fsync",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--log-level=warn",
            )
        (self.node.base / "audit.yaml").write_text(_AUDIT_POLICY)
        self.start(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--secure-port={_PORT}",
            f"--advertise-address={ADDRESS}",
            f"--client-ca-file={self.authority.ca_file}",
            f"--tls-cert-file={self.file('server.crt')}",
            f"--tls-private-key-file={self.file('server.key')}",
            f"--kubelet-certificate-authority={self.authority.ca_file}",
            f"--kubelet-client-certificate={self.file('admin.crt')}",
            f"--kubelet-client-key={self.file('admin.key')}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.file('service-accounts.crt')}",
            f"--service-account-signing-key-file={self.file('service-accounts.key')}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-bootstrap-token-auth",
            "--allow-privileged=true",
            f"--audit-policy-file={self.node.base}/audit.yaml",
            f"--audit-log-path={self.node.base}/audit.log",
        )

    def restart_api_server(self) -> None:
        """Start the API server again and wait until it is ready."""
        self.start_api_server()
        reclaim.poll("the API server is ready again", self._is_ready, timeout_s=_START_S, interval_s=0.2)

    def compact(self) -> None:
        """Compact etcd: remove all earlier revisions. Source: etcd API guide, gRPC gateway."""
        self.node.run(sys.executable, "-c", _COMPACT)

    def start_controllers(self, *options: str) -> None:
        """Start the controller manager, with further ``options``, and the scheduler."""
        self.start(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig('manager')}",
            f"--service-account-private-key-file={self.file('service-accounts.key')}",
            f"--root-ca-file={self.authority.ca_file}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            *options,
        )
        self.start(
            "kube-scheduler",
            f"--kubeconfig={self.kubeconfig('scheduler')}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        )
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        reclaim.poll("the default service account exists", lambda: self.exists(account), timeout_s=_START_S)

    def start_kubelet(self, **settings: object) -> None:
        """Start the kubelet with ``settings`` in addition to the settings that the node requires."""
        defaults = {
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.authority.ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": self.file("kubelet-server.crt"),
            "tlsPrivateKeyFile": self.file("kubelet-server.key"),
        }
        kubeconfig = f"--kubeconfig={self.kubeconfig('node')}"
        start_kubelet(self.node, self.binaries, kubeconfig, **{**defaults, **settings})
        reclaim.poll("the kubelet's node is ready", self.is_node_ready, timeout_s=_START_S, interval_s=0.2)

    # ---- requests with the administrator's certificate

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content_type: str = JSON
    ) -> Document:
        """Send a request to the API server; return the object in the response.

        Raises:
            RefusedError: the API server refused the request.
            OSError: the API server does not respond.
        """
        text = self.text(method, path, body, content_type=content_type)
        document: Document = json.loads(text)
        return document

    def text(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content_type: str = JSON) -> str:
        """Send a request to the API server; return the response body as text. Raises the errors of :meth:`request`."""
        context = ssl.create_default_context(cafile=self.authority.ca_file)
        context.load_cert_chain(self.file("admin.crt"), self.file("admin.key"))
        connection = _RelayConnection(self._socket, context)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": content_type} if sent else {})
            response = connection.getresponse()
            answer = response.read().decode()
        finally:
            connection.close()
        if response.status >= 300:
            try:
                document = json.loads(answer)
            except ValueError:
                document = {"message": answer}
            raise RefusedError(response.status, document)
        return answer

    def get(self, path: str) -> Document:
        return self.request("GET", path)

    def items(self, path: str) -> Sequence[Document]:
        """Return the items of the list at a path of the API server."""
        items: list[Document] = self.request("GET", path)["items"]
        return items

    def exists(self, path: str) -> bool:
        """Return whether the API server has an object at a path."""
        try:
            self.request("GET", path)
        except RefusedError as error:
            if error.status == 404:
                return False
            raise
        return True

    def apply(self, path: str, document: Mapping[str, Any]) -> Document:
        """Create or change an object by server-side apply; return the object."""
        target = f"{path}?fieldManager=test&force=true"
        return self.request("PATCH", target, document, content_type=APPLY)

    def node_object(self) -> Document:
        return self.get(f"{NODES}/{NAME}")

    def condition(self, kind: str) -> Document:
        """Return a condition of the node by type; empty if the node lacks that condition."""
        return next((each for each in self.node_object()["status"].get("conditions", ()) if each["type"] == kind), {})

    def is_node_ready(self) -> bool:
        return self.exists(f"{NODES}/{NAME}") and self.condition("Ready").get("status") == "True"

    def audit(self) -> list[Document]:
        """Return the entries of the API server's audit log, oldest first."""
        lines = (self.node.base / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def _is_ready(self) -> bool:
        part = self.node.parts["kube-apiserver"]
        if not part.is_running:
            raise RuntimeError(f"kube-apiserver exited at its start\n{part.log_tail()}")
        try:
            return self.text("GET", "/readyz") == "ok"
        except (OSError, http.client.HTTPException, RefusedError):
            return False
