"""Evictions and reclaim steps withheld by outstanding effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.effects import OutstandingEffect, withholding
from nodeagent.eviction.plan.reclaim import Shortage, shortage_of
from nodeagent.eviction.plan.thresholds import MEANINGS
from nodeagent.model.pressure import FilesystemLayout, Signal
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import (
    EMPTY_STATE,
    SINGLE,
    at,
    disk,
    planned,
    pod,
    read,
    reasons,
    thresholds,
    victim,
)
from tests.unit.eviction.plan.effect_cases import DEDICATED, EVERYTHING, effect, effects

if TYPE_CHECKING:
    from nodeagent.eviction.plan.planner import EvictionPlan


LIMITS = "memory.available<100Mi,nodefs.available<100Mi,imagefs.available<100Mi"

# ---- planning


def plan_with(
    *effects: OutstandingEffect,
    seconds: float = 1.0,
    reclaimed: Any = frozenset(),
    layout: FilesystemLayout = DEDICATED,
    limits: str = "imagefs.available<100Mi",
    short: tuple[str, ...] = ("imagefs.available",),
    pods: Any = None,
) -> EvictionPlan:
    return planned(
        [pod("writer", writable=disk(300), logs=disk(9))] if pods is None else pods,
        *(read(signal, 50, seconds=seconds) for signal in short),
        limits=thresholds(limits),
        layout=layout,
        state=replace(EMPTY_STATE, outstanding=effects),
        seconds=seconds,
        reclaimed=reclaimed,
    )


@pytest.mark.difference("outstanding-effect")
def test_outstanding_effect_withholds_reclaim_and_pods_of_its_filesystem() -> None:
    plan = plan_with(effect())
    assert (plan.selected, plan.reclaim, plan.victim) == (None, (), None)
    assert plan.waiting is not None
    assert plan.waiting.code.value == "effect-outstanding"
    assert plan.waiting.sentence == (
        "imagefs.available<100Mi met; waiting for the effect of eviction of shop/web, at most 29s"
    )
    assert plan.waiting.details["predicted_bytes"] == 100 * MIB
    assert reasons(plan) == {"writer": "effect-outstanding"}
    assert plan_with(effect(), reclaimed=EVERYTHING).victim is None


def test_expired_effect_withholds_nothing() -> None:
    assert plan_with(effect(), seconds=30.0).reclaim
    assert victim(plan_with(effect(), seconds=30.0, reclaimed=EVERYTHING)) == "writer"


@pytest.mark.difference("outstanding-effect")
def test_effect_on_another_filesystem_withholds_nothing() -> None:
    plan = plan_with(effect(shortage=Shortage.NODEFS), reclaimed=EVERYTHING)
    assert (victim(plan), plan.waiting) == ("writer", None)


@pytest.mark.parametrize("ineffective", [False, True])
def test_two_filesystems_are_relieved_independently(ineffective: bool) -> None:
    plan = plan_with(
        effect(shortage=Shortage.NODEFS, ineffective=ineffective),
        limits=LIMITS,
        short=("imagefs.available", "nodefs.available"),
        reclaimed=EVERYTHING,
    )
    assert plan.selected is not None
    assert (plan.selected.threshold.signal, victim(plan)) == (Signal.IMAGEFS_AVAILABLE, "writer")
    assert plan.waiting is not None


def test_inodes_of_the_same_filesystem_are_withheld_as_well() -> None:
    plan = plan_with(
        effect(shortage=Shortage.NODEFS),
        limits="nodefs.inodesFree<100Mi",
        short=("nodefs.inodesFree",),
        layout=SINGLE,
        reclaimed=EVERYTHING,
    )
    assert reasons(plan) == {"writer": "effect-outstanding"}


@pytest.mark.difference("ineffective-eviction")
def test_ineffective_eviction_withholds_pods_and_not_reclaim() -> None:
    ineffective = effect(ineffective=True)
    before = plan_with(ineffective)
    assert [each.text for each in before.reclaim] == [
        "dead-containers on imagefs",
        "unused-images on imagefs",
        "irreplaceable-images on imagefs",
    ]
    after = plan_with(ineffective, reclaimed=EVERYTHING)
    assert (after.reclaim, after.victim) == ((), None)
    assert reasons(after) == {"writer": "eviction-ineffective"}


def test_evicted_pod_is_not_chosen_again_for_its_own_limit() -> None:
    over = pod("web", writable=disk(300), ephemeral_limit_bytes=200 * MIB)
    over = replace(over, usage=replace(over.usage, ephemeral_bytes=300 * MIB))  # type: ignore[type-var]
    assert victim(plan_with(limits=LIMITS, short=(), pods=[over])) == "web"
    plan = plan_with(effect(), limits=LIMITS, short=(), pods=[over])
    assert (plan.victim, reasons(plan)) == (None, {"web": "being-evicted"})


@given(
    effects,
    st.sampled_from(FilesystemLayout),
    st.lists(st.sampled_from([each for each in Signal if MEANINGS[each].unit.value != "percent of time"]), min_size=1),
    st.booleans(),
    st.floats(-1, 40),
)
def test_no_pod_is_evicted_for_a_shortage_with_an_outstanding_effect(
    found: list[OutstandingEffect], layout: FilesystemLayout, short: list[Signal], reclaimed: bool, seconds: float
) -> None:
    pods = [pod(name, writable=disk(300, 99), logs=disk(9, 9), pids=9) for name in ("one", "two")]
    plan = planned(
        pods,
        *(read(signal, 0.00001, seconds=seconds) for signal in dict.fromkeys(short)),
        limits=thresholds(",".join(f"{signal}<100Mi" for signal in dict.fromkeys(short))),
        layout=layout,
        state=replace(EMPTY_STATE, outstanding=tuple(found)),
        seconds=seconds,
        reclaimed=EVERYTHING if reclaimed else frozenset(),
    )
    if plan.selected is None:
        return
    outstanding = withholding(found, shortage_of(plan.selected.threshold.signal, layout), at(seconds))
    assert outstanding is None or (outstanding.ineffective and plan.victim is None)
