"""The daemon's loops: one pass at a time, then a wait, until told to stop.

A pass that fails is logged and tried again at the next turn; a runtime that is away is retried with back-off and
logged once per change, not once per attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from nodeagent.act.gc.outcomes import Outcome, PassEnd
from nodeagent.daemon.memory import release_memory
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.plan.decision import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structlog.typing import FilteringBoundLogger

    from nodeagent.act.gc.collector import Preview
    from nodeagent.act.gc.outcomes import PassReport, Result
    from nodeagent.daemon.loop_status import LoopStatuses
    from nodeagent.daemon.pass_lock import PassLock
    from nodeagent.plan.gc.scope import Scope

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
JITTER_SHARE = 0.1
PAUSE_LOOK_S = 1.0
SILENCE_S = 600.0
"""How long a pass may go without any item being done before it counts as stuck; calls have shorter deadlines."""


class Pass(Protocol):
    """One garbage collection pass over a scope."""

    async def __call__(self, scope: Scope, stop: asyncio.Event) -> tuple[Preview, PassReport]:
        """Observe, plan and act once.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            NodeAgentError: the pass could not be made.
        """


async def wait_for_any(seconds: float, *events: asyncio.Event) -> bool:
    """Wait until one of the events is set, at most ``seconds``; return whether one is."""
    waits = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return any(each.is_set() for each in events)


class RuntimeWatch:
    """Remembers whether the runtime answered last time, and logs only changes."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._down = False
        self._retry_s = FIRST_RETRY_S

    def lost(self, error: RuntimeUnavailableError) -> float:
        """Note that the runtime is away; return the seconds to wait before trying again."""
        if not self._down:
            self._logger.warning("runtime_unavailable", error=str(error))
        self._down = True
        wait_s = self._retry_s
        self._retry_s = min(LAST_RETRY_S, self._retry_s * 2)
        return wait_s

    def answered(self) -> None:
        """Note that the runtime answered."""
        if self._down:
            self._logger.info("runtime_available")
        self._down = False
        self._retry_s = FIRST_RETRY_S


class Loop:
    """Runs passes over one scope: run, then wait the interval with jitter. Rounds never overlap.

    Passes of different loops share the turn, so that only one of them acts at any time.
    """

    def __init__(  # noqa: PLR0913 - the loop's collaborators
        self,
        scope: Scope,
        interval_s: float,
        run_pass: Pass,
        *,
        pass_lock: PassLock,
        loop_statuses: LoopStatuses,
        logger: FilteringBoundLogger,
        jitter: Callable[[], float],
        wake: asyncio.Event,
    ) -> None:
        """Compose a loop; ``jitter`` returns a number from 0 to 1, drawn anew for each wait."""
        self._scope = scope
        self._name = scope.value
        self._interval_s = interval_s
        self._run_pass = run_pass
        self._pass_lock = pass_lock
        self._loop_statuses = loop_statuses
        self._logger = logger.bind(loop=scope.value)
        self._jitter = jitter
        self._wake = wake
        self._runtime = RuntimeWatch(self._logger)
        self._warned: frozenset[str] = frozenset()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until told to stop."""
        while not stop.is_set():
            self._wake.clear()
            wait_s = await self.turn()
            self._loop_statuses.waiting(self._name, wait_s, SILENCE_S)
            if (pause := self._pass_lock.pause()) is not None:
                self._loop_statuses.paused(self._name, pause.text, wait_s + SILENCE_S)
            await wait_for_any(wait_s, stop, self._wake)

    async def turn(self) -> float:
        """Make one pass; return the seconds to wait before the next."""
        if (pause := self._pass_lock.pause()) is not None:
            self._loop_statuses.paused(self._name, pause.text, PAUSE_LOOK_S + SILENCE_S)
            return PAUSE_LOOK_S
        self._loop_statuses.waiting(self._name, 0.0, SILENCE_S)
        try:
            async with self._pass_lock.take() as end:
                if end.is_set():
                    return PAUSE_LOOK_S
                self._loop_statuses.running(self._name, SILENCE_S)
                preview, report = await self._run_pass(self._scope, end)
        except RuntimeUnavailableError as error:
            self._loop_statuses.ended(self._name, "runtime-unavailable", detail=str(error), failed=True)
            return self._runtime.lost(error)
        except NodeAgentError as error:
            self._runtime.answered()
            self._loop_statuses.ended(self._name, "failed", detail=str(error), failed=True)
            self._logger.error("pass_failed", error=str(error))  # noqa: TRY400 - an operator's error, not a bug
            return self._next_s()
        except Exception as error:  # the supervisor's one broad catch: a bug must not end the duty
            self._loop_statuses.ended(self._name, "crashed", detail=repr(error), failed=True)
            self._logger.exception("pass_crashed")
            return self._next_s()
        wait_s = self._ended(preview, report)
        del preview, report
        release_memory()
        return wait_s

    def _ended(self, preview: Preview, report: PassReport) -> float:
        """Tell how a pass ended; return the seconds to wait before the next."""
        lost = report.end is PassEnd.RUNTIME_LOST
        self._loop_statuses.ended(self._name, report.end.value, detail=report.end_detail, failed=lost)
        if not lost:
            self._runtime.answered()
        self._warned = log_report(self._logger, preview, report, self._warned)
        return self._runtime.lost(RuntimeUnavailableError(report.end_detail)) if lost else self._next_s()

    def _next_s(self) -> float:
        return self._interval_s * (1 + JITTER_SHARE * (2 * self._jitter() - 1))


def log_result(logger: FilteringBoundLogger, result: Result, *, dry_run: bool) -> None:
    """Log one act: a line per item touched, failed or, in a dry run, that would be."""
    decision = result.decision
    level = logger.warning if result.outcome is Outcome.FAILED else logger.info
    level(
        "would_remove" if result.outcome is Outcome.DRY_RUN else "removal",
        kind=decision.kind.value,
        id=decision.id,
        name=decision.name,
        outcome=result.outcome.value,
        reason=decision.reason.code.value,
        why=decision.reason.sentence,
        frees_bytes=decision.frees_bytes,
        **({"detail": result.detail} if result.detail else {}),
        dry_run=dry_run,
    )


def log_report(
    logger: FilteringBoundLogger, preview: Preview, report: PassReport, warned: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Log a pass: new warnings, then one summary line; kept items only at debug level.

    Returns the warnings of this pass, to be handed in as ``warned`` next time, so that each is logged once for as
    long as it stands.
    """
    warnings: Sequence[str] = (
        *preview.snapshot.warnings,
        *(warning for plan in report.plans for warning in plan.warnings),
        *report.warnings,
    )
    for warning in dict.fromkeys(each for each in warnings if each not in warned):
        logger.warning("pass_warning", pass_id=report.id, warning=warning)
    for plan in report.plans:
        for decision in plan.decisions:
            logger.debug(
                "decision",
                pass_id=report.id,
                kind=decision.kind.value,
                id=decision.id,
                name=decision.name,
                verdict=decision.verdict.value,
                reason=decision.reason.code.value,
            )
    before, after = report.before, report.after
    level = logger.info if report.end in (PassEnd.COMPLETE, PassEnd.NOTHING_TO_DO) else logger.warning
    level(
        "pass_finished",
        pass_id=report.id,
        scope=report.scope,
        end=report.end.value,
        **({"detail": report.end_detail} if report.end_detail else {}),
        removed=len(report.removed),
        failed=len(report.failed),
        planned=sum(len(plan.removals) for plan in report.plans),
        kept=_kept(report),
        wanted_bytes=_wanted_bytes(report),
        short_bytes=_short_bytes(report),
        predicted_bytes=report.predicted_bytes,
        freed_bytes=report.freed_bytes,
        accounting=",".join(sorted({plan.accounting.value for plan in report.plans})),
        imagefs_percent_before=before.used_percent if before else None,
        imagefs_percent_after=after.used_percent if after else None,
        duration_s=round(report.duration_s, 3),
        dry_run=report.dry_run,
    )
    return frozenset(warnings)


def _kept(report: PassReport) -> dict[str, int]:
    """Return how many items stayed, by reason, as the last plan of each kind has it."""
    last = {plan.kind: plan for plan in report.plans}
    found = Counter(
        decision.reason.code.value
        for plan in last.values()
        for decision in plan.decisions
        if decision.verdict is not Verdict.REMOVE
    )
    return dict(sorted(found.items()))


def _wanted_bytes(report: PassReport) -> int:
    """Return how much was to be freed when the pass began."""
    first = {plan.kind: plan for plan in reversed(report.plans)}
    return sum(plan.wanted_bytes for plan in first.values())


def _short_bytes(report: PassReport) -> int:
    """Return how much of what was wanted is missing; 0 unless the pass ended short of it."""
    if report.end is not PassEnd.SHORTFALL:
        return 0
    if report.freed_bytes is not None:
        return max(0, _wanted_bytes(report) - report.freed_bytes)
    last = {plan.kind: plan for plan in report.plans}
    return sum(plan.shortfall_bytes for plan in last.values())
