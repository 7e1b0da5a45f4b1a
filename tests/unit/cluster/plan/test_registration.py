"""Registration of the Node object: verdict (create, adopt, keep, refuse), and changes at an adoption."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from nodeagent.cluster.plan.registration import (
    RegistrationPolicy,
    RegistrationVerdict,
    plan_labels,
    plan_registration,
    unproven_because,
)
from nodeagent.model.kubernetes import Node, NodeSpec, NodeStatus, NodeSystemInfo, ObjectMeta, Taint

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


OWN_ZONE = {"nodeagent.dev/labels": "zone=a"}


@pytest.mark.parametrize(
    ("labels", "annotations", "wanted", "changes", "after", "kept"),
    [
        ({}, {}, {"zone": "a"}, {"zone": "a"}, "zone=a", ()),
        ({"zone": "a"}, OWN_ZONE, {"zone": "a"}, None, "", ()),
        ({"zone": "a"}, OWN_ZONE, {"zone": "b"}, {"zone": "b"}, "zone=b", ()),
        ({"zone": "a", "x": "1"}, OWN_ZONE, {}, {"zone": None}, "", ()),
        ({"zone": "z"}, OWN_ZONE, {"zone": "b"}, None, "", ("zone=z",)),
        ({"zone": "z"}, OWN_ZONE, {}, None, "", ()),
        ({"zone": "z"}, {}, {"zone": "b"}, None, None, ("zone=z",)),
        ({"zone": "b"}, {}, {"zone": "b"}, None, "zone=b", ()),
        ({}, OWN_ZONE, {"zone": "a"}, {"zone": "a"}, "zone=a", ()),
        ({"zone": "a"}, {"nodeagent.dev/labels": ",=,zone"}, {}, None, "", ()),
    ],
    ids=[
        *("missing", "equal", "own-changed", "own-removed", "of-operator-kept", "of-operator-not-removed"),
        *("of-others-kept", "of-earlier-version", "removed-by-operator", "malformed-annotation"),
    ],
)
def test_labels_that_the_agent_has_set_follow_the_configuration(  # noqa: PLR0917 - columns of the table
    labels: dict[str, str],
    annotations: dict[str, str],
    wanted: dict[str, str],
    changes: dict[str, str | None] | None,
    after: str | None,
    kept: tuple[str, ...],
) -> None:
    plan = plan_labels(node(labels=labels, annotations=annotations), wanted)
    assert plan.kept == kept
    if plan.patch is None:
        assert changes is None
        assert after in (None, "")
        return
    metadata = plan.patch["metadata"]
    assert metadata["resourceVersion"] == "7"
    assert metadata.get("labels") == changes
    assert metadata["annotations"] == {"nodeagent.dev/labels": after}


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"))


@given(LABELS, LABELS, LABELS)
def test_label_of_others_is_neither_replaced_nor_removed_and_a_second_comparison_changes_nothing(
    present: dict[str, str], own: dict[str, str], wanted: dict[str, str]
) -> None:
    text = ",".join(f"{name}={value}" for name, value in sorted(own.items()))
    found = node(labels=present, annotations={"nodeagent.dev/labels": text})
    plan = plan_labels(found, wanted)
    metadata = {} if plan.patch is None else plan.patch["metadata"]
    after = {**present, **metadata.get("labels", {})}
    after = {name: value for name, value in after.items() if value is not None}
    for name, value in present.items():
        if own.get(name) != value:
            assert after[name] == value
    assert wanted.keys() <= after.keys()
    again = node(labels=after, annotations=metadata.get("annotations") or found.metadata.annotations)
    assert plan_labels(again, wanted).patch is None


OTHER, UNKNOWN = RegistrationVerdict.OTHER_MACHINE, RegistrationVerdict.UNKNOWN_MACHINE


@pytest.mark.parametrize(
    ("theirs", "own", "verdict", "words"),
    [
        (("M", "u"), ("m", "U"), None, ""),
        (("x", "u"), ("m", "u"), OTHER, "another machine: its machine id is x, this machine has m"),
        (("m", "x"), ("m", "u"), OTHER, "another machine: its system UUID is x, this machine has u"),
        (("m", "u"), ("", "u"), UNKNOWN, "the machine id of this machine is unknown"),
        (("m", "u"), ("m", ""), UNKNOWN, "the system UUID of this machine is unknown"),
        (("m", "x"), ("", "u"), OTHER, "another machine: its system UUID"),
        (("m", "u"), ("", ""), UNKNOWN, "the machine id of this machine is unknown"),
    ],
)
def test_ids_of_an_object_prove_this_machine_or_another_one_only_if_both_are_known(
    theirs: tuple[str, str], own: tuple[str, str], verdict: RegistrationVerdict | None, words: str
) -> None:
    ids = NodeSystemInfo(machine_id=own[0], system_uuid=own[1])
    plan = plan_registration(
        node(*theirs), msgspec.structs.replace(OWN, status=NodeStatus(node_info=ids)), POLICY, lease_free=True
    )
    assert plan.verdict is (verdict or RegistrationVerdict.ADOPT)
    reason = unproven_because(node(*theirs), *own)
    assert (words in reason) if words else not reason
    assert verdict is None or reason == plan.reason


@pytest.mark.parametrize(
    ("found", "words"), [(None, "no Node object"), (node("m", ""), "no ids"), (node("", ""), "no ids")]
)
def test_missing_object_and_object_without_ids_prove_no_machine(found: Node | None, words: str) -> None:
    assert words in unproven_because(found, "m", "u")


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
            "annotations": {
                "nodeagent.dev/registered": "adopted",
                "nodeagent.dev/labels": "kubernetes.io/hostname=node-1",
                "nodeagent.dev/cordoned": "no-kubelet",
            },
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
