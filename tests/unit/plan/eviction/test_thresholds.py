"""The grammar of thresholds: what is taken, what is refused and how that is said."""

from __future__ import annotations

import re

import pytest

from nodeagent.model.pressure import Signal
from nodeagent.plan.eviction.thresholds import (
    DEFAULT_HARD,
    Amount,
    Threshold,
    parse_thresholds,
    split_flag,
    with_allocatable,
    with_derived,
)


def one(hard: dict[str, str]) -> Threshold:
    (threshold,) = parse_thresholds(hard, {}, {}, {})
    return threshold


@pytest.mark.parametrize(
    ("text", "capacity", "quantity"),
    [
        ("100Mi", 1, 100 << 20),
        ("1.5Gi", 1, 3 << 29),
        ("2G", 1, 2_000_000_000),
        ("1", 1, 1),
        ("0.1", 1, 1),
        ("10%", 1000, 100),
        ("12.5%", 1000, 125),
        ("10%", 999, 99),
        # A share is kept in 32 bits, as the kubelet does, so 15% is a little more.
        ("15%", 10**12, 150_000_005_960),
    ],
)
def test_a_quantity_or_a_share_of_the_capacity(text: str, capacity: int, quantity: int) -> None:
    assert one({"nodefs.available": text}).value.of(capacity) == quantity


def test_without_any_the_kubelets_defaults_hold_and_one_drops_them_all() -> None:
    assert {each.signal.value for each in parse_thresholds({}, {}, {}, {})} == DEFAULT_HARD.keys()
    assert one({"memory.available": "1Gi"}).signal is Signal.MEMORY_AVAILABLE


@pytest.mark.parametrize("off", ["0%", "100%"])
def test_nought_and_all_turn_a_threshold_off(off: str) -> None:
    assert parse_thresholds({"memory.available": off}, {"nodefs.available": off}, {}, {}) == ()


def test_a_soft_one_has_its_grace_and_both_their_minimum_reclaim() -> None:
    hard, soft = parse_thresholds(
        {"memory.available": "100Mi"},
        {"memory.available": "300Mi"},
        {"memory.available": "1m30s"},
        {"memory.available": "50Mi"},
    )
    assert (hard.hard, soft.hard, soft.grace_s) == (True, False, 90)
    assert hard.minimum_reclaim == soft.minimum_reclaim == Amount(number=50 << 20)
    (instant,) = parse_thresholds({"memory.available": "0%"}, {"pid.available": "5%"}, {"pid.available": "0s"}, {})
    assert instant.hard


def test_stalls_are_shares_of_time_and_cross_upwards() -> None:
    threshold = one({"memory.psi.full": "12.5%"})
    assert (threshold.value.of(100), threshold.text) == (12.5, "memory.psi.full>12.5%")


MEMORY = "memory.available"


@pytest.mark.parametrize(
    ("hard", "soft", "grace", "reclaim", "said"),
    [
        ({"memory.free": "1Gi"}, {}, {}, {}, "'memory.free' is no eviction signal"),
        ({MEMORY: "much"}, {}, {}, {}, "'much': write a percentage"),
        ({MEMORY: "12%345"}, {}, {}, {}, "'12%345'"),
        ({MEMORY: "foo%"}, {}, {}, {}, "'foo' before the % is no number"),
        ({MEMORY: "-5%"}, {}, {}, {}, "'-5' before the % is no number"),
        ({MEMORY: "101%"}, {}, {}, {}, "at most 100%"),
        ({MEMORY: "0"}, {}, {}, {}, "must be more than 0"),
        ({MEMORY: "-1Gi"}, {}, {}, {}, "'-1Gi'"),
        ({"memory.psi.some": "10"}, {}, {}, {}, "share of time stalled"),
        ({"memory.psi.some": "100%"}, {}, {}, {}, "share of time stalled"),
        ({"containerfs.available": "10%"}, {}, {}, {}, "cannot be set"),
        ({}, {MEMORY: "1Gi"}, {}, {}, "needs a grace period"),
        ({}, {MEMORY: "1Gi"}, {MEMORY: "-1m"}, {}, "is negative"),
        ({}, {MEMORY: "1Gi"}, {MEMORY: "soon"}, {}, "grace period of memory.available: 'soon'"),
        ({}, {}, {MEMORY: "1m"}, {}, "without a soft threshold"),
        ({}, {}, {}, {MEMORY: "0%"}, "above 0%"),
        ({}, {}, {}, {"nope": "1"}, "'nope' is no eviction signal"),
        ({MEMORY: "1Gi"}, {MEMORY: "1Gi"}, {MEMORY: "1m"}, {}, "reached before the hard one, memory.available<1Gi"),
        ({MEMORY: "20%"}, {MEMORY: "10%"}, {MEMORY: "1m"}, {}, "reached before the hard one"),
        ({"io.psi.some": "20%"}, {"io.psi.some": "30%"}, {"io.psi.some": "1m"}, {}, "reached before the hard one"),
    ],
)
def test_what_is_wrong_is_quoted(
    hard: dict[str, str], soft: dict[str, str], grace: dict[str, str], reclaim: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_thresholds(hard, soft, grace, reclaim)


def test_the_form_of_a_flag() -> None:
    assert split_flag("memory.available<100Mi, nodefs.available<10%,,memory.psi.full>5%") == {
        "memory.available": "100Mi",
        "nodefs.available": "10%",
        "memory.psi.full": "5%",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory.available=100Mi", "write SIGNAL<VALUE"),
        ("memory.available<", "write SIGNAL<VALUE"),
        ("memory.available>100Mi", "takes <, not >"),
        ("memory.psi.some<5%", "takes >, not <"),
        ("memory.available<1Gi,memory.available<2Gi", "has a threshold already"),
        ("nope<1", "no eviction signal"),
    ],
)
def test_a_flag_at_fault_is_quoted(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        split_flag(text)


@pytest.mark.parametrize(
    ("dedicated", "split", "expected"),
    [(False, False, "10%"), (True, False, "15%"), (True, True, "10%"), (False, True, "10%")],
)
def test_containerfs_follows_the_filesystem_it_is_on(dedicated: bool, split: bool, expected: str) -> None:
    known = parse_thresholds({"nodefs.available": "10%", "imagefs.available": "15%"}, {}, {}, {})
    *_, derived = with_derived(known, dedicated_imagefs=dedicated, split=split)
    assert derived.signal is Signal.CONTAINERFS_AVAILABLE
    assert derived.text.endswith(expected)


def test_allocatable_memory_copies_the_hard_ones() -> None:
    known = parse_thresholds({MEMORY: "100Mi"}, {MEMORY: "1Gi"}, {MEMORY: "1m"}, {})
    *_, added = with_allocatable(known)
    assert (added.signal, added.value.number) == (Signal.ALLOCATABLE_MEMORY_AVAILABLE, 100 << 20)
    assert len(with_allocatable(known)) == 3
