"""Readings of the wall clock and of CLOCK_BOOTTIME, and correction of item times that contradict the clocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.host.node import boot_id as read_boot_id
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from nodeagent.store.clock_record import ClockReading
from nodeagent.store.database import Store
from nodeagent.store.observation import ItemKey

if TYPE_CHECKING:
    from nodeagent.model.clock import ClockTrust
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.units import Clock

# Module constants, since a lookup in the enum class takes ten times as long.
_RUNNING: Final = ContainerState.RUNNING
_EXITED: Final = ContainerState.EXITED
_ID: Final = attrgetter("id")
_ATTEMPTS: Final = 3
_LONGEST_READING_S: Final = 0.1

_CREATED, _FINISHED, _SANDBOX, _LOGS, _LINK = (
    "container-created",
    "container-finished",
    "sandbox-created",
    "pod-log-changed",
    "log-link-created",
)


def read_clocks(clock: Clock, boot_id: str | None = None) -> ClockReading:
    """Return a reading of the wall clock and of CLOCK_BOOTTIME; ``boot_id`` is read unless given.

    Both clocks are read again after a delay between the two readings, which would count as a jump of the wall clock.
    """
    boot_id = read_boot_id() if boot_id is None else boot_id
    for _ in range(_ATTEMPTS):
        boottime_s, wall = clock.monotonic_s(), clock.now()
        if clock.monotonic_s() - boottime_s <= _LONGEST_READING_S:
            break
    return ClockReading(boot_id, boottime_s, wall)


def stored_trust(state_directory: Path, at: ClockReading) -> ClockTrust:
    """Return the trust in the wall clock from the clock record of a state directory, without changing the record."""
    return Store(state_directory, read_only=True).clock(at)


FirstSeenReader = Callable[
    [Mapping[ItemKey, datetime], Mapping[str, Collection[str]], ClockReading, Mapping[ItemKey, int]],
    Mapping[ItemKey, datetime],
]
"""Returns the time of the first observation of each item with a time that contradicts the clock. Blocks.

The arguments are those of ``Store.first_seen``: items, listed ids, the reading of the clocks, and states.
"""


def with_valid_times(
    snapshot: NodeSnapshot, at: ClockReading, read_first_seen: FirstSeenReader, *, with_details: bool
) -> NodeSnapshot:
    """Return a snapshot in which every time that contradicts the clock is replaced by the item's first observation.

    Only items that are removed by age are considered: containers that are not running, sandboxes that are not ready,
    and completely read logs.

    Args:
        snapshot: the snapshot.
        at: the reading of the clocks at the observation.
        read_first_seen: returns the first observations; blocking.
        with_details: whether logs were listed and finish times read. Finish times of an earlier reading are not
            considered otherwise, since the first reading of a kind of times decides which of them are before the boot.
    """
    items: dict[ItemKey, datetime] = {}
    states: dict[ItemKey, int] = {}
    not_running = [each for each in snapshot.containers if each.state is not _RUNNING]
    for container in not_running:
        if container.created_at is not None:
            items[_CREATED, container.id] = container.created_at
        if with_details and container.finished_at is not None:
            items[_FINISHED, container.id] = container.finished_at
    for sandbox in snapshot.sandboxes:
        if not sandbox.ready and sandbox.created_at is not None:
            items[_SANDBOX, sandbox.id] = sandbox.created_at
    containers, sandboxes = frozenset(map(_ID, snapshot.containers)), frozenset(map(_ID, snapshot.sandboxes))
    listed: dict[str, Collection[str]] = {_CREATED: containers, _SANDBOX: sandboxes}
    if with_details:
        listed[_FINISHED] = {each.id for each in not_running if each.state is _EXITED}
        read = [(each.name, each.tree) for each in snapshot.pod_log_directories]
        trees = [(name, tree) for name, tree in read if tree is not None and not tree.problem]
        items |= {(_LOGS, name): tree.changed_at for name, tree in trees}
        states = {(_LOGS, name): _number(tree.digest) for name, tree in trees}
        items |= {(_LINK, each.name): each.modified_at for each in snapshot.dead_log_links}
        listed[_LOGS] = {each.name for each in snapshot.pod_log_directories}
        listed[_LINK] = {each.name for each in snapshot.dead_log_links}
    seen = read_first_seen(items, listed, at, states)
    return _replaced(snapshot, seen) if seen else snapshot


def _number(digest: str) -> int:
    """Return 60 bits of a hexadecimal digest, which fit in a column of SQLite."""
    return int(digest[:15] or "0", 16)


def _replaced(snapshot: NodeSnapshot, seen: Mapping[ItemKey, datetime]) -> NodeSnapshot:
    return replace(
        snapshot,
        containers=tuple(
            replace(
                each,
                created_at=seen.get((_CREATED, each.id), each.created_at),
                finished_at=seen.get((_FINISHED, each.id), each.finished_at),
            )
            if (_CREATED, each.id) in seen or (_FINISHED, each.id) in seen
            else each
            for each in snapshot.containers
        ),
        sandboxes=tuple(
            replace(each, created_at=seen[_SANDBOX, each.id]) if (_SANDBOX, each.id) in seen else each
            for each in snapshot.sandboxes
        ),
        pod_log_directories=tuple(
            replace(each, tree=replace(each.tree, changed_at=seen[_LOGS, each.name]))
            if each.tree is not None and (_LOGS, each.name) in seen
            else each
            for each in snapshot.pod_log_directories
        ),
        dead_log_links=tuple(
            replace(each, modified_at=seen[_LINK, each.name]) if (_LINK, each.name) in seen else each
            for each in snapshot.dead_log_links
        ),
    )
