"""Lists of pod log directories and of the symlinks to container logs."""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.model import ContainerLogLink, PodLogDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z.-]{3,252}")
_CONTAINER_ID = re.compile(r"[0-9a-f]{6,128}")

FAR_FUTURE: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""Time of an entry with an unknown or unrepresentable time, so that the entry counts as changed just now."""


def pod_uid(name: str) -> str:
    """Return the pod UID in the name of a pod log directory; empty if the name has no known form.

    The forms are ``NAMESPACE_NAME_UID`` and, for old kubelets, only the UID. Source: kubelet ``BuildPodLogsDirectory``.
    """
    parts = name.split("_")
    if len(parts) not in (1, 3) or not all(parts):
        return ""
    uid = parts[-1]
    if len(parts) == 1 and not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", uid):
        return ""
    return uid if _UID.fullmatch(uid) else ""


def link_container_id(name: str) -> str:
    """Return the container id in the name of a log link; empty without an id.

    Source: kubelet ``getContainerIDFromLegacyLogSymlink``.
    """
    stem = name.removesuffix(".log")
    container_id = stem.rpartition("-")[2]
    return container_id if stem != name and _CONTAINER_ID.fullmatch(container_id) else ""


def list_pod_log_directories(root: Path) -> tuple[PodLogDirectory, ...]:
    """Return the entries of the pod log root by name, without their trees; empty if the root does not exist.

    Raises:
        ObservationError: the root exists but cannot be read.
    """
    with open_log_root(root) as descriptor:
        if descriptor is None:
            return ()
        with os.scandir(descriptor) as entries:
            found = [_directory(descriptor, entry.name) for entry in entries]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.name))


def _directory(root: int, name: str) -> PodLogDirectory | None:
    try:
        status = os.stat(name, dir_fd=root, follow_symlinks=False)
    except OSError:
        return None
    return PodLogDirectory(name, pod_uid(name), stat.S_ISDIR(status.st_mode))


def list_dead_log_links(root: Path) -> tuple[ContainerLogLink, ...]:
    """Return the dangling ``*.log`` symlinks by name; empty if the directory does not exist.

    Raises:
        ObservationError: the root exists but cannot be read.
    """
    with open_log_root(root) as descriptor:
        if descriptor is None:
            return ()
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".log") and entry.is_symlink()]
        found = [_dead_link(descriptor, name) for name in names]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.name))


def _dead_link(root: int, name: str) -> ContainerLogLink | None:
    try:
        target = os.readlink(name, dir_fd=root)
        created = os.stat(name, dir_fd=root, follow_symlinks=False).st_mtime
    except OSError:
        return None
    if has_target(root, name):
        return None
    return ContainerLogLink(name, link_container_id(name), target, _moment(created))


def _moment(seconds: float) -> datetime:
    """Return a file's time; a time beyond the calendar becomes the far future, so that the file is kept."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return FAR_FUTURE


def changed(status: os.stat_result) -> datetime:
    """Return the time of the last modification or status change of a file, whichever is later."""
    return _moment(max(status.st_mtime, status.st_ctime))


def has_target(root: int, name: str) -> bool:
    """Return whether the target of a link exists; an inaccessible target counts as existing."""
    try:
        os.stat(name, dir_fd=root)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def open_log_root(root: Path) -> Iterator[int | None]:
    """Yield a descriptor of a log root, ``None`` if it does not exist.

    Symlinks in its path are followed, since /var/log is a symlink on some nodes.

    Raises:
        ObservationError: the log root cannot be read.
    """
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise ObservationError(f"cannot read {root}: {error.strerror or error}") from error
    try:
        yield descriptor
    except OSError as error:
        raise ObservationError(f"cannot read {root}: {error.strerror or error}") from error
    finally:
        os.close(descriptor)
