"""The signals of this node: where they are read, what thresholds stand on them, and how they are now."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.host.signals import SignalPaths, device_of, read_signals
from nodeagent.model.pressure import FilesystemLayout, Moment
from nodeagent.plan.eviction.thresholds import find_contradictions, for_layout

if TYPE_CHECKING:
    from nodeagent.clock import Clock
    from nodeagent.config.eviction import EvictionSettings
    from nodeagent.model.pressure import Observation
    from nodeagent.plan.eviction.thresholds import Threshold
    from nodeagent.runtime.cri import CriClient

KUBELET_ROOT: Final = Path("/var/lib/kubelet")
_READ_WITHIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class SignalLayout:
    """What does not change while an agent runs.

    Attributes:
        layout: which filesystems are one.
        thresholds: with those on containerfs derived.
        warnings: what of the thresholds has no effect on this node.
    """

    paths: SignalPaths
    layout: FilesystemLayout
    thresholds: tuple[Threshold, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SignalReadings:
    """One look.

    Attributes:
        unread: what could not be read, in sentences.
        at: after the last reading.
    """

    observations: tuple[Observation, ...]
    unread: tuple[str, ...]
    at: Moment


class PressureReader:
    """Reads all signals, look after look. A filesystem that does not answer holds nothing else up."""

    def __init__(self, settings: EvictionSettings, clock: Clock, *, root: Path = Path("/")) -> None:
        self._settings = settings
        self._clock = clock
        self._root = root
        self._hung: asyncio.Future[tuple[tuple[Observation, ...], tuple[str, ...]]] | None = None

    async def survey(self, cri: CriClient, imagefs_path: str) -> SignalLayout:
        """Find out where the filesystems are, and what the thresholds come to there.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            RuntimeRequestError: it does not tell where its images are.
        """
        info = await cri.image_fs_info()
        image = next(iter(info.image_mountpoints), None)
        container = next(iter(info.container_mountpoints), image)
        nodefs = str(await asyncio.to_thread(_nodefs))
        return await self.ground(SignalPaths(nodefs, imagefs_path or image, container))

    async def ground(self, paths: SignalPaths) -> SignalLayout:
        """Return what the thresholds come to where the filesystems are known."""
        layout = await asyncio.to_thread(layout_of, paths)
        thresholds, warnings = for_layout(self._settings.thresholds, layout)
        return SignalLayout(paths, layout, thresholds, warnings)

    async def look(self, ground: SignalLayout) -> SignalReadings:
        """Read every signal; those of filesystems only as long as they answer."""
        paths, late = ground.paths, ""
        if self._hung is not None and not self._hung.done():
            paths, late = SignalPaths(None), "a filesystem still does not answer; its signals are not read"
        reading = asyncio.ensure_future(
            asyncio.to_thread(read_signals, paths, self._clock, source=self._settings.memory_source, root=self._root)
        )
        done, _ = await asyncio.wait({reading}, timeout=_READ_WITHIN_S)
        if not done:
            self._hung = reading
            late = f"a filesystem does not answer within {_READ_WITHIN_S:g} s; its signals are not read"
            reading = asyncio.ensure_future(
                asyncio.to_thread(
                    read_signals, SignalPaths(None), self._clock, source=self._settings.memory_source, root=self._root
                )
            )
        observations, unread = await reading
        return SignalReadings(observations, (*unread, late) if late else unread, self.now())

    def now(self) -> Moment:
        """Return this instant."""
        return Moment(self._clock.now(), self._clock.monotonic_s())


def layout_of(paths: SignalPaths) -> FilesystemLayout:
    """Return which filesystems are one, by their devices. Source: kubelet ``HasDedicatedImageFs``."""
    node, image, container = (device_of(each) for each in (paths.nodefs, paths.imagefs, paths.containerfs))
    if image is None or image == node:
        return FilesystemLayout.SINGLE
    apart = container is not None and container != image
    return FilesystemLayout.SPLIT if apart else FilesystemLayout.DEDICATED_IMAGEFS


def contradictions(ground: SignalLayout, seen: SignalReadings) -> tuple[str, ...]:
    """Return which soft thresholds are of no use on this node, now that its capacities are known."""
    return find_contradictions(ground.thresholds, {each.signal: each.capacity for each in seen.observations})


def _nodefs() -> Path:
    """Return the kubelet's root, or where it would be."""
    return KUBELET_ROOT if KUBELET_ROOT.is_dir() else Path("/")
