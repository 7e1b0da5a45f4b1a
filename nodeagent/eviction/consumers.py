"""The largest consumers of a resource that are not pods, for the statement on a shortage that no eviction ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from nodeagent.errors import NodeAgentError
from nodeagent.eviction.plan.reclaim import device_role
from nodeagent.eviction.plan.thresholds import MEANINGS
from nodeagent.gc.plan.breakdown import Breakdown, UsageCategory
from nodeagent.gc.plan.policy import Scope
from nodeagent.host.cgroups import read_processes
from nodeagent.model.pressure import FilesystemRole, Resource, Signal
from nodeagent.text import escape
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from nodeagent.eviction.signals import SignalLayout
    from nodeagent.gc.agent import Agent
    from nodeagent.model.pods import PodInventory

_SHOWN: Final = 4
_WALK_WITHIN_S: Final = 5.0
_OF_PODS: Final = frozenset({UsageCategory.WRITABLE_RUNNING, UsageCategory.POD_LOGS, UsageCategory.POD_VOLUMES})


async def find_consumers(
    agent: Agent, read_layout: Callable[[], Awaitable[SignalLayout]], signal: Signal, pods: PodInventory
) -> tuple[str, ...]:
    """Return names and amounts of the largest consumers of the resource of a signal, largest first.

    For memory and PIDs these are processes outside of the cgroups of the pods, for the image filesystem the parts of
    its usage breakdown, its largest directories, and the part that no reading explains. The result is empty for other
    filesystems, and if the readings fail.

    Args:
        agent: agent of the node.
        read_layout: returns which filesystems share a device.
        signal: signal of the met threshold.
        pods: the pods of the node.
    """
    meaning = MEANINGS[signal]
    if meaning.filesystem is None:
        return await asyncio.to_thread(_largest_processes, pods, in_memory=meaning.resource is Resource.MEMORY)
    with suppress(NodeAgentError):
        layout = (await read_layout()).layout
        if device_role(meaning.filesystem, layout) is device_role(FilesystemRole.IMAGEFS, layout):
            snapshot = await agent.observer.observe(Scope.ALL)
            return _largest_parts(await agent.break_down(snapshot, within_s=_WALK_WITHIN_S))
    return ()


def _largest_processes(pods: PodInventory, *, in_memory: bool) -> tuple[str, ...]:
    """Return the processes outside of the pods with the most resident memory or threads.

    psutil completes a long name from the command line, and reading that waits for a process that waits for memory;
    ``process_iter`` keeps an object for each process. Hence neither is used.
    """
    inside = read_processes(path for each in pods.handles.values() for path in each.cgroups) or frozenset()
    found = []
    with suppress(OSError):
        for pid in frozenset(psutil.pids()) - inside:
            with suppress(psutil.Error, OSError):
                process = psutil.Process(pid)
                amount = process.memory_info().rss if in_memory else process.num_threads()
                name = Path(f"{psutil.PROCFS_PATH}/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
                found += [(f"{name} (process {pid})", amount)] if amount else []
    return _shown(found, format_bytes if in_memory else str)


def _largest_parts(breakdown: Breakdown) -> tuple[str, ...]:
    """Return the largest parts of a filesystem without the data of pods, and the part that no reading explains."""
    found: list[tuple[str, int]] = []
    for share in breakdown.shares:
        if share.part in {UsageCategory.HOST_FILES, UsageCategory.DELETED_FILES}:
            found += [
                (f"{each.name} of {each.pod}" if each.pod else each.name, each.size_bytes) for each in share.members
            ]
        elif share.part not in _OF_PODS:
            found.append((share.part.value.replace("-", " "), share.size_bytes))
    return _shown([each for each in found if each[1] > 0], format_bytes)


def _shown(found: Iterable[tuple[str, int]], form: Callable[[int], str]) -> tuple[str, ...]:
    largest = sorted(found, key=lambda each: (-each[1], each[0]))[:_SHOWN]
    return tuple(f"{escape(name)} {form(amount)}" for name, amount in largest)
