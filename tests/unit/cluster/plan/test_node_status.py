"""Node status: comparison with the Node object recorded from a kubelet, and tables of rules."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from nodeagent.cluster.plan.node_status import MAX_IMAGES, NodeStatusPolicy, node_object, node_status
from nodeagent.cluster.settings import parse_addresses, parse_reserved
from nodeagent.eviction.plan.thresholds import parse_thresholds
from nodeagent.model.kubernetes import Machine, Node, NodeFacts, StatusCondition
from nodeagent.model.pressure import NodeCondition
from nodeagent.model.runtime import Image
from nodeagent.record import replace

ROOT = Path(__file__).parents[4]
RECORDED = json.loads((ROOT / "tests/data/kubernetes/node-object.json").read_text())
NOW = datetime(2026, 11, 21, 13, 39, 16, 250_000, tzinfo=UTC)
KIB = 1024
MACHINE = Machine(
    name="node-1",
    addresses=("192.0.2.10",),
    cpu_millis=2000,
    memory_bytes=24684084 * KIB,
    swap_bytes=0,
    hugepages=((2 << 20, 0), (1 << 30, 0)),
    machine_id="0" * 32,
    system_uuid="0" * 32,
    boot_id="0effea70-9f2e-4d2c-b2e2-73435cdfbba0",
    kernel_version="6.1.0-test",
    os_image="Debian GNU/Linux 12 (bookworm)",
    architecture="amd64",
)
FACTS = NodeFacts(
    name="node-1",
    machine=MACHINE,
    observed_at=NOW,
    ephemeral_bytes=264212084 * KIB,
    runtime_version="containerd://1.6.20",
    images=tuple(
        Image(
            id=f"sha256:{number}",
            repo_digests=tuple(name for name in each["names"] if "@" in name),
            repo_tags=tuple(name for name in each["names"] if "@" not in name),
            size_bytes=each["sizeBytes"],
        )
        for number, each in enumerate(RECORDED["status"]["images"])
    ),
    pressure=frozenset(),
    agent_version="1.2.3",
)
POLICY = NodeStatusPolicy(max_pods=110, thresholds=parse_thresholds(hard="memory.available<10Mi,nodefs.available<1Mi"))
PREVIOUS = msgspec.convert(RECORDED, Node).status.conditions


def flat(value: object, path: str = "") -> dict[str, Any]:
    """Return the leaf values of a JSON value, by dotted path."""
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for key, inner in value.items():
            name = f"{path}[{key}]" if path.endswith((".labels", ".annotations")) else f"{path}.{key}".lstrip(".")
            atomic = name in ("status.images", "status.daemonEndpoints", "status.declaredFeatures")
            found |= {name: inner} if atomic else flat(inner, name)
        return found
    if isinstance(value, list):
        return {key: inner for n, each in enumerate(value) for key, inner in flat(each, f"{path}[{n}]").items()}
    return {path: value}


def test_every_difference_from_the_recorded_object_is_a_row_of_the_document() -> None:
    own = flat(json.loads(msgspec.json.encode(node_object(FACTS, POLICY, PREVIOUS, now=NOW))))
    recorded = flat(RECORDED)
    differing = {path for path in own.keys() | recorded.keys() if own.get(path) != recorded.get(path)}
    text = (ROOT / "nodeagent/docs/kubernetes.md").read_text().partition("### Differences")[2]
    rows = re.findall(r"^\| `([^`]+)` \|", text.partition("\n## ")[0], re.MULTILINE)
    # The images are equal with ids in the recorded order; the documented difference is the order of ties.
    assert own["status.images"] == recorded["status.images"]
    assert sorted(differing | {"status.images"}) == sorted(rows)


def test_images_of_equal_size_are_ordered_by_id_regardless_of_their_order_in_the_list() -> None:
    images = FACTS.images or ()
    first = node_status(FACTS, POLICY, (), now=NOW).images
    assert node_status(replace(FACTS, images=images[::-1]), POLICY, (), now=NOW).images == first


def test_only_the_largest_images_and_five_names_are_reported() -> None:
    tags = tuple(f"r.test/a:{n}" for n in range(7))
    many = tuple(
        Image(f"i{n:03}", repo_tags=tags, repo_digests=("r.test/a@sha256:1",), size_bytes=n) for n in range(60)
    )
    found = node_status(replace(FACTS, images=many), POLICY, (), now=NOW).images
    assert [each.size_bytes for each in found] == list(range(59, 59 - MAX_IMAGES, -1))
    assert found[0].names == ("r.test/a@sha256:1", *tags[:4])


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        (frozenset(), ["False", "False", "False"]),
        (frozenset({NodeCondition.DISK_PRESSURE}), ["False", "True", "False"]),
        (frozenset(NodeCondition), ["True", "True", "True"]),
        (None, ["Unknown", "Unknown", "Unknown"]),
    ],
    ids=["none", "disk", "all", "not-evaluated"],
)
def test_pressure_conditions_follow_the_evaluation(
    active: frozenset[NodeCondition] | None, expected: list[str]
) -> None:
    found = node_status(replace(FACTS, pressure=active), POLICY, (), now=NOW).conditions
    assert [each.status for each in found[:3]] == expected
    assert all(each.reason and each.message for each in found)


def test_several_causes_of_not_ready_are_listed_in_brackets() -> None:
    facts = replace(FACTS, not_ready=("container runtime is down", "node is shutting down"))
    ready = node_status(facts, POLICY, (), now=NOW).conditions[-1]
    assert (ready.status, ready.reason) == ("False", "KubeletNotReady")
    assert ready.message == "[container runtime is down, node is shutting down]"


def test_transition_time_changes_with_the_status_only() -> None:
    first = node_status(FACTS, POLICY, (), now=NOW)
    later = NOW + timedelta(minutes=5)
    second = node_status(replace(FACTS, not_ready=("x",)), POLICY, first.conditions, now=later)
    third = node_status(replace(FACTS, not_ready=("y",)), POLICY, second.conditions, now=later + timedelta(minutes=5))
    times = [each.last_transition_time for each in (*first.conditions, *second.conditions, *third.conditions)]
    assert times == [NOW.replace(microsecond=0)] * 7 + [later.replace(microsecond=0)] + [
        NOW.replace(microsecond=0)
    ] * 3 + [later.replace(microsecond=0)]


def test_unread_resources_are_absent_and_not_zero() -> None:
    facts = replace(
        FACTS, machine=Machine("node-1"), ephemeral_bytes=None, images=None, runtime_version="", pressure=None
    )
    status = json.loads(msgspec.json.encode(node_status(facts, POLICY, (), now=NOW)))
    assert status["capacity"] == status["allocatable"] == {"pods": "110"}
    assert "images" not in status


def test_reservation_threshold_and_huge_pages_reduce_the_allocatable_resources_to_no_less_than_zero() -> None:
    policy = NodeStatusPolicy(
        reservation=parse_reserved("cpu=250m,memory=1Gi,ephemeral-storage=1Ti"),
        thresholds=parse_thresholds(hard="memory.available<10%,nodefs.available<5%"),
    )
    machine = replace(MACHINE, memory_bytes=10 << 30, hugepages=((2 << 20, 4 << 30),), swap_bytes=1 << 30)
    status = node_status(replace(FACTS, machine=machine), policy, (), now=NOW)
    assert status.allocatable == {
        "cpu": "1750m",
        "ephemeral-storage": "0",
        "hugepages-2Mi": "4Gi",
        "memory": "4294967280",  # percentages are float32, as in the kubelet
        "pods": "0",
    }
    assert status.node_info is not None
    assert json.loads(msgspec.json.encode(status.node_info))["swap"] == {"capacity": 1 << 30}


def test_soft_thresholds_do_not_reduce_the_allocatable_resources() -> None:
    policy = NodeStatusPolicy(
        thresholds=parse_thresholds(hard="", soft="memory.available<1Gi", soft_grace_period="memory.available=1m")
    )
    status = node_status(FACTS, policy, (), now=NOW)
    assert status.allocatable == status.capacity


def test_configured_node_name_is_host_name_in_label_and_address() -> None:
    node = node_object(replace(FACTS, name="other"), POLICY, now=NOW)
    assert node.metadata.labels["kubernetes.io/hostname"] == "other"
    assert node.status.addresses[-1].address == "other"


def test_both_families_are_internal_addresses_and_configured_ones_replace_them() -> None:
    facts = replace(FACTS, machine=replace(MACHINE, addresses=("192.0.2.1", "2001:db8::1")))
    for policy, expected in (
        (NodeStatusPolicy(), ["192.0.2.1", "2001:db8::1", "node-1"]),
        (NodeStatusPolicy(addresses=("198.51.100.7",)), ["198.51.100.7", "node-1"]),
    ):
        found = node_status(facts, policy, (), now=NOW).addresses
        assert [each.address for each in found] == expected
        assert [each.type for each in found] == ["InternalIP"] * (len(expected) - 1) + ["Hostname"]
    policy = NodeStatusPolicy(further_addresses=parse_addresses("ExternalDNS=a.example.com,ExternalIP=203.0.113.1"))
    types = [each.type for each in node_status(FACTS, policy, (), now=NOW).addresses]
    assert types == ["InternalIP", "ExternalDNS", "ExternalIP", "Hostname"]


@given(
    st.lists(st.sampled_from(["True", "False", "Unknown"]), min_size=4, max_size=4),
    st.sets(st.sampled_from(list(NodeCondition))),
)
def test_conditions_of_earlier_objects_change_nothing_but_transition_times(
    statuses: list[str], active: set[NodeCondition]
) -> None:
    names = [*(each.value for each in NodeCondition), "Ready"]
    earlier = [
        StatusCondition(type=name, status=status, last_transition_time=NOW - timedelta(days=1))
        for name, status in zip(names, statuses, strict=True)
    ]
    facts = replace(FACTS, pressure=frozenset(active))
    with_earlier = node_status(facts, POLICY, earlier, now=NOW)
    without = node_status(facts, POLICY, (), now=NOW)
    for one, other, before in zip(with_earlier.conditions, without.conditions, earlier, strict=True):
        assert (one.type, one.status, one.reason, one.message) == (
            other.type,
            other.status,
            other.reason,
            other.message,
        )
        kept = one.last_transition_time == before.last_transition_time
        assert kept is (one.status == before.status)
