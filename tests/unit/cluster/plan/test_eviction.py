"""Next step after an API server response to an eviction, and pods postponed after earlier responses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.api_eviction import (
    LAST_DELAY_S,
    MAX_REMEMBERED,
    RESERVED_S,
    SERVER_FAILURES,
    UNKNOWN_S,
    Answer,
    Consequence,
    EvictionMemory,
    RefusedEviction,
    Step,
    consequence,
    refused_eviction,
    remember,
)
from nodeagent.model.pods import PodSpec
from nodeagent.record import replace

BUDGET = Answer(429, causes=("DisruptionBudget",), text="The disruption budget webpdb needs 2 healthy pods")
LOST = Answer(0, text="no answer in 10 s")
SEVERAL = Answer(
    500,
    text="API server: POST /api/v1/namespaces/shop/pods/a/eviction: HTTP 500; This pod has more than one "
    "PodDisruptionBudget, which the eviction subresource does not support.",
)
"""Error of an eviction with two disruption budgets, recorded from Kubernetes 1.36."""


@pytest.mark.parametrize(
    ("answer", "refusals", "hard", "step", "delay_s"),
    [
        (Answer(200), 0, False, Step.WAIT, 0),
        (Answer(201), 7, True, Step.WAIT, 0),
        (Answer(404, kind="pods"), 0, True, Step.WAIT, 0),
        (Answer(404, kind="pod"), 0, True, Step.WAIT, 0),
        (Answer(404), 0, True, Step.POSTPONE, 1),
        (Answer(404, kind="namespaces"), 0, False, Step.POSTPONE, 1),
        (BUDGET, 0, False, Step.DEFER, 10),
        (BUDGET, 1, False, Step.DEFER, 20),
        (BUDGET, 0, True, Step.NEXT, 10),
        (BUDGET, 4, True, Step.NEXT, 160),
        (BUDGET, 90, True, Step.NEXT, LAST_DELAY_S),
        (replace(BUDGET, retry_after_s=45.0), 0, False, Step.DEFER, 45),
        (Answer(429), 0, True, Step.POSTPONE, 1),
        (Answer(429, retry_after_s=30.0), 0, False, Step.POSTPONE, 30),
        (Answer(429, causes=("Other",)), 0, True, Step.POSTPONE, 1),
        (Answer(401), 0, True, Step.POSTPONE, 1),
        (Answer(403), 0, False, Step.DEFER, 10),
        (Answer(403), 0, True, Step.NEXT, 10),
        (Answer(422), 0, True, Step.NEXT, 10),
        (Answer(409), 0, True, Step.NEXT, 10),
        (Answer(409), 0, False, Step.DEFER, 10),
        (Answer(302), 0, True, Step.NEXT, 10),
        (Answer(500), 0, True, Step.POSTPONE, 1),
        (Answer(500), 0, False, Step.POSTPONE, 1),
        (Answer(500), SERVER_FAILURES - 1, True, Step.NEXT, 40),
        (Answer(500), SERVER_FAILURES - 1, False, Step.POSTPONE, 4),
        (SEVERAL, 0, True, Step.NEXT, 10),
        (SEVERAL, 1, False, Step.DEFER, 20),
        (Answer(504), 20, False, Step.POSTPONE, 60),
        (LOST, 0, True, Step.POSTPONE, 1),
        (LOST, 9, True, Step.POSTPONE, 60),
    ],
)
def test_answer_has_its_step_and_delay(answer: Answer, refusals: int, hard: bool, step: Step, delay_s: float) -> None:
    found = consequence(answer, refusals, hard=hard, jitter=0.0)
    assert (found.step, found.delay_s) == (step, delay_s)


def test_conflict_is_compared_while_the_request_is_repeated() -> None:
    assert consequence(Answer(409), 0, hard=False, jitter=0.0, repeats=True) == Consequence(Step.COMPARE)


@pytest.mark.parametrize(
    ("answer", "unknown"),
    [(LOST, True), (Answer(504), True), (BUDGET, False), (SEVERAL, False), (Answer(401), False)],
)
def test_effect_is_unknown_without_a_complete_answer(answer: Answer, unknown: bool) -> None:
    assert consequence(answer, 0, hard=True, jitter=0.0).effect_unknown is unknown


answers = st.builds(
    Answer,
    st.sampled_from([0, 200, 201, 302, 400, 401, 403, 404, 405, 409, 410, 422, 429, 500, 503, 504, 599]),
    kind=st.sampled_from(["", "pods", "pod", "namespaces"]),
    causes=st.sampled_from([(), ("DisruptionBudget",), ("Other",)]),
    retry_after_s=st.none() | st.floats(0, 60),
)


@given(answers, st.integers(0, 10**6), st.booleans(), st.floats(0, 1))
def test_next_pod_is_tried_at_a_hard_threshold_only(answer: Answer, refusals: int, hard: bool, jitter: float) -> None:
    found = consequence(answer, refusals, hard=hard, jitter=jitter)
    assert found.step is not Step.NEXT or hard
    assert found.step is not Step.WAIT or answer.status in {200, 201} or answer.kind in {"pods", "pod"}
    assert (found.delay_s > 0) is (found.step is not Step.WAIT)
    assert found.delay_s <= max(LAST_DELAY_S, answer.retry_after_s or 0)
    assert found.delay_s >= (answer.retry_after_s or 0) or found.step is Step.WAIT


# ---- eviction memory


def after(*given: tuple[float, str, Answer], hard: bool = False) -> EvictionMemory:
    """Return the eviction memory after responses, each with time in seconds, pod UID and response."""
    memory = EvictionMemory()
    for now_s, uid, answer in given:
        then = consequence(answer, memory.count(uid), hard=hard, jitter=0.0)
        memory = remember(memory, uid, answer, then, now_s)
    return memory


def held(memory: EvictionMemory, uid: str, now_s: float, *specs: PodSpec, **fields: Any) -> RefusedEviction | None:
    values = {"answered_s": now_s, "hard": False, **fields}
    return refused_eviction(memory, uid, {each.uid: each for each in specs}, now_s=now_s, **values)


def spec(uid: str, **fields: Any) -> PodSpec:
    return PodSpec(uid, "shop", uid, **fields)


def test_refused_pod_waits_for_its_back_off_and_no_other_is_evicted_below_a_hard_threshold() -> None:
    memory = after((100.0, "a", BUDGET))
    assert held(memory, "a", 109.9) == RefusedEviction(BUDGET.text, tries_next=False)
    assert held(memory, "a", 110.0) is None


def test_next_pod_is_tried_while_a_refused_one_waits_at_a_hard_threshold() -> None:
    memory = after((100.0, "a", BUDGET), hard=True)
    assert held(memory, "a", 105.0, hard=True) == RefusedEviction(BUDGET.text, tries_next=True)
    assert held(memory, "b", 105.0, hard=True) is None


def test_refusals_grow_the_back_off_until_an_answer_ends_them() -> None:
    memory = after((0.0, "a", BUDGET), (10.0, "a", BUDGET), (30.0, "a", BUDGET))
    assert memory.refused["a"].until_s == 70.0
    assert after((0.0, "a", BUDGET), (10.0, "a", Answer(201))) == EvictionMemory()


def test_server_that_does_not_answer_holds_every_pod_back() -> None:
    memory = after((100.0, "a", Answer(401, text="HTTP 401")), hard=True)
    for uid in ("a", "b"):
        assert held(memory, uid, 100.5, hard=True) == RefusedEviction("HTTP 401", tries_next=False)
        assert held(memory, uid, 101.0, hard=True) is None


def test_pods_that_are_not_current_hold_every_pod_back() -> None:
    found = held(EvictionMemory(), "a", 1.0, answered_s=None)
    assert found is not None
    assert not found.tries_next


@pytest.mark.parametrize(
    ("specs", "now_s", "answered_s", "is_held"),
    [
        ((spec("a"),), 104.0, 104.0, True),
        ((spec("a"),), 106.0, 106.0, False),
        ((spec("a"),), 106.0, 101.0, True),
        ((spec("a", deleting=True),), 130.0, 130.0, True),
        ((), 130.0, 130.0, True),
        ((), 100.0 + UNKNOWN_S, 160.0, False),
    ],
    ids=["not shown yet", "unchanged", "outdated", "ending", "deleted", "expired"],
)
def test_no_other_pod_is_evicted_while_a_request_without_an_answer_may_have_taken_effect(
    specs: tuple[PodSpec, ...], now_s: float, answered_s: float, is_held: bool
) -> None:
    memory = after((100.0, "a", LOST), hard=True)
    assert (held(memory, "b", now_s, *specs, answered_s=answered_s, hard=True) is not None) is is_held


def test_same_pod_is_requested_again_after_a_lost_answer() -> None:
    assert held(after((100.0, "a", LOST)), "a", 101.0, spec("a", deleting=True)) is None


@pytest.mark.parametrize(
    ("given", "overridable"),
    [
        ([BUDGET], False),
        ([BUDGET, BUDGET], True),
        ([BUDGET, Answer(403)], False),
        ([Answer(403), BUDGET, BUDGET], True),
        ([BUDGET, BUDGET, LOST], False),
        ([BUDGET, BUDGET, Answer(201)], False),
    ],
)
def test_budget_is_overridable_after_it_alone_refused_a_pod_repeatedly(given: list[Answer], overridable: bool) -> None:
    memory = after(*((float(number), "a", each) for number, each in enumerate(given)), hard=True)
    assert memory.is_overridable("a") is overridable
    assert not memory.is_overridable("b")


@pytest.mark.parametrize("earlier", [Answer(409), LOST, Answer(504)], ids=["conflict", "no answer", "timeout"])
def test_refusal_that_an_earlier_request_may_have_caused_makes_no_budget_overridable(earlier: Answer) -> None:
    first = ((0.0, "a", earlier), (1.0, "a", BUDGET), (RESERVED_S - 1, "a", BUDGET))
    assert not after(*first, hard=True).is_overridable("a")
    later = ((RESERVED_S, "a", BUDGET), (RESERVED_S + 20, "a", BUDGET))
    assert after(*first, *later, hard=True).is_overridable("a")


def test_conflict_of_another_pod_does_not_reset_the_refusals_by_a_budget() -> None:
    answers = ((0.0, "a", BUDGET), (1.0, "b", Answer(409)), (2.0, "a", BUDGET))
    assert not after(*answers, hard=True).is_overridable("a")
    assert after(*answers, (RESERVED_S + 1, "a", BUDGET), hard=True).is_overridable("a")


def test_number_of_remembered_pods_is_bounded() -> None:
    memory = after(*((float(number), f"pod-{number}", BUDGET) for number in range(MAX_REMEMBERED + 5)))
    assert len(memory.refused) == MAX_REMEMBERED
    assert "pod-4" not in memory.refused
