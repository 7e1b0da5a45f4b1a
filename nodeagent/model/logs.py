"""Entries of the pod log root and of the container log root."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class LogOpeners(StrEnum):
    """Whether a process has a file of a log tree open."""

    NONE = "none"
    READERS = "readers"
    WRITERS = "writers"
    UNKNOWN = "unknown"


class LogSpace(NamedTuple):
    """Space freed by the removal of logs: allocated bytes and inodes of files without another link."""

    size_bytes: int = 0
    inodes: int = 0

    def plus(self, other: LogSpace) -> LogSpace:
        """Return the sum of both values."""
        return LogSpace(self.size_bytes + other.size_bytes, self.inodes + other.inodes)


_NO_SPACE: Final = LogSpace()


class LogTree(Record):
    """One reading of a pod log directory.

    Attributes:
        changed_at: newest change (modification or status change) over all entries and the directory itself.
        digest: digest of the names, inodes, sizes and times of all entries; equal for an unchanged tree.
        problem: reason that the reading is incomplete; empty for a complete reading.
        openers: whether a process has a regular file of the directory open.
        openers_detail: an open file, or the reason that the openers are unknown; empty otherwise.
        unchanged_s: time since the first of the successive readings with this digest; 0 for the first reading.
        size: space freed by the removal of the directory.
        container_logs: space freed by the removal of a container's current and rotated logs, by the path of the current
            log in the directory, such as ``app/0.log``.
    """

    changed_at: datetime
    digest: str
    problem: str = ""
    openers: LogOpeners = LogOpeners.NONE
    openers_detail: str = ""
    unchanged_s: float = 0.0
    size: LogSpace = _NO_SPACE
    container_logs: Mapping[str, LogSpace] = field(default_factory=dict)


class PodLogDirectory(Record):
    """One entry of the pod log root.

    Attributes:
        name: the entry's name, ``NAMESPACE_NAME_UID`` or, in an old form, the plain UID.
        uid: the pod UID in the name; empty if the name has neither form.
        is_directory: whether the entry is a directory; false for a symlink to a directory.
        tree: reading of the directory; ``None`` if not read, such as for a pod with a ready sandbox.
        size_bytes: disk usage of the files in the directory; ``None`` if not measured.
    """

    name: str
    uid: str
    is_directory: bool
    tree: LogTree | None = None
    size_bytes: int | None = None


class ContainerLogLink(Record):
    """One ``*.log`` symlink whose target does not exist.

    Attributes:
        name: the link's name below the container log root.
        container_id: the container id in the link's name; empty if the name contains no id.
        target: target of the link.
        modified_at: modification time of the link itself, which is its creation time.
    """

    name: str
    container_id: str
    target: str
    modified_at: datetime
