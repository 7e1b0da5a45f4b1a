"""GC loops: one pass at a time, back-off while the runtime is unavailable, one log event per change."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import weakref
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import NodeAgentError, ObservationError, RuntimeUnavailableError
from nodeagent.gc.executor import Outcome, PassEnd, PassReport, Result
from nodeagent.gc.loop import Loop, Pass, RuntimeWatch, log_result, log_start, with_jitter
from nodeagent.gc.pass_history import PassStart
from nodeagent.gc.pass_state import Preview
from nodeagent.gc.plan.policy import Scope
from nodeagent.loops.passes import LoopStatuses, PassLock, Pause, PausedBy
from nodeagent.model.decision import Decision, ItemKind, Reason, ReasonCode, Verdict
from nodeagent.model.node import NodeSnapshot, RuntimeInfo
from nodeagent.telemetry import logging as log
from nodeagent.telemetry.counters import Counters
from nodeagent.telemetry.logging import StateLog, subscribe, unsubscribe
from nodeagent.units import SystemClock
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structlog.typing import FilteringBoundLogger

    from nodeagent.units import Clock

T0 = datetime(2026, 1, 10, tzinfo=UTC)
SNAPSHOT = NodeSnapshot(observed_at=T0, runtime=RuntimeInfo("containerd", "1.7.24", "v1"))


class Passes:
    """Fake passes with scripted results: each call raises the next error or returns a report."""

    def __init__(self, *ends: Exception | PassEnd, warnings: tuple[str, ...] = (), dry_run: bool = False) -> None:
        self.ends: Iterator[Exception | PassEnd] = iter(ends)
        self.warnings = warnings
        self.dry_run = dry_run
        self.running = 0

    async def __call__(self, scope: Scope, stop: asyncio.Event) -> tuple[Preview, PassReport]:
        assert not stop.is_set()
        assert self.running == 0, "passes overlap"
        self.running += 1
        try:
            await asyncio.sleep(0)
            end = next(self.ends)
            if isinstance(end, Exception):
                raise end
            report = PassReport("id", scope.value, "test", T0, 0.0, self.dry_run, (), (), end, warnings=self.warnings)
            return Preview(scope, SNAPSHOT, ()), report
        finally:
            self.running -= 1


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def logger(stream: io.StringIO) -> FilteringBoundLogger:
    return log.configure("json", "info", stream)


def events(stream: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in stream.getvalue().splitlines()]


def loop(
    passes: Pass,
    logger: FilteringBoundLogger,
    *,
    pass_lock: PassLock | None = None,
    scope: Scope = Scope.IMAGES,
    clock: Clock | None = None,
) -> Loop:
    clock = clock or SystemClock()
    return Loop(
        scope,
        lambda: 300.0,
        passes,
        pass_lock=pass_lock or PassLock(clock),
        loop_statuses=LoopStatuses(clock),
        states=StateLog(logger.bind(loop=scope.value), clock),
        wake=asyncio.Event(),
    )


async def test_unavailable_runtime_is_retried_with_back_off_and_logged_once(
    logger: FilteringBoundLogger, stream: io.StringIO
) -> None:
    unavailable = RuntimeUnavailableError("no socket")
    made = loop(Passes(*[unavailable] * 8, PassEnd.NOTHING_TO_DO, unavailable), logger)
    waits = [await made.run_once() for _ in range(10)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 300, 1]
    assert events(stream) == ["runtime_unavailable", "runtime_available", "pass_finished", "runtime_unavailable"]


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (ObservationError("capacity 0"), "pass_failed"),
        (NodeAgentError("x"), "pass_failed"),
        (KeyError("bug"), "pass_crashed"),
    ],
)
async def test_failed_pass_is_logged_and_retried(
    error: Exception, event: str, logger: FilteringBoundLogger, stream: io.StringIO
) -> None:
    made = loop(Passes(error, PassEnd.COMPLETE), logger)
    assert [await made.run_once(), await made.run_once()] == [300, 300]
    assert events(stream) == [event, "pass_finished"]


@pytest.mark.parametrize(
    ("end", "result"), [(PassEnd.COMPLETE, "dry-run"), (PassEnd.NOTHING_TO_DO, "nothing-to-do")], ids=str
)
async def test_dry_run_with_planned_removals_has_not_the_result_complete(
    end: PassEnd, result: str, logger: FilteringBoundLogger
) -> None:
    made = loop(Passes(end, dry_run=True), logger)
    await made.run_once()
    assert [(each.result, each.failures) for each in made.loop_statuses.all] == [(result, 0)]


class Frame:
    """An object with a reference to itself, which only the garbage collector of Python frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("error", [RuntimeUnavailableError("no socket"), NodeAgentError("x"), KeyError("bug")])
async def test_memory_of_a_failed_pass_is_released(error: Exception, logger: FilteringBoundLogger) -> None:
    references: list[weakref.ref[Frame]] = []

    async def fail(scope: Scope, stop: asyncio.Event) -> tuple[Preview, PassReport]:
        del scope, stop
        references.append(weakref.ref(Frame()))
        raise error

    made = loop(fail, logger)
    gc.disable()
    try:
        await made.run_once()
        assert references[0]() is None
    finally:
        gc.enable()


async def test_warning_is_logged_again_only_after_a_pass_without_it(
    logger: FilteringBoundLogger, stream: io.StringIO
) -> None:
    passes = Passes(*[PassEnd.COMPLETE] * 4, warnings=("sizes are upper bounds",))
    made = loop(passes, logger)
    await made.run_once()
    await made.run_once()
    passes.warnings = ()
    await made.run_once()
    passes.warnings = ("sizes are upper bounds",)
    await made.run_once()
    assert events(stream).count("pass_warning") == 2


async def test_stop_ends_the_wait_for_the_next_pass(logger: FilteringBoundLogger) -> None:
    stop = asyncio.Event()
    running = asyncio.ensure_future(loop(Passes(PassEnd.COMPLETE), logger).run(stop))
    await asyncio.sleep(0)
    stop.set()
    await asyncio.wait_for(running, 5)


async def test_passes_of_two_loops_do_not_overlap(logger: FilteringBoundLogger) -> None:
    passes, pass_lock = Passes(*[PassEnd.COMPLETE] * 2), PassLock(SystemClock())
    both = [loop(passes, logger, pass_lock=pass_lock, scope=scope) for scope in (Scope.IMAGES, Scope.CONTAINERS)]
    await asyncio.gather(*(each.run_once() for each in both))


async def test_paused_loop_runs_no_pass(logger: FilteringBoundLogger, stream: io.StringIO) -> None:
    pass_lock = PassLock(SystemClock())
    made = loop(Passes(PassEnd.COMPLETE), logger, pass_lock=pass_lock)
    pass_lock.add_pause(Pause(PausedBy.OPERATOR, "maintenance"))
    await made.run_once()
    assert events(stream) == []
    pass_lock.end_pause(PausedBy.OPERATOR)
    await made.run_once()
    assert events(stream) == ["pass_finished"]


@pytest.mark.difference("interval-jitter")
@pytest.mark.parametrize(("drawn", "expected_s"), [(0.0, 270.0), (0.5, 300.0), (1.0, 330.0)])
def test_interval_with_jitter_is_within_a_tenth(drawn: float, expected_s: float) -> None:
    assert with_jitter(300.0, lambda: drawn) == pytest.approx(expected_s)


def test_back_off_starts_again_after_an_answer(logger: FilteringBoundLogger) -> None:
    watch = RuntimeWatch(logger)
    assert [watch.lost(RuntimeUnavailableError("x")) for _ in range(3)] == [1, 2, 4]
    watch.answered()
    assert watch.lost(RuntimeUnavailableError("x")) == 1


@pytest.mark.parametrize(
    ("end", "event"),
    [
        (PassEnd.SHORTFALL, "pass_finished"),
        (ObservationError("capacity 0 of 12"), "pass_failed"),
        (KeyError("defect"), "pass_crashed"),
    ],
    ids=["shortfall", "failure", "defect"],
)
async def test_pass_that_ends_as_the_previous_one_without_a_removal_is_logged_once_an_hour(
    end: Exception | PassEnd, event: str, logger: FilteringBoundLogger, stream: io.StringIO
) -> None:
    counters, clock = Counters(SystemClock()), ManualClock()
    passes = Passes(*[end] * 24, PassEnd.COMPLETE, PassEnd.COMPLETE, end, warnings=("short by 3 MiB",))
    made = loop(passes, logger, clock=clock)
    subscribe(counters.count_event)
    try:
        for number in range(27):
            clock.at_s = number * 300.0
            passes.warnings = (f"short by {number} MiB",)
            await made.run_once()
    finally:
        unsubscribe(counters.count_event)
    assert Counter(events(stream))[event] == 3 + 2 * (event == "pass_finished")
    assert sum(counters.values["nodeagent_passes_total"].values()) == 27
    assert events(stream).count("pass_warning") <= 3


async def test_removal_that_fails_in_each_pass_is_logged_once(
    stream: io.StringIO, logger: FilteringBoundLogger
) -> None:
    states = StateLog(logger, ManualClock())
    decision = Decision(ItemKind.IMAGE, "i", "i", Verdict.REMOVE, Reason(ReasonCode.ALL_UNUSED), 1)
    for outcome in [*[Outcome.FAILED] * 5, Outcome.DONE, Outcome.FAILED]:
        log_start(states, PassStart("id", "images", "interval", 1, 1, 0))
        log_result(states, Result(decision, outcome, "busy for 3 s"), dry_run=False)
    logged = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each.get("outcome", "start") for each in logged] == ["start", "failed", "done", "start", "failed"]
