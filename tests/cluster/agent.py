"""Agent daemon on the node of a test cluster."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import yaml

from tests.support import reclaim
from tests.support.cluster import RefusedError
from tests.support.cluster_node import CONTAINERD, NAME
from tests.support.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.cluster import Cluster, Document
    from tests.support.cluster_node import ClusterNode

Event = dict[str, Any]
_PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts/{name}",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{name}",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/{name}",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps/{name}",
    "DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/{name}",
}
_WITHDRAW = """
import sys
from pathlib import Path
from nodeagent.cli.install import withdraw_from_cluster
print(withdraw_from_cluster(Path(sys.argv[1])))
"""


def granted(documents: Iterable[Document]) -> set[str]:
    """Return the permissions of roles, such as ``get nodes``, those of a Role with its namespace."""
    found = set()
    for document in documents:
        namespace = document["metadata"].get("namespace", "")
        for rule in document.get("rules", ()):
            for resource, verb in itertools.product(rule["resources"], rule["verbs"]):
                found.add(f"{verb} {resource}" + (f" in {namespace}" if namespace else ""))
    return found


class ClusterAgent:
    """Agent on a node of the cluster: configuration, daemon and commands.

    Attributes:
        granted: permissions of the last applied manifest.
        state: state directory.
    """

    def __init__(self, cluster: Cluster, node: ClusterNode) -> None:
        self._cluster = cluster
        self._node = node
        self._config = node.base / "nodeagent.toml"
        self.state = node.base / "agent-state"
        self._log = node.base / "agent.log"
        self._from = 0
        self.granted: set[str] = set()

    def configure(self, kubernetes: str, *, role: str = "standalone", more: str = "") -> None:
        """Write the configuration of the agent, with short intervals.

        Args:
            kubernetes: lines of the ``[kubernetes]`` section.
            role: configured role of the node.
            more: further sections; a section of image GC, container GC, eviction or shutdown replaces the default of
                the tests.
        """
        sections = {
            "image_gc": '[image_gc]\ninterval = "2s"\n',
            "container_gc": '[container_gc]\ninterval = "2s"\n',
            "eviction": '[eviction]\nenabled = "on"\nhard = "pid.available<1"\n',
            "shutdown": '[shutdown]\nenabled = "off"\n',
        }
        defaults = "".join(text for name, text in sections.items() if f"[{name}]" not in more)
        base = self._node.base
        self._config.write_text(
            f'role = "{role}"\n[runtime]\nendpoint = "unix://{CONTAINERD}"\n'
            f'[state]\ndirectory = "{self.state}"\n[control]\nsocket = "{base}/control.sock"\n'
            f'[metrics]\nlisten = "off"\n'
            f"[kubernetes]\n{kubernetes}\n{defaults}{more}"
        )

    def service_account(self, *settings: str) -> str:
        """Apply the output of ``manifest rbac`` for these settings; return the path of its account's kubeconfig."""
        options = [f"--{each.replace('_', '-')}" for each in settings]
        self.granted = granted(self.apply("rbac", *options, "--node", NAME))
        account = _PATHS["ServiceAccount"].format(namespace="kube-system", name="nodeagent")
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self._cluster.request("POST", f"{account}/token", request)["status"]["token"]
        return str(self._cluster.kubeconfig("nodeagent", token=token))

    def apply(self, *words: str) -> list[Document]:
        """Apply the output of ``nodeagent manifest`` unedited, after removing earlier roles; return its objects."""
        documents = list(yaml.safe_load_all(self.command("manifest", *words, config=False)))
        names = {each["metadata"]["name"] for each in documents if each["kind"] == "ServiceAccount"}
        for name, namespace in itertools.product(names, ("default", "kube-node-lease")):
            role = _PATHS["Role"].format(namespace=namespace, name=name)
            if self._cluster.exists(role):
                self._cluster.request("DELETE", role)
        for document in documents:
            metadata = document["metadata"]
            path = _PATHS[document["kind"]].format(namespace=metadata.get("namespace", ""), name=metadata["name"])
            self._cluster.apply(path, document)
        return documents

    def used(self, account: str, since: int) -> dict[str, set[int]]:
        """Return the statuses of an account's requests in the audit log from an entry on, by permission.

        A permission has the form of :func:`granted`; reviews of the own access, allowed to everyone, are omitted.
        """
        found: dict[str, set[int]] = defaultdict(set)
        for each in self._cluster.audit()[since:]:
            target = each.get("objectRef", {})
            if each["user"]["username"] != f"system:serviceaccount:kube-system:{account}" or not target:
                continue
            resource = "/".join(filter(None, (target["resource"], target.get("subresource", ""))))
            if resource != "selfsubjectaccessreviews":
                text = f"{each['verb']} {resource}"
                namespace = target.get("namespace", "")
                found[text].add(each["responseStatus"]["code"])
                found[f"{text} in {namespace}"].add(each["responseStatus"]["code"])
        return found

    def start(self, *wrapper: str) -> None:
        """Start the daemon; :meth:`events` ignores log entries from before this start.

        Args:
            wrapper: command that runs the command line of the daemon.
        """
        self._from = self._log.stat().st_size if self._log.exists() else 0
        run = (sys.executable, "-m", "nodeagent", "run", "--config", str(self._config))
        self._node.start("agent", *wrapper, *run)

    def stop(self, *, kill: bool = False) -> None:
        """Stop the daemon if it is running, by SIGTERM or with ``kill`` by SIGKILL."""
        if "agent" in self._node.parts:
            self._node.stop("agent", kill=kill)

    def command(self, *words: str, config: bool = True) -> str:
        """Return the output of a ``nodeagent`` command on the node; its exit code is not checked."""
        return self._python("-m", "nodeagent", *words, *(["--config", str(self._config)] if config else []))

    def withdraw(self) -> str:
        """Remove the agent's own parts from the Node object, as an uninstallation does; return the printed result."""
        return self._python("-c", _WITHDRAW, str(self._config))

    def _python(self, *arguments: str) -> str:
        done = subprocess.run(
            self._node.command(sys.executable, *arguments),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout or done.stderr

    def events(self, *names: str) -> list[Event]:
        """Return the log entries with these event names since the last start; without names, all log entries."""
        if not self._log.exists():
            return []
        text = self._log.read_bytes()[self._from :].decode(errors="replace")
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
        return [each for each in found if not names or each["event"] in names]

    def wait(self, state: str, ready: Callable[[], bool], timeout_s: float = 60) -> None:
        """Wait until ``ready`` returns true; an unreachable API server or a refused request counts as false."""

        def attempt() -> bool:
            try:
                return ready()
            except (OSError, RefusedError):
                return False

        reclaim.poll(state, attempt, timeout_s=timeout_s, interval_s=0.2)
