"""State machine of the inhibitor lock: each event results in a new state and commands.

logind delays a shutdown while a process holds a delay lock. The state machine decides when to acquire and release the
lock, when to stop pods, and when to restart a logind that lost its bus connection. The state machine does no I/O: the
logind client and the inhibitor task report events and execute commands.

The open lock is closed only after a new lock is acquired, since logind refuses locks during a shutdown. The lock is not
released while pods are being stopped; the event :class:`PodsStopped` follows at the deadline of the run at the latest.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.shutdown.plan.planner import ShutdownBudget

RESTART_INTERVAL_S: Final = 300.0
"""Minimum seconds between two restarts of logind by the agent."""

ABANDONED_AFTER_S: Final = 60.0
"""Wait beyond logind's limit, in seconds, until an announced shutdown counts as abandoned without logind on the bus."""


class Stage(StrEnum):
    """Stage of the shutdown that logind has announced."""

    IDLE = "idle"
    CHECKING = "checking"
    STOPPING = "stopping"
    FINISHED = "finished"


class CommandKind(StrEnum):
    """Action of a command. The logind client executes ``ACQUIRE`` and ``RELEASE``, the inhibitor task the others."""

    ACQUIRE = "acquire"
    RELEASE = "release"
    REPORT_HELD = "report-held"
    REPORT_LOST = "report-lost"
    START_SHUTDOWN = "start-shutdown"
    CANCEL_SHUTDOWN = "cancel-shutdown"
    CLOSE_EARLIER = "close-earlier"
    STOP_PODS = "stop-pods"
    DELEGATE = "delegate"
    DISABLE = "disable"
    CHECK_LOGIND = "check-logind"
    RESTART_LOGIND = "restart-logind"


class Command(Record):
    """One action to execute, with its reason.

    Attributes:
        because: reason for the log; empty for kinds without a reason.
    """

    kind: CommandKind
    because: str = ""


class LogindState(Record):
    """State of the inhibitor lock as reported to operators.

    Attributes:
        held: whether logind lists the lock of the agent.
        because: reason why the lock is held or not held, without a full stop.
        preparing: whether a shutdown is in progress; ``None`` before the first report of logind.
        limit_us: ``InhibitDelayMaxUSec`` in microseconds; ``None`` before the first report of logind.
    """

    held: bool = False
    because: str = "not requested yet"
    preparing: bool | None = None
    limit_us: int | None = None

    def __str__(self) -> str:
        return f"inhibitor lock {'held' if self.held else 'not held'}: {self.because}"


class InhibitorState(Record):
    """State of the inhibitor lock and of the current shutdown.

    Attributes:
        logind: state as reported to operators.
        connected: whether logind is reachable on the bus.
        logind_missing: whether the bus is connected but logind is not on the bus.
        has_lock: whether a file descriptor of a lock is open, even if logind does not list the lock.
        released_because: reason of the lock release, empty without a release; after a release, no lock is acquired
            until the shutdown is cancelled.
        stage: progress of the current shutdown.
        has_earlier: whether an earlier run of the agent in this boot left a shutdown to resume or close.
        restarted_s: time of the last restart of logind by the agent in monotonic seconds; ``None`` before the first
            restart.
        abandoned_at_s: monotonic seconds from which an announced shutdown counts as abandoned if logind is not on the
            bus; ``None`` while logind is on the bus or pods are being stopped.
    """

    logind: LogindState = LogindState()
    connected: bool = False
    logind_missing: bool = False
    has_lock: bool = False
    released_because: str = ""
    stage: Stage = Stage.IDLE
    has_earlier: bool = False
    restarted_s: float | None = None
    abandoned_at_s: float | None = None

    @property
    def needs_lock(self) -> bool:
        """Whether to call ``Inhibit`` to acquire a lock.

        Without a shutdown in progress, an open lock is replaced, since a restarted logind may not list it. During a
        shutdown logind grants no locks, so the open lock is kept.
        """
        return self.connected and not self.released_because and not (self.logind.preparing and self.has_lock)

    @property
    def is_stopping_pods(self) -> bool:
        """Whether pods are being stopped, or the start of stopping pods is being checked."""
        return self.stage in (Stage.CHECKING, Stage.STOPPING)

    @property
    def may_shut_down(self) -> bool:
        """Whether a shutdown was announced and not cancelled, as far as known: by logind, or to an earlier run."""
        return self.has_earlier if self.logind.preparing is None else self.logind.preparing

    @property
    def is_lock_missing(self) -> bool:
        """Whether the lock is not held although graceful shutdown is enabled, or was released for a shutdown."""
        return not self.logind.held and (not self.released_because or self.may_shut_down)


# Events of the state machine, as input of :func:`step`.


class Connecting(Record):
    """A connection to the bus is being opened."""


class BusConnected(Record):
    """The bus is connected; logind was not found on the bus yet."""


class LogindConnected(Record):
    """logind is on the bus."""


class ConnectionLost(Record):
    """The bus connection or the lock was lost, or a call failed; the connection is closed."""

    because: str


class LogindDisconnected(Record):
    """logind disconnected from the bus; the agent is still connected to the bus."""


class DelayChanged(Record):
    """logind reported ``InhibitDelayMaxUSec``."""

    limit_us: int


class PrepareForShutdown(Record):
    """logind reported the start or the end of a shutdown, by the ``PrepareForShutdown`` signal or property."""

    active: bool


class LockAcquired(Record):
    """``Inhibit`` returned the file descriptor of a lock."""


class LockListed(Record):
    """logind lists the lock of the agent in its inhibitors."""


class LockRefused(Record):
    """logind refused a lock because of a shutdown in progress."""


class ShutdownChecked(Record):
    """The role and the shutdown budget were read after the start of a shutdown.

    Attributes:
        disabled_because: reason not to stop pods, such as a kubelet that manages the node; empty to stop pods.
    """

    disabled_because: str
    budget: ShutdownBudget


class PodsStopped(Record):
    """All pods have terminated, the shutdown time is over, or stopping pods failed."""

    because: str


class Disabled(Record):
    """The settings or the role disable graceful shutdown."""

    because: str


class AgentStopping(Record):
    """The agent is stopping; the next run of the agent resumes a shutdown in progress."""


class LockOverdue(Record):
    """The lock was not acquired within the expected time.

    Attributes:
        now_s: monotonic seconds.
        limit_s: logind's limit; infinite without a limit.
    """

    now_s: float
    limit_s: float


class LogindUnitChecked(Record):
    """systemd reported the states of the bus unit and the logind unit.

    Attributes:
        runs_off_bus: whether both units are running although logind is not on the bus, and the system is not stopping;
            only a restart reconnects logind then.
    """

    runs_off_bus: bool
    now_s: float


Event = (
    Connecting
    | BusConnected
    | LogindConnected
    | ConnectionLost
    | LogindDisconnected
    | DelayChanged
    | PrepareForShutdown
    | LockAcquired
    | LockListed
    | LockRefused
    | ShutdownChecked
    | PodsStopped
    | Disabled
    | AgentStopping
    | LockOverdue
    | LogindUnitChecked
)

Transition = tuple[InhibitorState, tuple[Command, ...]]


def step(state: InhibitorState, event: Event) -> Transition:
    """Return the state after an event, and the commands to execute in this order."""
    match event:
        case PrepareForShutdown(active):
            return _prepare(state, active=active)
        case ShutdownChecked():
            return _on_checked(state, event)
        case PodsStopped() | Disabled() | AgentStopping():
            return _on_agent_event(state, event)
        case LockAcquired() | LockListed() | LockRefused():
            return _on_lock_event(state, event)
        case LockOverdue() | LogindUnitChecked():
            return _on_overdue(state, event)
        case _:
            return _on_connection_event(state, event)


def _on_connection_event(
    state: InhibitorState,
    event: Connecting | BusConnected | LogindConnected | ConnectionLost | LogindDisconnected | DelayChanged,
) -> Transition:
    match event:
        case Connecting():
            return replace(state, connected=False, logind_missing=False), ()
        case BusConnected():
            return replace(state, connected=False, logind_missing=True), ()
        case LogindConnected():
            after = replace(state, connected=True, logind_missing=False, abandoned_at_s=None)
            return after, (Command(CommandKind.ACQUIRE),)
        case DelayChanged(limit_us):
            return replace(state, logind=replace(state.logind, limit_us=limit_us)), ()
        case ConnectionLost(because):
            return _lose(replace(state, connected=False), because)
        case LogindDisconnected():
            return _lose(replace(state, connected=False, logind_missing=True), "logind disconnected from the bus")


def _on_lock_event(state: InhibitorState, event: LockAcquired | LockListed | LockRefused) -> Transition:
    if isinstance(event, LockRefused):
        return _not_held(state, "shutdown in progress; logind grants no lock during a shutdown"), ()
    if isinstance(event, LockAcquired):
        if state.released_because:  # released while the call was pending
            return replace(state, has_lock=False), (Command(CommandKind.RELEASE, state.released_because),)
        return replace(state, has_lock=True), ()
    if not state.has_lock or not state.connected:  # released or lost while the list was being read
        return state, ()
    after = replace(state, logind=replace(state.logind, held=True, because="logind lists the lock"))
    if state.logind.held:
        return after, ()
    commands = [Command(CommandKind.REPORT_HELD, after.logind.because)]
    if state.has_earlier and not state.logind.preparing:  # the shutdown was cancelled while no agent was running
        commands.append(Command(CommandKind.CLOSE_EARLIER))
        after = replace(after, has_earlier=False, stage=Stage.IDLE)
    return after, tuple(commands)


def _prepare(state: InhibitorState, *, active: bool) -> Transition:
    was_active = state.logind.preparing
    after = replace(state, logind=replace(state.logind, preparing=active))
    if active and not was_active:
        return replace(after, stage=Stage.CHECKING), (Command(CommandKind.START_SHUTDOWN),)
    if was_active and not active:
        # logind grants locks again, and a restarted logind may not list the open lock.
        after = replace(after, released_because="", stage=Stage.IDLE, has_earlier=False)
        return after, (Command(CommandKind.ACQUIRE), Command(CommandKind.CANCEL_SHUTDOWN))
    return after, ()


def _on_checked(state: InhibitorState, event: ShutdownChecked) -> Transition:
    if state.stage is not Stage.CHECKING:  # the shutdown was cancelled during the check
        return state, ()
    disabled_because = event.disabled_because or state.released_because  # logind does not wait without a lock
    if disabled_because:
        return _release(state, disabled_because)
    if event.budget.delegated_because:
        after, released = _release(state, "logind grants too little time to stop pods")
        return after, (Command(CommandKind.DELEGATE, event.budget.delegated_because), *released)
    return replace(state, stage=Stage.STOPPING, has_earlier=False), (Command(CommandKind.STOP_PODS),)


def _on_agent_event(state: InhibitorState, event: PodsStopped | Disabled | AgentStopping) -> Transition:
    match event:
        case PodsStopped(because):
            return _release(state, because) if state.is_stopping_pods else (state, ())
        case Disabled(because):
            if state.is_stopping_pods:  # a shutdown in progress is completed first
                return state, ()
            after, released = _release(state, because)
            return after, (*(released if state.logind.held else ()), Command(CommandKind.DISABLE, because))
        case AgentStopping():
            because = state.released_because or "the agent is stopping"
            return _not_held(replace(state, has_lock=False), because), (Command(CommandKind.RELEASE, because),)


def _on_overdue(state: InhibitorState, event: LockOverdue | LogindUnitChecked) -> Transition:
    if not state.is_lock_missing or not state.logind_missing or state.is_stopping_pods:
        return state, ()
    if state.may_shut_down:  # a restart of logind cancels the shutdown
        if state.abandoned_at_s is None and isinstance(event, LockOverdue):
            state = replace(state, abandoned_at_s=event.now_s + event.limit_s + ABANDONED_AFTER_S)
        if state.abandoned_at_s is None or event.now_s < state.abandoned_at_s:
            return state, ()
    if state.restarted_s is not None and event.now_s - state.restarted_s < RESTART_INTERVAL_S:
        return state, ()
    if isinstance(event, LockOverdue):
        return state, (Command(CommandKind.CHECK_LOGIND),)
    if not event.runs_off_bus:
        return state, ()
    return replace(state, restarted_s=event.now_s), (Command(CommandKind.RESTART_LOGIND),)


def _lose(state: InhibitorState, because: str) -> Transition:
    after = state if state.released_because else _not_held(state, because)
    return after, (Command(CommandKind.REPORT_LOST, because),) if state.logind.held else ()


def _release(state: InhibitorState, because: str) -> Transition:
    stage = Stage.FINISHED if state.is_stopping_pods else state.stage
    after = _not_held(replace(state, has_lock=False, released_because=because, stage=stage), because)
    return after, (Command(CommandKind.RELEASE, because),)


def _not_held(state: InhibitorState, because: str) -> InhibitorState:
    return replace(state, logind=replace(state.logind, held=False, because=because))
