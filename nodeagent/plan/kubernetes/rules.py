"""RBAC rules that the agent needs at the API server, each with its purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nodeagent.plan.kubernetes.events import NAMESPACE as EVENT_NAMESPACE
from nodeagent.plan.kubernetes.heartbeat import LEASE_NAMESPACE
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

NAME: Final = "nodeagent"
NAMESPACE: Final = "kube-system"


class Rule(Record):
    """RBAC rule for one resource.

    Attributes:
        resource: resource with its subresource, such as ``nodes/status``.
        verbs: verbs on objects with the node's name; ``create`` cannot be limited to a name.
        purpose: purpose of the rule, for display.
        group: API group; empty for the core group.
        namespace: namespace of a Role; empty for a ClusterRole.
        of_node: whether the objects have the name of the node; otherwise the objects are the pods bound to the node.
        setting: the setting of ``[kubernetes]`` that requires the rule; empty for a rule that is always required.
    """

    resource: str
    verbs: tuple[str, ...]
    purpose: str
    group: str = ""
    namespace: str = ""
    of_node: bool = True
    setting: str = ""

    def text(self, verb: str) -> str:
        """Return a verb with the resource and namespace of the rule, for display."""
        return f"{verb} {self.resource}" + (f" in {self.namespace}" if self.namespace else "")


RULES: Final = (
    Rule("nodes", ("get",), "find the Node object of this machine"),
    Rule("nodes", ("create",), "register the node"),
    Rule(
        "nodes",
        ("patch",),
        "adopt an existing Node object: labels, taints, cordon; cordon the node for a shutdown; condition taints",
    ),
    Rule("nodes/status", ("patch",), "report the node status"),
    Rule("leases", ("get", "update"), "renew the heartbeat", "coordination.k8s.io", LEASE_NAMESPACE),
    Rule("leases", ("create",), "create the heartbeat", "coordination.k8s.io", LEASE_NAMESPACE),
    Rule(
        "pods", ("list", "watch"), "watch the pods of this node: their priority, requests and deletion", of_node=False
    ),
    Rule("events", ("create",), "report evictions, failures and shutdowns", "events.k8s.io", EVENT_NAMESPACE),
    Rule(
        "events",
        ("create",),
        "report evictions and remaining containers, in the namespaces of the pods",
        "events.k8s.io",
        setting="publish_events",
    ),
    Rule(
        "pods/eviction",
        ("create",),
        "evict pods of this node beside its kubelet, with their disruption budgets respected",
        of_node=False,
        setting="evict_pods",
    ),
    Rule(
        "pods",
        ("delete",),
        "delete a pod of this node despite its disruption budget, as the last resort",
        of_node=False,
        setting="override_disruption_budgets",
    ),
    Rule(
        "pods",
        ("delete",),
        "delete failed pods of this node that evictions and shutdowns left",
        of_node=False,
        setting="delete_failed_after",
    ),
)
OPTIONS: Final = tuple(dict.fromkeys(rule.setting for rule in RULES if rule.setting))
"""Settings that require additional rules; all are disabled by default. CLI options have the names of the settings."""
_SELECTED: Final = frozenset({"list", "watch"})


def rules_for(settings: Collection[str]) -> tuple[Rule, ...]:
    """Return the rules that are always required, and the rules that these settings require."""
    return tuple(rule for rule in RULES if not rule.setting or rule.setting in settings)


def access_reviews(node: str, settings: Collection[str] = ()) -> tuple[tuple[Rule, str, dict[str, Any]], ...]:
    """Return rule, verb and ``SelfSubjectAccessReview`` body for every verb of every required rule."""
    found = []
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
            if verb in _SELECTED and not rule.of_node:
                requirement = {"key": "spec.nodeName", "operator": "In", "values": [node]}
                attributes["fieldSelector"] = {"requirements": [requirement]}
            elif verb != "create" and rule.of_node:
                attributes["name"] = node
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            found.append((rule, verb, body))
    return tuple(found)


def role_documents(nodes: Sequence[str] = (), settings: Collection[str] = ()) -> tuple[dict[str, Any], ...]:
    """Return the API objects that grant the rules: service account, roles and role bindings.

    Args:
        nodes: names of the nodes to which the rules are limited; empty for all nodes. RBAC cannot limit ``create``
            rules and rules on pods to a node.
        settings: enabled settings that require additional rules, such as ``evict_pods``.
    """
    granted = rules_for(settings)
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAMESPACE}}
    ]
    for namespace in dict.fromkeys(rule.namespace for rule in granted):
        kind, metadata = "Role" if namespace else "ClusterRole", {"name": NAME}
        if namespace:
            metadata["namespace"] = namespace
        rules = [_policy_rule(rule, nodes) for rule in granted if rule.namespace == namespace]
        api = "rbac.authorization.k8s.io"
        documents += [
            {"apiVersion": f"{api}/v1", "kind": kind, "metadata": metadata, "rules": rules},
            {
                "apiVersion": f"{api}/v1",
                "kind": f"{kind}Binding",
                "metadata": metadata,
                "roleRef": {"apiGroup": api, "kind": kind, "name": NAME},
                "subjects": [subject],
            },
        ]
    return tuple(documents)


def _policy_rule(rule: Rule, nodes: Sequence[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
    if nodes and rule.of_node and "create" not in rule.verbs:
        made["resourceNames"] = list(nodes)
    return made
