"""The filesystems that the runtime, the pods and the agent need, for the status, ``doctor`` and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.errors import NodeAgentError, ObservationError
from nodeagent.gc.snapshot.usage import POD_VOLUMES
from nodeagent.guarded_call import GuardedCall, HangingCallError
from nodeagent.host.filesystems import read_filesystem
from nodeagent.model.pressure import FilesystemRole, NodeFilesystem
from nodeagent.record import replace

if TYPE_CHECKING:
    from nodeagent.eviction.kernel_signals import SignalPaths
    from nodeagent.gc.agent import Agent
    from nodeagent.model.runtime import ImageFilesystem
    from nodeagent.settings.settings import Settings
    from nodeagent.units import Clock

_READ_WITHIN_S: Final = 2.0
_REPORTED: Final = frozenset({FilesystemRole.IMAGEFS, FilesystemRole.CONTAINERFS})
"""Roles whose path is reported by the runtime, so that a missing path is a fault."""


class Place(NamedTuple):
    """A path with its role; ``label`` names an image filesystem other than the first."""

    role: FilesystemRole
    path: str
    label: str = ""


def places(
    settings: Settings, paths: SignalPaths, others: Iterable[ImageFilesystem] = (), runtime_state: str = ""
) -> tuple[Place, ...]:
    """Return a path for each role, most important first; several paths may be on one filesystem.

    Args:
        settings: the directories of the pod logs and of the agent's state.
        paths: paths on imagefs, nodefs and containerfs, as far as they are known.
        others: the image filesystems other than the first.
        runtime_state: state directory of the runtime; empty if unknown.
    """
    image, node, container = paths.imagefs, paths.nodefs, paths.containerfs
    found = [
        *([Place(FilesystemRole.IMAGEFS, image)] if image else []),
        *(Place(FilesystemRole.IMAGEFS, each.path, each.label) for each in others),
        *([Place(FilesystemRole.NODEFS, node)] if node else []),
        *([Place(FilesystemRole.CONTAINERFS, container)] if container else []),
        Place(FilesystemRole.POD_LOGS, str(settings.pod_log_root)),
        Place(FilesystemRole.POD_VOLUMES, str(POD_VOLUMES)),
        *([Place(FilesystemRole.RUNTIME_STATE, runtime_state)] if runtime_state else []),
        Place(FilesystemRole.AGENT_STATE, str(settings.state_directory)),
    ]
    return tuple(found)


def read_places(wanted: Iterable[Place], clock: Clock) -> tuple[NodeFilesystem, ...]:
    """Return the filesystem of each place, with all its roles; missing directories of the node are omitted. Blocks."""
    found: dict[int | Place, NodeFilesystem] = {}
    for place in wanted:
        one = _unread(place)
        try:
            observed = read_filesystem(place.path, clock)
        except ObservationError as error:
            if place.role in _REPORTED or not isinstance(error.__cause__, FileNotFoundError):
                found[place] = replace(one, problem=str(error))
            continue
        first = found.setdefault(observed.device_id, replace(one, observed=observed))
        roles = tuple(dict.fromkeys((*first.roles, place.role)))
        found[observed.device_id] = replace(first, roles=roles)
    return tuple(
        replace(each, name=f"{each.name} = nodefs") if FilesystemRole.NODEFS in each.roles[1:] else each
        for each in found.values()
    )


def _unread(place: Place, problem: str = "") -> NodeFilesystem:
    name = f"{place.role} {place.label}" if place.label else place.role.value
    return NodeFilesystem(name, place.path, (place.role,), problem=problem)


class NodeFilesystemReader:
    """Reader of the filesystems of a node in one thread, which a filesystem that does not answer can block."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._others: tuple[ImageFilesystem, ...] = ()
        self._runtime_state = ""
        self._guard = GuardedCall[tuple[NodeFilesystem, ...]]()

    async def read(self, paths: SignalPaths) -> tuple[NodeFilesystem, ...]:
        """Return the filesystems of the node; without readings, with the cause, while one does not answer.

        ``paths`` are those of the eviction signals. Without an answer of the runtime, the last known additional image
        filesystems are read. A runtime that does not report its state directory has it beside its socket.
        """
        agent, beside = self._agent, str(Path(self._agent.cri.socket).parent)
        with suppress(NodeAgentError, TimeoutError):
            async with asyncio.timeout(_READ_WITHIN_S):
                self._runtime_state = self._runtime_state or (await agent.cri.status()).state_directory or beside
                self._others = (await agent.observer.images.find_filesystems())[1:]
        wanted = places(agent.settings, paths, self._others, self._runtime_state or beside)
        try:
            return await self._guard.run(partial(read_places, wanted, agent.clock), within_s=_READ_WITHIN_S)
        except HangingCallError as error:
            return tuple(_unread(each, f"not read: a filesystem {error}") for each in wanted)
