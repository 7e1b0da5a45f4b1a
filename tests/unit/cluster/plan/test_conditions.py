"""Node conditions of the agent: status from loop results, transition times, heartbeat times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.cluster.plan.conditions import (
    MAX_MESSAGE,
    OWN_TYPES,
    PREFIX,
    REPORT_S,
    SHORTAGE_TYPE,
    TYPES,
    ConditionMemory,
    LoopResult,
    conditions_patch,
    is_due,
    own_conditions,
)
from nodeagent.gc.executor import PassEnd
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.outlook import ExpectedShortage

if TYPE_CHECKING:
    from nodeagent.model.kubernetes import StatusCondition

T0 = datetime(2026, 11, 21, 12, tzinfo=UTC)
RESULTS = st.sampled_from(["", *PassEnd, "failed", "crashed", "runtime-unavailable"])
LOOPS = st.lists(
    st.builds(
        LoopResult, st.sampled_from([*Scope, "eviction", "kubernetes"]).map(str), RESULTS, st.text(), st.booleans()
    ),
    unique_by=lambda each: each.name,
)

SHORTAGES = st.none() | st.builds(ExpectedShortage, st.none() | st.booleans(), st.text())


def images(result: str, detail: str = "", at_s: float = 0, before: tuple[StatusCondition, ...] = ()) -> StatusCondition:
    now = T0 + timedelta(seconds=at_s)
    (found,) = own_conditions([LoopResult("images", result, detail)], before, now, shortage=None)
    return found


@pytest.mark.parametrize(
    ("result", "detail", "status", "reason", "message"),
    [
        ("complete", "", "False", "PassSucceeded", "the last pass succeeded"),
        ("nothing-to-do", "", "False", "PassSucceeded", "the last pass succeeded"),
        ("shortfall", "1 GiB missing", "True", "Shortfall", "1 GiB missing"),
        ("shortfall", "", "True", "Shortfall", "the last pass missed its target"),
        ("failed", "a/\x1b[31m\nb", "True", "PassFailed", r"a/\x1b[31m\nb"),
        ("failed", "cannot read", "True", "PassFailed", "cannot read"),
        ("crashed", "KeyError", "True", "PassFailed", "KeyError"),
        ("runtime-unavailable", "no socket", "True", "RuntimeUnavailable", "no socket"),
        ("runtime-lost", "reset", "True", "RuntimeUnavailable", "reset"),
    ],
)
def test_condition_of_a_result(result: str, detail: str, status: str, reason: str, message: str) -> None:
    found = images(result, detail)
    assert (found.type, found.status, found.reason, found.message) == (
        "nodeagent.dev/ImageGCDegraded",
        status,
        reason,
        message,
    )


def test_transition_time_changes_with_the_status_only() -> None:
    first = images("shortfall")
    second = images("failed", at_s=60, before=(first,))
    assert second.last_transition_time == T0
    assert second.last_heartbeat_time == T0 + timedelta(seconds=60)
    third = images("complete", at_s=120, before=(second,))
    assert third.last_transition_time == T0 + timedelta(seconds=120)


@given(st.lists(st.tuples(st.sampled_from(["complete", "shortfall"]), st.floats(-1e6, 1e6)), min_size=2))
def test_times_never_go_back_with_a_clock_set_back_and_forward(reports: list[tuple[str, float]]) -> None:
    before = images("complete")
    for result, at_s in reports:
        found = images(result, at_s=at_s, before=(before,))
        assert found.last_heartbeat_time is not None
        assert found.last_transition_time is not None
        assert before.last_heartbeat_time is not None
        assert before.last_heartbeat_time <= found.last_heartbeat_time
        assert before.last_transition_time is not None
        assert before.last_transition_time <= found.last_transition_time <= found.last_heartbeat_time
        before = found


@pytest.mark.parametrize("result", ["", "cancelled"])
def test_undecided_result_keeps_the_condition_and_makes_none(result: str) -> None:
    assert own_conditions([LoopResult("images", result)], (), T0, shortage=None) == ()
    assert images(result, before=(images("shortfall"),)).status == "True"


@pytest.mark.parametrize(
    ("shortage", "state"),
    [
        (ExpectedShortage(True, "nodefs: full in 1h"), ("True", "ShortageExpected", "nodefs: full in 1h")),
        (ExpectedShortage(False), ("False", "NoShortageExpected", "no shortage is expected")),
        (ExpectedShortage(None, "nodefs: unknown"), ("Unknown", "TooFewReadings", "nodefs: unknown")),
        (ExpectedShortage(True, "80% by a/\x1b[31m"), ("True", "ShortageExpected", r"80% by a/\x1b[31m")),
    ],
    ids=["expected", "not expected", "unknown", "name of a tenant"],
)
def test_condition_of_the_outlook(shortage: ExpectedShortage, state: tuple[str, str, str]) -> None:
    (found,) = own_conditions([], (), T0, shortage=shortage)
    assert (found.type, found.status, found.reason, found.message) == (SHORTAGE_TYPE, *state)


def test_before_the_first_forecast_the_condition_of_an_earlier_run_is_kept() -> None:
    earlier = own_conditions([], (), T0, shortage=ExpectedShortage(True, "nodefs"))
    assert own_conditions([], (), T0, shortage=None) == ()
    (kept,) = own_conditions([], earlier, T0 + timedelta(seconds=60), shortage=None)
    assert (kept.status, kept.last_transition_time) == ("True", T0)


def test_disabled_and_other_loops_have_no_condition() -> None:
    loops = [LoopResult("images", "failed", is_disabled=True), LoopResult("eviction", "failed")]
    assert own_conditions(loops, (images("failed"),), T0, shortage=None) == ()


@pytest.mark.parametrize(
    ("memory", "now_s", "due"),
    [
        pytest.param(ConditionMemory(), 0, True, id="first"),
        pytest.param(ConditionMemory((images("shortfall"),), REPORT_S), 10, False, id="unchanged"),
        pytest.param(ConditionMemory((images("shortfall"),), REPORT_S), REPORT_S, True, id="heartbeat"),
        pytest.param(ConditionMemory((images("complete"),), REPORT_S), 10, True, id="changed"),
        pytest.param(ConditionMemory((), REPORT_S), 10, True, id="new"),
    ],
)
def test_conditions_are_applied_on_a_change_and_as_a_heartbeat(
    memory: ConditionMemory, now_s: float, due: bool
) -> None:
    assert is_due(memory, (images("shortfall", at_s=now_s),), now_s) is due


def test_nothing_is_applied_without_conditions_unless_some_have_to_be_removed() -> None:
    assert not is_due(ConditionMemory(), (), 1000)
    assert not is_due(ConditionMemory(()), (), 1000)
    assert is_due(ConditionMemory((images("failed"),), 5000), (), 10)


@given(LOOPS, LOOPS, SHORTAGES, SHORTAGES)
def test_only_types_of_the_agent_are_written_each_once(
    before: list[LoopResult],
    after: list[LoopResult],
    shortage_before: ExpectedShortage | None,
    shortage: ExpectedShortage | None,
) -> None:
    earlier = own_conditions(before, (), T0, shortage=shortage_before)
    found = own_conditions(after, earlier, T0, shortage=shortage)
    types = [each.type for each in found]
    assert len(set(types)) == len(types)
    assert set(types) <= set(OWN_TYPES)
    assert all(each.startswith(PREFIX) for each in types)
    assert all(len(each.message) <= MAX_MESSAGE for each in found)
    body = conditions_patch("u-1", found)
    assert set(body["status"]) == {"conditions"}
    assert {each["type"]: each.get("message") for each in body["status"]["conditions"]} == {
        **dict.fromkeys(OWN_TYPES),
        **{each.type: each.message for each in found},
    }
    assert body["metadata"] == {"uid": "u-1"}


def test_every_end_of_a_pass_is_a_loop_result() -> None:
    assert {str(each) for each in (Scope.IMAGES, Scope.CONTAINERS)} == set(TYPES)
