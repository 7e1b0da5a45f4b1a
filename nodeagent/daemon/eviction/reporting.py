"""Log events of the eviction loop: thresholds and conditions that changed, warnings, and withheld evictions."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from nodeagent.plan.decision import ReasonCode
from nodeagent.plan.eviction.message import estimate_note

if TYPE_CHECKING:
    from collections.abc import Iterable

    from structlog.typing import FilteringBoundLogger

    from nodeagent.plan.decision import Reason
    from nodeagent.plan.eviction.eviction import Eviction
    from nodeagent.plan.eviction.planner import EvictionPlan
    from nodeagent.plan.eviction.relief import Unrelieved
    from nodeagent.plan.eviction.state import Evaluation
    from nodeagent.plan.eviction.threshold_status import ThresholdStatus

_MAX_WARNINGS: Final = 200
_NUMBERS: Final = re.compile(r"[0-9.]+")


class EvictionReporter:
    """Logs changes, and each lasting state once.

    Attributes:
        logger: logger of the eviction loop.
    """

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self.logger = logger
        self._met: frozenset[str] = frozenset()
        self._warnings: set[str] = set()
        self._last_state = ""

    def log_changes(self, evaluation: Evaluation) -> None:
        """Log the node conditions and thresholds that changed since the last call."""
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
            self._last_state = ""
        self._met = frozenset(met)

    def log_warnings(self, warnings: Iterable[str]) -> None:
        """Log each warning once; warnings that differ only in numbers count as one."""
        if len(self._warnings) > _MAX_WARNINGS:
            self._warnings.clear()
        for warning in warnings:
            key = _NUMBERS.sub("", warning)
            if key not in self._warnings:
                self._warnings.add(key)
                self.logger.warning("eviction_warning", warning=warning)

    def log_once(self, event: str, **fields: object) -> bool:
        """Log a lasting state unless it was the last logged state; return whether it was logged."""
        key = " ".join([event, *(str(fields.get(name, "")) for name in ("pod_uid", "threshold", "action"))])
        if key == self._last_state:
            return False
        self._last_state = key
        level = self.logger.error if event == "eviction_limit_reached" else self.logger.warning
        level(event, **fields)
        return True

    def log_withheld(self, reason: Reason) -> None:
        """Log that an outstanding effect withholds evictions, once."""
        fields = {key: value for key, value in reason.details.items() if key != "left_s"}
        self.log_once("eviction_withheld", reason=reason.code.value, why=reason.sentence, **fields)

    def log_no_evictable_pod(self, plan: EvictionPlan, statement: Unrelieved) -> None:
        """Log once that no eviction ends the shortage of a met threshold, with the count of each reason."""
        kept = Counter(each.reason.code.value for each in plan.plan.decisions)
        self.log_once(
            "no_evictable_pod",
            threshold=statement.threshold,
            pods=len(plan.plan.decisions),
            because=statement.text,
            reasons=", ".join(f"{kept[code]} {code}" for code in sorted(kept)),
            short=statement.short,
            freed_by_pods=statement.freed_by_pods,
            used_by_pods=statement.used_by_pods,
            used_by_others=statement.used_by_others,
            hint="nodeagent evict --dry-run lists the reason for each pod",
        )


def eviction_fields(plan: EvictionPlan, eviction: Eviction) -> dict[str, object]:
    """Return the log fields of an eviction."""
    status = eviction.status
    reading = status.observation if status is not None else None
    return {
        "pod_uid": eviction.pod.uid,
        "pod_namespace": eviction.pod.namespace,
        "pod_name": eviction.pod.name,
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
        "estimate": "MemAvailable" if reading is not None and estimate_note(reading) else "",
        "grace_period_s": threshold.grace_s,
    }
