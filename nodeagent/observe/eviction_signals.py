"""The eviction signal reader: filesystem layout, signal readings, and their evaluation against the thresholds.

The eviction loop, the status and metrics documents, the reload preview and the commands read signals through it only.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError
from nodeagent.host.filesystems import filesystem_id
from nodeagent.host.kubelet_files import KUBELET_ROOT
from nodeagent.host.signals import SignalPaths, read_signals
from nodeagent.model.pressure import FilesystemLayout, Moment
from nodeagent.plan.eviction.state import evaluate
from nodeagent.plan.eviction.thresholds import find_contradictions, for_layout
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.clock import Clock
    from nodeagent.config.eviction import EvictionSettings
    from nodeagent.model.pressure import Observation
    from nodeagent.plan.eviction.state import Evaluation, EvictionState
    from nodeagent.plan.eviction.thresholds import Threshold
    from nodeagent.runtime.cri import CriClient

_READ_WITHIN_S: Final = 2.0
_RUNTIME_WITHIN_S: Final = 2.0


class SignalLayout(Record):
    """Filesystems and thresholds of a node, constant while an agent runs.

    Attributes:
        layout: which of nodefs, imagefs and containerfs share a device.
        thresholds: the configured thresholds and the derived ones on containerfs.
        warnings: thresholds without effect on this node.
    """

    paths: SignalPaths
    layout: FilesystemLayout
    thresholds: tuple[Threshold, ...]
    warnings: tuple[str, ...] = ()


class SignalReadings(Record):
    """One reading of every signal.

    Attributes:
        unread: sentences on the unreadable signals.
        at: the time after the last reading.
    """

    observations: tuple[Observation, ...]
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
    """Reads all signals of the node. A hanging filesystem delays only its own signals."""

    def __init__(self, settings: EvictionSettings, clock: Clock, *, pod_log_root: Path, root: Path = Path("/")) -> None:
        """Create a reader without initial readings.

        Args:
            settings: thresholds and sources of signals.
            clock: dates the readings.
            pod_log_root: determines nodefs on a node without a kubelet's directory.
            root: parent of ``proc`` and ``sys``.
        """
        self._pod_log_root = pod_log_root
        self._settings = settings
        self._clock = clock
        self._root = root
        self._hung: asyncio.Future[tuple[tuple[Observation, ...], tuple[str, ...]]] | None = None

    async def read_layout(self, cri: CriClient, imagefs_path: str) -> SignalLayout:
        """Return the layout of the node's filesystems.

        Args:
            cri: reports the image filesystem.
            imagefs_path: configured path on imagefs; empty for the path reported by the runtime.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            RuntimeRequestError: the runtime refused ``ImageFsInfo``.
        """
        info = await cri.image_fs_info()
        image = next(iter(info.image_mountpoints), None)
        container = next(iter(info.container_mountpoints), image)
        return await self.resolve_layout(
            SignalPaths(await asyncio.to_thread(nodefs_path, self._pod_log_root), imagefs_path or image, container)
        )

    async def read_layout_or_nodefs(self, cri: CriClient, imagefs_path: str) -> tuple[SignalLayout, str]:
        """Return the layout, and a warning if the runtime does not report it within two seconds.

        The layout then has no imagefs and no containerfs. The warning is empty otherwise.
        """
        try:
            async with asyncio.timeout(_RUNTIME_WITHIN_S):
                return await self.read_layout(cri, imagefs_path), ""
        except (NodeAgentError, TimeoutError) as error:
            cause = str(error) or f"no answer from the runtime within {_RUNTIME_WITHIN_S:g} s"
            return await self.nodefs_layout(), f"image filesystem unknown: {cause}"

    async def nodefs_layout(self) -> SignalLayout:
        """Return the layout of a node whose image filesystem is unknown."""
        return await self.resolve_layout(SignalPaths(await asyncio.to_thread(nodefs_path, self._pod_log_root)))

    async def resolve_layout(self, paths: SignalPaths) -> SignalLayout:
        """Return the layout of known filesystem paths, with the thresholds that apply to it."""
        layout = await asyncio.to_thread(layout_of, paths)
        thresholds, warnings = for_layout(self._settings.thresholds, layout)
        return SignalLayout(paths, layout, thresholds, warnings)

    async def read(self, layout: SignalLayout) -> SignalReadings:
        """Return readings of all signals; filesystem signals are omitted while a filesystem hangs."""
        paths, late = layout.paths, ""
        if self._hung is not None and not self._hung.done():
            paths, late = SignalPaths(None), "filesystem signals not read: a filesystem still does not answer"
        reading = asyncio.ensure_future(asyncio.to_thread(self._read_signals, paths))
        done, _ = await asyncio.wait({reading}, timeout=_READ_WITHIN_S)
        if not done:
            # A thread in statfs on a dead mount never returns. It is reused, so that at most one thread is lost.
            self._hung = reading
            late = f"filesystem signals not read: a filesystem does not answer within {_READ_WITHIN_S:g} s"
            reading = asyncio.ensure_future(asyncio.to_thread(self._read_signals, SignalPaths(None)))
        observations, unread = await reading
        return SignalReadings(observations, (*unread, late) if late else unread, self.now())

    def _read_signals(self, paths: SignalPaths) -> tuple[tuple[Observation, ...], tuple[str, ...]]:
        return read_signals(
            paths,
            self._clock,
            source=self._settings.memory_source,
            kernel_estimate=self._settings.kernel_estimate,
            root=self._root,
        )

    async def evaluate(self, layout: SignalLayout, state: EvictionState) -> EvaluatedSignals:
        """Return current readings, evaluated against the thresholds.

        Args:
            layout: filesystems and thresholds.
            state: the state of the previous pass; empty for none.
        """
        return self.evaluate_readings(layout, await self.read(layout), state)

    def evaluate_readings(
        self, layout: SignalLayout, readings: SignalReadings, state: EvictionState
    ) -> EvaluatedSignals:
        """Return given readings, evaluated against the thresholds."""
        found = evaluate(state, readings.observations, layout.thresholds, self._settings.policy, now=readings.at)
        capacities = {each.signal: each.capacity for each in readings.observations}
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


def layout_of(paths: SignalPaths) -> FilesystemLayout:
    """Return which filesystems share a device.

    Differs from the kubelet, which counts the subvolumes of one Btrfs filesystem as several, and so evicts pods before
    it removes unused images.

    Source: kubelet ``HasDedicatedImageFs``.
    """
    node, image, container = (
        None if each is None else filesystem_id(each) for each in (paths.nodefs, paths.imagefs, paths.containerfs)
    )
    if image is None or image == node:
        return FilesystemLayout.SINGLE
    separate = container is not None and container != image
    return FilesystemLayout.SPLIT if separate else FilesystemLayout.DEDICATED_IMAGEFS


def nodefs_path(pod_log_root: Path, kubelet_root: Path = KUBELET_ROOT) -> str:
    """Return a path on nodefs: the kubelet's root directory; on a node without one, that of the pod logs."""
    if kubelet_root.is_dir():
        return str(kubelet_root)
    return str(next(each for each in (pod_log_root, *pod_log_root.parents) if each.is_dir() or each == Path("/")))
