"""Cordon of a registered node: set once for a shutdown, and ended only if the agent set it."""

from __future__ import annotations

import pytest

from nodeagent.cluster.plan.registration import RegistrationPolicy, has_ending_cordon, plan_cordon, plan_uncordon
from nodeagent.model.kubernetes import Node, NodeSpec, ObjectMeta

CORDONED = "nodeagent.dev/cordoned"
SCHEDULABLE = RegistrationPolicy(unschedulable=False)


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


@pytest.mark.parametrize(
    ("cause", "policy"),
    [("shutdown", RegistrationPolicy()), ("shutdown", SCHEDULABLE), ("no-kubelet", SCHEDULABLE)],
)
def test_cordon_of_a_shutdown_or_of_a_former_configuration_is_ended_with_its_annotation(
    cause: str, policy: RegistrationPolicy
) -> None:
    metadata = {"resourceVersion": "7", "annotations": {CORDONED: None}}
    found = node(cause, unschedulable=True)
    assert has_ending_cordon(found, policy)
    assert plan_uncordon(found, policy) == {"metadata": metadata, "spec": {"unschedulable": None}}


@pytest.mark.parametrize(
    ("cause", "policy"),
    [("", RegistrationPolicy()), ("", SCHEDULABLE), ("no-kubelet", RegistrationPolicy()), ("other", SCHEDULABLE)],
)
def test_cordon_of_an_operator_or_of_the_configuration_is_kept(cause: str, policy: RegistrationPolicy) -> None:
    found = node(cause, unschedulable=True)
    assert not has_ending_cordon(found, policy)
    assert plan_uncordon(found, policy) is None


@pytest.mark.parametrize("cause", ["shutdown", "no-kubelet"])
def test_annotation_of_a_node_that_an_operator_uncordoned_is_removed_alone(cause: str) -> None:
    metadata = {"resourceVersion": "7", "annotations": {CORDONED: None}}
    assert plan_uncordon(node(cause), RegistrationPolicy()) == {"metadata": metadata}


@pytest.mark.parametrize("cause", ["shutdown", "no-kubelet"])
def test_cordon_that_follows_a_stale_annotation_is_kept(cause: str) -> None:
    metadata = {"resourceVersion": "7", "annotations": {CORDONED: None}}
    found = node(cause, unschedulable=True)
    assert plan_uncordon(found, SCHEDULABLE, is_stale=True) == {"metadata": metadata}
    assert plan_uncordon(node("", unschedulable=True), SCHEDULABLE, is_stale=True) is None
