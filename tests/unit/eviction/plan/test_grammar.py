"""Threshold parser: values, defaults, and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.thresholds import find_contradictions, for_layout, in_order, parse_thresholds
from nodeagent.model.pressure import FilesystemLayout, Measurand, Signal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.eviction.plan.thresholds import Threshold

MIB = 2**20


def parsed(**settings: Any) -> dict[str, Threshold]:
    merged: dict[str, Any] = {"hard": "", "allocatable": False} | settings
    thresholds = parse_thresholds(**merged)
    return {each.text: each for each in thresholds}


@pytest.mark.parametrize(
    ("hard", "capacity", "limit"),
    [
        ("memory.available<100Mi", 0, 100 * MIB),
        ("memory.available < 1.5Gi", 0, 3 * 2**29),
        ("nodefs.available<10%", 1000, 100),
        ("nodefs.available<7.5%", 1000, 75),
        ("nodefs.available<70%", 1000, 699),
        ("nodefs.inodesFree<5%", 99, 4),
        ("nodefs.inodesFree<500k", 10**9, 500_000),
        ("pid.available<1000", 32768, 1000),
        ("swap.free<0.3", 10, 1),
        ("memory.psi.some>40", 100, 40),
        ("memory.psi.full>12.5%", 100, 12.5),
        ("io.psi.full > 80", 100, 80),
    ],
)
def test_value_is_a_quantity_or_a_single_precision_share(hard: str, capacity: int, limit: float) -> None:
    (threshold,) = parsed(hard=hard).values()
    assert threshold.limit(capacity) == limit
    assert threshold.hard


def test_list_and_mapping_give_equal_thresholds() -> None:
    as_list = parse_thresholds(
        hard="memory.available<100Mi, nodefs.available<10%",
        soft="memory.available<300Mi",
        soft_grace_period="memory.available=1m30s",
        minimum_reclaim="memory.available=50Mi",
    )
    as_mapping = parse_thresholds(
        hard={"memory.available": "100Mi", "nodefs.available": "10%"},
        soft={"memory.available": "300Mi"},
        soft_grace_period={"memory.available": "1m30s"},
        minimum_reclaim={"memory.available": "50Mi"},
    )
    assert as_list == as_mapping
    assert [each.minimum_reclaim for each in as_list] == [each.minimum_reclaim for each in as_mapping]
    assert [(each.text, each.grace_s) for each in as_list] == [
        ("memory.available<100Mi", 0),
        ("nodefs.available<10%", 0),
        ("memory.available<300Mi", 90),
        ("allocatableMemory.available<100Mi", 0),
    ]


@pytest.mark.parametrize("value", ["0%", "100%", "100.0%"])
def test_threshold_of_0_or_100_percent_is_disabled(value: str) -> None:
    assert not parsed(hard={"nodefs.available": value, "memory.psi.some": value}, soft={"memory.available": value})


@pytest.mark.difference("percent-form")
@pytest.mark.parametrize(("value", "same"), [(".5%", "0.5%"), ("5.%", "5%"), ("+5.0%", "5%"), ("05%", "5%")])
def test_percentage_is_digits_with_an_optional_decimal_point(value: str, same: str) -> None:
    settings, expected = (
        parsed(hard={"nodefs.available": each, "memory.psi.some": each}, minimum_reclaim={"nodefs.available": each})
        for each in (value, same)
    )
    assert list(settings.values()) == list(expected.values())
    assert [each.minimum_reclaim for each in settings.values()] == [each.minimum_reclaim for each in expected.values()]


@pytest.mark.difference("percent-form")
@pytest.mark.parametrize("value", [".%", "%", "1e1%", "0x5%", "5 %", "1_0%", "inf%", "nan%", "1.2.3%", "\u0665%"])
def test_percentage_in_another_form_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="is not a percentage"):
        parsed(hard=f"nodefs.available<{value}")


def test_grace_period_of_a_disabled_soft_threshold_is_accepted() -> None:
    assert not parsed(soft="memory.available<0%", soft_grace_period="memory.available=1m")


def test_soft_threshold_with_a_grace_period_of_0_is_hard() -> None:
    (threshold,) = parsed(soft="memory.available<1Gi", soft_grace_period="memory.available=0").values()
    assert threshold.hard


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        pytest.param(
            {"hard": None},
            [
                "memory.available<100Mi",
                "nodefs.available<10%",
                "nodefs.inodesFree<5%",
                "imagefs.available<15%",
                "imagefs.inodesFree<5%",
            ],
            id="no setting",
        ),
        pytest.param({"hard": {}}, [], id="empty"),
        pytest.param({"hard": "pid.available<100"}, ["pid.available<100"], id="one entry replaces all"),
        pytest.param(
            {"hard": "nodefs.available<20%,pid.available<100", "merge_default_hard": True},
            [
                "nodefs.available<20%",
                "pid.available<100",
                "memory.available<100Mi",
                "nodefs.inodesFree<5%",
                "imagefs.available<15%",
                "imagefs.inodesFree<5%",
            ],
            id="merged",
        ),
        pytest.param(
            {"hard": {"memory.available": "0%", "imagefs.available": "100%"}, "merge_default_hard": True},
            ["nodefs.available<10%", "nodefs.inodesFree<5%", "imagefs.inodesFree<5%"],
            id="merged and disabled",
        ),
    ],
)
def test_default_hard_thresholds_apply_unless_replaced_or_disabled(
    settings: Mapping[str, Any], texts: list[str]
) -> None:
    assert list(parsed(**settings)) == texts


@pytest.mark.difference("allocatable-threshold")
def test_allocatable_memory_has_the_hard_memory_threshold_unless_configured() -> None:
    settings = {"minimum_reclaim": "memory.available=10Mi", "allocatable": True}
    copied = parsed(hard="memory.available<100Mi", **settings)["allocatableMemory.available<100Mi"]
    assert copied.limit(0, with_reclaim=True) == 110 * MIB
    own = parsed(hard="memory.available<100Mi,allocatableMemory.available<5%", **settings)
    assert list(own) == ["memory.available<100Mi", "allocatableMemory.available<5%"]
    soft = parsed(soft="memory.available<1Gi", soft_grace_period="memory.available=1m", allocatable=True)
    assert list(soft) == ["memory.available<1Gi"]


@pytest.mark.parametrize(
    ("hard", "reclaim", "limit"),
    [
        ("memory.available<100", "memory.available=50", 150),
        ("memory.available<100", "memory.available=5%", 150),
        ("memory.available<100", "memory.available=0", 100),
        ("memory.available<100", "nodefs.available=50", 100),
        ("memory.psi.some>40", "memory.psi.some=15", 25),
        ("memory.psi.some>40", "memory.psi.some=15%", 25),
    ],
)
def test_minimum_reclaim_is_added_to_the_limit(hard: str, reclaim: str, limit: float) -> None:
    (threshold,) = parsed(hard=hard, minimum_reclaim=reclaim).values()
    assert threshold.limit(1000, with_reclaim=True) == limit


SOFT = {"soft": "memory.available<1Gi"}


@pytest.mark.difference("grace-without-threshold", "soft-below-hard")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        pytest.param(
            {"hard": "memory.available<100Mi,nodefs.available<12%345"},
            "hard threshold 'memory.available<100Mi,nodefs.available<12%345', character 41: '12%345' is not a size",
            id="malformed quantity",
        ),
        pytest.param({"hard": "nodefs.available<foo%"}, "character 18: 'foo%' is not a percentage", id="foo%"),
        pytest.param({"hard": "nodefs.inodesFree<lots"}, "'lots' is not a number of inodes", id="no number"),
        pytest.param({"hard": "memory.available<"}, "character 18: '' is not a size", id="no value"),
        pytest.param({"hard": "memory.available<0"}, "'0' is never met", id="zero"),
        pytest.param({"hard": "memory.available"}, "character 1: 'memory.available' has no operator", id="no operator"),
        pytest.param({"hard": "memory.available<1Gi,"}, "character 22: empty entry", id="comma"),
        pytest.param(
            {"hard": "memory.available>1Gi"},
            "character 17: '>' is not valid for memory.available; write '<'",
            id="operator",
        ),
        pytest.param({"hard": "memory.psi.some<10"}, "'<' is not valid for memory.psi.some; write '>'", id="stall"),
        pytest.param({"hard": "memory.available<=1Gi"}, "'<=' is not valid for", id="or equal"),
        pytest.param(
            {"hard": "memory.available<1Gi, memory.availabel<1Gi"},
            "character 23: 'memory.availabel' is not a signal; did you mean memory.available?",
            id="unknown signal",
        ),
        pytest.param(
            {"hard": "xyz<1"},
            "'xyz' is not a signal; the signals are memory.available, ",
            id="unknown signal without a similar one",
        ),
        pytest.param({"hard": {"cpu.psi.some": "10"}}, "hard threshold: 'cpu.psi.some' is not a signal", id="mapping"),
        pytest.param({"soft_grace_period": "foo=1m"}, "soft grace period 'foo=1m', character 1: 'foo'", id="grace of"),
        pytest.param({"minimum_reclaim": "foo=1"}, "minimum reclaim 'foo=1', character 1: 'foo'", id="reclaim of"),
        pytest.param({"hard": "nodefs.available<101%"}, "character 18: '101%' is out of range", id="over 100%"),
        pytest.param({"hard": {"nodefs.available": "-1%"}}, "nodefs.available: '-1%' is out of range", id="below 0%"),
        pytest.param({"hard": "io.psi.some>100.5"}, "'100.5' is out of range", id="stall over 100%"),
        pytest.param({"hard": "io.psi.some>1Gi"}, "'1Gi' is not a percentage of time", id="stall in bytes"),
        pytest.param(
            {"hard": "pid.available<5,memory.available<1Gi,pid.available<6"},
            "character 38: duplicate signal pid.available",
            id="duplicate",
        ),
        pytest.param(
            {"hard": {"pid.available": "5", " pid.available": "6"}},
            "duplicate signal pid.available",
            id="duplicate in a mapping",
        ),
        pytest.param(
            SOFT,
            "soft threshold 'memory.available<1Gi', character 18: soft threshold memory.available has no grace period",
            id="no grace period",
        ),
        pytest.param(
            SOFT | {"soft_grace_period": "nodefs.available=1m"},
            "soft grace period 'nodefs.available=1m', character 18: nodefs.available has a grace period but no soft",
            id="grace period without threshold",
        ),
        pytest.param(
            SOFT | {"soft_grace_period": "memory.available=-1m"}, "character 18: '-1m' is negative", id="negative grace"
        ),
        pytest.param(
            SOFT | {"soft_grace_period": "memory.available=soon"}, "'soon' is not a duration", id="malformed grace"
        ),
        pytest.param(
            SOFT | {"soft_grace_period": {"memory.available": "1m"}, "hard": "memory.available<1Gi"},
            "character 18: '1Gi' is not above the hard threshold '1Gi' of memory.available",
            id="soft at hard",
        ),
        pytest.param(
            {"soft": "nodefs.available<5%", "soft_grace_period": "nodefs.available=1m", "hard": None},
            "'5%' is not above the hard threshold '10%' of nodefs.available",
            id="soft below the default",
        ),
        pytest.param(
            {
                "soft": "memory.psi.some>50",
                "soft_grace_period": "memory.psi.some=1m",
                "hard": "memory.psi.some>40",
            },
            "'50%' is not below the hard threshold '40%' of memory.psi.some",
            id="soft stall above hard",
        ),
        pytest.param({"minimum_reclaim": "memory.available=0%"}, "'0%' is not a positive amount", id="reclaim 0%"),
        pytest.param({"minimum_reclaim": "memory.available<5"}, "'<' is not valid for", id="reclaim compares"),
    ],
)
def test_error_quotes_the_text_and_its_position(settings: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        parsed(**settings)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


@given(st.text(alphabet="memory.available<>=%0123456789GMi, -", max_size=40))
def test_any_text_is_parsed_or_rejected_with_a_sentence(text: str) -> None:
    try:
        parse_thresholds(hard=text)
    except ValueError as error:
        assert str(error).startswith("hard threshold ")  # noqa: PT017 - a valid text also passes


@pytest.mark.parametrize(
    ("layout", "derived"),
    [
        (FilesystemLayout.SINGLE, ["containerfs.available<10%", "containerfs.inodesFree<5%"]),
        (FilesystemLayout.SPLIT, ["containerfs.available<10%", "containerfs.inodesFree<5%"]),
        (FilesystemLayout.DEDICATED_IMAGEFS, ["containerfs.available<15%", "containerfs.inodesFree<5%"]),
    ],
)
def test_containerfs_has_the_thresholds_of_its_filesystem(layout: FilesystemLayout, derived: list[str]) -> None:
    thresholds, warnings = for_layout(parse_thresholds(), layout)
    assert [each.text for each in thresholds if each.signal.startswith("containerfs")] == derived
    assert not warnings


def test_configured_containerfs_thresholds_are_replaced_with_a_warning() -> None:
    own = parse_thresholds(hard="containerfs.available<10%,nodefs.inodesFree<5%")
    thresholds, warnings = for_layout(own, FilesystemLayout.SINGLE)
    assert [each.text for each in thresholds] == ["nodefs.inodesFree<5%", "containerfs.inodesFree<5%"]
    assert warnings == (
        "containerfs.available<10% has no effect: containerfs has the thresholds of nodefs on this node",
    )


@pytest.mark.difference("threshold-order")
def test_order_is_memory_then_hard_then_signal_and_no_resource_last() -> None:
    thresholds = parse_thresholds(
        hard="io.psi.full>90,pid.available<10,memory.psi.full>20,nodefs.available<5%,memory.available<1Gi",
        soft="memory.available<2Gi,imagefs.available<9%",
        soft_grace_period="memory.available=1m,imagefs.available=1m",
    )
    expected = [
        "memory.available<1Gi",
        "allocatableMemory.available<1Gi",
        "memory.psi.full>20%",
        "memory.available<2Gi",
        "nodefs.available<5%",
        "pid.available<10",
        "imagefs.available<9%",
        "io.psi.full>90%",
    ]
    assert [each.text for each in in_order(thresholds)] == expected
    assert in_order(reversed(thresholds)) == in_order(thresholds * 2) == in_order(thresholds)


@pytest.mark.parametrize(("capacity", "contradicts"), [(999 * MIB, True), (1000 * MIB, False), (None, False)])
def test_share_and_quantity_contradict_by_the_capacity_of_the_node(capacity: int | None, contradicts: bool) -> None:
    thresholds = parse_thresholds(
        hard="memory.available<100Mi",
        soft="memory.available<10%",
        soft_grace_period="memory.available=1m",
    )
    capacities = {} if capacity is None else {Measurand(Signal.MEMORY_AVAILABLE): capacity}
    assert bool(find_contradictions(thresholds, capacities)) is contradicts
