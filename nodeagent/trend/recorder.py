"""The recorder: reads the node every minute, writes the record every five minutes, and keeps the outlook current."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError, StoreError
from nodeagent.eviction.signals import EvictionSignalReader, LayoutCache, SignalLayout
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.loops.passes import wait_for_any
from nodeagent.model.node import CollectionForecast
from nodeagent.model.outlook import ExpectedShortage, ThresholdKind
from nodeagent.model.pressure import FilesystemLayout, Signal
from nodeagent.record import Record
from nodeagent.telemetry.logging import StateLog, stable
from nodeagent.trend.documents import outlook_document
from nodeagent.trend.plan.outlook import ResourceOutlook, TrendPolicy, outlook_of
from nodeagent.trend.plan.readings import (
    Parts,
    image_parts,
    image_sizes,
    pod_parts,
    resource_name,
    resource_readings,
)
from nodeagent.trend.sample_file import PARTS_EVERY, RecordedLine, SampleFile
from nodeagent.trend.shortage import expected_shortage, first_shortages, follow_shortages
from nodeagent.trend.words import shortage_words
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from datetime import datetime

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.gc.agent import Agent
    from nodeagent.gc.plan.policy import ImageGCPolicy
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.settings.settings import Settings
    from nodeagent.trend.plan.readings import ResourceReading

EVERY_S: Final = 60.0
_LONG: Final = 1_440
_LONG_EVERY: Final = 15
"""Lines from which the outlook is computed less often, and lines from one computation to the next."""
_MOVED: Final = 0.01
"""Change of the use, as a share of the capacity, after which the outlook of a resource is computed at once."""
_IN_FORCE: Final = timedelta(minutes=30)
"""Maximum age of the newest reading of an outlook: twice the longest time from one computation to the next."""
NOT_RECORDED: Final = f"no resource was recorded for {format_duration(_IN_FORCE.seconds)}"
CURRENT: Final = 60
"""Newest lines in which a resource with an outlook has a reading; a filesystem may hang for less."""
_IMAGES_KEPT_S: Final = 3600.0
_PODS_WITHIN_S: Final = 20.0
_IMAGE_RESOURCES: Final = (Signal.NODEFS_AVAILABLE.value, Signal.IMAGEFS_AVAILABLE.value)


class ImageReading(Record):
    """Images of one pass of image GC.

    Attributes:
        parts: bytes by part.
        freeable: bytes that image GC can free; ``None`` if unknown.
    """

    at_s: float
    parts: Mapping[str, float]
    freeable: float | None


@dataclass
class TrendState:
    """State of the recorder that outlives a reload.

    Attributes:
        images: images of the last pass of image GC; ``None`` before the first.
        outlook: last outlook of each resource; empty before the first.
        parts: last amounts by resource and part, with which the fastest growing parts are found.
        lasting: expected shortages, see ``follow_shortages``.
        shortage: whether a shortage is expected by the last outlook; ``None`` before the first.
        collected_at: wall time of the last pass of image GC that removed something; ``None`` before the first.
    """

    images: ImageReading | None = None
    outlook: tuple[ResourceOutlook, ...] = ()
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    lasting: Mapping[str, float] = field(default_factory=dict)
    shortage: ExpectedShortage | None = None
    collected_at: datetime | None = None

    def outlook_at(self, now: datetime) -> tuple[ResourceOutlook, ...]:
        """Return the outlook in force at a time.

        Empty before the first outlook, and if no resource has a reading within 30 minutes of this time: the recorder
        has ended, or cannot write the record.
        """
        is_in_force = any(abs(now - each.observed_at) <= _IN_FORCE for each in self.outlook)
        return self.outlook if is_in_force else ()

    def shortage_at(self, now: datetime) -> ExpectedShortage | None:
        """Return whether a shortage is expected by the outlook in force at a time; ``None`` before the first."""
        if self.shortage is not None and self.outlook_at(now) != self.outlook:
            return ExpectedShortage(None, NOT_RECORDED)
        return self.shortage

    def collection_forecast(self) -> CollectionForecast | None:
        """Return the growth until image GC starts for bytes; its user compares its time with the current one.

        ``None`` without a trend, and until the forecast has a reading after the last collection, whose effect is
        unknown. A collection long after the last reading was before the clock was set back.
        """
        for each in self.outlook:
            for found in each.forecasts if each.resource in _IMAGE_RESOURCES else ():
                if found.threshold.name is not ThresholdKind.COLLECTION:
                    continue
                at = self.collected_at
                if found.rate_per_s and (at is None or not each.observed_at <= at <= each.observed_at + _IN_FORCE):
                    return CollectionForecast(each.observed_at, found.rate_per_s)
        return None

    def note_images(self, snapshot: NodeSnapshot, policy: ImageGCPolicy, freed_bytes: int, now_s: float) -> None:
        """Keep the sizes of the images of a pass, and what image GC could still free after ``freed_bytes``."""
        plan = plan_image_gc(snapshot, policy, remove_all_unused=True)
        sizes = [each.frees_bytes for each in plan.removals]
        known = not plan.blocked and None not in sizes
        freeable = max(0.0, float(sum(each or 0 for each in sizes) - freed_bytes)) if known else None
        self.images = ImageReading(now_s, image_parts(snapshot, image_sizes(snapshot)), freeable)


class RecorderTask:
    """Records the resources of the node for one agent, and computes the outlook after every write."""

    def __init__(self, context: DaemonContext, agent: Agent) -> None:
        """Compose the task without reading the node."""
        settings = agent.settings
        self._state = context.trend
        self._agent = agent
        self._clock = context.clock
        self._states = StateLog(context.logger, context.clock)
        self._file = SampleFile(settings.state_directory)
        self._signals = EvictionSignalReader(settings.eviction, agent.clock, pod_log_root=settings.pod_log_root)
        find = agent.observer.images.find_filesystems
        self._layouts = LayoutCache(self._signals, agent.cri, settings.imagefs_path, find)
        self._pods = agent.make_pod_reader()
        self._pending: list[RecordedLine] = []
        self._written = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Record a line a minute until stopped; write the lines of the last minutes at the end."""
        with self._logged_errors(), suppress(StoreError):  # reported by the first write
            self._written = await asyncio.to_thread(self._file.last_number)
        while not stop.is_set():
            started_s = self._clock.monotonic_s()
            with self._logged_errors():
                await self.step()
            await wait_for_any(max(1.0, EVERY_S - (self._clock.monotonic_s() - started_s)), stop)
        with self._logged_errors():
            await self._write()

    @contextmanager
    def _logged_errors(self) -> Iterator[None]:
        """Log an error of the block once, and keep only the newest pending lines."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - no error of the record may end the daemon
            self._pending = self._pending[-PARTS_EVERY:]
            self._states.log_once(
                "trend_not_recorded", {"error": repr(error)}, state=stable(repr(error)), level="exception"
            )

    async def step(self) -> None:
        """Record one line; after every fifth line, and before the first outlook, write the lines and make the outlook.

        From a record of a day on, the outlook of a resource whose use hardly changes is computed every quarter of an
        hour, since a long record costs more.
        """
        layout = await self._record()
        if (self._written + len(self._pending)) % PARTS_EVERY == 0 or not self._state.outlook:
            readings = self._pending[-1].readings
            await self._write()
            is_first = not self._state.outlook_at(self._agent.clock.now())
            is_due = is_first or self._written < _LONG or self._written % _LONG_EVERY < PARTS_EVERY
            moved = None if is_due else moved_resources(self._state.outlook, readings)
            if moved != ():
                await self._update_outlook(layout, moved)

    async def _record(self) -> SignalLayout:
        """Read the node once, every fifth time with the parts of the resources; return the layout."""
        layout, _ = await self._layouts.read()
        readings = await self._signals.read(layout)
        number = self._written + len(self._pending) + 1
        parts = await self._read_parts(layout) if number % PARTS_EVERY == 0 or not self._state.parts else Parts()
        self._pending.append(
            RecordedLine(
                self._agent.read_clocks(),
                resource_readings(
                    readings.observations, layout.layout, self._with_freeable(parts, layout.layout), self._state.parts
                ),
            )
        )
        if parts.amounts:
            self._state.parts = parts.amounts
        return layout

    async def _read_parts(self, layout: SignalLayout) -> Parts:
        """Return the use of pods and images; without the pods while the runtime does not answer."""
        amounts: dict[str, dict[str, float]] = {}
        with suppress(NodeAgentError, TimeoutError):
            async with asyncio.timeout(_PODS_WITHIN_S):
                inventory = await self._pods.read(with_disk=True)
            found = pod_parts(inventory.facts, layout.layout, layout.others)
            amounts = {resource: dict(each) for resource, each in found.items()}
        images = self._current_images()
        if images is not None:
            amounts.setdefault(_image_resource(layout.layout), {}).update(images.parts)
        return Parts(amounts)

    def _with_freeable(self, parts: Parts, layout: FilesystemLayout) -> Parts:
        images = self._current_images()
        if images is None or images.freeable is None:
            return parts
        return Parts(parts.amounts, {_image_resource(layout): images.freeable})

    def _current_images(self) -> ImageReading | None:
        images = self._state.images
        if images is None or self._clock.monotonic_s() - images.at_s > _IMAGES_KEPT_S:
            return None
        return images

    async def _write(self) -> None:
        """Write the pending lines; lines that cannot be written are dropped, which is logged once."""
        lines, self._pending = self._pending, []
        if not lines:
            return
        try:
            notice = await asyncio.to_thread(self._file.append, lines)
        except StoreError as error:
            self._states.log_once("trend_not_recorded", {"error": str(error)}, state=str(error))
            return
        self._written += len(lines)
        self._states.end("trend_not_recorded")
        if notice:
            self._states.logger.warning("store_notice", notice=notice)
            self._written = len(lines)

    async def _update_outlook(self, layout: SignalLayout, resources: Collection[str] | None) -> None:
        """Compute the outlook of some resources; ``None`` for all."""
        policy, now = trend_policy(self._agent.settings, layout), self._agent.clock.now()
        with suppress(StoreError):  # reported by the next write
            found = await asyncio.to_thread(outlook_of_file, self._file, policy, now, resources)
            others = [each for each in self._state.outlook if resources is not None and each.resource not in resources]
            self._state.outlook = tuple(sorted((*others, *found), key=lambda each: each.resource))
            for notice in self._file.warnings:
                self._states.log_once("store_notice", {"notice": notice}, state=notice)
            self._report_shortages()

    def _report_shortages(self) -> None:
        """Log the start and the end of expected shortages; the Events of the node are those of the log."""
        state, logger = self._state, self._states.logger
        before, shortages = state.lasting, first_shortages(map(outlook_document, state.outlook))
        state.lasting = follow_shortages(before, shortages, self._clock.monotonic_s())
        state.shortage = expected_shortage(shortages, state.lasting, shortage_words)
        for each in shortages:
            resource, found = each.outlook.resource, each.forecast
            if resource in state.lasting and resource not in before:
                logger.warning(
                    "shortage_expected",
                    resource=resource,
                    threshold=found.threshold.value,
                    earliest_s=found.earliest_s,
                    expected_s=found.expected_s,
                    latest_s=found.latest_s,
                    detail=shortage_words(each),
                )
        for resource in sorted(before.keys() - state.lasting.keys()):
            logger.info("shortage_not_expected", resource=resource)


def moved_resources(outlook: Iterable[ResourceOutlook], readings: Iterable[ResourceReading]) -> tuple[str, ...]:
    """Return the resources whose use changed by more than a hundredth of the capacity since their last outlook."""
    before = {each.resource: each.used for each in outlook}
    return tuple(
        each.resource
        for each in readings
        if abs(each.used - before.get(each.resource, each.used)) > _MOVED * each.capacity
    )


def outlook_of_file(
    file: SampleFile, policy: TrendPolicy, now: datetime, resources: Collection[str] | None = None
) -> tuple[ResourceOutlook, ...]:
    """Return the outlook of each resource that is still read, or of some.

    A resource without a reading in the newest 60 lines is omitted: the node no longer has it, such as swap after
    ``swapoff``. After fewer lines its forecast is unknown.

    Raises:
        StoreError: the file cannot be read.
    """
    series = file.read_each(file.read_names(CURRENT) if resources is None else resources)
    found = (outlook_of(each.resource, each.capacity, each.samples, policy, now) for each in series)
    return tuple(each for each in found if each is not None)


def trend_policy(settings: Settings, layout: SignalLayout) -> TrendPolicy:
    """Return what happens on the node at which use, by its settings and its filesystems."""
    images = None if settings.image_interval_s is None else settings.policy.images
    return TrendPolicy(layout.thresholds, images, layout.layout)


def _image_resource(layout: FilesystemLayout) -> str:
    signal = Signal.NODEFS_AVAILABLE if layout is FilesystemLayout.SINGLE else Signal.IMAGEFS_AVAILABLE
    return resource_name(signal)
