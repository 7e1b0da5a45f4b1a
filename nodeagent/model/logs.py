"""Entries of the pod log root and of the container log root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class PodLogDirectory:
    """One entry of the pod log root.

    Attributes:
        name: the entry's name, ``NAMESPACE_NAME_UID`` or, in an old form, the plain UID.
        uid: the pod UID in the name; empty if the name has neither form.
        is_directory: whether it is a real directory (a symlink is not).
        size_bytes: disk usage of its files; ``None`` if not measured.
        modified_at: newest modification time of the directory or an entry directly in it.
    """

    name: str
    uid: str
    is_directory: bool
    modified_at: datetime
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerLogLink:
    """One ``*.log`` symlink whose target does not exist.

    Attributes:
        name: the link's name below the container log root.
        container_id: the id in the name; empty if there is none.
        target: target of the link.
        modified_at: creation time of the link itself.
    """

    name: str
    container_id: str
    target: str
    modified_at: datetime
