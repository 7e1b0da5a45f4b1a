"""Leak audit: comparison of the runtime's objects on the host with the runtime's records."""

from __future__ import annotations

import asyncio
import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nodeagent.host.runtime_objects import read_objects
from nodeagent.model.runtime_objects import RuntimePaths
from nodeagent.plan.gc.deep_leaks import find_deep_leaks
from nodeagent.record import Record

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.clock import Clock
    from nodeagent.plan.gc.deep_leaks import DeepLeak
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.storage_backend import StorageBackend

_TASKS = "io.containerd.runtime.v2.task"


class DeepAudit(Record):
    """Result of a leak audit.

    Attributes:
        compared: number of objects on the host that were compared with the records.
        warnings: sources that could not be read, whose objects were not compared.
    """

    observed_at: datetime
    compared: int
    leaks: tuple[DeepLeak, ...]
    warnings: tuple[str, ...]


async def audit_leaks(
    cri: CriClient, storage: StorageBackend, clock: Clock, socket: str, *, minimum_age_s: float
) -> DeepAudit:
    """Return containerd's objects on the host that have no record in containerd; nothing is changed.

    Args:
        cri: client of the CRI service.
        storage: client of the containerd API.
        clock: source of the time of the audit.
        socket: path of containerd's socket, which identifies the shims of this containerd.
        minimum_age_s: age in seconds below which an object is omitted.

    Raises:
        NodeAgentError: a list of records cannot be read, or the runtime is not containerd.
    """
    status, stores = await asyncio.gather(cri.status(), storage.read_store_paths())
    parents = dict.fromkeys(str(PurePosixPath(each).parent) for each in status.directories)
    paths = RuntimePaths(stores, status.directories, tuple(f"{each}/{_TASKS}" for each in parents), socket)
    host = await asyncio.to_thread(read_objects, paths)
    sandboxes, containers = await asyncio.gather(cri.list_sandboxes(), cri.list_containers())
    ids = frozenset(each.id for each in sandboxes) | frozenset(each.id for each in containers)
    records = await storage.read_all_records([name for name in stores if name], ids)
    now = clock.now()
    leaks = find_deep_leaks(host, records, now, minimum_age_s=minimum_age_s)
    remaining = await asyncio.to_thread(lambda: tuple(each for each in leaks if _exists(each.found.name)))
    missing = () if paths.cri else ("the runtime does not report the directories of its CRI plugin: not compared",)
    return DeepAudit(now, len(host.objects) + len(records.leases), remaining, (*missing, *host.warnings))


def _exists(name: str) -> bool:
    """Return whether a path still exists; true for names that are not paths."""
    return not name.startswith("/") or os.path.lexists(name)
