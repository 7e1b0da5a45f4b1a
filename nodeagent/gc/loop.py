"""The collection loops of the daemon: one pass at a time, then a wait, until the daemon stops.

A failed pass is logged and retried after the interval. While the runtime is unavailable, passes are retried with
back-off and the loss is logged once, not once per attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import asdict

from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.gc.executor import Changes, Outcome, PassEnd, PassReport, Result
from nodeagent.guarded_call import call_kernel
from nodeagent.loops.memory import release_memory
from nodeagent.loops.passes import LoopStatuses, PassLock, wait_for_any
from nodeagent.model.decision import Verdict
from nodeagent.telemetry.logging import StateLog, stable

if TYPE_CHECKING:
    import asyncio

    from structlog.typing import FilteringBoundLogger

    from nodeagent.gc.pass_history import PassStart
    from nodeagent.gc.pass_state import Preview
    from nodeagent.gc.plan.policy import Scope

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
JITTER_SHARE = 0.1
PAUSE_POLL_S = 1.0
SILENCE_S = 600.0
"""Seconds without a finished item after which a pass counts as stuck; single calls have shorter deadlines."""


class Pass(Protocol):
    """One garbage collection pass over a scope."""

    async def __call__(self, scope: Scope, stop: asyncio.Event) -> tuple[Preview, PassReport]:
        """Observe, plan and act once; return the first plan and the report.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            NodeAgentError: a reading failed or was contradictory.
        """


class RuntimeWatch:
    """Availability of the runtime for one loop: logs each change once and computes the back-off."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._down = False
        self._retry_s = FIRST_RETRY_S

    def lost(self, error: RuntimeUnavailableError) -> float:
        """Record an unavailable runtime; return the seconds until the next attempt."""
        if not self._down:
            self._logger.warning("runtime_unavailable", error=str(error))
        self._down = True
        wait_s = self._retry_s
        self._retry_s = min(LAST_RETRY_S, self._retry_s * 2)
        return wait_s

    def answered(self) -> None:
        """Record an answer of the runtime, and reset the back-off."""
        if self._down:
            self._logger.info("runtime_available")
        self._down = False
        self._retry_s = FIRST_RETRY_S


def with_jitter(seconds: float, draw: Callable[[], float]) -> float:
    """Return the seconds until the next pass, within ``JITTER_SHARE`` of the mean.

    The jitter spreads the load of nodes that start together; ``draw`` returns a number from 0 to 1.
    """
    return seconds * (1 + JITTER_SHARE * (2 * draw() - 1))


@dataclass(eq=False)
class Loop:
    """Runs passes over one scope, one after the other with an interval between them.

    Passes of different loops share the pass lock, so that only one pass removes items at any time.

    Attributes:
        next_s: returns the seconds until the next pass.
        states: states of this loop only.
        wake: ends the wait for the next pass.
    """

    scope: Scope
    next_s: Callable[[], float]
    run_pass: Pass
    _: KW_ONLY
    pass_lock: PassLock
    loop_statuses: LoopStatuses
    states: StateLog
    wake: asyncio.Event

    def __post_init__(self) -> None:
        self._runtime = RuntimeWatch(self.states.logger)

    async def run(self, stop: asyncio.Event) -> None:
        """Run passes until ``stop`` is set."""
        name = self.scope.value
        while not stop.is_set():
            self.wake.clear()
            wait_s = await self.run_once()
            self.loop_statuses.waiting(name, wait_s, SILENCE_S, removes=True)
            await wait_for_any(wait_s, stop, self.wake)

    async def run_once(self) -> float:
        """Run one pass, or no pass during a pause; return the seconds until the next pass."""
        name = self.scope.value
        if self.pass_lock.pause() is not None:
            return PAUSE_POLL_S
        self.loop_statuses.waiting(name, 0.0, SILENCE_S, removes=True)
        wait_s = await self._attempt(name)
        await call_kernel(release_memory)  # after a failure too: tracebacks keep call frames in reference cycles
        return wait_s

    async def _attempt(self, name: str) -> float:
        """Run one pass; return the seconds until the next pass. On return, plans and errors are unreferenced."""
        try:
            async with self.pass_lock.take() as end:
                if end.is_set():
                    return PAUSE_POLL_S
                self.loop_statuses.running(name, SILENCE_S)
                preview, report = await self.run_pass(self.scope, end)
        except RuntimeUnavailableError as error:
            self.loop_statuses.ended(name, "runtime-unavailable", detail=str(error), failed=True)
            return self._runtime.lost(error)
        except NodeAgentError as error:
            self._runtime.answered()
            self.loop_statuses.ended(name, "failed", detail=str(error), failed=True)
            fields = {"error": str(error)}
            self.states.log_once("pass_failed", fields, state=stable(str(error)), level="error", counted=True)
            return self.next_s()
        except Exception as error:  # noqa: BLE001 - the only broad catch of a loop: no error may end the daemon
            self.loop_statuses.ended(name, "crashed", detail=repr(error), failed=True)
            self.states.log_once("pass_crashed", {}, state=stable(repr(error)), level="exception", counted=True)
            return self.next_s()
        return self._finish(preview, report)

    def _finish(self, preview: Preview, report: PassReport) -> float:
        """Record and log the end of a pass; return the seconds until the next pass."""
        lost = report.end is PassEnd.RUNTIME_LOST
        result = "dry-run" if report.dry_run and report.end is PassEnd.COMPLETE else report.end.value
        unfinished = report.dry_run or report.end in (PassEnd.CANCELLED, PassEnd.RUNTIME_LOST)
        self.loop_statuses.ended(
            self.scope.value,
            result,
            detail=report.end_detail,
            failed=lost,
            collects_ahead=unfinished and preview.ahead_available_bytes is not None,
        )
        if not lost:
            self._runtime.answered()
        for event in ("pass_failed", "pass_crashed"):
            self.states.end(event)
        log_report(self.states, preview, report)
        return self._runtime.lost(RuntimeUnavailableError(report.end_detail)) if lost else self.next_s()


def log_start(states: StateLog, start: PassStart) -> None:
    """Log a pass before its first removal; a repetition if no removal was done since a pass with as many removals."""
    states.log_once(
        "pass_started", asdict(start), about=[start.scope], state=str(start.planned), level="info", counted=True
    )


def log_result(states: StateLog, result: Result, *, dry_run: bool) -> None:
    """Log the outcome of one removal, whether it was done, failed or skipped by a dry run.

    A removal that fails in each pass is a lasting state.
    """
    decision, kind = result.decision, result.decision.kind.value
    fields = {
        "kind": kind,
        "id": decision.id,
        "name": decision.name,
        "outcome": result.outcome.value,
        "reason": decision.reason.code.value,
        "why": decision.reason.sentence,
        "frees_bytes": decision.frees_bytes,
        **({"detail": result.detail} if result.detail else {}),
        "dry_run": dry_run,
    }
    if result.outcome is Outcome.FAILED:
        states.log_once("removal", fields, about=[kind, decision.id], state=stable(result.detail), counted=True)
        return
    states.end("pass_started")
    states.end("removal", kind, decision.id)
    states.logger.info("would_remove" if result.outcome is Outcome.DRY_RUN else "removal", **fields)


def log_dry_run_changes(states: StateLog, pass_id: str, changes: Changes) -> None:
    """Log the removals that a dry run newly plans, and the removals that it no longer plans."""
    for result in changes.planned:
        log_result(states, result, dry_run=True)
    for each in changes.dropped:
        states.logger.info(
            "would_keep", pass_id=pass_id, kind=each.kind.value, id=each.id, name=each.name, why=each.why, dry_run=True
        )


def log_report(states: StateLog, preview: Preview, report: PassReport) -> None:
    """Log a pass: its warnings, then one summary; each decision only at debug level.

    A pass that missed its target and removed nothing is a lasting state, as are warnings.

    Args:
        states: states of the passes; those of an earlier pass that have ended are forgotten.
        preview: contains the warnings of the observation.
        report: report of the pass.
    """
    _log_warnings(states, preview, report)
    for plan in report.plans:
        for decision in plan.decisions:
            states.logger.debug(
                "decision",
                pass_id=report.id,
                kind=decision.kind.value,
                id=decision.id,
                name=decision.name,
                verdict=decision.verdict.value,
                reason=decision.reason.code.value,
            )
    before, after = report.before, report.after
    as_wanted = report.end in (PassEnd.COMPLETE, PassEnd.NOTHING_TO_DO)
    if as_wanted or report.removed:
        states.end("pass_finished", report.scope)
    fields = {
        "pass_id": report.id,
        "scope": report.scope,
        "end": report.end.value,
        **({"detail": report.end_detail} if report.end_detail else {}),
        "removed": len(report.removed),
        "failed": len(report.failed),
        "planned": sum(len(plan.removals) for plan in report.plans),
        "kept": _kept(report),
        "wanted_bytes": _target_bytes(report),
        "short_bytes": _short_bytes(report),
        "predicted_bytes": report.predicted_bytes,
        "freed_bytes": report.freed_bytes,
        "accounting": ",".join(sorted({plan.accounting.value for plan in report.plans})),
        "imagefs_percent_before": before.used_percent if before else None,
        "imagefs_percent_after": after.used_percent if after else None,
        "duration_s": round(report.duration_s, 3),
        "dry_run": report.dry_run,
    }
    states.log_once(
        "pass_finished",
        fields,
        about=[report.scope],
        state=f"{report.end.value} {stable(report.end_detail)}",
        level="info" if as_wanted else "warning",
        counted=True,
    )


def _log_warnings(states: StateLog, preview: Preview, report: PassReport) -> None:
    """Log each warning of a pass that the previous pass did not have; warnings that differ only in numbers are one."""
    found = (
        *preview.snapshot.warnings,
        *(warning for plan in report.plans for warning in plan.warnings),
        *report.warnings,
    )
    warnings = {stable(each): each for each in reversed(found)}
    states.end_others("pass_warning", warnings)
    for subject, warning in reversed(warnings.items()):
        states.log_once("pass_warning", {"pass_id": report.id, "warning": warning}, about=[subject])


def _kept(report: PassReport) -> dict[str, int]:
    """Return the number of kept items by reason, from the last plan of each kind."""
    last = {plan.kind: plan for plan in report.plans}
    counts = Counter(
        decision.reason.code.value
        for plan in last.values()
        for decision in plan.decisions
        if decision.verdict is not Verdict.REMOVE
    )
    return dict(sorted(counts.items()))


def _target_bytes(report: PassReport) -> int:
    """Return the target of the pass: the bytes to free, as planned at its start."""
    first = {plan.kind: plan for plan in reversed(report.plans)}
    return sum(plan.wanted_bytes for plan in first.values())


def _short_bytes(report: PassReport) -> int:
    """Return the bytes between the target and the bytes freed; 0 unless the pass ended with a shortfall."""
    if report.end is not PassEnd.SHORTFALL:
        return 0
    if report.freed_bytes is not None:
        return max(0, _target_bytes(report) - report.freed_bytes)
    last = {plan.kind: plan for plan in report.plans}
    return sum(plan.shortfall_bytes for plan in last.values())
