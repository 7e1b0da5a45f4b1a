"""Outcomes of pods at a shutdown, from remaining processes and exit codes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.model.stops import PodOutcome
from nodeagent.shutdown.plan.planner import ContainerEnd, exit_note, outcome_summary, pod_outcome

ENDED, KILLED = ContainerEnd(ended=True, exit_code=0), ContainerEnd(ended=True, killed=True, exit_code=137)


@pytest.mark.parametrize(
    ("containers", "outcome"),
    [
        ([], PodOutcome.STOPPED),
        ([ENDED], PodOutcome.STOPPED),
        ([ENDED, KILLED], PodOutcome.KILLED),
        ([ContainerEnd(ended=True, killed=True, exit_code=0)], PodOutcome.STOPPED),
        ([ContainerEnd(ended=True, killed=True)], PodOutcome.KILLED),
        ([ContainerEnd(ended=True)], PodOutcome.STOPPED),
        ([ContainerEnd(ended=True, exit_code=143)], PodOutcome.STOPPED),
        ([KILLED, ContainerEnd(ended=False, killed=True)], PodOutcome.FAILED),
        ([ContainerEnd(ended=True, killed=True, exit_code=255)], PodOutcome.KILLED),
        ([ContainerEnd(ended=True, exit_code=255)], PodOutcome.STOPPED),
    ],
    ids=[
        "no-containers",
        "exit-0",
        "one-killed",
        "exit-just-before-kill",
        "kill-without-exit-code",
        "no-exit-code",
        "terminated",
        "running",
        "kill-during-an-outage-of-containerd",
        "exit-255",
    ],
)
def test_outcome_of_a_pod(containers: list[ContainerEnd], outcome: PodOutcome) -> None:
    assert pod_outcome(containers) is outcome


ENDS = st.lists(
    st.builds(
        ContainerEnd, ended=st.booleans(), killed=st.booleans(), exit_code=st.one_of(st.none(), st.integers(0, 255))
    )
)


@given(ENDS)
def test_pod_has_failed_exactly_while_a_container_runs(containers: list[ContainerEnd]) -> None:
    outcome = pod_outcome(containers)
    assert outcome is not PodOutcome.STOPPING
    assert (outcome is PodOutcome.FAILED) == any(not each.ended for each in containers)


@given(ENDS)
def test_order_of_containers_does_not_change_the_outcome(containers: list[ContainerEnd]) -> None:
    assert pod_outcome(containers) is pod_outcome(containers[::-1])
    assert exit_note(containers) == exit_note(containers[::-1])


@given(st.lists(st.one_of(st.none(), st.sampled_from(PodOutcome))))
def test_summary_counts_every_pod_once(outcomes: list[PodOutcome | None]) -> None:
    numbers = [int(part.split()[0]) for part in outcome_summary(outcomes).split(", ") if part[0].isdigit()]
    assert sum(numbers) == len(outcomes)


def test_summary_states_what_is_true() -> None:
    outcomes = [PodOutcome.STOPPED] * 38 + [PodOutcome.KILLED, PodOutcome.FAILED]
    assert outcome_summary(outcomes) == "38 stopped, 1 killed, 1 still running"
    assert outcome_summary([]) == "no pods"
