"""Final outcome of a pod at a shutdown, derived from the outcomes of its containers."""

from __future__ import annotations

import pytest

from nodeagent.act.shutdown.pod_record import ContainerStop, PodRecord
from nodeagent.model import PodOutcome, ShutdownPod


def concluded(stop: ContainerStop, *, is_overdue: bool = False) -> PodRecord:
    record = PodRecord(ShutdownPod("uid", "shop", "pod"), "", 0, "default", 0, is_overdue=is_overdue)
    record.containers[stop.id] = stop
    record.conclude()
    return record


@pytest.mark.parametrize(
    ("signalled_at_ms", "is_overdue", "detail"),
    [
        (100, False, ""),
        (None, False, "killed without a confirmed TERM"),
        (None, True, "ended after the granted time; killed without a confirmed TERM"),
    ],
    ids=["confirmed", "unconfirmed", "unconfirmed-and-late"],
)
def test_killed_pod_states_that_no_term_was_confirmed(
    signalled_at_ms: int | None, is_overdue: bool, detail: str
) -> None:
    stop = ContainerStop("c", signalled_at_ms, ended_at_ms=4000, killed=True, exit_code=137)
    record = concluded(stop, is_overdue=is_overdue)
    assert (record.outcome, record.detail) == (PodOutcome.KILLED, detail)


def test_pod_that_ended_by_itself_before_a_confirmed_term_states_nothing() -> None:
    record = concluded(ContainerStop("c", ended_at_ms=100, exit_code=0))
    assert (record.outcome, record.detail) == (PodOutcome.STOPPED, "")
