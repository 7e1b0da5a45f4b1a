"""Readings of pod logs: directories, compared with the earlier readings of this process, and links without target."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.host import podlogs
from nodeagent.host.log_trees import MAX_TREE_S, read_log_tree
from nodeagent.host.podlogs import FAR_FUTURE
from nodeagent.model import LogTree
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from nodeagent.clock import Clock
    from nodeagent.model import ContainerLogLink, PodLogDirectory, Sandbox

MAX_TREES_S: Final = 30.0
"""Time limit in seconds for all log trees of one observation; unread trees count as incomplete."""


class PodLogReader:
    """Reader of pod logs, which records the time since which each removable directory is unchanged."""

    def __init__(self, root: Path, link_root: Path, clock: Clock) -> None:
        """Create a reader of pod log directories in ``root`` and of links to container logs in ``link_root``."""
        self._root = root
        self._link_root = link_root
        self._clock = clock
        self._first_equal: Mapping[str, tuple[str, float]] = {}

    def list_entries(self, warnings: list[str]) -> tuple[tuple[PodLogDirectory, ...], tuple[ContainerLogLink, ...]]:
        """Return the pod log directories and the links without target; none, with a warning, if unreadable. Blocks."""
        directories: tuple[PodLogDirectory, ...] = ()
        links: tuple[ContainerLogLink, ...] = ()
        try:
            directories = podlogs.list_pod_log_directories(self._root)
            if self._root.is_dir():  # without this directory the target of every link is missing
                links = podlogs.list_dead_log_links(self._link_root)
        except ObservationError as error:
            warnings.append(f"pod logs are kept: {error}")
        return directories, links

    async def read(
        self, directories: Sequence[PodLogDirectory], sandboxes: Iterable[Sandbox]
    ) -> tuple[PodLogDirectory, ...]:
        """Return the directories; directories of pods without a ready sandbox include their trees."""
        ready = {sandbox.uid for sandbox in sandboxes if sandbox.ready}
        read = [each for each in directories if each.is_directory and each.uid and each.uid not in ready]
        if not read:
            self._first_equal = {}
            return tuple(directories)
        trees = await asyncio.to_thread(self._read, [each.name for each in read])
        # a directory removed since the listing is omitted
        return tuple(
            replace(each, tree=trees.get(each.name))
            for each in directories
            if each.name not in trees or trees[each.name] is not None
        )

    def _read(self, names: Sequence[str]) -> dict[str, LogTree | None]:
        before, first_equal = self._first_equal, {}
        trees: dict[str, LogTree | None] = {}
        deadline_s = self._clock.monotonic_s() + MAX_TREES_S
        for name in names:
            now_s = self._clock.monotonic_s()
            if now_s >= deadline_s:
                trees[name] = LogTree(FAR_FUTURE, "", f"not reached within {MAX_TREES_S:.0f} s of this observation")
                continue
            tree = read_log_tree(self._root, name, self._clock, within_s=min(MAX_TREE_S, deadline_s - now_s))
            if tree is not None and not tree.problem:
                digest, since_s = before.get(name, ("", now_s))
                since_s = since_s if digest == tree.digest else now_s
                first_equal[name] = tree.digest, since_s
                tree = replace(tree, unchanged_s=max(0.0, now_s - since_s))
            trees[name] = tree
        self._first_equal = first_equal
        return trees
