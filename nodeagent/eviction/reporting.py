"""Log events of the eviction loop: thresholds and conditions that changed, warnings, and withheld evictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from nodeagent.eviction.plan.effects import Unrelieved, pod_fields
from nodeagent.eviction.plan.memory_model import explain_difference, find_evidence, is_disputed, lowest_estimate
from nodeagent.eviction.plan.ranking import Eviction, estimate_note
from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.telemetry.logging import StateLog, stable

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.eviction.plan.planner import EvictionPlan
    from nodeagent.eviction.plan.state import Evaluation
    from nodeagent.eviction.plan.thresholds import ThresholdStatus
    from nodeagent.units import Clock

_OF_A_PRESSURE: Final = (
    "eviction_withheld",
    "eviction_limit_reached",
    "eviction_postponed",
    "no_evictable_pod",
    "would_evict",
    "page_cache_reclaimed",
    "reclaimed",
    "reclaim_failed",
    "reclaim_insufficient",
    "would_reclaim",
)
"""States that belong to a pressure; other states last beyond it."""


class EvictionReporter(StateLog):
    """Logs changes and lasting states of the eviction loop; a state begins again after the end of all pressure."""

    def __init__(self, logger: FilteringBoundLogger, clock: Clock) -> None:
        super().__init__(logger, clock)
        self._met: frozenset[str] = frozenset()
        self._disputed: frozenset[str] = frozenset()

    def log_changes(self, evaluation: Evaluation) -> None:
        """Log the changed node conditions, thresholds and contradictions of memory estimates since the last call."""
        for condition in evaluation.conditions:
            if condition.changed:
                level = self.logger.warning if condition.active else self.logger.info
                level("condition_changed", condition=condition.condition.value, holds=condition.active)
        met = {each.threshold.text: each for each in evaluation.met}
        for text in sorted(met.keys() - self._met):
            self.logger.warning("threshold_met", **_threshold_fields(met[text]))
        for text in sorted(self._met - met.keys()):
            self.logger.info("threshold_cleared", threshold=text)
        if self._met and not met:
            for event in _OF_A_PRESSURE:
                self.end(event)
        self._met = frozenset(met)
        self._log_disputed(evaluation)

    def _log_disputed(self, evaluation: Evaluation) -> None:
        disputed = {each.threshold.text: each for each in evaluation.statuses if is_disputed(each)}
        for text in sorted(disputed.keys() - self._disputed):
            reading = disputed[text].observation
            if reading is None or reading.memory is None:
                continue
            self.logger.warning(
                "memory_estimates_differ",
                threshold=text,
                available=reading.available,
                lowest=lowest_estimate(reading),
                limit=disputed[text].limit,
                why=explain_difference(reading.memory),
                evidence=sorted(find_evidence(reading.memory)),
            )
        for text in sorted(self._disputed - disputed.keys()):
            self.logger.info("memory_estimates_agree", threshold=text)
        self._disputed = frozenset(disputed)

    def log_warnings(self, warnings: Iterable[str]) -> None:
        """Log each warning as a state; warnings that differ only in numbers count as one."""
        for warning in warnings:
            self.log_once("eviction_warning", {"warning": warning}, about=[stable(warning)])

    def log_pressure(self, event: str, fields: Mapping[str, object], *, level: str = "warning") -> bool:
        """Log a state of the present pressure, of one pod, threshold and action; return whether it was logged."""
        about = [str(fields.get(name, "")) for name in ("pod_uid", "threshold", "action")]
        return self.log_once(event, fields, about=about, level=level)

    def log_hindrance(self, plan: EvictionPlan, hindrance: Reason) -> None:
        """Log what prevents an eviction: the limit of evictions, or an outstanding effect."""
        if hindrance.code in {ReasonCode.EVICTION_LIMIT, ReasonCode.EVICTION_SLOWED}:
            threshold = "" if plan.selected is None else plan.selected.threshold.text
            why = "; ".join(plan.plan.warnings)
            self.log_pressure("eviction_limit_reached", {"why": why, "threshold": threshold}, level="error")
            return
        fields = {key: value for key, value in hindrance.details.items() if key != "left_s"}
        self.log_pressure("eviction_withheld", {"reason": hindrance.code.value, "why": hindrance.sentence, **fields})

    def log_no_evictable_pod(self, plan: EvictionPlan, statement: Unrelieved) -> None:
        """Log that no eviction ends the shortage of a met threshold, with the count of each reason."""
        kept = Counter(each.reason.code.value for each in plan.plan.decisions)
        self.log_pressure(
            "no_evictable_pod",
            {
                "threshold": statement.threshold,
                "pods": len(plan.plan.decisions),
                "because": statement.text,
                "reasons": ", ".join(f"{kept[code]} {code}" for code in sorted(kept)),
                "short": statement.short,
                "freed_by_pods": statement.freed_by_pods,
                "used_by_pods": statement.used_by_pods,
                "used_by_others": statement.used_by_others,
                "hint": "nodeagent evict --dry-run lists the reason for each pod",
            },
        )


def eviction_fields(plan: EvictionPlan, eviction: Eviction) -> dict[str, object]:
    """Return the log fields of an eviction."""
    status = eviction.status
    reading = status.observation if status is not None else None
    return {
        **pod_fields(eviction.pod),
        "signal": eviction.signal,
        "threshold": "" if status is None else status.threshold.text,
        "available": None if reading is None else reading.available,
        "limit": None if status is None else status.limit,
        "starved": eviction.starved.value,
        "grace_s": eviction.grace_s,
        "reason": eviction.reason.code.value,
        "why": eviction.reason.sentence,
        "message": eviction.message,
        "ranked": len(plan.ranking),
        "kept": sum(1 for each in plan.plan.decisions if each.reason.code is not ReasonCode.RANKED_LATER) - 1,
    }


def _threshold_fields(status: ThresholdStatus) -> dict[str, object]:
    reading, threshold = status.observation, status.threshold
    return {
        "threshold": threshold.text,
        "signal": threshold.signal.value,
        "available": None if reading is None else reading.available,
        "capacity": None if reading is None else reading.capacity,
        "limit": status.limit,
        "hard": threshold.hard,
        "estimate": "" if reading is None else estimate_note(reading).strip(" ()"),
        "grace_period_s": threshold.grace_s,
    }
