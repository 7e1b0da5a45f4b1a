"""Withdrawal from a Node object: only fields set by the agent are removed."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.cluster.plan.conditions import plan_withdrawal
from nodeagent.model.kubernetes import Node, NodeSpec, NodeStatus, ObjectMeta, StatusCondition, Taint

OWN_TAINTS = (
    Taint(key="nodeagent.dev/no-kubelet", effect="NoSchedule"),
    Taint(key="nodeagent.dev/no-kubelet", effect="NoExecute"),
)
FOREIGN = Taint(key="node.kubernetes.io/disk-pressure", effect="NoSchedule")
CORDONED = {"nodeagent.dev/registered": "created", "nodeagent.dev/cordoned": "no-kubelet", "example.com/a": "b"}
ANNOTATED = {**CORDONED, "nodeagent.dev/labels": "zone=a", "nodeagent.dev/unclean-stop": "2026-01-01T00:00:00Z"}


def node(**fields: Any) -> Node:
    metadata = ObjectMeta(name="node-1", resource_version="7", annotations=fields.pop("annotations", {}))
    types = fields.pop("conditions", ())
    status = NodeStatus(conditions=tuple(StatusCondition(type=each, status="True") for each in types))
    return Node(metadata=metadata, spec=NodeSpec(**fields), status=status)


def test_own_taints_and_annotations_are_removed_beside_a_kubelet_and_a_cordon_is_kept() -> None:
    found = node(annotations=ANNOTATED, taints=(OWN_TAINTS[0], FOREIGN, OWN_TAINTS[1]), unschedulable=True)
    plan = plan_withdrawal(found, has_kubelet=True)
    assert plan.patch == {
        "metadata": {
            "resourceVersion": "7",
            "annotations": dict.fromkeys(
                f"nodeagent.dev/{each}" for each in ("registered", "cordoned", "labels", "unclean-stop")
            ),
        },
        "spec": {"taints": [{"key": FOREIGN.key, "effect": "NoSchedule"}]},
    }
    assert "kubectl uncordon node-1" in plan.kept


@pytest.mark.parametrize(
    ("cordoned", "names_it"), [("", False), ("no-kubelet", True), ("shutdown", True)], ids=["", "registration", "stop"]
)
def test_no_annotation_proves_a_cordon_that_is_removed(*, cordoned: str, names_it: bool) -> None:
    annotations = {"nodeagent.dev/registered": "created"} | ({"nodeagent.dev/cordoned": cordoned} if cordoned else {})
    plan = plan_withdrawal(node(annotations=annotations, unschedulable=True), has_kubelet=True)
    assert plan.patch is not None
    assert "spec" not in plan.patch
    assert ("kubectl uncordon" in plan.kept) is names_it
    assert not plan_withdrawal(node(annotations=annotations), has_kubelet=True).kept


def test_node_without_a_kubelet_keeps_taints_and_cordon() -> None:
    found = node(
        annotations=CORDONED, taints=OWN_TAINTS, unschedulable=True, conditions=["nodeagent.dev/ImageGCDegraded"]
    )
    plan = plan_withdrawal(found, has_kubelet=False)
    assert (plan.patch, plan.conditions) == (None, ("nodeagent.dev/ImageGCDegraded",))
    assert "kubectl delete node node-1" in plan.kept


def test_conditions_of_others_are_not_named() -> None:
    own = ("nodeagent.dev/ImageGCDegraded", "nodeagent.dev/ShortageExpected")
    types = ["Ready", *own, "example.com/Other", "nodeagent.dev/Other"]
    plan = plan_withdrawal(node(conditions=types), has_kubelet=True)
    assert (plan.patch, plan.conditions, plan.kept) == (None, own, "")


@pytest.mark.parametrize("has_kubelet", [True, False])
def test_taints_of_conditions_are_removed_with_and_without_a_kubelet(*, has_kubelet: bool) -> None:
    own = Taint(key="nodeagent.dev/image-gc-degraded", effect="NoSchedule")
    plan = plan_withdrawal(node(taints=(FOREIGN, own)), has_kubelet=has_kubelet)
    assert plan.patch == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"taints": [{"key": FOREIGN.key, "effect": "NoSchedule"}]},
    }
    assert (plan.removed, plan.kept) == (("taint nodeagent.dev/image-gc-degraded:NoSchedule",), "")


def test_registered_node_without_a_kubelet_keeps_the_taints_of_the_registration_only() -> None:
    own = Taint(key="nodeagent.dev/image-gc-degraded", effect="NoSchedule")
    found = node(annotations=CORDONED, taints=(OWN_TAINTS[0], own, OWN_TAINTS[1]), unschedulable=True)
    plan = plan_withdrawal(found, has_kubelet=False)
    assert plan.patch is not None
    assert [each["key"] for each in plan.patch["spec"]["taints"]] == [each.key for each in OWN_TAINTS]
    assert set(plan.patch["metadata"]) == {"resourceVersion"}
    assert "unschedulable" not in plan.patch["spec"]
    assert "kubectl delete node node-1" in plan.kept
