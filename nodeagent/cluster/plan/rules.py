"""RBAC rules that the agent needs at the API server, each with its purpose."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from nodeagent.cluster.plan.events import NAMESPACE as EVENT_NAMESPACE
from nodeagent.cluster.plan.heartbeat import LEASE_NAMESPACE
from nodeagent.record import Record

NAME: Final = "nodeagent"
NAMESPACE: Final = "kube-system"


API: Final = "rbac.authorization.k8s.io"
SETTINGS: Final = (
    "register_node",
    "watch_pods",
    "publish_conditions",
    "condition_taints",
    "publish_events",
    "publish_pod_status",
    "evict_pods",
    "override_disruption_budgets",
    "delete_failed_after",
)
"""Settings of ``[kubernetes]`` that require rules; all are disabled by default. CLI options have their names."""


class Rule(Record):
    """RBAC rule for one resource.

    Attributes:
        resource: resource with its subresource, such as ``nodes/status``.
        verbs: verbs of the rule.
        purpose: purpose of the rule, for display.
        risk: possible actions with a stolen token, for display.
        settings: the settings that require the rule; any of them is sufficient.
        group: API group; empty for the core group.
        namespace: namespace of a Role; empty for a ClusterRole.
        of_node: whether the objects have the name of the node; ``create`` and pods cannot be limited to a name.
    """

    resource: str
    verbs: tuple[str, ...]
    purpose: str
    risk: str
    settings: tuple[str, ...]
    group: str = ""
    namespace: str = ""
    of_node: bool = False

    def text(self, verb: str) -> str:
        """Return a verb with the resource and namespace of the rule, for display."""
        return f"{verb} {self.resource}" + (f" in {self.namespace}" if self.namespace else "")


RULES: Final = (
    Rule(
        "nodes",
        ("get",),
        "compare the Node object with this machine",
        "read the Node objects",
        SETTINGS,
        of_node=True,
    ),
    Rule(
        "nodes",
        ("create",),
        "register the node",
        "create Node objects, to which the scheduler binds pods that never start",
        ("register_node",),
    ),
    Rule(
        "nodes",
        ("patch",),
        "adopt an existing Node object: labels, taints, cordon; cordon the node for a shutdown",
        "label, cordon and taint the nodes; a `NoExecute` taint evicts all pods that do not tolerate it",
        ("register_node",),
        of_node=True,
    ),
    Rule(
        "nodes",
        ("patch",),
        "set and remove the taints of the conditions",
        "as for the registration",
        ("condition_taints",),
        of_node=True,
    ),
    Rule(
        "nodes/status",
        ("patch",),
        "report the node status",
        "report false conditions, addresses and capacity of the nodes; pods of a node that is not ready are evicted",
        ("register_node",),
        of_node=True,
    ),
    Rule(
        "nodes/status",
        ("patch",),
        "publish the conditions of the agent",
        "as for the registration",
        ("publish_conditions",),
        of_node=True,
    ),
    Rule(
        "leases",
        ("get", "update"),
        "renew the heartbeat",
        "let a dead node appear alive",
        ("register_node",),
        "coordination.k8s.io",
        LEASE_NAMESPACE,
        of_node=True,
    ),
    Rule(
        "leases",
        ("create",),
        "create the heartbeat",
        "create Leases in this namespace",
        ("register_node",),
        "coordination.k8s.io",
        LEASE_NAMESPACE,
    ),
    Rule(
        "pods",
        ("list", "watch"),
        "watch the pods of this node: their priority, requests and deletion",
        "read all pods of the cluster, with their environment variables and annotations",
        ("watch_pods",),
    ),
    Rule(
        "pods",
        ("list",),
        "list the failed pods of this node",
        "as for the watch",
        ("delete_failed_after",),
    ),
    Rule(
        "events",
        ("create",),
        "report evictions, failures and shutdowns of a registered node",
        "create false Events in this namespace",
        ("register_node",),
        "events.k8s.io",
        EVENT_NAMESPACE,
    ),
    Rule(
        "events",
        ("create",),
        "report evictions and remaining containers, in the namespaces of the pods",
        "create false Events in all namespaces",
        ("publish_events",),
        "events.k8s.io",
    ),
    Rule(
        "pods/status",
        ("patch",),
        "report pods of a registered node as evicted or ended, since no kubelet does",
        "report all pods of the cluster as failed, so that their controllers replace them",
        ("publish_pod_status",),
    ),
    Rule(
        "pods/eviction",
        ("create",),
        "evict pods of this node beside its kubelet, with their disruption budgets respected",
        "evict all pods of the cluster, as far as their disruption budgets permit",
        ("evict_pods",),
    ),
    Rule(
        "pods",
        ("delete",),
        "delete a pod of this node despite its disruption budget, as the last resort",
        "delete all pods of the cluster",
        ("override_disruption_budgets",),
    ),
    Rule(
        "pods",
        ("delete",),
        "delete failed pods of this node that evictions and shutdowns left",
        "delete all pods of the cluster",
        ("delete_failed_after",),
    ),
)
_SELECTED: Final = frozenset({"list", "watch"})


def rules_for(settings: Collection[str]) -> tuple[Rule, ...]:
    """Return the rules that any of these settings requires.

    A rule of a namespace is omitted if another rule grants the same in all namespaces.
    """
    chosen = [rule for rule in RULES if not set(settings).isdisjoint(rule.settings)]
    wide = {(rule.group, rule.resource, rule.verbs) for rule in chosen if not rule.namespace}
    return tuple(rule for rule in chosen if not rule.namespace or (rule.group, rule.resource, rule.verbs) not in wide)


def access_reviews(node: str, settings: Collection[str]) -> tuple[tuple[Rule, str, dict[str, Any]], ...]:
    """Return rule, verb and ``SelfSubjectAccessReview`` body for every required permission, each once."""
    found: dict[str, tuple[Rule, str, dict[str, Any]]] = {}
    for rule in rules_for(settings):
        resource, _, subresource = rule.resource.partition("/")
        for verb in rule.verbs:
            attributes: dict[str, Any] = {
                "group": rule.group,
                "resource": resource,
                "subresource": subresource,
                "verb": verb,
            }
            if rule.namespace:
                attributes["namespace"] = rule.namespace
            if verb in _SELECTED:
                requirement = {"key": "spec.nodeName", "operator": "In", "values": [node]}
                attributes["fieldSelector"] = {"requirements": [requirement]}
            elif rule.of_node:
                attributes["name"] = node
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            found.setdefault(rule.text(verb), (rule, verb, body))
    return tuple(found.values())


def role_documents(
    settings: Collection[str], nodes: Sequence[str] = (), *, name: str = NAME, namespace: str = NAMESPACE
) -> tuple[dict[str, Any], ...]:
    """Return the API objects that grant the rules: service account, roles and role bindings.

    Args:
        settings: enabled settings of ``[kubernetes]``, such as ``evict_pods``.
        nodes: names of the nodes to which the rules are limited; empty for all nodes. RBAC cannot limit ``create``
            rules and rules on pods to a node.
        name: name of all objects.
        namespace: namespace of the service account.
    """
    granted = rules_for(settings)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
    ]
    for of_role in dict.fromkeys(rule.namespace for rule in granted):
        kind, metadata = "Role" if of_role else "ClusterRole", {"name": name}
        if of_role:
            metadata["namespace"] = of_role
        rules = _policy_rules([rule for rule in granted if rule.namespace == of_role], nodes)
        documents += [
            {"apiVersion": f"{API}/v1", "kind": kind, "metadata": metadata, "rules": rules},
            {
                "apiVersion": f"{API}/v1",
                "kind": f"{kind}Binding",
                "metadata": metadata,
                "roleRef": {"apiGroup": API, "kind": kind, "name": name},
                "subjects": [subject],
            },
        ]
    return tuple(documents)


def _policy_rules(granted: Sequence[Rule], nodes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the RBAC rules of a role, one for each resource with the same limit; each verb is granted once."""
    verbs: dict[tuple[str, str, bool], list[str]] = {}
    for rule in granted:
        of_resource = verbs.setdefault((rule.group, rule.resource, bool(nodes) and rule.of_node), [])
        of_resource += [each for each in rule.verbs if each not in of_resource]
    return [
        {
            "apiGroups": [group],
            "resources": [resource],
            "verbs": found,
            **({"resourceNames": list(nodes)} if limited else {}),
        }
        for (group, resource, limited), found in verbs.items()
    ]


STATE: Final = "/var/lib/nodeagent"
"""State directory, created by ``StateDirectory=`` of the systemd unit."""


class HostPath(Record):
    """Host directory or file mounted at the same path in the agent's container, since the runtime reports host paths.

    Attributes:
        name: name of the volume.
        purpose: purpose of the mount, for display.
        writable: whether the agent writes to the directory.
        create: whether the directory is created if it does not exist.
        has_mounts: whether the runtime mounts filesystems below the directory. Unmounts on the host must propagate to
            the agent's container: a remaining mount would keep the files of removed containers on disk.
        is_file: whether the path is a file.
    """

    name: str
    path: str
    purpose: str
    writable: bool = False
    create: bool = False
    has_mounts: bool = False
    is_file: bool = False


LOG_ROOTS: Final = (
    HostPath("pod-logs", "/var/log/pods", "removal of the logs of deleted pods", writable=True, create=True),
    HostPath("container-logs", "/var/log/containers", "removal of links without a target", writable=True, create=True),
)
OWN: Final = (
    HostPath("state", STATE, "image use, history, holds; shared by all versions", writable=True, create=True),
    HostPath("control", "/run/nodeagent", "control socket, also for commands on the host", writable=True, create=True),
)
MACHINE_ID: Final = HostPath(
    "machine-id", "/etc/machine-id", "comparison of the Node object with this machine", is_file=True
)
CGROUPS: Final = HostPath("cgroups", "/sys/fs/cgroup", "usage of pods; running containers, checked against the lists")


def host_paths(socket_directory: str, image_root: str, manifests: str) -> Iterator[HostPath]:
    """Yield the host paths that an agent in a container needs beside a kubelet.

    Two directories are excluded: the kubelet root directory, since its volumes contain the secrets of all pods, and the
    D-Bus socket directory, since the kubelet performs graceful shutdown.

    Args:
        socket_directory: directory of the runtime socket. A mount of the socket file would still refer to the old
            socket after a restart of the runtime.
        image_root: root directory of the runtime's images and snapshots.
        manifests: directory of static pod manifests; empty without static pods.
    """
    yield HostPath("runtime", socket_directory, "socket of the container runtime", has_mounts=True)
    yield HostPath("images", image_root, "usage of the image filesystem, sizes of writable layers", has_mounts=True)
    yield CGROUPS
    yield MACHINE_ID
    if manifests:
        yield HostPath("manifests", manifests, "images of static pods, which are kept", create=True)
    yield from LOG_ROOTS
    yield from OWN
