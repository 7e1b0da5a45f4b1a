"""Removal of logs below the log roots of this host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.host import log_removal
from nodeagent.host.log_trees import read_log_tree

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.clock import Clock
    from nodeagent.model import LogTree


class HostLogs:
    """Remover of pod logs below the kubelet's log roots; paths are checked in ``host.log_removal``."""

    def __init__(self, pod_log_root: Path, container_log_root: Path, clock: Clock) -> None:
        """Compose the remover; ``clock`` limits the time of a directory walk."""
        self._clock = clock
        self._pod_log_root = pod_log_root
        self._container_log_root = container_log_root

    def remove_container_logs(self, log_path: str, container_id: str) -> int:
        """Remove a container's current and rotated logs, then its links; return the bytes freed."""
        freed = log_removal.remove_container_logs(self._pod_log_root, Path(log_path)).size_bytes
        log_removal.remove_links_of(self._container_log_root, container_id)
        return freed

    def read_pod_directory(self, name: str) -> LogTree | None:
        """Return a reading of one pod log directory; ``None`` if it does not exist."""
        return read_log_tree(self._pod_log_root, name, self._clock)

    def remove_pod_directory(self, name: str, uid: str, changed_at: datetime) -> int:
        """Remove one pod log directory unless an entry changed after ``changed_at``; return the bytes freed."""
        return log_removal.remove_pod_log_directory(self._pod_log_root, name, uid, changed_at).size_bytes

    def remove_dead_link(self, name: str) -> bool:
        """Remove a link whose target does not exist; return false if the target exists again."""
        return log_removal.remove_dead_log_link(self._container_log_root, name)
