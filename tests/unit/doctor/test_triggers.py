"""Comparison of the triggers of kubelet and agent, and the findings derived from it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from nodeagent.cli.doctor import trigger_lines
from nodeagent.daemon.control_documents import TriggerDocument
from nodeagent.doctor.plan.kubelet import check_kubelet
from nodeagent.doctor.plan.node import Finding, Grade
from nodeagent.doctor.plan.triggers import AgentTasks, NodeSizes, Task, TriggerRow, compare_triggers, eviction_amount
from nodeagent.eviction.plan.thresholds import DEFAULT_HARD, parse_thresholds
from nodeagent.gc.plan.policy import ContainerGCPolicy, ImageGCPolicy
from nodeagent.model.node import KubeletConfig
from nodeagent.model.pressure import FilesystemLayout, Signal
from nodeagent.record import replace

OK, WARNING, PROBLEM, SKIPPED = Grade.OK, Grade.WARNING, Grade.PROBLEM, Grade.SKIPPED
HIGH: Final = "imageGCHighThresholdPercent"
AGES: Final = "imageMaximumGCAge"
UNREAD: Final = KubeletConfig(unread=("/x: bad",))
IMAGEFS: Final[dict[str, object]] = {"evictionHard": {"imagefs.available": "5%"}}
GIB: Final = 1 << 30
SIZES: Final = NodeSizes(
    FilesystemLayout.SINGLE,
    {
        Signal.MEMORY_AVAILABLE: 10 * GIB,
        Signal.NODEFS_AVAILABLE: 100 * GIB,
        Signal.NODEFS_INODES_FREE: 1_000_000,
        Signal.IMAGEFS_AVAILABLE: 100 * GIB,
        Signal.IMAGEFS_INODES_FREE: 1_000_000,
    },
)
DEDICATED: Final = replace(SIZES, layout=FilesystemLayout.DEDICATED_IMAGEFS)
SPLIT: Final = replace(SIZES, layout=FilesystemLayout.SPLIT)
BTRFS: Final = NodeSizes(
    FilesystemLayout.SINGLE, {each: size for each, size in SIZES.totals.items() if "inodes" not in each}
)
NOTHING: Final = NodeSizes()
DEFAULTS: Final[dict[str, object]] = {}


def hard(**amounts: str) -> dict[str, Any]:
    """Return hard thresholds of the kubelet alone; underscores of the names stand for dots."""
    return {HIGH: 99, "evictionHard": {name.replace("_", "."): amount for name, amount in amounts.items()}}


def soft(**amounts: str) -> dict[str, Any]:
    named = {name.replace("_", "."): amount for name, amount in amounts.items()}
    periods = dict.fromkeys(named, "2m")
    return {**hard(memory_available="1Mi"), "evictionSoft": named, "evictionSoftGracePeriod": periods}


def row_of(config: KubeletConfig, agent: AgentTasks, sizes: NodeSizes, task: Task, start: str) -> TriggerRow:
    (row,) = [
        each
        for each in compare_triggers(config, agent, sizes)
        if each.task is task and (each.kubelet or each.agent).startswith(start)
    ]
    return row


@pytest.mark.parametrize(
    ("fields", "policy", "sizes", "trigger", "values"),
    [
        (DEFAULTS, {}, SIZES, HIGH, (85, 80, "agent")),
        ({HIGH: 80}, {}, SIZES, HIGH, (80, 80, "equal")),
        ({HIGH: "79"}, {}, SIZES, HIGH, (79, 80, "kubelet")),
        ({HIGH: "much"}, {}, SIZES, HIGH, (None, 80, "unknown")),
        ({HIGH: 100, AGES: "1d"}, {}, SIZES, HIGH, (100, 80, "agent")),
        ({AGES: "24h"}, {}, SIZES, AGES, (86_400, None, "kubelet")),
        ({AGES: "24h"}, {"maximum_unused_age_s": 3600.0}, SIZES, AGES, (86_400, 3600, "agent")),
        ({AGES: "1h"}, {"maximum_unused_age_s": 3600.0}, SIZES, AGES, (3600, 3600, "equal")),
        (DEFAULTS, {"maximum_unused_age_s": 60.0}, SIZES, "image_gc.maximum", (None, 60, "agent")),
        (DEFAULTS, {}, SIZES, "evictionHard imagefs.available", (85, 80, "agent")),
        (DEFAULTS, {}, SIZES, "evictionHard imagefs.inodesFree", (95, 90, "agent")),
        (
            DEFAULTS,
            {"high_threshold_inodes_percent": 100},
            SIZES,
            "evictionHard nodefs.inodesFree",
            (95, None, "kubelet"),
        ),
        ({"evictionHard": {}, HIGH: 84}, {}, SIZES, HIGH, (84, 80, "agent")),
        (hard(imagefs_available="30Gi"), {}, SIZES, "evictionHard imagefs", (70, 80, "kubelet")),
        (hard(imagefs_available="10Gi"), {}, SIZES, "evictionHard imagefs", (90, 80, "agent")),
        (hard(imagefs_available="200Gi"), {}, SIZES, "evictionHard imagefs", (0, 80, "kubelet")),
        (hard(imagefs_available="10Gi"), {}, NOTHING, "evictionHard imagefs", (None, 80, "unknown")),
        (hard(imagefs_available="x%"), {}, SIZES, "evictionHard imagefs", (None, 80, "unknown")),
        (hard(imagefs_inodesFree="200k"), {}, SIZES, "evictionHard imagefs", (80, 90, "kubelet")),
        (hard(nodefs_available="30%"), {}, SIZES, "evictionHard nodefs", (70, 80, "kubelet")),
        (hard(nodefs_available="30%"), {}, NOTHING, "evictionHard nodefs", (70, 80, "unknown")),
        (hard(nodefs_available="10%"), {}, NOTHING, "evictionHard nodefs", (90, 80, "agent")),
        (soft(imagefs_available="25%"), {}, SIZES, "evictionSoft imagefs.available<25% for 2m", (75, 80, "kubelet")),
        (soft(nodefs_available="15Gi"), {}, SIZES, "evictionSoft nodefs.available<15Gi for 2m", (85, 80, "agent")),
    ],
)
def test_triggers_of_image_removal_are_compared_by_their_values_on_this_node(
    fields: dict[str, object],
    policy: dict[str, Any],
    sizes: NodeSizes,
    trigger: str,
    values: tuple[float | None, float | None, str],
) -> None:
    agent = AgentTasks(images=replace(ImageGCPolicy(high_threshold_percent=80), **policy))
    row = row_of(KubeletConfig(fields), agent, sizes, Task.IMAGES, trigger)
    assert (row.kubelet_value, row.agent_value, row.first) == values


@pytest.mark.parametrize(
    ("sizes", "images", "containers"),
    [
        (SIZES, {"nodefs", "imagefs"}, {"nodefs", "imagefs"}),
        (DEDICATED, {"imagefs"}, {"imagefs"}),
        (SPLIT, {"imagefs"}, {"nodefs"}),
    ],
    ids=["single disk", "dedicated imagefs", "split"],
)
def test_filesystem_of_a_threshold_determines_the_removed_items(
    sizes: NodeSizes, images: set[str], containers: set[str]
) -> None:
    rows = compare_triggers(KubeletConfig(), AgentTasks(), sizes)
    found = {
        task: {each.kubelet.split()[1].partition(".")[0] for each in rows if each.task is task and "<" in each.kubelet}
        for task in (Task.IMAGES, Task.CONTAINERS)
    }
    assert found == {Task.IMAGES: images, Task.CONTAINERS: containers}


@pytest.mark.parametrize("amount", ["0%", "100%"])
def test_disabled_threshold_is_no_trigger(amount: str) -> None:
    rows = compare_triggers(KubeletConfig(hard(imagefs_available=amount)), AgentTasks(), SIZES)
    assert not any("imagefs" in each.kubelet for each in rows)


def test_filesystem_without_a_fixed_number_of_inodes_has_no_trigger_for_inodes() -> None:
    agent = AgentTasks(images=ImageGCPolicy(high_threshold_inodes_percent=100), thresholds=parse_thresholds())
    rows = compare_triggers(KubeletConfig(), agent, BTRFS)
    assert not any("inodes" in f"{each.kubelet} {each.agent}" for each in rows)


@pytest.mark.parametrize(
    ("flags", "unread", "limit", "first"),
    [
        ({}, (), 1, "equal"),
        ({"maximum-dead-containers-per-container": "3"}, (), 1, "agent"),
        ({"maximum-dead-containers-per-container": "0"}, (), 1, "kubelet"),
        ({"maximum-dead-containers-per-container": "-1"}, (), 1, "agent"),
        ({}, ("/x: bad",), 1, "unknown"),
    ],
)
def test_limit_of_dead_containers_is_that_of_the_flags(
    flags: dict[str, str], unread: tuple[str, ...], limit: int, first: str
) -> None:
    agent = AgentTasks(containers=ContainerGCPolicy(max_per_pod_container=limit))
    rows = compare_triggers(KubeletConfig(flags=flags, unread=unread), agent, SIZES)
    (row,) = [each for each in rows if each.agent == "container_gc.max_per_pod_container"]
    assert row.first == first


def test_task_of_one_side_has_no_order() -> None:
    rows = compare_triggers(KubeletConfig(), AgentTasks(images=ImageGCPolicy(high_threshold_percent=80)), SIZES)
    assert {each.task for each in rows if each.first != "-"} == {Task.IMAGES}
    assert {each.task for each in rows} == {Task.IMAGES, Task.CONTAINERS, Task.LOGS, Task.EVICTION}


def overlap(config: KubeletConfig, agent: AgentTasks, sizes: NodeSizes, *, has_kubelet: bool = True) -> list[Finding]:
    return check_kubelet(config, compare_triggers(config, agent, sizes), has_kubelet=has_kubelet)


def images_from(percent: int) -> AgentTasks:
    return AgentTasks(images=ImageGCPolicy(high_threshold_percent=percent))


EVICTS: Final = AgentTasks(thresholds=parse_thresholds(hard="memory.available<100Mi"))
EVICTS_EARLIER: Final = AgentTasks(thresholds=parse_thresholds(hard="memory.available<500Mi"))


@pytest.mark.parametrize(
    ("fields", "agent", "expected"),
    [
        (DEFAULTS, AgentTasks(), {"kubelet-overlap": OK}),
        (DEFAULTS, images_from(85), {"kubelet-overlap-images": WARNING}),
        (DEFAULTS, images_from(84), {"kubelet-overlap": OK}),
        (DEFAULTS, images_from(100), {"kubelet-overlap": OK}),
        ({AGES: "48h"}, images_from(84), {"kubelet-overlap-images": WARNING}),
        (soft(nodefs_available="40%"), images_from(80), {"kubelet-overlap-images": WARNING}),
        ({HIGH: 95}, images_from(85), {"kubelet-overlap-images": WARNING}),
        ({HIGH: 95, "evictionHard": {"imagefs.available": "10%"}}, images_from(89), {"kubelet-overlap": OK}),
        (
            {HIGH: 95, "evictionHard": {"imagefs.available": "10%"}},
            images_from(90),
            {"kubelet-overlap-images": WARNING},
        ),
        ({HIGH: 95, "evictionHard": {"memory.available": "5%"}}, images_from(94), {"kubelet-overlap": OK}),
        (
            {HIGH: 95, "evictionHard": {"memory.available": "5%"}, "mergeDefaultEvictionSettings": True},
            images_from(85),
            {"kubelet-overlap-images": WARNING},
        ),
        ({HIGH: "much"}, images_from(85), {"kubelet-overlap-images": WARNING}),
        ({HIGH: "much"}, images_from(80), {"kubelet-overlap-images": SKIPPED}),
        ({HIGH: 100, **hard(nodefs_available="9%")}, images_from(85), {"kubelet-overlap": OK}),
        (
            DEFAULTS,
            AgentTasks(containers=ContainerGCPolicy(), deleted_after_s=0, logs_after_s=300),
            {"kubelet-overlap": OK},
        ),
        (hard(memory_available="100Mi"), EVICTS, {"kubelet-overlap-eviction": WARNING}),
        (hard(memory_available="100Mi"), EVICTS_EARLIER, {"kubelet-overlap": OK}),
        (hard(memory_available="20%"), EVICTS_EARLIER, {"kubelet-overlap-eviction": WARNING}),
        (hard(pid_available="5%"), EVICTS_EARLIER, {"kubelet-overlap-eviction": WARNING}),
        ({"shutdownGracePeriod": "30s"}, AgentTasks(stops=True), {"kubelet-overlap-shutdown": PROBLEM}),
        ({"shutdownGracePeriodByPodPriority": [{}]}, AgentTasks(stops=True), {"kubelet-overlap-shutdown": PROBLEM}),
        ({"shutdownGracePeriod": "0s"}, AgentTasks(stops=True), {"kubelet-overlap": OK}),
    ],
)
def test_task_is_ok_only_if_the_agent_acts_first_on_every_trigger(
    fields: dict[str, object], agent: AgentTasks, expected: dict[str, Grade]
) -> None:
    findings = overlap(KubeletConfig(fields), agent, SIZES)
    assert {each.check: each.verdict for each in findings} == expected


@pytest.mark.parametrize(
    ("config", "percent", "verdict"),
    [
        (UNREAD, 80, SKIPPED),
        (replace(UNREAD, fields={HIGH: 90, **IMAGEFS}), 80, SKIPPED),
        (replace(UNREAD, fields={HIGH: 90}, certain=frozenset({HIGH})), 80, SKIPPED),
        (replace(UNREAD, fields={HIGH: 75}, certain=frozenset({HIGH, AGES})), 80, WARNING),
        (replace(UNREAD, fields=IMAGEFS, partial=frozenset({"evictionHard"})), 96, WARNING),
        (replace(UNREAD, fields={"evictionHard": {}}, partial=frozenset({"evictionHard"})), 96, SKIPPED),
    ],
)
def test_unknown_trigger_of_the_kubelet_is_never_ok(config: KubeletConfig, percent: int, verdict: Grade) -> None:
    agent = replace(images_from(percent), stops=True, containers=ContainerGCPolicy(), thresholds=EVICTS.thresholds)
    findings = {each.check: each.verdict for each in overlap(config, agent, SIZES)}
    assert findings["kubelet-overlap-images"] is verdict
    assert findings["kubelet-overlap-containers"] is SKIPPED
    assert findings["kubelet-overlap-eviction"] is not OK
    assert findings["kubelet-overlap-shutdown"] is SKIPPED


def test_unknown_configuration_and_unknown_size_are_not_ok() -> None:
    (finding,) = check_kubelet(None, (), has_kubelet=True)
    assert (finding.check, finding.verdict) == ("kubelet-overlap", SKIPPED)
    (finding,) = overlap(KubeletConfig(hard(imagefs_available="1Gi")), images_from(80), NOTHING)
    assert (finding.check, finding.verdict) == ("kubelet-overlap-images", SKIPPED)
    assert "evictionHard imagefs.available<1Gi unknown" in finding.evidence


def test_pods_evicted_through_the_runtime_are_restarted_by_a_kubelet() -> None:
    (finding,) = overlap(KubeletConfig(), EVICTS_EARLIER, SIZES, has_kubelet=False)
    assert (finding.check, finding.verdict) == ("kubelet-overlap-eviction", WARNING)
    assert "restarts pods" in finding.evidence


@pytest.mark.parametrize(
    ("fields", "evidence", "fix"),
    [
        (
            soft(nodefs_available="30Gi"),
            "the kubelet removes images at 70% (evictionSoft nodefs.available<30Gi for 2m), before the agent does",
            "set image_gc.high_threshold_percent = 65 and low_threshold_percent = 60,",
        ),
        (
            hard(imagefs_inodesFree="20%"),
            "the kubelet removes images at 80% of inodes (evictionHard imagefs.inodesFree<20%), before the agent does",
            "set image_gc.high_threshold_inodes_percent = 75 and low_threshold_inodes_percent = 70,",
        ),
        (
            {AGES: "24h"},
            "the kubelet removes images at 1d (imageMaximumGCAge), and the agent has no such trigger",
            "set image_gc.maximum_unused_age to less",
        ),
        (
            {HIGH: 80},
            "the kubelet removes images at 80% (imageGCHighThresholdPercent 80), as the agent does",
            "set image_gc.high_threshold_percent = 75",
        ),
    ],
)
def test_first_trigger_of_the_kubelet_is_named_with_its_value(
    fields: dict[str, object], evidence: str, fix: str
) -> None:
    (finding,) = overlap(KubeletConfig(fields), images_from(80), SIZES)
    assert finding.evidence.startswith(evidence)
    assert finding.fix.startswith(fix)


def test_fix_of_a_soft_threshold_names_its_signal() -> None:
    agent = AgentTasks(thresholds=parse_thresholds(hard="memory.available<20%"))
    (finding,) = overlap(KubeletConfig(soft(memory_available="30%")), agent, SIZES)
    assert finding.evidence.startswith("the kubelet evicts pods at 70% (evictionSoft memory.available<30% for 2m)")
    assert finding.fix.endswith("a larger amount for memory.available")


def test_table_and_document_have_a_row_for_every_trigger() -> None:
    rows = compare_triggers(KubeletConfig({AGES: "24h", **hard(imagefs_available="10Gi")}), images_from(80), SIZES)
    _, heading, *lines = [each.text.split() for each in trigger_lines(rows)]
    assert heading == ["TASK", "KUBELET", "AT", "AGENT", "AT", "FIRST"]
    assert len(lines) == len(rows)
    assert ["images", "imageMaximumGCAge", "1d", "-", "-", "kubelet"] in lines
    threshold = ["evictionHard", "imagefs.available<10Gi", "90%"]
    assert ["images", *threshold, "image_gc.high_threshold_percent", "80%", "agent"] in lines
    assert ["eviction", *threshold, "-", "-", "-"] in lines
    assert TriggerDocument.from_value(rows[1]) == TriggerDocument(
        task="images",
        measure="seconds",
        kubelet="imageMaximumGCAge",
        kubelet_value=86_400,
        agent="",
        agent_value=None,
        first="kubelet",
    )
    assert trigger_lines(()) == []


def test_empty_map_of_thresholds_has_no_defaults() -> None:
    empty = KubeletConfig({"evictionHard": {}})
    assert {eviction_amount(empty, signal) for signal in DEFAULT_HARD} == {""}
    assert {eviction_amount(KubeletConfig(), signal) for signal in DEFAULT_HARD} == set(DEFAULT_HARD.values())
