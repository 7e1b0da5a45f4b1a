"""Values of a reload: its effect on removals and evictions, and its outcome."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from nodeagent.record import Record
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.eviction.plan.preview import PodEviction
    from nodeagent.eviction.plan.readings import ThresholdStatus
    from nodeagent.model.decision import Decision

SHOWN: Final = 10
"""Maximum number of items or pods named in a log line or a document."""


class Effect(Record):
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
    pods: tuple[PodEviction, ...] = ()
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
    effect: Effect | None = None
    grace_s: float = 0.0
    until: datetime | None = None
    applied: bool = True


def threshold_text(status: ThresholdStatus) -> str:
    """Return a threshold and its grace period as text."""
    grace_s = status.threshold.grace_s
    return f"{status.threshold.text} ({f'after {grace_s:g} s' if grace_s else 'at once'})"
