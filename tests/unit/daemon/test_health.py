"""Liveness and readiness of the agent, with reasons."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any, cast

import pytest

from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.health import not_alive, not_ready
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.loops.passes import LoopStatuses, PassLock, Pause, PausedBy
from nodeagent.model.node import Role
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from nodeagent.telemetry import logging as log
from tests.support.manual_clock import ManualClock
from tests.unit.daemon_node import place

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.gc.agent import Agent


class _Agent:
    class history_writer:  # noqa: N801 - replaces an attribute
        problem = ""


class _AgentWithoutHistory:
    class history_writer:  # noqa: N801 - replaces an attribute
        problem = "cannot write history /state/history.db: disk full; continuing in memory"


def lose_history(context: DaemonContext, _: ManualClock) -> None:
    context.agent = cast("Agent", _AgentWithoutHistory())


def healthy() -> tuple[DaemonContext, ManualClock]:
    clock = ManualClock()
    made = DaemonContext(
        checked(Origin()), log.configure("json", "info", io.StringIO()), clock, LoopStatuses(clock), PassLock(clock)
    )
    made.agent = cast("Agent", _Agent())
    made.loop_statuses.waiting("images", 60, 10)
    made.observe_call("Version", 0.01, "OK")
    return made, clock


def lose_runtime(context: DaemonContext, _: ManualClock) -> None:
    context.counters.count_event({"event": "runtime_unavailable", "loop": "images"})


def lose_and_restore_runtime(context: DaemonContext, clock: ManualClock) -> None:
    lose_runtime(context, clock)
    context.counters.count_event({"event": "runtime_available", "loop": "images"})


def remove_agent(context: DaemonContext, _: ManualClock) -> None:
    context.agent = None


def remove_agent_and_lose_runtime(context: DaemonContext, clock: ManualClock) -> None:
    remove_agent(context, clock)
    lose_runtime(context, clock)


def make_loop_stuck(context: DaemonContext, clock: ManualClock) -> None:
    del context
    clock.at_s = 71


def pause(*origins: PausedBy) -> Callable[[DaemonContext, ManualClock], None]:
    def add(context: DaemonContext, _: ManualClock) -> None:
        for by in origins:
            context.pass_lock.add_pause(Pause(by, "reason"))

    return add


NO_LOOPS = {"image_interval_s": None, "container_interval_s": None, "eviction": EvictionSettings(enabled=False)}
NOT_ANSWERED = ("container runtime has not answered yet",)
NOT_COMPOSED = ("starting or reloading",)


@pytest.mark.parametrize(
    ("settings", "pauses", "ready"),
    [
        ({}, (), NOT_ANSWERED),
        ({**NO_LOOPS, "container_interval_s": 60.0}, (), NOT_ANSWERED),
        ({**NO_LOOPS, "eviction": EvictionSettings(enabled=True)}, (), NOT_ANSWERED),
        (NO_LOOPS, (), ()),
        ({}, (PausedBy.OPERATOR,), ()),
        ({}, (PausedBy.SHUTDOWN,), (*NOT_ANSWERED, "reason")),
    ],
    ids=["all loops", "container GC only", "eviction only", "no loop", "paused by the operator", "shutting down"],
)
async def test_readiness_requires_an_answer_of_the_runtime_if_a_loop_calls_it(
    settings: dict[str, Any], pauses: tuple[PausedBy, ...], ready: tuple[str, ...]
) -> None:
    made, clock = healthy()
    made.settings, made.runtime_answered = replace(made.settings, **settings), False
    made.roles.current = replace(made.roles.current, role=Role.STANDALONE)
    pause(*pauses)(made, clock)
    assert not_ready(made) == ready


@pytest.mark.parametrize(
    ("status", "answered"),
    [("OK", True), ("UNKNOWN", True), ("NOT_FOUND", True), ("UNAVAILABLE", False), ("DEADLINE_EXCEEDED", False)],
)
async def test_call_without_an_answer_does_not_make_the_agent_ready(status: str, answered: bool) -> None:
    made, _ = healthy()
    made.runtime_answered = False
    made.observe_call("Version", 0.01, status)
    assert not_ready(made) == (() if answered else NOT_ANSWERED)


async def test_daemon_without_a_runtime_is_not_ready_before_the_first_call() -> None:
    async with place() as here:
        await here.server.stop()
        async with here.daemon(settled=False) as made, asyncio.timeout(30):
            while not made.logged("runtime_unavailable"):
                assert not_ready(made.context)
                await asyncio.sleep(0)
            await here.server.start()
            await made.wait_for_passes()
            assert not_ready(made.context) == ()


@pytest.mark.parametrize(
    ("change", "alive", "ready"),
    [
        (lambda *_: None, (), ()),
        (lose_runtime, (), ("container runtime unavailable",)),
        (lose_and_restore_runtime, (), ()),
        (remove_agent, (), NOT_COMPOSED),
        (
            remove_agent_and_lose_runtime,
            (),
            NOT_COMPOSED,
        ),
        (
            lose_history,
            (),
            ("removals are not recorded: cannot write history /state/history.db: disk full; continuing in memory",),
        ),
        (make_loop_stuck, ("no progress: images",), ("no progress: images",)),
        (pause(PausedBy.SHUTDOWN), (), ("reason",)),
        (pause(PausedBy.OPERATOR), (), ()),
        (pause(PausedBy.OPERATOR, PausedBy.SHUTDOWN), (), ("reason",)),
        (lambda context, _: context.stop.set(), (), ("agent is stopping",)),
        (lambda context, _: context.loop_statuses.disabled("images", "not enabled"), (), ()),
    ],
    ids=[
        "healthy",
        "runtime lost",
        "runtime back",
        "no agent",
        "no agent and no runtime",
        "history cannot be written",
        "stuck",
        "shutdown",
        "paused",
        "paused and shutdown",
        "stopping",
        "disabled",
    ],
)
async def test_fault_has_its_reasons_in_liveness_or_readiness(
    change: Callable[[DaemonContext, ManualClock], None], alive: tuple[str, ...], ready: tuple[str, ...]
) -> None:
    made, clock = healthy()
    change(made, clock)
    assert not_alive(made) == alive
    assert not_ready(made) == ready
