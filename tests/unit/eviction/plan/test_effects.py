"""Outstanding effects of evictions and reclaim: predictions and end conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.effects import (
    FREED_WITHIN_S,
    STALL_WINDOW_S,
    UNTIL_CLEARED_S,
    VISIBLE_WITHIN_S,
    EffectEnd,
    EndedEffect,
    OutstandingEffect,
    Victim,
    confirm,
    effect_of_reclaim,
    effects_of_eviction,
    is_insufficient,
    restarted,
    update_effects,
    withholding,
)
from nodeagent.eviction.plan.ranking import RankingInput
from nodeagent.eviction.plan.reclaim import ReclaimAction, ReclaimStep, Shortage, shortage_of
from nodeagent.eviction.plan.state import EvictionState, begin_eviction, drop_eviction, evaluate
from nodeagent.eviction.plan.thresholds import ThresholdStatus
from nodeagent.model.pressure import FilesystemLayout, FilesystemRole, Signal
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import POLICY, SINGLE, at, disk, planned, pod, read, thresholds
from tests.unit.eviction.plan.effect_cases import DEDICATED, EVERYTHING, SPLIT, START_S, effect, effects

if TYPE_CHECKING:
    from nodeagent.eviction.plan.planner import EvictionPlan


def ends(one: OutstandingEffect, available_mib: float, seconds: float) -> EffectEnd | None:
    remaining, ended = update_effects(
        [one], [read("imagefs.available", available_mib)], at(seconds), verified={"uid-web"}
    )
    assert len(remaining) + len(ended) == 1 or ended[0].ineffective
    return ended[0].end if ended else None


@pytest.mark.parametrize(
    ("signal", "layout", "shortage"),
    [
        ("memory.available", SINGLE, Shortage.MEMORY),
        ("swap.free", SINGLE, Shortage.MEMORY),
        ("memory.psi.full", SINGLE, Shortage.MEMORY_STALL),
        ("pid.available", SINGLE, Shortage.PIDS),
        ("io.psi.full", SINGLE, None),
        ("nodefs.available", SINGLE, Shortage.NODEFS),
        ("imagefs.inodesFree", SINGLE, Shortage.NODEFS),
        ("imagefs.available", DEDICATED, Shortage.IMAGEFS),
        ("containerfs.inodesFree", DEDICATED, Shortage.IMAGEFS),
        ("containerfs.available", SPLIT, Shortage.NODEFS),
    ],
)
def test_signals_of_one_device_are_one_shortage(
    signal: str, layout: FilesystemLayout, shortage: Shortage | None
) -> None:
    assert shortage_of(Signal(signal), layout) is shortage


def eviction_effects(
    plan: EvictionPlan, layout: FilesystemLayout, *observations: Any
) -> dict[Shortage, OutstandingEffect]:
    assert plan.victim is not None
    return {each.shortage: each for each in effects_of_eviction(plan.victim, observations, RankingInput(layout), at(0))}


def test_eviction_for_imagefs_predicts_only_the_writable_layers() -> None:
    writer = pod("writer", writable=disk(300, 20), logs=disk(40), volumes=disk(50))
    short = read("imagefs.available", 50)
    limits = thresholds("imagefs.available<100Mi")
    plan = planned([writer], short, limits=limits, layout=DEDICATED, reclaimed=EVERYTHING)
    found = eviction_effects(plan, DEDICATED, short)
    assert found == {Shortage.IMAGEFS: effect(action="eviction of shop/writer", predicted=300 * MIB, uid="uid-writer")}


def test_eviction_for_inodes_predicts_inodes() -> None:
    writer = pod("writer", writable=disk(1, 5000))
    short = read("imagefs.inodesFree", available=50, capacity=10_000)
    limits = thresholds("imagefs.inodesFree<100")
    plan = planned([writer], short, limits=limits, layout=DEDICATED, reclaimed=EVERYTHING)
    (found,) = eviction_effects(plan, DEDICATED, short).values()
    assert found.predicted == 5000
    assert found.details["predicted_inodes"] == 5000


@pytest.mark.parametrize("writable", [disk(300), disk(None)], ids=["known", "unknown"])
def test_eviction_for_nodefs_predicts_the_logs_and_no_layers_elsewhere(writable: Any) -> None:
    chatty = pod("chatty", writable=writable, logs=disk(400))
    short = read("nodefs.available", 50)
    limits = thresholds("nodefs.available<100Mi")
    plan = planned([chatty], short, limits=limits, layout=DEDICATED, reclaimed=EVERYTHING)
    found = eviction_effects(plan, DEDICATED, short)
    assert found[Shortage.NODEFS].predicted == 400 * MIB
    assert found[Shortage.IMAGEFS].predicted == writable.used_bytes


def test_eviction_through_a_kubelet_predicts_the_volumes_that_the_kubelet_removes() -> None:
    short = read("nodefs.available", 50)
    limits = thresholds("nodefs.available<100Mi")
    writer = pod("writer", writable=disk(7), volumes=disk(300))
    plan = planned([writer], short, limits=limits, reclaimed=EVERYTHING, removes_volumes=True)
    assert plan.victim is not None
    placement = RankingInput(SINGLE, removes_volumes=True)
    (found,) = effects_of_eviction(plan.victim, [short], placement, at(0))
    assert found.predicted == 307 * MIB


def test_eviction_for_nodefs_on_a_single_filesystem_predicts_layers_and_logs() -> None:
    short = read("nodefs.available", 50)
    plan = planned(
        [pod("chatty", writable=disk(30), logs=disk(400))],
        short,
        limits=thresholds("nodefs.available<100Mi"),
        reclaimed=EVERYTHING,
    )
    assert eviction_effects(plan, SINGLE, short)[Shortage.NODEFS].predicted == 430 * MIB


def test_eviction_for_memory_has_an_effect_on_disk_unless_the_layers_are_empty() -> None:
    short = read(available_mib=50)
    found = eviction_effects(planned([pod(writable=disk(None))], short), SINGLE, short)
    assert {key: each.predicted for key, each in found.items()} == {
        Shortage.NODEFS: None,
        Shortage.MEMORY: 100 * MIB,
        Shortage.MEMORY_STALL: None,
    }
    assert {key: each.until_s - START_S for key, each in found.items()} == {
        Shortage.NODEFS: FREED_WITHIN_S,
        Shortage.MEMORY: VISIBLE_WITHIN_S,
        Shortage.MEMORY_STALL: STALL_WINDOW_S,
    }
    nothing = eviction_effects(planned([pod(writable=disk(0))], short), SINGLE, short)
    assert Shortage.NODEFS not in nothing


@pytest.mark.parametrize(
    ("predicted", "confirmed", "within_s"),
    [(0, True, None), (0, False, None), (None, False, 30.0), (5, False, 30.0), (5, True, 2.0), (None, True, 2.0)],
)
def test_reclaim_that_frees_nothing_has_no_effect(
    predicted: int | None, confirmed: bool, within_s: float | None
) -> None:
    plan = planned([], read("nodefs.available", 50), limits=thresholds("nodefs.available<100Mi"))
    assert plan.selected is not None
    step = ReclaimStep(ReclaimAction.LOGS, FilesystemRole.NODEFS)
    found = effect_of_reclaim(step, plan.selected, SINGLE, predicted=predicted, confirmed=confirmed, now=at(0))
    assert (None if found is None else found.until_s - START_S) == within_s


@pytest.mark.parametrize(
    ("fields", "available_mib", "seconds", "end"),
    [
        pytest.param({}, 50, 1, None, id="no-change"),
        pytest.param({}, 150, 1, None, id="risen-but-not-confirmed"),
        pytest.param({"confirmed": True}, 150, 1, EffectEnd.MEASURED, id="confirmed-and-risen"),
        pytest.param({"confirmed": True}, 148, 1, EffectEnd.MEASURED, id="confirmed-and-risen-within-slack"),
        pytest.param({"confirmed": True}, 60, 1, None, id="confirmed-and-not-risen"),
        pytest.param({"confirmed": True}, 60, 30, EffectEnd.CONFIRMED, id="confirmed-and-used-by-others"),
        pytest.param({"confirmed": True, "predicted": None}, 500, 1, None, id="amount-unknown"),
        pytest.param({"confirmed": True, "before": None}, 500, 30, EffectEnd.CONFIRMED, id="not-read-before"),
        pytest.param({}, 60, 29.9, None, id="before-the-bound"),
        pytest.param({}, 60, 30, EffectEnd.MISSING, id="at-the-bound"),
        pytest.param({}, 150, 30, EffectEnd.MEASURED, id="risen-at-the-bound"),
    ],
)
def test_effect_ends_when_measured_or_at_its_bound(
    fields: dict[str, Any], available_mib: float, seconds: float, end: EffectEnd | None
) -> None:
    assert ends(effect(**fields), available_mib, seconds) is end


@pytest.mark.parametrize(
    ("fields", "available_mib", "ineffective"),
    [
        pytest.param({}, None, True, id="no reading"),
        pytest.param({}, 50, True, id="nothing freed"),
        pytest.param({"confirmed": True}, 98, True, id="less than half"),
        pytest.param({"confirmed": True}, 99, False, id="half, within the accuracy"),
        pytest.param({"confirmed": True, "shortage": Shortage.MEMORY, "predicted": 900 * MIB}, 98, True, id="memory"),
        pytest.param({"confirmed": True, "predicted": None}, 50, False, id="prediction unknown"),
        pytest.param({"confirmed": True, "predicted": 0}, 50, False, id="predicted to free nothing"),
        pytest.param({"uid": ""}, 50, False, id="reclaim"),
        pytest.param({"uid": "uid-other"}, 50, False, id="processes may run"),
    ],
)
def test_eviction_that_frees_less_than_half_of_its_prediction_is_ineffective(
    fields: dict[str, Any], available_mib: float | None, ineffective: bool
) -> None:
    readings = [] if available_mib is None else [read("imagefs.available", available_mib)]
    remaining, (ended,) = update_effects([effect(**fields)], readings, at(31), verified={"uid-web"})
    assert ended.ineffective is ineffective
    assert [each.ineffective for each in remaining] == [True] * ineffective
    assert update_effects(remaining, readings, at(10_000), verified=set()) == (remaining, ())


@pytest.mark.parametrize(("available_mib", "kept"), [(99, True), (100, False)])
def test_ineffective_effect_ends_when_its_threshold_is_cleared(available_mib: float, kept: bool) -> None:
    state = EvictionState(outstanding=(effect(ineffective=True, until_s=START_S + UNTIL_CLEARED_S), effect()))
    limits = thresholds("imagefs.available<100Mi")
    after = evaluate(state, [read("imagefs.available", available_mib)], limits, POLICY, now=at(0)).state
    assert [each.ineffective for each in after.outstanding] == [True, False] if kept else [False]
    unread = evaluate(state, [], limits, POLICY, now=at(0)).state
    assert unread.outstanding == state.outstanding


def test_confirmed_effect_has_a_short_bound() -> None:
    confirmed, other, ineffective = effect(), effect(uid="uid-other"), effect(ineffective=True)
    assert confirm([confirmed, other, ineffective], "uid-web", Shortage, at(10)) == (
        replace(confirmed, confirmed=True, until_s=START_S + 10 + VISIBLE_WITHIN_S),
        other,
        ineffective,
    )
    assert confirm([confirmed], "uid-web", [Shortage.MEMORY], at(10)) == (confirmed,)
    assert confirm([effect(uid="")], "", Shortage, at(10)) == (effect(uid=""),)
    late = confirm([confirmed], "uid-web", Shortage, at(29.5))
    assert late[0].until_s == confirmed.until_s


def test_bounds_count_from_the_end_of_the_processes() -> None:
    (found,) = restarted([effect()], "uid-web", at(7))
    assert found.until_s == START_S + 7 + FREED_WITHIN_S
    assert restarted([effect(uid="")], "", at(7)) == (effect(uid=""),)


def test_effective_action_precedes_an_ineffective_one() -> None:
    ineffective, effective = effect(ineffective=True, until_s=START_S + 60), effect(action="other")
    assert withholding([ineffective, effective], Shortage.IMAGEFS, at(1)) is effective
    assert withholding([ineffective, effective], Shortage.IMAGEFS, at(31)) is ineffective
    assert withholding([ineffective, effective], Shortage.IMAGEFS, at(61)) is None
    assert withholding([ineffective, effective], Shortage.NODEFS, at(1)) is None
    assert withholding([ineffective, effective], None, at(1)) is None


def test_state_keeps_effects_between_passes_and_drops_an_eviction_with_its_effects() -> None:
    started = begin_eviction(EvictionState(), Victim("uid-web", "shop", "web"), [effect()])
    again = begin_eviction(started, Victim("uid-web", "shop", "web", at_s=1.0), [effect(since_s=1.0)])
    assert ([each.since_s for each in again.outstanding], [each.at_s for each in again.victims]) == ([1.0], [1.0])
    kept = evaluate(started, [read()], thresholds(), POLICY, now=at(0)).state
    assert (kept.outstanding, kept.victims) == (started.outstanding, started.victims)
    assert drop_eviction(started, "uid-web") == EvictionState()


@given(effects, st.lists(st.floats(0.1, 20), max_size=20))
def test_every_effect_ends_at_its_bound_unless_it_was_ineffective(
    found: list[OutstandingEffect], steps: list[float]
) -> None:
    remaining, seconds = tuple(found), 0.0
    for step in steps:
        seconds += step
        remaining, _ = update_effects(remaining, [], at(seconds), verified={"uid-web"})
    assert all(each.until_s > at(seconds).monotonic_s for each in remaining) or not steps
    remaining, _ = update_effects(remaining, [], at(seconds + FREED_WITHIN_S), verified={"uid-web"})
    assert all(each.ineffective for each in remaining)


def end_after_confirmation(one: OutstandingEffect, *available: tuple[float, float]) -> EffectEnd | None:
    """Return the end of an effect after readings; ``None`` while outstanding.

    Args:
        one: a confirmed effect.
        available: available amount in MiB (or units) and time in seconds of each reading.
    """
    remaining: tuple[OutstandingEffect, ...] = (one,)
    ended: tuple[EndedEffect, ...] = ()
    for amount, seconds in available:
        assert not ended
        reading = read(one.signal.value, amount, seconds=seconds)
        remaining, ended = update_effects(remaining, [reading], at(seconds), verified=set())
    return ended[0].end if ended else None


@pytest.mark.parametrize(
    ("available", "end"),
    [
        pytest.param([(60, 0), (20, 0.5)], EffectEnd.CONFIRMED, id="falling"),
        pytest.param([(60, 0), (20, 0.4)], None, id="falling for less than the minimum time"),
        pytest.param([(60, 0), (52, 1.0)], None, id="trickle"),
        pytest.param([(0, 0), (0, 0.5)], EffectEnd.CONFIRMED, id="no space since the action"),
        pytest.param([(60, 0), (70, 0.5), (65, 1.0)], None, id="above the first reading"),
        pytest.param([(60, 0), (60, 1.9)], None, id="constant"),
        pytest.param([(60, 0), (160, 0.1)], EffectEnd.MEASURED, id="measured"),
        pytest.param([(60, 0), (61, 2.0)], EffectEnd.CONFIRMED, id="bound"),
    ],
)
def test_falling_signal_ends_a_confirmed_effect(available: list[tuple[float, float]], end: EffectEnd | None) -> None:
    confirmed = effect(confirmed=True, until_s=START_S + VISIBLE_WITHIN_S)
    assert end_after_confirmation(confirmed, *available) is end


def test_falling_memory_ends_a_confirmed_effect_sooner() -> None:
    hog = effect(
        shortage=Shortage.MEMORY,
        signal=Signal.MEMORY_AVAILABLE,
        confirmed=True,
        until_s=START_S + VISIBLE_WITHIN_S,
    )
    assert end_after_confirmation(hog, (60, 0), (40, 0.1), (20, 0.2)) is EffectEnd.CONFIRMED


def test_falling_signal_does_not_end_an_unconfirmed_effect() -> None:
    assert end_after_confirmation(effect(), (60, 0), (20, 5), (10, 20)) is None


@pytest.mark.parametrize(
    ("limit", "available", "reclaimable", "insufficient"),
    [
        ("imagefs.available<100Mi", 50, 10 * MIB, True),
        ("imagefs.available<100Mi", 50, 48 * MIB, True),
        ("imagefs.available<100Mi", 50, 49 * MIB, False),  # within the accuracy of the prediction
        ("imagefs.available<100Mi", 50, 50 * MIB, False),
        ("imagefs.available<100Mi", 50, None, False),
        ("imagefs.available<100Mi", 120, 0, False),
        ("imagefs.available<10%", 50, 40 * MIB, True),
        ("imagefs.available<10%", 50, 60 * MIB, False),
    ],
)
def test_reclaim_is_insufficient_if_the_threshold_remains_met_after_all_of_it(
    limit: str, available: float, reclaimable: int | None, insufficient: bool
) -> None:
    (hard,) = thresholds(limit)
    reading = read("imagefs.available", available)
    assert is_insufficient(ThresholdStatus(hard, reading), reclaimable) is insufficient
    soft = replace(hard, grace_s=1.0)
    assert not is_insufficient(ThresholdStatus(soft, reading), reclaimable)
    assert not is_insufficient(ThresholdStatus(hard, None), reclaimable)
