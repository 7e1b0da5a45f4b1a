"""The document of the record, from the file of the record and the history."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from msgspec import structs

from nodeagent.errors import StoreError, UsageError
from nodeagent.model.outlook import Outlook
from nodeagent.record import Record
from nodeagent.trend.documents import ResourceTrend, Trend, TrendMark, TrendPoint, outlook_document
from nodeagent.trend.plan.outlook import outlook_of
from nodeagent.trend.recorder import CURRENT, NOT_RECORDED, outlook_of_file, trend_policy
from nodeagent.trend.sample_file import SampleFile, Series

if TYPE_CHECKING:
    from nodeagent.api.outlook import OutlookDocument
    from nodeagent.eviction.signals import SignalLayout
    from nodeagent.gc.agent import Agent
    from nodeagent.settings.settings import Settings
    from nodeagent.trend.plan.forecast import Sample
    from nodeagent.trend.plan.outlook import TrendPolicy
    from nodeagent.trend.recorder import TrendState

DAY_S: Final = 86_400.0
LONGEST_S: Final = 90 * 86_400.0
_MOST_POINTS: Final = 400
_MOST_PASSES: Final = 200


class KnownOutlook(Record):
    """Outlook of each resource; without a readable record, or one that has ended, empty with a warning."""

    resources: tuple[OutlookDocument, ...] = ()
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, state: TrendState, now: datetime) -> KnownOutlook:
        """Return the outlook in force that a daemon has computed."""
        outlook = state.outlook_at(now)
        return cls(tuple(map(outlook_document, outlook)), () if outlook == state.outlook else (NOT_RECORDED,))


async def read_outlook(settings: Settings, layout: SignalLayout, now: datetime) -> KnownOutlook:
    """Return the outlook of each resource from the record of the daemon, which may have stopped."""
    file = SampleFile(settings.state_directory)
    try:
        outlook = await asyncio.to_thread(outlook_of_file, file, trend_policy(settings, layout), now)
    except StoreError as error:
        return KnownOutlook(warnings=(str(error),))
    return KnownOutlook(tuple(map(outlook_document, outlook)), file.warnings)


def grown_by(outlooks: Iterable[OutlookDocument], parts: Collection[str]) -> tuple[OutlookDocument, ...]:
    """Return the outlook of each resource that one of the parts grows, with these parts only.

    If nothing is known to grow, it is the outlook of the resources with too few readings to know.
    """
    outlooks = tuple(outlooks)
    own = [(each, tuple(one for one in each.growth if one.part in parts)) for each in outlooks]
    found = tuple(structs.replace(each, growth=growth) for each, growth in own if growth)
    if found:
        return found
    return tuple(
        each for each in outlooks if each.forecasts and all(one.outlook is Outlook.UNKNOWN for one in each.forecasts)
    )


async def trend_document(agent: Agent, layout: SignalLayout, resource: str, seconds: float) -> Trend:
    """Return the record and the outlook of the resources.

    Args:
        agent: gives settings, history and clock.
        layout: filesystems and thresholds of the node.
        resource: name of a resource or its beginning, such as ``imagefs``; empty for all that are still read.
        seconds: length of the record.

    Raises:
        UsageError: no resource has this name.
        StoreError: the record cannot be read.
    """
    now = agent.clock.now()
    since = now - timedelta(seconds=seconds)
    policy = trend_policy(agent.settings, layout)
    return await asyncio.to_thread(_read, agent, policy, resource, since, now)


def _read(agent: Agent, policy: TrendPolicy, resource: str, since: datetime, now: datetime) -> Trend:
    file = SampleFile(agent.settings.state_directory)
    names = file.read_names()
    chosen = [resource] if resource in names else [each for each in names if each.startswith(resource)]
    if not resource:  # the node no longer has the others
        chosen = list(file.read_names(CURRENT))
    if names and not chosen:
        raise UsageError(f"no resource {resource!r}; resources: {', '.join(names)}")
    warnings = () if names else ("nothing is recorded yet; the daemon records a reading every minute",)
    try:
        passes = agent.history.read(since=since, limit=_MOST_PASSES)
    except StoreError as error:
        passes, warnings = (), (*warnings, str(error))
    marks = [TrendMark(at=at, kind="reboot", text="the node was started") for at in file.read_boots(since)]
    for each in passes:
        done = [action for action in each.actions if action.outcome == "done"]
        if done and not each.dry_run:
            kind = "eviction" if each.scope == "pods" else "collection"
            text = done[0].name if kind == "eviction" else f"{len(done)} removed by {each.trigger}"
            marks.append(TrendMark(at=each.started_at, kind=kind, text=text))
    resources = [_resource(each, policy, since, now) for each in file.read_each(chosen)]
    return Trend(
        observed_at=now,
        since=since,
        resources=tuple(each for each in resources if each is not None),
        marks=tuple(sorted(marks, key=lambda mark: (mark.at, mark.kind, mark.text))),
        warnings=(*warnings, *file.warnings),
    )


def _resource(series: Series, policy: TrendPolicy, since: datetime, now: datetime) -> ResourceTrend | None:
    outlook = outlook_of(series.resource, series.capacity, series.samples, policy, now)
    if outlook is None:
        return None
    points = thinned([each for each in series.samples if since <= each.at <= now], _MOST_POINTS)
    return ResourceTrend(outlook=outlook_document(outlook), points=points)


def thinned(samples: Sequence[Sample], most: int) -> tuple[TrendPoint, ...]:
    """Return at most ``most`` points: of each run of samples the one with the highest use.

    A run of which any sample starts anew is marked.
    """
    step = -(-len(samples) // most) or 1
    runs = [samples[start : start + step] for start in range(0, len(samples), step)]
    highest = [max(run, key=lambda each: each.used) for run in runs]
    return tuple(
        TrendPoint(at=each.at, used=each.used, new_start=any(one.new_start for one in run))
        for each, run in zip(highest, runs, strict=True)
    )
