"""Final outcome of a pod at a shutdown, derived from the outcomes of its containers."""

from __future__ import annotations

import pytest

from nodeagent.model.stops import PodOutcome, ShutdownPod
from nodeagent.shutdown.recorder import ContainerStop, PodRecord


def concluded(stop: ContainerStop, *, is_overdue: bool = False) -> PodRecord:
    record = PodRecord(ShutdownPod("uid", "shop", "pod"), "", 0, "default", 0, is_overdue=is_overdue)
    record.containers[stop.id] = stop
    record.conclude()
    return record


@pytest.mark.parametrize(
    ("signalled_at_ms", "requested", "is_overdue", "detail"),
    [
        (100, False, False, ""),
        (None, True, False, "killed without a confirmed TERM"),
        (None, True, True, "ended after the granted time; killed without a confirmed TERM"),
        (None, False, False, "no TERM"),
    ],
    ids=["confirmed", "unconfirmed", "unconfirmed-and-late", "not-sent"],
)
def test_killed_pod_states_that_no_term_was_sent_or_confirmed(
    signalled_at_ms: int | None, requested: bool, is_overdue: bool, detail: str
) -> None:
    stop = ContainerStop("c", signalled_at_ms, requested=requested, ended_at_ms=4000, killed=True, exit_code=137)
    record = concluded(stop, is_overdue=is_overdue)
    assert (record.outcome, record.detail) == (PodOutcome.KILLED, detail)


def test_pod_that_ended_by_itself_before_a_confirmed_term_states_nothing() -> None:
    record = concluded(ContainerStop("c", ended_at_ms=100, exit_code=0))
    assert (record.outcome, record.detail) == (PodOutcome.STOPPED, "")


@pytest.mark.parametrize(
    ("requested", "detail"), [(True, "still running; refused"), (False, "still running; no TERM; refused")]
)
def test_running_pod_states_that_no_term_was_sent(requested: bool, detail: str) -> None:
    record = concluded(ContainerStop("c", requested=requested, problem="refused"))
    assert (record.outcome, record.detail) == (PodOutcome.FAILED, detail)


@pytest.mark.parametrize(
    ("inferred", "reported_ms", "ended_ms"),
    [(True, 1500, 1500), (True, 99_000, 34_000), (True, -500, 1000), (False, 1500, 34_000)],
    ids=["reported", "clock-ahead", "clock-behind", "observed"],
)
def test_end_without_an_observation_has_the_time_that_the_runtime_reports(
    inferred: bool, reported_ms: int, ended_ms: int
) -> None:
    stop = ContainerStop("c", 900, seen_at_ms=1000, ended_at_ms=34_000, end_inferred=inferred)
    stop.infer_end(reported_ms)
    assert stop.ended_at_ms == ended_ms
