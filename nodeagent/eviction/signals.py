"""The eviction signal reader: filesystem layout, signal readings, and their evaluation against the thresholds.

The eviction loop, the status and metrics documents, the reload preview and the commands read signals only through this
reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set as AbstractSet
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from nodeagent.errors import NodeAgentError, ObservationError
from nodeagent.eviction.kernel_signals import SignalPaths, read_filesystem_signals, read_other_filesystem, read_signals
from nodeagent.eviction.plan.memory_model import is_near
from nodeagent.eviction.plan.preview import (
    FALLING_S,
    SOONEST_S,
    WHILE_MET_S,
    is_soon_exhausted,
    measured_rate,
    next_poll_s,
)
from nodeagent.eviction.plan.state import Evaluation, EvictionState, evaluate
from nodeagent.eviction.plan.thresholds import (
    MEANINGS,
    Threshold,
    ThresholdStatus,
    find_contradictions,
    for_layout,
    is_oversized,
)
from nodeagent.guarded_call import GuardedCall, HangingCallError
from nodeagent.host.filesystems import filesystem_id, read_filesystem
from nodeagent.host.kubelet_traces import KUBELET_ROOT
from nodeagent.host.meminfo import MemoryReader
from nodeagent.model.pressure import FilesystemLayout, Moment, OtherFilesystem, Signal, SignalReading, has_separate_logs
from nodeagent.model.runtime import ImageFilesystem
from nodeagent.record import Record, replace
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.eviction.reporting import EvictionReporter
    from nodeagent.eviction.settings import EvictionSettings
    from nodeagent.runtime.cri import CriClient
    from nodeagent.units import Clock

FindImageFilesystems = Callable[[], Awaitable[tuple[ImageFilesystem, ...]]]


_Read = tuple[tuple[SignalReading, ...], tuple[str, ...]]
"""Readings, and a sentence for each unreadable signal."""

_NOTHING: Final[_Read] = ((), ())
_READ_WITHIN_S: Final = 2.0
_PROMPT_S: Final = 0.02
"""Longest wait for the filesystems while a threshold on memory or PIDs is met; they usually answer in 1 ms."""
_LOGS_WITHIN_S: Final = 0.5
_RUNTIME_WITHIN_S: Final = 2.0
LAYOUT_KEPT_S: Final = 60.0
"""Maximum age of a cached layout in seconds, since the image filesystems other than the first can change."""


NO_SIZES: Final[Mapping[Signal, float]] = MappingProxyType({})


def _log_filesystem(path: str) -> tuple[int | None, Mapping[Signal, float]]:
    """Return the device and the sizes by signal of the filesystem of the pod logs; ``None`` if unreadable."""
    device_id = filesystem_id(path)
    with suppress(ObservationError):
        found = read_filesystem(path, SystemClock())
        sizes = {Signal.NODEFS_AVAILABLE: float(found.capacity_bytes), Signal.NODEFS_INODES_FREE: float(found.inodes)}
        return device_id, sizes
    return device_id, NO_SIZES


class SignalLayout(Record):
    """Filesystems and thresholds of a node.

    Attributes:
        layout: which of nodefs, imagefs and containerfs share a device.
        thresholds: configured thresholds, with the thresholds derived for containerfs and ``others``.
        warnings: thresholds without effect on this node.
        others: the image filesystems other than the first, which can change while the agent runs, and the filesystem
            of the pod logs if it is their own.
        others_known: whether the search for ``others`` succeeded.
    """

    paths: SignalPaths
    layout: FilesystemLayout
    thresholds: tuple[Threshold, ...]
    warnings: tuple[str, ...] = ()
    others: tuple[OtherFilesystem, ...] = ()
    others_known: bool = True

    @property
    def has_separate_logs(self) -> bool:
        """Whether the pod logs are on a filesystem of their own."""
        return has_separate_logs(self.others)


class SignalReadings(Record):
    """One reading of every signal.

    Attributes:
        unread: a sentence for each unreadable signal.
        at: the time after the last reading.
    """

    observations: tuple[SignalReading, ...]
    unread: tuple[str, ...]
    at: Moment


class EvaluatedSignals(Record):
    """Signal readings with their evaluation.

    Attributes:
        warnings: thresholds without effect on this node, unread signals and rejected readings.
    """

    layout: SignalLayout
    readings: SignalReadings
    evaluation: Evaluation
    warnings: tuple[str, ...]


class EvictionSignalReader:
    """Reader of all signals of the node. A hanging filesystem delays only its own signals.

    Memory, PIDs and stalls are read in the event loop: on a node without free CPU a thread may wait for seconds, and
    the kernel answers in less than a millisecond.
    """

    def __init__(
        self,
        settings: EvictionSettings,
        clock: Clock,
        *,
        pod_log_root: Path,
        root: Path = Path("/"),
        all_memory_parts: bool = True,
    ) -> None:
        """Create a reader without initial readings.

        Args:
            settings: thresholds and sources of signals.
            clock: dates the readings.
            pod_log_root: determines nodefs on a node without a kubelet root directory.
            root: parent of ``proc`` and ``sys``.
            all_memory_parts: whether every reading has all parts of the memory, not only a reading near a threshold.
        """
        near = None if all_memory_parts else partial(is_near, settings.thresholds)
        self._memory = MemoryReader(root, near)
        self._pod_log_root = pod_log_root
        self._settings = settings
        self._clock = clock
        self._root = root
        self._layouts = GuardedCall[SignalLayout]()
        self._logs = GuardedCall[tuple[int | None, Mapping[Signal, float]]]()
        self._first = GuardedCall[_Read]()
        self._others = GuardedCall[_Read]()
        self._reading: asyncio.Future[_Read] | None = None
        self._last: _Read = _NOTHING

    async def read_layout(
        self, cri: CriClient, imagefs_path: str, find: FindImageFilesystems | None = None
    ) -> SignalLayout:
        """Return the layout of the node's filesystems.

        Args:
            cri: client of the runtime, which reports the image filesystem.
            imagefs_path: configured path on imagefs; empty for the path reported by the runtime.
            find: returns all image filesystems of a node with several, empty on a node with one; ``None`` to use only
                the first.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            RuntimeRequestError: the runtime refused ``ImageFsInfo``.

        Image filesystems other than the first are omitted, with a warning, if the search for them fails. While a
        filesystem hangs, the layout has no filesystem.
        """
        info = await cri.image_fs_info()
        image = next(iter(info.image_mountpoints), None)
        container = next(iter(info.container_mountpoints), image)
        paths = SignalPaths(None, imagefs_path or image, container)
        try:
            async with asyncio.timeout(_RUNTIME_WITHIN_S / 2):
                several = () if find is None else await find()
        except (NodeAgentError, TimeoutError) as error:
            unknown = f"image filesystems besides the first unknown: {str(error) or 'no answer in time'}"
            layout = await self._resolve_in_time(paths)
            return replace(layout, warnings=(*layout.warnings, unknown), others_known=False)
        return await self._resolve_in_time(paths, several)

    async def read_layout_or_nodefs(
        self, cri: CriClient, imagefs_path: str, find: FindImageFilesystems | None = None
    ) -> tuple[SignalLayout, str]:
        """Return the layout, and a warning if the runtime does not report the layout within two seconds.

        A layout with a warning has neither imagefs nor containerfs. The warning is empty after an answer in time.
        """
        try:
            async with asyncio.timeout(_RUNTIME_WITHIN_S):
                return await self.read_layout(cri, imagefs_path, find), ""
        except (NodeAgentError, TimeoutError) as error:
            cause = str(error) or f"no answer from the runtime within {_RUNTIME_WITHIN_S:g} s"
            return await self.nodefs_layout(), f"image filesystem unknown: {cause}"

    async def nodefs_layout(self) -> SignalLayout:
        """Return the layout of a node whose image filesystem is unknown."""
        return await self._resolve_in_time(SignalPaths(None))

    async def _resolve_in_time(self, paths: SignalPaths, several: Iterable[ImageFilesystem] = ()) -> SignalLayout:
        """Return the layout of ``paths`` and of nodefs; without any filesystem, with a warning, while one hangs.

        A filesystem of the pod logs that hangs counts as one of its own, with device 0: nodefs then counts no logs.
        """
        log_device: int | None = None
        log_sizes: Mapping[Signal, float] = {}
        unknown: tuple[str, ...] = ()
        try:
            log_device, log_sizes = await self._logs.run(
                partial(_log_filesystem, str(self._pod_log_root)), within_s=_LOGS_WITHIN_S
            )
        except HangingCallError as error:
            log_device, unknown = 0, (f"filesystem of the pod logs unknown: it {error}",)

        def resolve() -> SignalLayout:
            known = replace(paths, nodefs=nodefs_path(self._pod_log_root))
            return self.resolve_layout(known, several, log_device, log_sizes)

        try:
            layout = await self._layouts.run(resolve, within_s=_READ_WITHIN_S)
        except HangingCallError as error:
            layout = self.resolve_layout(SignalPaths(None))
            return replace(layout, warnings=(f"filesystems unknown: one {error}",), others_known=False)
        return replace(layout, warnings=(*layout.warnings, *unknown), others_known=not unknown)

    def resolve_layout(
        self,
        paths: SignalPaths,
        several: Iterable[ImageFilesystem] = (),
        log_device: int | None = None,
        log_sizes: Mapping[Signal, float] = NO_SIZES,
    ) -> SignalLayout:
        """Return the layout of known filesystem paths, with the thresholds that apply to that layout. Blocks.

        ``several`` are the image filesystems of a node with more than one; ``log_device`` is the device of the pod
        logs, ``None`` if unknown, with the bytes and inodes of its filesystem by signal in ``log_sizes``.
        """
        layout, others = layout_of(paths), others_of(paths, several)
        known = {filesystem_id(each) for each in (paths.nodefs, paths.imagefs, paths.containerfs) if each is not None}
        known |= {each.device_id for each in others}
        if log_device is not None and paths.imagefs is not None and log_device not in known:
            others = (*others, OtherFilesystem(str(self._pod_log_root), log_device, frozenset()))
        found, warnings = for_layout(self._settings.thresholds, layout, others)
        thresholds = tuple(each for each in found if not is_oversized(each, log_sizes))
        oversized = (each.text for each in found if is_oversized(each, log_sizes))
        warnings += tuple(f"{each} has no effect: more than half of the filesystem" for each in oversized)
        return SignalLayout(paths, layout, thresholds, warnings, others)

    async def read(self, layout: SignalLayout, *, urgently: bool = False) -> SignalReadings:
        """Return readings of all signals; filesystem signals are omitted while a filesystem hangs.

        Additional filesystems are read separately, so that a hang delays only their own signals.

        Args:
            layout: filesystems and thresholds.
            urgently: whether to return without waiting for the filesystems while a threshold on memory or PIDs is met;
                the filesystem signals are then of the last reading.
        """
        kernel, found = self._read_kernel(), _NOTHING
        if layout.paths != SignalPaths(None) or layout.others:
            reading = self._begin_reading(layout)
            short = False
            while not reading.done() and not short:
                short = urgently and _is_short(layout.thresholds, kernel[0])
                done, _ = await asyncio.wait({reading}, timeout=_PROMPT_S if short else SOONEST_S)
                if not done:
                    kernel = self._read_kernel()
            found = self._end_reading(reading)
        return SignalReadings((*kernel[0], *found[0]), (*kernel[1], *found[1]), self.now())

    def _begin_reading(self, layout: SignalLayout) -> asyncio.Future[_Read]:
        """Begin a reading of the filesystems, unless one is in progress for which no caller waited; return it."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read_filesystems(layout))
        return self._reading

    def _end_reading(self, reading: asyncio.Future[_Read]) -> _Read:
        """Return the signals of the filesystems, of the last finished reading while this one is in progress."""
        if reading.done():
            self._reading = None if self._reading is reading else self._reading
            self._last = reading.result()
        return self._last

    def _read_kernel(self) -> _Read:
        return read_signals(
            SignalPaths(None),
            self._clock,
            source=self._settings.memory_source,
            kernel_estimate=self._settings.kernel_estimate,
            memory=self._memory,
            root=self._root,
        )

    async def _read_filesystems(self, layout: SignalLayout) -> _Read:
        (first, late), (others, others_late) = await asyncio.gather(
            _read_in_time(self._first, partial(read_filesystem_signals, layout.paths, self._clock)),
            _read_in_time(self._others, partial(self._read_others, layout.others)),
        )
        unread = (*first[1], *others[1])
        unread += (f"filesystem signals not read: a filesystem {late}",) if late else ()
        unread += (f"signals of additional filesystems not read: one {others_late}",) if others_late else ()
        return (*first[0], *others[0]), unread

    def _read_others(self, others: tuple[OtherFilesystem, ...]) -> _Read:
        found, unread = list[SignalReading](), list[str]()
        for each in others:
            try:
                found += read_other_filesystem(each, self._clock)
            except ObservationError as error:
                unread.append(str(error))
        return tuple(found), tuple(unread)

    async def evaluate(self, layout: SignalLayout, state: EvictionState) -> EvaluatedSignals:
        """Return current readings, evaluated against the thresholds.

        Args:
            layout: filesystems and thresholds.
            state: the eviction state of the previous pass; an empty state before the first pass.
        """
        return self.evaluate_readings(layout, await self.read(layout), state)

    def evaluate_readings(
        self, layout: SignalLayout, readings: SignalReadings, state: EvictionState
    ) -> EvaluatedSignals:
        """Return ``readings`` with their evaluation against the thresholds."""
        found = evaluate(state, readings.observations, layout.thresholds, self._settings.policy, now=readings.at)
        capacities = {each.measurand: each.capacity for each in readings.observations}
        warnings = (
            *layout.warnings,
            *find_contradictions(layout.thresholds, capacities),
            *readings.unread,
            *(each.sentence for each in found.rejections),
        )
        return EvaluatedSignals(layout, readings, found, warnings)

    def now(self) -> Moment:
        """Return the current instant."""
        return Moment(self._clock.now(), self._clock.monotonic_s())


def _is_short(thresholds: Iterable[Threshold], observations: Iterable[SignalReading]) -> bool:
    """Return whether a threshold is met for which the eviction of a pod frees memory or PIDs."""
    readings = {each.measurand: each for each in observations}
    for threshold in thresholds:
        meaning, reading = MEANINGS[threshold.signal], readings.get(threshold.measurand)
        if meaning.filesystem is not None or meaning.resource is None or reading is None:
            continue
        if threshold.met_by(reading.available, reading.capacity):
            return True
    return False


async def _read_in_time(guard: GuardedCall[_Read], read: Callable[[], _Read]) -> tuple[_Read, str]:
    """Return the readings, or no readings and the cause of the hang, worded as the predicate of a sentence."""
    try:
        return await guard.run(read, within_s=_READ_WITHIN_S), ""
    except HangingCallError as error:
        return _NOTHING, str(error)


class LayoutCache:
    """Cache of the layout, refreshed after a minute; without an answer of the runtime, the last layout remains."""

    def __init__(
        self, reader: EvictionSignalReader, cri: CriClient, imagefs_path: str, find: FindImageFilesystems
    ) -> None:
        """Create an empty cache; the arguments are those of :meth:`EvictionSignalReader.read_layout`."""
        self._reader = reader
        self._read = partial(reader.read_layout_or_nodefs, cri, imagefs_path, find)
        self._layout: SignalLayout | None = None
        self._until_s = 0.0

    async def read(self) -> tuple[SignalLayout, str]:
        """Return the layout, and a warning until the runtime has reported a layout."""
        now_s = self._reader.now().monotonic_s
        if self._layout is not None and now_s < self._until_s:
            return self._layout, ""
        layout, problem = await self._read()
        self._until_s = now_s + LAYOUT_KEPT_S
        if problem:
            return (layout, problem) if self._layout is None else (self._layout, "")
        self._layout = layout
        return layout, ""


def layout_of(paths: SignalPaths) -> FilesystemLayout:
    """Return the layout of nodefs, imagefs and containerfs: which of them share a device.

    Btrfs subvolumes count as one filesystem. The kubelet counts several filesystems, and therefore evicts pods before
    the removal of unused images.

    Source: kubelet ``HasDedicatedImageFs``.
    """
    node, image, container = (
        None if each is None else filesystem_id(each) for each in (paths.nodefs, paths.imagefs, paths.containerfs)
    )
    if image is None or image == node:
        return FilesystemLayout.SINGLE
    separate = container is not None and container != image
    return FilesystemLayout.SPLIT if separate else FilesystemLayout.DEDICATED_IMAGEFS


def others_of(paths: SignalPaths, several: Iterable[ImageFilesystem]) -> tuple[OtherFilesystem, ...]:
    """Return the image filesystems watched by eviction besides imagefs and containerfs, without duplicates.

    Unreadable filesystems are not watched. Filesystems without a known snapshotter, as with CRI alone, are not watched
    either, because no image is known to be stored there.
    """
    known = (paths.nodefs, paths.imagefs, paths.containerfs)
    nodefs, *own = (None if each is None else filesystem_id(each) for each in known)
    found: dict[int, OtherFilesystem] = {}
    for each in several:
        device = None if each.observed is None else each.observed.device_id
        stores = each.stores - {""}
        if device is None or device in own or not stores or paths.imagefs is None:
            continue
        found.setdefault(device, OtherFilesystem(each.path, device, stores, device == nodefs))
    return tuple(found.values())


def nodefs_path(pod_log_root: Path, kubelet_root: Path = KUBELET_ROOT) -> str:
    """Return a path on nodefs: the kubelet's root directory, or the pod log directory if the former does not exist."""
    if kubelet_root.is_dir():
        return str(kubelet_root)
    return str(next(each for each in (pod_log_root, *pod_log_root.parents) if each.is_dir() or each == Path("/")))


RATE_S: Final = 1.0
"""Minimum time in seconds over which the growth of a shortage is measured."""
WATCH_S: Final = 0.5
"""Interval of the readings while directories are walked or images removed."""
_KEPT_NEAR_S: Final = 300.0
_REFRESH_WITHIN_S: Final = 2.0


class SignalReader(Protocol):
    """Reads and evaluates the signals; see :class:`EvictionSignalReader`."""

    async def read(self, layout: SignalLayout, *, urgently: bool = False) -> SignalReadings:
        """Return readings of all signals; with ``urgently`` without waiting for filesystems in a memory shortage."""

    def evaluate_readings(
        self, layout: SignalLayout, readings: SignalReadings, state: EvictionState
    ) -> EvaluatedSignals:
        """Return the evaluation of readings against the thresholds."""

    def now(self) -> Moment:
        """Return the current wall time and monotonic time."""


@dataclass(eq=False)
class SignalMonitor:
    """Signals of the node, with the last two evaluations.

    The eviction state is in the daemon context, where it outlives a reload.

    Attributes:
        context: daemon context with the eviction state.
        reader: reads the signals.
        read_layout: returns filesystems and thresholds; later calls update only the additional image filesystems.
        reporter: logs changed thresholds and conditions.
        watch_s: longest interval of the readings of :meth:`shortage_before`, in seconds.
    """

    context: DaemonContext
    reader: SignalReader
    read_layout: Callable[[], Awaitable[SignalLayout]]
    reporter: EvictionReporter
    _: KW_ONLY
    watch_s: float = WATCH_S
    _layout: SignalLayout | None = field(default=None, init=False)
    _layout_read_s: float = field(default=0.0, init=False)
    _evaluated: list[tuple[float, Evaluation]] = field(
        default_factory=list,
        init=False,
        # evaluations in the last second, and the last ones before it
    )

    async def layout(self) -> SignalLayout:
        """Return the filesystems of the node; they are read again until no filesystem hangs.

        Raises:
            NodeAgentError: the runtime does not report the image filesystem.
        """
        if self._layout is not None:
            return self._layout
        found = await self.read_layout()
        if found.paths.nodefs is not None:
            self._layout = found
            self._layout_read_s = self.now().monotonic_s
        return found

    async def refresh_others_if_due(self) -> None:
        """Detect the additional image filesystems again, every minute, or every five minutes near a threshold.

        Snapshotters and mounts add and remove these filesystems. If the runtime does not answer in time, the last known
        filesystems are kept.
        """
        now_s = self.now().monotonic_s
        kept_s = _KEPT_NEAR_S if self.is_near_threshold(WHILE_MET_S) else LAYOUT_KEPT_S
        if self._layout is None or now_s - self._layout_read_s < kept_s:
            return
        self._layout_read_s = now_s
        with suppress(NodeAgentError, TimeoutError):
            async with asyncio.timeout(_REFRESH_WITHIN_S):
                found = await self.read_layout()
            if found.layout is self._layout.layout and found.others_known:
                self._layout = replace(found, paths=self._layout.paths)

    async def read(self, *, filesystems: bool = True) -> SignalReadings:
        """Return the current readings; without ``filesystems`` only memory, PIDs and stalls, which are faster to read.

        Raises:
            NodeAgentError: the runtime does not report the image filesystem.
        """
        layout = await self.layout()
        layout = layout if filesystems else replace(layout, paths=SignalPaths(None), others=())
        return await self.reader.read(layout, urgently=True)

    async def evaluate(self, readings: SignalReadings | None = None) -> Evaluation:
        """Evaluate readings, log the changes, and keep the state for the next evaluation.

        Args:
            readings: the readings; ``None`` to read the signals now.

        Raises:
            NodeAgentError: the runtime does not report the image filesystem.
        """
        layout = await self.layout()
        readings = readings or await self.reader.read(layout, urgently=True)
        evaluated = self.reader.evaluate_readings(layout, readings, self.context.eviction)
        evaluation = evaluated.evaluation
        self.context.eviction = evaluation.state
        now_s = readings.at.monotonic_s
        while len(self._evaluated) > 1 and now_s - self._evaluated[1][0] >= RATE_S:
            del self._evaluated[0]
        self._evaluated.append((now_s, evaluation))
        self.reporter.log_changes(evaluation)
        self.reporter.log_warnings(evaluated.warnings)
        return evaluation

    async def shortage_before(
        self,
        work: asyncio.Future[Any],
        ignored: AbstractSet[Threshold] = frozenset(),
        on_evaluation: Callable[[Evaluation], object] | None = None,
    ) -> bool:
        """Evaluate signals while ``work`` runs; return whether a hard memory or PID threshold was met before its end.

        Thresholds in ``ignored`` do not count: no pod can be evicted for them. ``on_evaluation`` is called with each
        evaluation, at least every ``SOONEST_S``.
        """
        watch_s = self.watch_s if on_evaluation is None else min(self.watch_s, SOONEST_S)
        while True:
            done, _ = await asyncio.wait({work}, timeout=self.next_poll_s(watch_s))
            if done:
                return False
            evaluation = await self.evaluate()
            if on_evaluation is not None:
                on_evaluation(evaluation)
            if any(_is_urgent(each.threshold) and each.threshold not in ignored for each in evaluation.acting):
                return True

    async def urgent_shortage(self, work: asyncio.Future[Any], covered: AbstractSet[Threshold]) -> Evaluation | None:
        """Read memory and PIDs while a pass runs, until a hard threshold is met that is not in ``covered``.

        The set may change meanwhile. The readings change neither the state nor the measured rates before a threshold is
        met: the pass evaluates the signals too, and acts on new readings only.

        Returns:
            The evaluation with only the met thresholds; ``None`` if ``work`` ended first.
        """
        while True:
            done, _ = await asyncio.wait({work}, timeout=self.next_poll_s(min(self.watch_s, SOONEST_S)))
            if done:
                return None
            layout = await self.layout()
            watched = tuple(each for each in layout.thresholds if _is_urgent(each) and each not in covered)
            readings = await self.read(filesystems=False)
            state = self.context.eviction
            if self.reader.evaluate_readings(replace(layout, thresholds=watched), readings, state).evaluation.acting:
                evaluation = await self.evaluate()
                met = tuple(each for each in evaluation.acting if each.threshold in watched)
                if met:
                    return replace(evaluation, statuses=met)

    def next_poll_s(self, interval_s: float) -> float:
        """Return the seconds until the next reading, at most ``interval_s``."""
        if not self._evaluated:
            return interval_s
        return next_poll_s(self._evaluated[-1][1], self._previous, interval_s=interval_s)

    def until_next_poll_s(self, interval_s: float) -> float:
        """Return the seconds from now until the next reading, counted from the latest evaluated readings."""
        elapsed_s = self.now().monotonic_s - (self._evaluated[-1][0] if self._evaluated else 0.0)
        return max(min(FALLING_S, interval_s), self.next_poll_s(interval_s) - elapsed_s)

    def is_near_threshold(self, interval_s: float) -> bool:
        """Return whether a threshold may be met soon, so that the next poll is due within a second."""
        return self.next_poll_s(interval_s) < WHILE_MET_S

    def is_soon_exhausted(self, status: ThresholdStatus) -> bool:
        """Return whether a filesystem will be exhausted within seconds; ``status`` is of the latest evaluation."""
        return is_soon_exhausted(status, self._previous)

    def rate(self, status: ThresholdStatus) -> float | None:
        """Return the decrease of a signal per second, over a second or longer; ``None`` without a reading of that age.

        Over a shorter time, a program that writes in bursts seems to write nothing. ``status`` has a later reading.
        """
        if not self._evaluated or status.observation is None:
            return None
        read_s, before = self._evaluated[0]
        return measured_rate(status, before) if status.observation.observed_at.monotonic_s - read_s >= RATE_S else None

    def is_falling(self, interval_s: float) -> bool:
        """Return whether a signal falls so fast that its threshold will be met before the usual shortest interval."""
        return self.next_poll_s(interval_s) < min(interval_s, SOONEST_S)

    @property
    def _previous(self) -> Evaluation | None:
        """The evaluation before the latest one."""
        return self._evaluated[-2][1] if len(self._evaluated) > 1 else None

    def now(self) -> Moment:
        """Return the current wall time and monotonic time."""
        return self.reader.now()


def _is_urgent(threshold: Threshold) -> bool:
    """Return whether a threshold is hard and on memory or PIDs, which an eviction frees at once."""
    meaning = MEANINGS[threshold.signal]
    return threshold.hard and meaning.filesystem is None and meaning.resource is not None
