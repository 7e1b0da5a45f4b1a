"""Decision reasons as text, and totals and order of plans."""

from __future__ import annotations

from string import Formatter

import pytest
from hypothesis import given, strategies as st

from nodeagent.model.decision import Decision, ItemKind, Plan, Reason, ReasonCode, Verdict, sort_by_name
from nodeagent.model.reason_codes import SENTENCES
from nodeagent.record import replace
from tests.unit.builders import MIB, NOW


@pytest.mark.parametrize("code", list(ReasonCode))
def test_every_code_has_a_sentence(code: ReasonCode) -> None:
    fields = {name for _, name, _, _ in Formatter().parse(SENTENCES[code]) if name}
    sentence = Reason(code, dict.fromkeys(fields, "x")).sentence
    assert sentence
    assert not sentence.endswith(".")


def test_details_are_shown_by_their_unit() -> None:
    reason = Reason(ReasonCode.TOO_YOUNG, {"age_s": 30.0, "minimum_s": 120, "eligible_at": NOW})
    assert reason.sentence == "on this node for 30s, less than the minimum age 2m; eligible from 2026-03-01T12:00:00Z"
    assert (
        Reason(ReasonCode.LIMIT_BYTES_PER_PASS, {"limit_bytes": MIB}).sentence
        == "exceeds the limit of 1.00 MiB per pass"
    )


def test_plan_reports_freed_bytes_and_shortfall() -> None:
    gone, kept = (
        Decision(ItemKind.IMAGE, verdict.value, "x", verdict, Reason(ReasonCode.PINNED), 5)
        for verdict in (Verdict.REMOVE, Verdict.KEEP)
    )
    unknown = replace(gone, frees_bytes=None)
    plan = Plan("images", NOW, (gone, unknown, kept), wanted_bytes=12)
    assert plan.removals == (gone, unknown)
    assert (plan.frees_bytes, plan.shortfall_bytes) == (5, 7)


def test_reasons_and_decisions_cannot_be_changed() -> None:
    reason = Reason(ReasonCode.PINNED)
    with pytest.raises(AttributeError):
        reason.code = ReasonCode.RUNNING  # type: ignore[misc]
    with pytest.raises(TypeError):
        reason.details["x"] = 1  # type: ignore[index]


@given(st.lists(st.tuples(st.sampled_from(["a", "a/b", "b", ""]), st.text("xyz", max_size=2)), max_size=12))
def test_decisions_are_sorted_by_name_and_those_of_one_name_by_id(names: list[tuple[str, str]]) -> None:
    decisions = [
        Decision(ItemKind.CONTAINER, item, name, Verdict.KEEP, Reason(ReasonCode.RUNNING)) for name, item in names
    ]
    sort_by_name(decisions)
    assert [(each.name, each.id) for each in decisions] == sorted(names)
