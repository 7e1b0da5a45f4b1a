"""Cordon of a registered node for a shutdown: set once, and ended only if the agent set it."""

from __future__ import annotations

import pytest

from nodeagent.cluster.plan.registration import is_cordoned_for_shutdown, plan_cordon, plan_uncordon
from nodeagent.model.kubernetes import Node, NodeSpec, ObjectMeta

CORDONED = "nodeagent.dev/cordoned"


def node(cause: str = "", *, unschedulable: bool = False) -> Node:
    annotations = {"example.com/other": "1", **({CORDONED: cause} if cause else {})}
    metadata = ObjectMeta(name="node-1", resource_version="7", annotations=annotations)
    return Node(metadata=metadata, spec=NodeSpec(unschedulable=unschedulable))


def test_schedulable_node_is_cordoned_with_the_cause_unless_the_object_changed() -> None:
    metadata = {"resourceVersion": "7", "annotations": {CORDONED: "shutdown"}}
    assert plan_cordon(node()) == {"metadata": metadata, "spec": {"unschedulable": True}}


@pytest.mark.parametrize("cause", ["", "no-kubelet", "shutdown"])
def test_node_that_is_cordoned_already_is_not_changed_by_a_shutdown(cause: str) -> None:
    assert plan_cordon(node(cause, unschedulable=True)) is None


def test_cordon_of_a_shutdown_is_ended_with_its_annotation() -> None:
    metadata = {"resourceVersion": "7", "annotations": {CORDONED: None}}
    found = node("shutdown", unschedulable=True)
    assert is_cordoned_for_shutdown(found)
    assert plan_uncordon(found) == {"metadata": metadata, "spec": {"unschedulable": None}}


@pytest.mark.parametrize("cause", ["", "no-kubelet"])
def test_cordon_of_an_operator_or_of_the_registration_is_kept(cause: str) -> None:
    found = node(cause, unschedulable=True)
    assert not is_cordoned_for_shutdown(found)
    assert plan_uncordon(found) is None


def test_annotation_of_a_node_that_an_operator_uncordoned_is_removed_alone() -> None:
    metadata = {"resourceVersion": "7", "annotations": {CORDONED: None}}
    assert plan_uncordon(node("shutdown")) == {"metadata": metadata}
