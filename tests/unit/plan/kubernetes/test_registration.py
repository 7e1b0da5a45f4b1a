"""Registration of the Node object: verdict (create, adopt, keep, refuse), and changes at an adoption."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.kubernetes import Node, NodeSpec, NodeStatus, NodeSystemInfo, ObjectMeta, Taint
from nodeagent.plan.kubernetes.policy import RegistrationPolicy
from nodeagent.plan.kubernetes.registration import RegistrationVerdict, plan_registration

NOW = datetime(2026, 11, 21, tzinfo=UTC)
OWN = Node(
    api_version="v1",
    kind="Node",
    metadata=ObjectMeta(name="node-1", labels={"kubernetes.io/hostname": "node-1", "kubernetes.io/os": "linux"}),
    status=NodeStatus(node_info=NodeSystemInfo(machine_id="m", system_uuid="U")),
)
POLICY = RegistrationPolicy(labels={"pool": "edge"}, provider_id="test://1")
TAINTS = [
    {"key": "nodeagent.dev/no-kubelet", "effect": "NoSchedule"},
    {"key": "nodeagent.dev/no-kubelet", "effect": "NoExecute"},
]


def node(
    machine_id: str = "m",
    system_uuid: str = "u",
    annotations: dict[str, str] | None = None,
    spec: NodeSpec | None = None,
    **fields: Any,
) -> Node:
    return Node(
        metadata=ObjectMeta(name="node-1", resource_version="7", annotations=annotations or {}, **fields),
        spec=spec or NodeSpec(),
        status=NodeStatus(node_info=NodeSystemInfo(machine_id=machine_id, system_uuid=system_uuid)),
    )


OURS = {"nodeagent.dev/registered": "created"}


@pytest.mark.parametrize(
    ("found", "lease_free", "contested", "verdict"),
    [
        (None, True, False, RegistrationVerdict.CREATE),
        (node(), True, False, RegistrationVerdict.ADOPT),
        (node(), False, False, RegistrationVerdict.OTHER_HEARTBEAT),
        (node("", ""), True, False, RegistrationVerdict.ADOPT),
        (node("other"), True, False, RegistrationVerdict.OTHER_MACHINE),
        (node("m", "other"), True, False, RegistrationVerdict.OTHER_MACHINE),
        (node("other", annotations=OURS), True, False, RegistrationVerdict.OTHER_MACHINE),
        (node(annotations=OURS), False, False, RegistrationVerdict.KEEP),
        (node(annotations=OURS), False, True, RegistrationVerdict.OTHER_HEARTBEAT),
        (node(annotations=OURS), True, True, RegistrationVerdict.KEEP),
        (node(deletion_timestamp=NOW, annotations=OURS), True, False, RegistrationVerdict.DELETING),
    ],
)
def test_verdict_on_an_object(
    found: Node | None, lease_free: bool, contested: bool, verdict: RegistrationVerdict
) -> None:
    plan = plan_registration(found, OWN, POLICY, lease_free=lease_free, contested=contested)
    assert plan.verdict is verdict
    assert plan.reason
    if verdict not in (RegistrationVerdict.CREATE, RegistrationVerdict.ADOPT, RegistrationVerdict.KEEP):
        assert plan.node is None
        assert plan.patch is None


def test_object_with_ids_is_not_taken_by_a_machine_without_ids() -> None:
    unknown = msgspec.structs.replace(OWN, status=NodeStatus(node_info=NodeSystemInfo()))
    plan = plan_registration(node(), unknown, POLICY, lease_free=True)
    assert plan.verdict is RegistrationVerdict.UNKNOWN_MACHINE


def test_new_object_is_cordoned_and_tainted_unless_configured_otherwise() -> None:
    created = plan_registration(None, OWN, POLICY, lease_free=True).node
    assert created is not None
    spec = json.loads(msgspec.json.encode(created.spec))
    assert spec == {"providerID": "test://1", "unschedulable": True, "taints": TAINTS}
    assert created.metadata.labels == {**OWN.metadata.labels, "pool": "edge"}
    assert created.metadata.annotations["nodeagent.dev/registered"] == "created"
    bare = plan_registration(None, OWN, RegistrationPolicy(unschedulable=False, taint=False), lease_free=True).node
    assert bare is not None
    assert msgspec.to_builtins(bare.spec) == {}


def test_configured_labels_do_not_replace_those_of_the_machine() -> None:
    policy = RegistrationPolicy(labels={"kubernetes.io/hostname": "other"})
    created = plan_registration(None, OWN, policy, lease_free=True).node
    assert created is not None
    assert created.metadata.labels["kubernetes.io/hostname"] == "node-1"


def test_adoption_adds_what_is_missing_and_lists_the_values_that_are_kept() -> None:
    found = node(
        labels={"pool": "core", "kubernetes.io/os": "linux", "other": "x"},
        spec=NodeSpec(
            provider_id="test://2", taints=(Taint(key="a", effect="NoExecute", time_added="2026-01-01T00:00:00Z"),)
        ),
    )
    plan = plan_registration(found, OWN, POLICY, lease_free=True)
    assert plan.patch == {
        "metadata": {
            "resourceVersion": "7",
            "annotations": {"nodeagent.dev/registered": "adopted", "nodeagent.dev/cordoned": "no-kubelet"},
            "labels": {"kubernetes.io/hostname": "node-1"},
        },
        "spec": {
            "unschedulable": True,
            "taints": [{"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}, *TAINTS],
        },
    }
    assert plan.kept == ("label pool=core", "providerID test://2")


def test_cordon_of_an_operator_is_not_marked_as_own() -> None:
    plan = plan_registration(node(spec=NodeSpec(unschedulable=True)), OWN, POLICY, lease_free=True)
    assert plan.patch is not None
    assert "nodeagent.dev/cordoned" not in plan.patch["metadata"]["annotations"]
    assert "unschedulable" not in plan.patch["spec"]


def test_taint_that_was_removed_while_a_kubelet_ran_is_added_again() -> None:
    plan = plan_registration(node(annotations=OURS), OWN, POLICY, lease_free=False)
    assert plan.patch == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": TAINTS}}
    tainted = NodeSpec(taints=tuple(Taint(**each) for each in TAINTS))
    assert plan_registration(node(annotations=OURS, spec=tainted), OWN, POLICY, lease_free=False).patch is None


@given(
    labels=st.dictionaries(st.sampled_from(["pool", "kubernetes.io/os", "x"]), st.sampled_from(["edge", "y"])),
    taints=st.lists(
        st.builds(Taint, key=st.sampled_from(["a", "nodeagent.dev/no-kubelet"]), effect=st.just("NoSchedule"))
    ),
    unschedulable=st.booleans(),
    provider_id=st.sampled_from(["", "test://2"]),
)
def test_adoption_replaces_no_value_and_drops_no_taint(
    labels: dict[str, str], taints: list[Taint], unschedulable: bool, provider_id: str
) -> None:
    spec = NodeSpec(taints=tuple(taints), unschedulable=unschedulable, provider_id=provider_id)
    plan = plan_registration(node(labels=labels, spec=spec), OWN, POLICY, lease_free=True)
    assert plan.patch is not None
    assert not labels.keys() & plan.patch["metadata"].get("labels", {}).keys()
    changed = plan.patch.get("spec", {})
    assert not provider_id or "providerID" not in changed
    assert changed.get("unschedulable", True)
    after = changed.get("taints", [msgspec.to_builtins(each) for each in taints])
    assert all(msgspec.to_builtins(each) in after for each in taints)
