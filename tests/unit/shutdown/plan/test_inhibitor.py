"""State machine of the inhibitor lock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.shutdown.plan.inhibitor import (
    ABANDONED_AFTER_S,
    RESTART_INTERVAL_S,
    AgentStopping,
    BusConnected,
    Command,
    CommandKind,
    Connecting,
    ConnectionLost,
    DelayChanged,
    Disabled,
    Event,
    InhibitorState,
    LockAcquired,
    LockListed,
    LockOverdue,
    LockRefused,
    LogindConnected,
    LogindDisconnected,
    LogindUnitChecked,
    PodsStopped,
    PrepareForShutdown,
    ShutdownChecked,
    Stage,
    step,
)
from nodeagent.shutdown.plan.planner import DelayLimit, shutdown_budget, two_bands

if TYPE_CHECKING:
    from collections.abc import Iterable

PHASES = two_bands(30, 10)
GRANTED = shutdown_budget(PHASES, DelayLimit(60_000_000, "/etc/x.conf"))
NO_TIME = shutdown_budget(PHASES, DelayLimit(0, "/etc/x.conf"))
KUBELET = "a kubelet manages this node"
CONNECT = (Connecting(), BusConnected(), LogindConnected())
ACQUIRE = (DelayChanged(60_000_000), PrepareForShutdown(active=False), LockAcquired(), LockListed())


def play(events: Iterable[Event], state: InhibitorState | None = None) -> tuple[InhibitorState, list[CommandKind]]:
    """Return the state after the events, and the kinds of all commands in order."""
    state, kinds = state or InhibitorState(), []
    for event in events:
        state, commands = step(state, event)
        kinds += [each.kind for each in commands]
    return state, kinds


def acquire(state: InhibitorState) -> tuple[InhibitorState, list[CommandKind]]:
    """Apply the events of a successful ``ACQUIRE`` while no shutdown is in progress.

    Returns:
        The state, and the kinds of all commands in order.
    """
    state, kinds = play((DelayChanged(5_000_000), PrepareForShutdown(active=False)), state)
    state, more = play((LockAcquired(), LockListed()) if state.needs_lock else (LockListed(),), state)
    return state, kinds + more


HELD = play((*CONNECT, *ACQUIRE))[0]
CHECKING = play((PrepareForShutdown(active=True),), HELD)[0]
STOPPING = play((ShutdownChecked("", GRANTED),), CHECKING)[0]
FINISHED = play((PodsStopped("every pod has ended"),), STOPPING)[0]


# --- acquisition and loss of a lock


def test_lock_is_requested_once_logind_is_connected_and_held_once_listed() -> None:
    state, kinds = play(CONNECT)
    assert (kinds, state.needs_lock, state.logind.held) == ([CommandKind.ACQUIRE], True, False)
    state, kinds = play(ACQUIRE, state)
    assert kinds == [CommandKind.REPORT_HELD]
    assert str(state.logind) == "inhibitor lock held: logind lists the lock"


def test_open_lock_is_kept_during_a_shutdown_and_replaced_outside_one() -> None:
    assert HELD.needs_lock
    assert not CHECKING.needs_lock


def test_listed_lock_is_reported_once() -> None:
    assert play((LockListed(), LockListed()), HELD) == (HELD, [])


def test_refused_lock_is_explained() -> None:
    state, kinds = play((*CONNECT, PrepareForShutdown(active=True), LockRefused()))
    assert kinds == [CommandKind.ACQUIRE, CommandKind.START_SHUTDOWN]
    assert state.logind.because == "shutdown in progress; logind grants no lock during a shutdown"


@pytest.mark.parametrize(
    ("event", "because"),
    [
        (ConnectionLost("the bus was lost"), "the bus was lost"),
        (LogindDisconnected(), "logind disconnected from the bus"),
    ],
)
def test_lost_lock_is_reported_once(event: Event, because: str) -> None:
    state, kinds = play((event, event), HELD)
    assert (kinds, state.logind.held, state.logind.because) == ([CommandKind.REPORT_LOST], False, because)


# --- during a shutdown


def test_pods_are_stopped_at_the_signal_and_the_lock_is_released_after_them() -> None:
    assert CHECKING.stage is Stage.CHECKING
    state, commands = step(CHECKING, ShutdownChecked("", GRANTED))
    assert commands == (Command(CommandKind.STOP_PODS),)
    state, commands = step(state, PodsStopped("every pod has ended"))
    assert commands == (Command(CommandKind.RELEASE, "every pod has ended"),)
    assert (state.stage, state.needs_lock, state.logind.because) == (Stage.FINISHED, False, "every pod has ended")


def test_too_little_time_delegates_the_shutdown_and_releases_the_lock() -> None:
    state, commands = step(CHECKING, ShutdownChecked("", NO_TIME))
    assert [each.kind for each in commands] == [CommandKind.DELEGATE, CommandKind.RELEASE]
    assert commands[0].because == NO_TIME.delegated_because
    assert state.stage is Stage.FINISHED


def test_kubelet_found_at_the_signal_releases_the_lock() -> None:
    state, commands = step(CHECKING, ShutdownChecked(KUBELET, GRANTED))
    assert commands == (Command(CommandKind.RELEASE, KUBELET),)
    assert state.stage is Stage.FINISHED


@pytest.mark.parametrize("state", [CHECKING, STOPPING], ids=["checking", "stopping"])
def test_kubelet_found_during_a_shutdown_does_not_interrupt_it(state: InhibitorState) -> None:
    assert step(state, Disabled(KUBELET)) == (state, ())


def test_shutdown_reported_by_signal_and_property_is_applied_once() -> None:
    assert play((PrepareForShutdown(active=True),), CHECKING) == (CHECKING, [])


@pytest.mark.parametrize("state", [CHECKING, STOPPING, FINISHED], ids=["checking", "stopping", "finished"])
def test_cancelled_shutdown_acquires_the_lock_again(state: InhibitorState) -> None:
    after, kinds = play((PrepareForShutdown(active=False),), state)
    assert kinds == [CommandKind.ACQUIRE, CommandKind.CANCEL_SHUTDOWN]
    assert (after.stage, after.needs_lock) == (Stage.IDLE, True)


@pytest.mark.parametrize("event", [ShutdownChecked("", GRANTED), PodsStopped("every pod has ended")])
def test_result_after_the_cancellation_is_ignored(event: Event) -> None:
    assert step(HELD, event) == (HELD, ())


def test_lock_acquired_after_its_release_is_closed() -> None:
    state, kinds = play((*CONNECT, Disabled("disabled")))
    assert kinds == [CommandKind.ACQUIRE, CommandKind.DISABLE]
    state, kinds = play((LockAcquired(), LockListed()), state)
    assert (kinds, state.has_lock, state.logind.held) == ([CommandKind.RELEASE], False, False)


def test_earlier_shutdown_is_closed_when_logind_does_not_continue_it() -> None:
    state, kinds = play((*CONNECT, *ACQUIRE), InhibitorState(has_earlier=True))
    assert kinds == [CommandKind.ACQUIRE, CommandKind.REPORT_HELD, CommandKind.CLOSE_EARLIER]
    assert not state.has_earlier


def test_earlier_shutdown_is_resumed_with_the_adopted_lock() -> None:
    resumed = (*CONNECT, PrepareForShutdown(active=True), LockListed(), ShutdownChecked("", GRANTED))
    state, kinds = play(resumed, InhibitorState(has_lock=True, has_earlier=True))
    assert kinds == [
        CommandKind.ACQUIRE,
        CommandKind.START_SHUTDOWN,
        CommandKind.REPORT_HELD,
        CommandKind.STOP_PODS,
    ]
    assert state.has_lock


# --- logind disconnected from the bus


LIMIT_S = 60.0


def test_logind_off_the_bus_is_restarted_once_per_interval() -> None:
    state, _ = play((LogindDisconnected(),), HELD)
    assert step(state, LockOverdue(1.0, LIMIT_S))[1] == (Command(CommandKind.CHECK_LOGIND),)
    assert step(state, LogindUnitChecked(runs_off_bus=False, now_s=1.0)) == (state, ())
    state, commands = step(state, LogindUnitChecked(runs_off_bus=True, now_s=1.0))
    assert commands == (Command(CommandKind.RESTART_LOGIND),)
    assert step(state, LockOverdue(RESTART_INTERVAL_S, LIMIT_S)) == (state, ())
    assert step(state, LockOverdue(1.0 + RESTART_INTERVAL_S, LIMIT_S))[1] == (Command(CommandKind.CHECK_LOGIND),)


@pytest.mark.parametrize(
    "state",
    [
        InhibitorState(),
        HELD,
        FINISHED,
        play((ConnectionLost("no bus"),), HELD)[0],
        play((LogindDisconnected(),), CHECKING)[0],
        play((LogindDisconnected(),), STOPPING)[0],
    ],
    ids=["not-connected", "held", "released", "bus-lost", "shutdown-announced", "pods-being-stopped"],
)
def test_logind_is_not_restarted_for_another_reason(state: InhibitorState) -> None:
    for now_s in (1.0, 1e6):
        assert step(state, LockOverdue(now_s, LIMIT_S)) == (state, ())


MISSING_AFTER_PODS = play((LogindDisconnected(),), FINISHED)[0]
MISSING_AFTER_CRASH = play((Connecting(), BusConnected()), InhibitorState(has_lock=True, has_earlier=True))[0]


@pytest.mark.parametrize("state", [MISSING_AFTER_PODS, MISSING_AFTER_CRASH], ids=["after-the-pods", "after-a-crash"])
def test_logind_that_never_returns_from_a_shutdown_is_restarted_well_after_its_limit(state: InhibitorState) -> None:
    check, off_bus = (Command(CommandKind.CHECK_LOGIND),), (Command(CommandKind.RESTART_LOGIND),)
    state, commands = step(state, LockOverdue(1.0, LIMIT_S))
    assert commands == ()
    latest_s = 1.0 + LIMIT_S + ABANDONED_AFTER_S
    assert step(state, LockOverdue(latest_s - 0.1, LIMIT_S)) == (state, ())
    assert step(state, LogindUnitChecked(runs_off_bus=True, now_s=latest_s - 0.1)) == (state, ())
    assert step(state, LockOverdue(latest_s, LIMIT_S)) == (state, check)
    assert step(state, LogindUnitChecked(runs_off_bus=False, now_s=latest_s)) == (state, ()), "or is being stopped"
    assert step(state, LogindUnitChecked(runs_off_bus=True, now_s=latest_s))[1] == off_bus


def test_shutdown_with_a_logind_missing_from_the_bus_is_never_abandoned_without_a_limit() -> None:
    state, _ = step(MISSING_AFTER_PODS, LockOverdue(1.0, math.inf))
    assert step(state, LockOverdue(1e9, math.inf)) == (state, ())


def test_wait_for_a_logind_missing_from_the_bus_restarts_once_it_was_there() -> None:
    state, _ = play((LockOverdue(1.0, LIMIT_S), *CONNECT, LogindDisconnected()), MISSING_AFTER_PODS)
    state, commands = step(state, LockOverdue(1.0 + LIMIT_S + ABANDONED_AFTER_S, LIMIT_S))
    assert commands == ()


def test_shutdown_without_effect_is_cancelled_by_the_restarted_logind() -> None:
    state, kinds = play((*CONNECT, PrepareForShutdown(active=False)), MISSING_AFTER_PODS)
    assert kinds == [CommandKind.ACQUIRE, CommandKind.ACQUIRE, CommandKind.CANCEL_SHUTDOWN]
    assert (state.may_shut_down, state.needs_lock) == (False, True)


# --- properties of all event sequences

TIMES_S = st.floats(0, 1e6)
BUDGETS = st.sampled_from([GRANTED, NO_TIME])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.sampled_from(
        [
            *CONNECT,
            ConnectionLost("lost"),
            LogindDisconnected(),
            LockAcquired(),
            LockListed(),
            LockRefused(),
            PodsStopped("stopped"),
            Disabled("disabled"),
            AgentStopping(),
        ]
    ),
    st.integers(0, 2**64 - 1).map(DelayChanged),
    st.booleans().map(PrepareForShutdown),
    st.tuples(st.sampled_from(["", KUBELET]), BUDGETS).map(lambda each: ShutdownChecked(*each)),
    st.tuples(TIMES_S, TIMES_S).map(lambda each: LockOverdue(*each)),
    st.tuples(st.booleans(), TIMES_S).map(lambda each: LogindUnitChecked(*each)),
)
HISTORIES = st.lists(EVENTS, max_size=30)


@given(HISTORIES, EVENTS)
def test_lock_is_not_released_while_pods_are_being_stopped(history: list[Event], event: Event) -> None:
    before, _ = play(history)
    after, kinds = play((event,), before)
    if before.stage is Stage.STOPPING and not isinstance(event, PodsStopped | AgentStopping):
        assert CommandKind.RELEASE not in kinds
        assert after.has_lock >= before.has_lock
    if CommandKind.RELEASE in kinds:
        assert not after.has_lock
        assert not after.logind.held


@given(HISTORIES)
def test_lock_is_acquired_once_logind_is_connected_again(history: list[Event]) -> None:
    state, _ = play((*history, PrepareForShutdown(active=True), PrepareForShutdown(active=False), LogindDisconnected()))
    assert not state.logind.held
    state, kinds = play(CONNECT, state)
    assert CommandKind.ACQUIRE in kinds
    state, kinds = acquire(state)
    assert CommandKind.REPORT_HELD in kinds
    assert state.logind.held


@given(HISTORIES)
def test_lock_is_acquired_again_after_a_cancelled_shutdown(history: list[Event]) -> None:
    state, _ = play((*history, LogindConnected(), PrepareForShutdown(active=True)))
    state, kinds = play((PrepareForShutdown(active=False),), state)
    assert kinds == [CommandKind.ACQUIRE, CommandKind.CANCEL_SHUTDOWN]
    state, _ = acquire(state)
    assert (state.logind.held, state.stage) == (True, Stage.IDLE)


@given(HISTORIES, st.integers(0, 1_999_999), st.sampled_from(["", KUBELET]))
def test_no_pod_is_stopped_at_the_signal_without_granted_time(
    history: list[Event], limit_us: int, disabled_because: str
) -> None:
    before, _ = play(history)
    budget = shutdown_budget(PHASES, DelayLimit(limit_us))
    after, kinds = play((ShutdownChecked(disabled_because, budget),), before)
    assert CommandKind.STOP_PODS not in kinds
    if before.stage is Stage.CHECKING:
        assert kinds[-1] is CommandKind.RELEASE
        assert after.stage is Stage.FINISHED


@given(HISTORIES)
def test_pods_are_stopped_at_most_once_per_announced_shutdown(history: list[Event]) -> None:
    _, kinds = play(history)
    starts = 0
    for kind in kinds:
        if kind is CommandKind.START_SHUTDOWN:
            starts = 1
        elif kind is CommandKind.STOP_PODS:
            assert starts == 1
            starts = 0


@given(HISTORIES)
def test_held_lock_is_open_and_a_released_one_is_not_requested(history: list[Event]) -> None:
    state, _ = play(history)
    if state.logind.held:
        assert state.has_lock
        assert state.connected
        assert not state.released_because
    if state.released_because:
        assert not state.needs_lock


@given(HISTORIES)
def test_restarts_of_logind_keep_their_interval(history: list[Event]) -> None:
    state, restarted_s = InhibitorState(), None
    for event in history:
        state, commands = step(state, event)
        if Command(CommandKind.RESTART_LOGIND) in commands:
            assert isinstance(event, LogindUnitChecked)
            assert restarted_s is None or event.now_s - restarted_s >= RESTART_INTERVAL_S
            restarted_s = event.now_s


@given(HISTORIES)
def test_logind_is_not_restarted_while_pods_are_being_stopped(history: list[Event]) -> None:
    state = InhibitorState()
    for event in history:
        before = state
        state, commands = step(state, event)
        if Command(CommandKind.RESTART_LOGIND) in commands:
            assert not before.is_stopping_pods
