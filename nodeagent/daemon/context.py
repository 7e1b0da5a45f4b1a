"""Daemon context: the state that the loops and tasks of one daemon share, and the effect of a reload."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.eviction.plan.state import EvictionState
from nodeagent.loops.passes import LoopStatuses, PassLock, ShutdownAnnouncement, wait_for_any
from nodeagent.loops.reload_grace import BY_RELOAD, ReloadGrace, StoredMode, grace_needed_s
from nodeagent.pods.role import RoleWatch
from nodeagent.pods.watched import WatchedPods
from nodeagent.record import Record
from nodeagent.runtime.cri import DecodedLists
from nodeagent.telemetry.counters import Counters
from nodeagent.trend.recorder import TrendState
from nodeagent.units import Clock, format_bytes

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.eviction.plan.preview import PreviewedEviction
    from nodeagent.eviction.plan.thresholds import ThresholdStatus
    from nodeagent.gc.agent import Agent
    from nodeagent.model.decision import Decision
    from nodeagent.settings.settings import Settings

_SWAP_POLL_S: Final = 0.2
_NO_ANSWER: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


class DaemonTask(Protocol):
    """A task that the supervisor runs until the daemon stops or the agent is replaced."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run the task; return soon after ``stop`` is set.

        An exception that escapes ends the daemon: a task logs the errors from which it can recover, and continues.
        """


@dataclass
class DaemonContext:
    """State shared by the loops and tasks.

    A reload composes a new agent, and with it every task that serves one agent. State that outlives a reload, such as
    the eviction state, is kept here. The class has more than ten attributes, since tasks communicate only through this
    object and grouped attributes would only add indirection.

    Attributes:
        settings: settings in force.
        stop: set when the daemon stops.
        loop_statuses: status of each loop and task.
        pass_lock: acquired by every pass.
        agent: agent in force; ``None`` while none is composed.
        wake: event of each loop by name; set to start the next pass of the loop immediately.
        triggered: names of the loops whose next pass was requested by a trigger.
        eviction: thresholds, victims and conditions of the eviction loop.
        evictions_restored: whether the outstanding effects of an earlier process were restored.
        reload: set to request a reload of the configuration.
        config_problem: reason for not using the configuration on disk; empty if it is in force.
        runtime_problem: reason for not composing an agent: no runtime; empty once an agent is composed.
        lock_held: whether logind has granted the delay lock; ``None`` if the shutdown task does not request it.
        runtime_answered: whether the runtime answered a call of the agent in force.
        renew: set while newer settings wait for the running pass to end.
        started_at: start of the daemon.
        awaiting_reload: callers that wait for the outcome of the next reload.
        announced: cleared while the effect of a reload is computed; loops start once the event is set.
        grace: reload grace period between a switch from dry run to active and the first destructive pass.
        stored_mode: the mode, dry run or active, recorded in the state directory.
        pausing: lock held while a pause starts or ends, so that the pause in force and the stored pause agree.
        counters: metrics counted from events and calls.
        roles: evaluates the role of this node (standalone or beside a kubelet) for all tasks.
        watched_pods: pods of this node from the pod watch of the API server.
        lists: decoded lists of the runtime, shared by all tasks.
        trend: images of the last pass for the record, and the outlook of the resources.
        shutdown_announcement: whether the Node object at the API server shows the shutdown in progress.
    """

    settings: Settings
    logger: FilteringBoundLogger
    clock: Clock
    loop_statuses: LoopStatuses
    pass_lock: PassLock
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    agent: Agent | None = None
    wake: dict[str, asyncio.Event] = field(default_factory=dict)
    eviction: EvictionState = field(default_factory=EvictionState)
    evictions_restored: bool = False
    reload: asyncio.Event = field(default_factory=asyncio.Event)
    config_problem: str = ""
    runtime_problem: str = ""
    lock_held: bool | None = None
    runtime_answered: bool = False

    def __post_init__(self) -> None:
        self.renew = asyncio.Event()
        self.started_at = self.clock.now()
        self.awaiting_reload: list[asyncio.Future[Reloaded]] = []
        self.announced = asyncio.Event()
        self.announced.set()
        self.grace = ReloadGrace(self.clock, self.pass_lock)
        self.stored_mode = StoredMode(self.logger)
        self.pausing = asyncio.Lock()
        self.counters = Counters(self.clock)
        self.roles = RoleWatch(self.clock, self.logger)
        self.watched_pods = WatchedPods(self.clock)
        self.lists = DecodedLists()
        self.trend = TrendState()
        self.shutdown_announcement = ShutdownAnnouncement()
        self.triggered: set[str] = set()
        self._next: Settings | None = None

    @property
    def newest(self) -> Settings:
        """Settings of the last reload, whether already in force or not."""
        return self._next or self.settings

    def swap(self, settings: Settings) -> None:
        """Replace the settings once the running pass has ended; the supervisor then composes a new agent.

        The reload grace period starts, restarts or ends if the new settings change the mode or passes already wait.
        """
        self.grace.begin(grace_needed_s(self.newest, settings, pending=self.grace.pending), BY_RELOAD)
        self._next = settings
        self.renew.set()

    @property
    def dry_run(self) -> bool:
        """Whether removals are only reported now: by the settings in force, or during the reload grace period."""
        return self.settings.dry_run or self.grace.pending

    def observe_call(self, method: str, took_s: float, status: str) -> None:
        """Count a finished runtime call; set ``runtime_answered`` if its status proves that the runtime answered.

        Args:
            method: name of the call, such as ``ListImages``.
            took_s: duration of the call in seconds.
            status: name of the gRPC status of the call.
        """
        self.counters.call(method, took_s, status)
        if status not in _NO_ANSWER:
            self.runtime_answered = True

    def take_next(self) -> Settings | None:
        """Put the swapped settings in force; return the replaced settings, ``None`` without a swap."""
        earlier = None
        if self._next is not None:
            earlier, self.settings, self._next = self.settings, self._next, None
        self.renew.clear()
        return earlier

    async def wait_while(self, in_force: Callable[[], bool], seconds: float, stop: asyncio.Event) -> None:
        """Wait for ``seconds``, or until other settings are in force or the daemon stops."""
        if in_force():
            await wait_for_any(seconds, stop, self.renew)
        while self.renew.is_set() and in_force() and not stop.is_set():
            await wait_for_any(_SWAP_POLL_S, stop)  # the swap of the settings waits for the running pass


SHOWN: Final = 10
"""Maximum number of items or pods named in a log line or a document."""


class ReloadEffect(Record):
    """Removals and evictions that new settings cause and the earlier settings did not.

    Attributes:
        dry_run: whether the new settings are a dry run, which only logs removals and evictions.
        removals: additional removals, in order of execution.
        thresholds: eviction thresholds that are met now, and new or with a shorter grace period.
        pods: pods that would be evicted first.
        problem: reason for an unknown part of the effect; empty if the effect is known completely.
    """

    dry_run: bool
    removals: tuple[Decision, ...] = ()
    thresholds: tuple[ThresholdStatus, ...] = ()
    pods: tuple[PreviewedEviction, ...] = ()
    problem: str = ""

    @property
    def frees_bytes(self) -> int:
        """Predicted bytes that the removals free."""
        return sum(each.frees_bytes or 0 for each in self.removals)

    @property
    def summary(self) -> str:
        """The effect in one line, such as ``2 containers, 1 image (3.00 GiB); thresholds met: none``."""
        counts = Counter(each.kind for each in self.removals)
        items = ", ".join(kind.counted(count) for kind, count in counts.items())
        parts = [f"{items} ({format_bytes(self.frees_bytes)})" if items else "no items"]
        if self.thresholds:
            parts.append(f"thresholds met: {', '.join(map(threshold_text, self.thresholds))}")
        if self.pods:
            parts.append(f"pods: {', '.join(f'{each.namespace}/{each.name}' for each in self.pods[:SHOWN])}")
        if self.problem:
            parts.append(f"effect unknown: {self.problem}")
        return "; ".join(parts)


class Reloaded(Record):
    """Outcome of a reload, or of its preview.

    Attributes:
        changes: changed settings, one line each.
        dry_run: whether the new settings are a dry run.
        effect: effect of the new settings; ``None`` if no setting changed.
        grace_s: seconds until the first destructive pass; 0 if passes do not wait.
        until: wall time of the first destructive pass; ``None`` if passes do not wait, or during a pause.
        applied: whether the settings are in force.
    """

    changes: tuple[str, ...]
    dry_run: bool
    effect: ReloadEffect | None = None
    grace_s: float = 0.0
    until: datetime | None = None
    applied: bool = True


def threshold_text(status: ThresholdStatus) -> str:
    """Return a threshold and its grace period as text."""
    grace_s = status.threshold.grace_s
    return f"{status.threshold.text} ({f'after {grace_s:g} s' if grace_s else 'at once'})"
