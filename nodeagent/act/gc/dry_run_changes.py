"""Changes between successive dry runs of one loop.

A dry run removes nothing, so every pass plans the same removals again. Only changes are logged and recorded. An item
with a changed reason code counts as newly planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.act.gc.outcomes import Outcome
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from nodeagent.act.gc.outcomes import PassReport, Result
    from nodeagent.plan.decision import Decision, ItemKind, ReasonCode

_GONE = "it no longer exists"
_Key = tuple["ItemKind", str]


class Dropped(Record):
    """An item that the previous dry run planned to remove and the current one does not.

    Attributes:
        why: reason that the removal is no longer planned, as text.
    """

    kind: ItemKind
    id: str
    name: str
    why: str


class Changes(Record):
    """Changes between the previous dry run and the current dry run.

    Attributes:
        planned: the newly planned removals, in order.
        dropped: the removals that are no longer planned.
        since: id of the last dry run with a change, whose record has the removals; empty for the first dry run.
    """

    planned: tuple[Result, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    since: str = ""

    def __bool__(self) -> bool:
        """Return whether anything changed."""
        return bool(self.planned or self.dropped)


class DryRunWatch:
    """Comparison of the successive dry runs of one loop.

    Attributes:
        last: changes of the last dry run.
    """

    def __init__(self) -> None:
        """Start without a previous dry run, so that the first report has new removals only."""
        self.last = Changes()
        self._planned: Mapping[_Key, tuple[str, ReasonCode]] = {}
        self._changed_in = ""

    def compare(self, report: PassReport) -> Changes:
        """Return the changes since the last dry run; none for a pass without a complete plan."""
        if any(plan.blocked for plan in report.plans):
            self.last = Changes(since=self._changed_in)
            return self.last
        results = [each for each in report.results if each.outcome is Outcome.DRY_RUN]
        now = {(each.decision.kind, each.decision.id): each.decision for each in results}
        planned = tuple(each for each in results if self._is_new(each.decision))
        missing = {key: name for key, (name, _) in self._planned.items() if key not in now}
        kept = _decisions(report, missing) if missing else {}
        dropped = tuple(
            Dropped(*key, name, kept[key].reason.sentence if key in kept else _GONE) for key, name in missing.items()
        )
        self._planned = {key: (each.name, each.reason.code) for key, each in now.items()}
        self.last = Changes(planned, dropped, self._changed_in)
        if self.last:
            self._changed_in = report.id
        return self.last

    def _is_new(self, decision: Decision) -> bool:
        before = self._planned.get((decision.kind, decision.id))
        return before is None or before[1] is not decision.reason.code


def _decisions(report: PassReport, keys: Container[_Key]) -> dict[_Key, Decision]:
    """Return the decisions of a pass on the items with these keys, by key."""
    decided = ((each.kind, each.id, each) for plan in report.plans for each in plan.decisions)
    return {(kind, item_id): each for kind, item_id, each in decided if (kind, item_id) in keys}
