"""Fleet summary: consistent totals, duplicate reports, nodes without a plan."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from hypothesis import given, strategies as st

from nodeagent.api.common import decode, encode, encode_line
from nodeagent.daemon.report_document import Fleet, FleetGroup, NodeReport, PlannedPass, PlannedRemovals
from nodeagent.gc.documents.passes import PreviewDocument
from nodeagent.gc.pass_state import plans_for
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope
from nodeagent.model.outlook import Outlook
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from tests.support.node_reports import expecting, planned, report
from tests.unit.builders import NOW, container, filesystem, image, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = st.sampled_from(("image", "container", "sandbox", "a-later-kind"))
AMOUNTS = st.integers(min_value=0, max_value=1 << 50)
REMOVALS = st.builds(
    lambda kind, count, size_bytes: PlannedRemovals(kind=kind, count=count, bytes=size_bytes, without_size=0),
    KINDS,
    st.integers(min_value=1, max_value=1000),
    AMOUNTS,
)
PLANS = st.none() | st.builds(
    lambda removals, pending_bytes, shortfall_bytes: planned(
        *removals, pending_bytes=pending_bytes, shortfall_bytes=shortfall_bytes
    ),
    st.lists(REMOVALS, max_size=4),
    AMOUNTS,
    AMOUNTS,
)
REPORTS = st.builds(
    lambda name, version, role, dry_run, running, plan, minutes, hours: report(
        name,
        version=version,
        role=role,
        dry_run=dry_run,
        running=running,
        plan=plan,
        observed_at=NOW + timedelta(minutes=minutes),
        outlook=tuple(map(expecting, hours)),
    ),
    st.sampled_from([f"node-{number}" for number in range(6)]),
    st.sampled_from(("0.1", "0.2")),
    st.sampled_from(("standalone", "beside-kubelet", None)),
    st.booleans(),
    st.booleans(),
    PLANS,
    st.integers(min_value=0, max_value=3),
    st.lists(st.none() | st.floats(0, 1000), max_size=2),
)
SUMS: dict[str, Callable[[FleetGroup], int]] = {
    name: (lambda group, name=name: getattr(group, name))  # type: ignore[misc]
    for name in FleetGroup.__struct_fields__
    if name != "name"
}


@given(st.lists(REPORTS, max_size=30), st.integers(min_value=0, max_value=5))
def test_groups_kinds_and_nodes_add_up_to_the_totals(reports: list[NodeReport], malformed: int) -> None:
    fleet = Fleet.of(reports, malformed=malformed)
    total = fleet.total
    assert fleet.lines == len(reports) + malformed == total.nodes + fleet.superseded + fleet.malformed
    for amount in SUMS.values():
        assert sum(map(amount, fleet.by_version)) == sum(map(amount, fleet.by_role)) == amount(total)
    assert sum(each.count for each in fleet.by_kind) == total.removals
    assert sum(each.bytes for each in fleet.by_kind) == total.bytes
    assert sum(each.removals or 0 for each in fleet.nodes) == total.removals
    assert sum(each.bytes or 0 for each in fleet.nodes) == total.bytes
    assert sum(each.removals is None for each in fleet.nodes) == total.unobserved
    assert sorted(each.node for each in fleet.nodes) == sorted({each.node for each in reports})
    assert decode(encode(fleet), Fleet) == fleet


@given(st.lists(REPORTS, max_size=12, unique_by=lambda each: (each.node, each.observed_at)), st.randoms())
def test_order_of_the_lines_does_not_change_the_summary(reports: list[NodeReport], random: object) -> None:
    shuffled = list(reports)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert Fleet.of(shuffled) == Fleet.of(reports)


def test_newest_report_of_a_node_counts_and_the_last_of_those_with_the_same_time() -> None:
    def of(size_bytes: int, minutes: int) -> NodeReport:
        removals = PlannedRemovals(kind="image", count=1, bytes=size_bytes, without_size=0)
        return report("node-1", plan=planned(removals), observed_at=NOW + timedelta(minutes=minutes))

    fleet = Fleet.of([of(1, 5), of(2, 9), of(4, 9), of(8, 3)])
    assert (fleet.total.nodes, fleet.superseded, fleet.total.bytes) == (1, 3, 4)


def test_node_without_a_plan_is_unobserved_and_sorted_last() -> None:
    fleet = Fleet.of([report("a", plan=None, problem="cannot list images"), report("b", plan=planned())])
    assert [each.node for each in fleet.nodes] == ["b", "a"]
    assert (fleet.total.unobserved, fleet.nodes[1].bytes) == (1, None)
    assert "cannot list images" in fleet.nodes[1].warnings


def test_nodes_with_an_expected_shortage_are_first_by_its_time() -> None:
    removals = PlannedRemovals(kind="image", count=1, bytes=1 << 40, without_size=0)
    reports = [
        report("frees most", plan=planned(removals), outlook=(expecting(None),)),
        report("no record", plan=planned()),
        report("unknown", plan=planned(), outlook=(expecting(None, Outlook.UNKNOWN),)),
        report("late", plan=planned(), outlook=(expecting(9.0),)),
        report("soon", plan=None, problem="busy", outlook=(expecting(99.0), expecting(2.0))),
        report("soon, but read later", plan=planned(), outlook=(expecting(1.0),), observed_at=NOW + timedelta(hours=2)),
        report("met", plan=planned(), outlook=(expecting(None, Outlook.REACHED),)),
    ]
    nodes = Fleet.of(reports).nodes
    assert [each.node for each in nodes] == [
        "met", "soon", "soon, but read later", "late", "frees most", "no record", "unknown"
    ]  # fmt: skip
    assert [None if each.shortage is None else each.shortage.outlook.value for each in nodes] == [
        "reached", "range", "range", "range", "no-trend", None, "unknown"
    ]  # fmt: skip
    near = [each.node for each in nodes if any(one.startswith("shortage expected: imagefs") for one in each.warnings)]
    assert near == ["met", "soon", "soon, but read later"]
    assert nodes[1].shortage_resource == "imagefs.available"


def test_planned_pass_has_the_removals_of_the_preview_by_kind() -> None:
    observed = replace(
        snapshot(image("a"), image("b"), image("c")),
        containers=(container("c1", state=ContainerState.EXITED), container("c2", state=ContainerState.RUNNING)),
        image_filesystem=filesystem(95),
    )
    plans = plans_for(Scope.ALL, observed, GCPolicy(images=ImageGCPolicy(minimum_age_s=0)))
    found = PlannedPass.of(PreviewDocument.of("all", observed, plans))
    removals = [each for plan in plans for each in plan.removals]
    assert removals
    assert found.count == len(removals)
    assert found.bytes == sum(each.frees_bytes or 0 for each in removals)
    assert sum(each.without_size for each in found.removals) == sum(each.frees_bytes is None for each in removals)
    assert found.shortfall_bytes == sum(each.shortfall_bytes for each in plans)


def test_disabled_loops_plan_nothing() -> None:
    found = PlannedPass.of(None)
    assert (found.scope, found.count, found.bytes) == ("none", 0, 0)


def test_report_line_is_decoded_to_the_encoded_report() -> None:
    text = encode_line(report("node-1", plan=planned()))
    assert text.count("\n") == 1
    assert encode_line(decode(text, NodeReport)) == text


def test_attention_names_every_condition_once() -> None:
    found = report("n", running=False, plan=None, problem="down", warnings=("w", "down"), conditions=("DiskPressure",))
    assert found.attention == ("down", "no daemon answered", "DiskPressure", "w")
