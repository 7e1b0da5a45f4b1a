"""Removal of the agent's fields from the Node object, for uninstallation.

Conditions and their taints are removed. Beside a kubelet, the taints and annotations of a registration are removed too,
and the node is uncordoned if the agent cordoned it. Without a kubelet, these are kept, since no process would start the
pods that the scheduler binds to the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from nodeagent.model.kubernetes import NO_KUBELET_TAINT, REGISTERED_ANNOTATION
from nodeagent.plan.kubernetes.conditions import TYPES
from nodeagent.plan.kubernetes.registration import CORDONED_ANNOTATION
from nodeagent.plan.kubernetes.taints import is_condition_taint
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model.kubernetes import Node


class WithdrawalPlan(Record):
    """Changes of a Node object at an uninstallation.

    Attributes:
        conditions: types of the agent's node conditions, which are removed.
        removed: taints, annotations and cordon that are removed, for display.
        patch: patch that removes taints, annotations and cordon; ``None`` without changes. The patch fails with a
            conflict if the object has changed.
        kept: the fields that are kept, with the reason; empty if all are removed.
    """

    conditions: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    patch: Mapping[str, Any] | None = None
    kept: str = ""


def plan_withdrawal(found: Node, *, has_kubelet: bool) -> WithdrawalPlan:
    """Return the changes that remove the agent's fields from the Node object of this machine.

    Args:
        found: the Node object.
        has_kubelet: whether a kubelet manages this node.
    """
    conditions = tuple(each.type for each in found.status.conditions if each.type in TYPES.values())
    annotations = [each for each in (REGISTERED_ANNOTATION, CORDONED_ANNOTATION) if each in found.metadata.annotations]
    taints = [each for each in found.spec.taints if each.key == NO_KUBELET_TAINT or is_condition_taint(each)]
    name, kept = found.metadata.name, ""
    if not has_kubelet and (annotations or not all(map(is_condition_taint, taints))):
        because = "no kubelet manages this node; to remove the object: kubectl delete node"
        kept = f"Node object {name}, with taints and cordon ({because} {name})"
        annotations, taints = [], [each for each in taints if is_condition_taint(each)]
    if not annotations and not taints:
        return WithdrawalPlan(conditions, kept=kept)
    removed = [f"taint {each.key}:{each.effect}" for each in taints]
    patch: dict[str, Any] = {"metadata": {"resourceVersion": found.metadata.resource_version}}
    if annotations:
        patch["metadata"]["annotations"] = dict.fromkeys(annotations)
    spec: dict[str, Any] = {}
    if taints:
        spec["taints"] = [msgspec.to_builtins(each) for each in found.spec.taints if each not in taints]
    if CORDONED_ANNOTATION in annotations and found.spec.unschedulable:
        spec["unschedulable"] = None
        removed.append("cordon")
    if spec:
        patch["spec"] = spec
    return WithdrawalPlan(conditions, (*removed, *(f"annotation {each}" for each in annotations)), patch, kept)
