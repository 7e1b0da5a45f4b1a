"""What the duties of one daemon share, for as long as it lives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.daemon.reload_grace import BY_RELOAD, ReloadGrace, StoredMode, grace_needed_s
from nodeagent.observe.node_role import RoleWatch
from nodeagent.plan.eviction.state import EvictionState
from nodeagent.telemetry.counters import Counters

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.act.agent import Agent
    from nodeagent.clock import Clock
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.loop_status import LoopStatuses
    from nodeagent.daemon.pass_lock import PassLock
    from nodeagent.daemon.reload_effect import Reloaded

_NO_ANSWER: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


class DaemonTask(Protocol):
    """Something that the daemon does until it is told to stop."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work; return soon after ``stop`` is set.

        An error that escapes ends the daemon: a duty logs what it can live with and goes on.
        """


@dataclass
class DaemonContext:
    """What the duties share.

    Settings change at a reload: the agent is then composed anew, and with it every duty that serves one agent.
    What has to last over that, such as what is remembered of evictions, hangs here.

    Attributes:
        settings: those in force.
        stop: set when the daemon is to end.
        loop_statuses: what each duty is doing.
        pass_lock: who may act.
        agent: the one in force; ``None`` while none is composed.
        wake: for each loop by name, set to have it run at once.
        eviction: what is remembered of thresholds and evictions.
        evictions_restored: whether the outstanding effects of an earlier process were restored.
        reload: set to have the configuration read again.
        config_problem: why the configuration on disk is not in force; empty if it is.
        counters: what is counted of all that happens.
        runtime_answered: whether the runtime answered a call of the agent in force.
        lock_held: whether logind holds our delay lock; ``None`` where none is wanted.
        roles: the role on this node, for all tasks.
        started_at: when the daemon began.
        awaiting_reload: those who wait for the outcome of the next reload.
        announced: cleared while the effect of a reload is computed; no loop starts before.
        grace: the wait between a switch from dry run to active and the first destructive pass.
        stored_mode: the mode in the state directory.
        pausing: held while a pause begins or ends, so that what is in force and what is kept are the same.
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
        self._next: Settings | None = None

    @property
    def newest(self) -> Settings:
        """The settings that were swapped in last, in force or not yet."""
        return self._next or self.settings

    def swap(self, settings: Settings) -> None:
        """Have the agent composed anew with other settings, as soon as the pass under way has ended.

        The reload grace period begins, starts again, or ends by the switch that this is.
        """
        self.grace.begin(grace_needed_s(self.newest, settings, pending=self.grace.pending), BY_RELOAD)
        self._next = settings
        self.renew.set()

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be removed now, by the settings in force or as passes wait for the grace period."""
        return self.settings.dry_run or self.grace.pending

    def observe_call(self, method: str, took_s: float, status: str) -> None:
        """Count a finished call to the runtime; any status but those of a missing answer shows that the runtime is up.

        Args:
            method: name of the call, such as ``ListImages``.
            took_s: seconds until it finished.
            status: name of its gRPC status.
        """
        self.counters.call(method, took_s, status)
        if status not in _NO_ANSWER:
            self.runtime_answered = True

    def take_next(self) -> Settings | None:
        """Put the settings in force that were swapped in; return those before, ``None`` if none were."""
        earlier = None
        if self._next is not None:
            earlier, self.settings, self._next = self.settings, self._next, None
        self.renew.clear()
        return earlier
