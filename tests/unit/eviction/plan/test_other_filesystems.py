"""Thresholds, reclaim, pod selection and outstanding effects on a node with several image filesystems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.effects import OutstandingEffect, UsageSample, effects_of_eviction, withholding
from nodeagent.eviction.plan.ranking import RankingInput, usage_of
from nodeagent.eviction.plan.reclaim import Shortage, reclaim_steps
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.plan.thresholds import for_layout, is_oversized
from nodeagent.model.pressure import FilesystemLayout, Footprint, LayerUsage, OtherFilesystem, Resource, Signal
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import at, disk, evaluated, planned, pod, read, reasons, thresholds, victim

if TYPE_CHECKING:
    from nodeagent.eviction.plan.planner import EvictionPlan
    from nodeagent.eviction.plan.thresholds import Threshold
    from nodeagent.model.pressure import PodFacts, SignalReading

FIRST_DEVICE = 1
KATA = OtherFilesystem("/kata", 2, frozenset({"kata"}))
LAZY = OtherFilesystem("/lazy", 3, frozenset({"lazy", "lazier"}))
OTHERS = (KATA, LAZY)
DEDICATED = FilesystemLayout.DEDICATED_IMAGEFS
ON_FIRST = LayerUsage(disk(0), FIRST_DEVICE, "overlayfs")
ON_KATA = LayerUsage(disk(0), KATA.device_id, "kata")
ON_LAZY = LayerUsage(disk(0), None, "lazier")
NOWHERE = LayerUsage(disk(0))
CONTRADICTORY = LayerUsage(disk(0), KATA.device_id, "overlayfs")


def limits(hard: str = "imagefs.available<100Mi", layout: FilesystemLayout = DEDICATED) -> tuple[Threshold, ...]:
    return for_layout(thresholds(hard), layout, OTHERS)[0]


def on(other: OtherFilesystem, available_mib: float = 50, signal: str = "imagefs.available") -> SignalReading:
    return replace(read(signal, available_mib), path=other.path)


def writer(name: str, *layers: LayerUsage, mib: float = 10, **fields: Any) -> PodFacts:
    """Return a pod with ``mib`` MiB and one inode per MiB in each of these writable layers."""
    sized = tuple(each._replace(used=disk(mib, int(mib))) for each in layers)
    total = Footprint(int(mib * MIB) * len(layers), int(mib) * len(layers))
    made = pod(name, writable=total, **fields)
    assert made.usage is not None
    return replace(made, usage=replace(made.usage, layers=sized))


PODS = (
    writer("first", ON_FIRST, mib=900),
    writer("kata-big", ON_KATA, mib=300),
    writer("kata-small", ON_KATA, mib=20),
    writer("lazy", ON_LAZY, mib=500),
    writer("unknown", NOWHERE, mib=800),
    writer("contradictory", CONTRADICTORY, mib=700),
)


def after_reclaim(*observations: SignalReading, pods: tuple[PodFacts, ...] = PODS, **fields: Any) -> EvictionPlan:
    """Return the eviction plan after all reclaim steps."""
    values: dict[str, Any] = {"limits": limits(), "layout": DEDICATED, "others": OTHERS, **fields}
    steps = frozenset(
        step for each in values["limits"] for step in reclaim_steps(each.signal, values["layout"], each.filesystem)
    )
    return planned(pods, *observations, reclaimed=steps, **values)


@pytest.mark.difference("image-filesystems")
def test_each_other_image_filesystem_has_the_thresholds_of_imagefs() -> None:
    found = limits("imagefs.available<15%,imagefs.inodesFree<5%,nodefs.available<10%,memory.available<1Mi")
    assert [each.text for each in found if each.filesystem] == [
        "imagefs.available<15% on /kata",
        "imagefs.inodesFree<5% on /kata",
        "imagefs.available<15% on /lazy",
        "imagefs.inodesFree<5% on /lazy",
    ]


@pytest.mark.parametrize("layout", FilesystemLayout)
def test_threshold_is_met_on_the_filesystem_where_it_is_met(layout: FilesystemLayout) -> None:
    found = evaluated(read("imagefs.available", 900), on(KATA, 50), on(LAZY, 900), limits=limits(layout=layout))
    assert [each.threshold.text for each in found.met] == ["imagefs.available<100Mi on /kata"]
    assert [each.condition.value for each in found.conditions if each.active] == ["DiskPressure"]


def test_reclaim_is_for_the_filesystem_under_pressure_only() -> None:
    plan = planned(PODS, on(KATA), limits=limits(), layout=DEDICATED, others=OTHERS)
    steps = ["dead-containers on /kata", "unused-images on /kata", "irreplaceable-images on /kata"]
    assert ([each.text for each in plan.reclaim], plan.victim) == (steps, None)
    assert set(reasons(plan).values()) == {"reclaim-first"}


@pytest.mark.difference("layer-filesystem")
def test_only_pods_known_to_write_there_are_candidates() -> None:
    plan = after_reclaim(on(KATA))
    assert victim(plan) == "kata-big"
    assert reasons(plan) == {
        "kata-big": "low-on-resource",
        "kata-small": "ranked-later",
        "first": "layers-elsewhere",
        "lazy": "layers-elsewhere",
        "unknown": "layers-unknown",
        "contradictory": "layers-unknown",
    }
    (evicted,) = plan.plan.removals
    assert "threshold imagefs.available<100Mi on /kata met" in evicted.reason.sentence
    assert "uses 300 MiB of ephemeral-storage" in evicted.reason.sentence


@pytest.mark.difference("layer-filesystem")
def test_pod_is_ranked_by_its_usage_there() -> None:
    mixed = writer("mixed", ON_KATA, mib=5)
    assert mixed.usage is not None
    layers = (*mixed.usage.layers, ON_FIRST._replace(used=disk(900, 900)))
    mixed = replace(mixed, usage=replace(mixed.usage, writable=disk(905, 905), layers=layers))
    plan = after_reclaim(on(KATA), pods=(mixed, writer("kata", ON_KATA, mib=20)))
    assert victim(plan) == "kata"
    assert [each.usage for each in plan.ranking] == [20 * MIB, 5 * MIB]


@pytest.mark.parametrize(
    ("layout", "signal", "candidates"),
    [
        (DEDICATED, "imagefs.available", {"first", "unknown", "contradictory"}),
        (DEDICATED, "containerfs.available", {"first", "unknown", "contradictory"}),
        (DEDICATED, "nodefs.available", {each.name for each in PODS}),
        (FilesystemLayout.SINGLE, "nodefs.available", {each.name for each in PODS}),
    ],
)
def test_pods_with_all_layers_elsewhere_are_no_candidates_for_a_dedicated_first_imagefs(
    layout: FilesystemLayout, signal: str, candidates: set[str]
) -> None:
    plan = after_reclaim(read(signal, 50), limits=thresholds(f"{signal}<100Mi"), layout=layout)
    assert {each.pod.name for each in plan.ranking} == candidates


def test_layers_on_other_filesystems_do_not_count_for_nodefs() -> None:
    big, small = writer("kata", ON_KATA, mib=900), writer("first", ON_FIRST, mib=30)
    single = FilesystemLayout.SINGLE
    plan = after_reclaim(
        read("nodefs.available", 50), pods=(big, small), limits=thresholds("nodefs.available<100Mi"), layout=single
    )
    assert victim(plan) == "first"
    assert usage_of(big.usage, Signal.NODEFS_AVAILABLE, RankingInput(single, OTHERS)) == (0, ())
    assert usage_of(big.usage, Signal.NODEFS_AVAILABLE, single) == (900 * MIB, ())


def test_pod_with_unmeasured_layer_there_is_kept() -> None:
    unmeasured = pod("unmeasured")
    assert unmeasured.usage is not None
    layers = (ON_KATA._replace(used=Footprint()),)
    unmeasured = replace(unmeasured, usage=replace(unmeasured.usage, layers=layers))
    plan = after_reclaim(on(KATA), pods=(unmeasured,))
    assert (victim(plan), reasons(plan)) == (None, {"unmeasured": "usage-unknown"})


@pytest.mark.parametrize("pods", [(), (writer("first", ON_FIRST),), (writer("unknown", NOWHERE),), (pod("no-layers"),)])
def test_nothing_is_evicted_without_a_pod_known_to_write_there(pods: tuple[PodFacts, ...]) -> None:
    plan = after_reclaim(on(KATA), pods=pods)
    assert plan.victim is None
    (warning,) = plan.plan.warnings
    assert warning == (
        "imagefs.available<100Mi on /kata is met, and no eviction ends the shortage of 50.0 MiB: no pod is known to "
        "have a writable layer on this filesystem; pods use 0 B, others 950 MiB"
    )


def test_protected_pods_there_are_kept() -> None:
    plan = after_reclaim(on(KATA), pods=(writer("system", ON_KATA, mib=900, namespace="kube-system"), PODS[2]))
    assert (victim(plan), reasons(plan)["system"]) == ("kata-small", "protected-namespace")


@pytest.mark.parametrize("observations", [(), (on(KATA, 900),), (on(KATA, -5),), (on(KATA), on(KATA, 60))])
def test_nothing_is_evicted_without_a_valid_reading(observations: tuple[SignalReading, ...]) -> None:
    plan = after_reclaim(read("imagefs.available", 900), *observations)
    assert plan.victim is None


def test_another_filesystem_at_the_path_does_not_inherit_the_grace_period() -> None:
    soft = {"soft": "imagefs.available<100Mi", "soft_grace_period": "imagefs.available=1m"}
    before = for_layout(thresholds("", **soft), DEDICATED, (KATA,))[0]
    after = for_layout(thresholds("", **soft), DEDICATED, (KATA._replace(device_id=9),))[0]
    state = evaluated(on(KATA), limits=before).state
    later = replace(on(KATA), observed_at=at(61))
    assert [each.due for each in evaluated(later, state=state, limits=before, seconds=61).met] == [True]
    assert [each.due for each in evaluated(later, state=state, limits=after, seconds=61).met] == [False]


def test_inodes_have_a_threshold_of_their_own_there() -> None:
    found = limits("imagefs.inodesFree<100")
    reading = replace(read("imagefs.inodesFree", available=50, capacity=1000), path=KATA.path)
    plan = after_reclaim(reading, limits=found)
    assert victim(plan) == "kata-big"
    assert plan.victim is not None
    assert plan.victim.starved is Resource.INODES


# ---- effects


def effect(shortage: Shortage, path: str = "") -> OutstandingEffect:
    start_s = at(0).monotonic_s
    return OutstandingEffect("eviction", shortage, Signal.IMAGEFS_AVAILABLE, 0, 5, start_s, start_s + 30, path=path)


@pytest.mark.parametrize(
    ("outstanding", "waits"),
    [
        (effect(Shortage.OTHER_IMAGEFS, "/kata"), True),
        (effect(Shortage.OTHER_IMAGEFS, ""), True),
        (effect(Shortage.OTHER_IMAGEFS, "/lazy"), False),
        (effect(Shortage.IMAGEFS), False),
        (effect(Shortage.NODEFS), False),
    ],
    ids=["same", "unknown", "another", "imagefs", "nodefs"],
)
def test_effect_on_a_filesystem_withholds_actions_for_it_alone(outstanding: OutstandingEffect, waits: bool) -> None:
    plan = after_reclaim(on(KATA), state=EvictionState(outstanding=(outstanding,)))
    assert victim(plan) == (None if waits else "kata-big")
    assert (plan.waiting is not None) is waits


def test_another_image_filesystem_on_nodefs_shares_the_effects_of_nodefs() -> None:
    shared = KATA._replace(on_nodefs=True)
    found = for_layout(thresholds("imagefs.available<100Mi"), DEDICATED, (shared,))[0]
    for outstanding, waits in ((effect(Shortage.NODEFS), True), (effect(Shortage.IMAGEFS), False)):
        state = EvictionState(outstanding=(outstanding,))
        plan = after_reclaim(on(KATA), limits=found, others=(shared,), state=state)
        assert (victim(plan) is None) is waits


def test_eviction_has_an_effect_on_each_filesystem_with_a_layer() -> None:
    both = writer("both", ON_KATA, ON_FIRST, mib=300)
    plan = after_reclaim(on(KATA), pods=(both,))
    assert plan.victim is not None
    readings = (on(KATA), on(LAZY, 700), read("imagefs.available", 900))
    found = effects_of_eviction(plan.victim, readings, RankingInput(DEDICATED, OTHERS), at(0))
    assert {(each.shortage, each.path, each.before, each.predicted) for each in found} == {
        (Shortage.IMAGEFS, "", 900 * MIB, 300 * MIB),
        (Shortage.OTHER_IMAGEFS, "/kata", 50 * MIB, 300 * MIB),
    }
    assert withholding(found, Shortage.OTHER_IMAGEFS, at(1), "/lazy") is None


# ---- filesystem of the pod logs

LOGS = OtherFilesystem("/var/log/pods", 7, frozenset())
LIMITS = "nodefs.available<100Mi,nodefs.inodesFree<100,imagefs.available<100Mi"


def logger(name: str, *, logs: float, writable: float = 0, **fields: Any) -> PodFacts:
    return pod(name, logs=disk(logs, int(logs)), writable=disk(writable, int(writable)), **fields)


LOGGERS = (
    logger("writer", logs=1, writable=900),
    logger("chatty", logs=300),
    logger("quiet", logs=2),
    logger("system", logs=900, namespace="kube-system"),
)


def with_logs(*observations: SignalReading, layout: FilesystemLayout = DEDICATED, **fields: Any) -> EvictionPlan:
    """Return the eviction plan after all reclaim steps of a node with a filesystem of the pod logs."""
    found = for_layout(thresholds(LIMITS), layout, (LOGS,))[0]
    values = {"pods": LOGGERS, "limits": found, "layout": layout, "others": (LOGS,), **fields}
    return after_reclaim(*observations, **values)


@pytest.mark.difference("log-filesystem")
@pytest.mark.parametrize("layout", FilesystemLayout)
def test_filesystem_of_the_logs_has_the_thresholds_of_nodefs(layout: FilesystemLayout) -> None:
    found = for_layout(thresholds(LIMITS), layout, (LOGS, KATA))[0]
    assert [each.text for each in found if each.filesystem] == [
        "nodefs.available<100Mi on /var/log/pods",
        "nodefs.inodesFree<100 on /var/log/pods",
        "imagefs.available<100Mi on /kata",
    ]
    met = evaluated(read("nodefs.available", 900), on(LOGS, 50, "nodefs.available"), limits=found)
    assert [each.threshold.text for each in met.met] == ["nodefs.available<100Mi on /var/log/pods"]
    assert [each.condition.value for each in met.conditions if each.active] == ["DiskPressure"]


@pytest.mark.parametrize(
    ("limits", "has_effect"),
    [
        pytest.param("nodefs.available<100Mi", True, id="half of the filesystem"),
        pytest.param("nodefs.available<101Mi", False, id="more than half"),
        pytest.param("nodefs.available<60%", True, id="share"),
        pytest.param("nodefs.inodesFree<1000", True, id="unknown number of inodes"),
    ],
)
def test_large_quantity_of_nodefs_has_no_effect_on_a_small_filesystem_of_the_logs(
    limits: str, has_effect: bool
) -> None:
    of_nodefs, of_logs = for_layout(thresholds(limits), DEDICATED, (LOGS,))[0]
    sizes = {Signal.NODEFS_AVAILABLE: 200.0 * MIB}
    assert not is_oversized(of_nodefs, sizes)
    assert is_oversized(of_logs, sizes) is not has_effect


@pytest.mark.parametrize(
    ("layout", "of_nodefs"),
    [
        (
            FilesystemLayout.SINGLE,
            ["dead-containers on nodefs", "unused-images on nodefs", "irreplaceable-images on nodefs"],
        ),
        (DEDICATED, []),
        (FilesystemLayout.SPLIT, ["dead-containers on nodefs"]),
    ],
)
def test_logs_are_reclaimed_for_their_own_filesystem_only(layout: FilesystemLayout, of_nodefs: list[str]) -> None:
    found = for_layout(thresholds(LIMITS), layout, (LOGS,))[0]
    for reading, steps in (
        (on(LOGS, 50, "nodefs.available"), ["logs on /var/log/pods"]),
        (read("nodefs.available", 50), of_nodefs),
    ):
        plan = planned(LOGGERS, reading, limits=found, layout=layout, others=(LOGS,))
        assert [each.text for each in plan.reclaim] == steps


@pytest.mark.difference("log-filesystem")
@pytest.mark.parametrize("layout", FilesystemLayout)
@pytest.mark.parametrize("signal", ["nodefs.available", "nodefs.inodesFree"])
def test_pod_is_evicted_for_the_filesystem_of_the_logs_by_its_logs(layout: FilesystemLayout, signal: str) -> None:
    reading = read(signal, available=50, capacity=2000) if "inodes" in signal else read(signal, 50, capacity_mib=2000)
    plan = with_logs(replace(reading, path=LOGS.path), layout=layout)
    assert victim(plan) == "chatty"
    unit = 1 if "inodes" in signal else MIB
    assert [(each.pod.name, each.usage) for each in plan.ranking] == [
        ("system", 900 * unit),
        ("chatty", 300 * unit),
        ("quiet", 2 * unit),
        ("writer", unit),
    ]
    assert reasons(plan)["system"] == "protected-namespace"


@pytest.mark.difference("log-filesystem")
@pytest.mark.parametrize("pods", [(), LOGGERS[::2], (logger("none", logs=0, writable=900),)])
def test_no_pod_is_evicted_if_the_host_fills_the_filesystem_of_the_logs(pods: tuple[PodFacts, ...]) -> None:
    reading = on(LOGS, 50, "nodefs.available")
    earlier = UsageSample.of(pods, (replace(reading, available=60 * MIB),), at(-1), with_disk=True)
    plan = with_logs(reading, pods=pods, state=EvictionState(samples=(earlier,)))
    assert plan.victim is None
    assert plan.unrelieved is not None
    assert plan.unrelieved.sentence.startswith(
        "nodefs.available<100Mi on /var/log/pods is met, and no eviction ends the shortage of 50.0 MiB"
    )


@pytest.mark.difference("log-filesystem")
@pytest.mark.parametrize(
    ("layout", "evicted"),
    [(FilesystemLayout.SINGLE, "writer"), (DEDICATED, None), (FilesystemLayout.SPLIT, "writer")],
)
def test_logs_elsewhere_do_not_count_for_nodefs(layout: FilesystemLayout, evicted: str | None) -> None:
    assert victim(with_logs(read("nodefs.available", 50), layout=layout)) == evicted
    chatty = LOGGERS[1].usage
    assert usage_of(chatty, Signal.NODEFS_AVAILABLE, RankingInput(layout, (LOGS,))) == (0, ())
    assert usage_of(chatty, Signal.NODEFS_AVAILABLE, layout) == (300 * MIB, ())
    assert usage_of(chatty, Signal.NODEFS_AVAILABLE, RankingInput(layout, (LOGS,), LOGS)) == (300 * MIB, ())


@pytest.mark.parametrize(
    ("outstanding", "waits"),
    [
        (replace(effect(Shortage.POD_LOGS, LOGS.path), signal=Signal.NODEFS_AVAILABLE), True),
        (effect(Shortage.NODEFS), False),
        (effect(Shortage.OTHER_IMAGEFS, ""), False),
    ],
    ids=["logs", "nodefs", "other-image-filesystem"],
)
def test_effect_on_the_filesystem_of_the_logs_withholds_actions_for_it_alone(
    outstanding: OutstandingEffect, waits: bool
) -> None:
    state = EvictionState(outstanding=(outstanding,))
    assert victim(with_logs(on(LOGS, 50, "nodefs.available"), state=state)) == (None if waits else "chatty")
    single = FilesystemLayout.SINGLE
    of_nodefs = with_logs(read("nodefs.available", 50), layout=single, state=state)
    assert (victim(of_nodefs) is None) is (outstanding.shortage is Shortage.NODEFS)


def test_eviction_for_the_filesystem_of_the_logs_has_an_effect_there_and_on_the_layers() -> None:
    both = logger("both", logs=300, writable=40)
    readings = (on(LOGS, 50, "nodefs.available"), read("imagefs.available", 900), read("nodefs.available", 800))
    placement = RankingInput(DEDICATED, (LOGS,))
    for_logs = with_logs(*readings, pods=(both,))
    assert for_logs.victim is not None
    found = effects_of_eviction(for_logs.victim, readings, placement, at(0))
    assert {(each.shortage, each.measurand, each.before, each.predicted) for each in found} == {
        (Shortage.IMAGEFS, (Signal.IMAGEFS_AVAILABLE, ""), 900 * MIB, 40 * MIB),
        (Shortage.POD_LOGS, (Signal.NODEFS_AVAILABLE, LOGS.path), 50 * MIB, 300 * MIB),
    }
    for_layers = with_logs(read("imagefs.available", 50), pods=(both,))
    assert for_layers.victim is not None
    others = effects_of_eviction(for_layers.victim, readings, placement, at(0))
    assert {each.shortage for each in others} == {Shortage.IMAGEFS}  # the logs are kept then


# ---- properties

PLACES = [ON_FIRST, ON_KATA, ON_LAZY, NOWHERE, CONTRADICTORY, LayerUsage(disk(0), FIRST_DEVICE, "kata")]
drawn_pods = st.lists(
    st.tuples(st.lists(st.sampled_from(PLACES), max_size=3), st.integers(0, 5), st.integers(-1, 1)), max_size=6
).map(
    lambda drawn: tuple(
        writer(f"p{number}", *layers, mib=mib, priority=priority)
        for number, (layers, mib, priority) in enumerate(drawn)
    )
)
readings = st.lists(
    st.sampled_from([read("imagefs.available", 50), on(KATA), on(LAZY), on(KATA, 900)]),
    unique_by=lambda each: each.path,
)


@given(pods=drawn_pods, observations=readings, layout=st.sampled_from(FilesystemLayout))
def test_victim_has_a_layer_on_the_filesystem_under_pressure(
    pods: tuple[PodFacts, ...], observations: list[SignalReading], layout: FilesystemLayout
) -> None:
    plan = (
        after_reclaim(*observations, pods=pods, limits=limits(layout=layout), layout=layout) if observations else None
    )
    if plan is None or plan.victim is None or plan.selected is None:
        return
    other, usage = plan.selected.threshold.filesystem, plan.victim.pod.usage
    assert usage is not None
    if other is not None:
        there = {"/kata": ON_KATA, "/lazy": ON_LAZY}[other.path]
        assert any((each.device_id, each.snapshotter) == there[1:] for each in usage.layers)
    elif layout is DEDICATED and usage.layers:
        assert any((each.device_id, each.snapshotter) not in {ON_KATA[1:], ON_LAZY[1:]} for each in usage.layers)


@given(pods=drawn_pods, layout=st.sampled_from(FilesystemLayout), data=st.data())
def test_plan_of_a_node_with_one_image_filesystem_does_not_depend_on_the_places_of_layers(
    pods: tuple[PodFacts, ...], layout: FilesystemLayout, data: st.DataObject
) -> None:
    signal = data.draw(st.sampled_from(["nodefs.available", "imagefs.available", "containerfs.available"]))
    without = tuple(
        replace(each, usage=None if each.usage is None else replace(each.usage, layers=())) for each in pods
    )
    found = [
        after_reclaim(read(signal, 50), pods=each, limits=thresholds(f"{signal}<100Mi"), layout=layout, others=())
        for each in (pods, without)
    ]
    assert reasons(found[0]) == reasons(found[1])
    assert victim(found[0]) == victim(found[1])
