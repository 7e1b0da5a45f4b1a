"""What the kernel counts for pods and their containers: cgroup v2.

A cgroup goes with its last process and may do so between two reads, so nothing here raises: a figure that cannot be
read is ``None``. Files are read through plain descriptors, since a pass reads more than a thousand of them.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ROOT: Final = Path("/")
_READ_BYTES: Final = 16384
_MAX_CGROUPS: Final = 4096
_SLICE: Final = ".slice"
_UNIT_ENDS: Final = (".scope", ".slice")


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """What a cgroup and all below it use now.

    Attributes:
        memory_bytes: working set: usage less inactive file pages, not below 0.

    Source: kernel cgroup-v2.rst; kubelet's summary, ``workingSetBytes``.
    """

    memory_bytes: int | None = None
    swap_bytes: int | None = None
    pids: int | None = None


class Cgroups:
    """Finds and reads cgroups below one root."""

    def __init__(self, root: Path = _ROOT) -> None:
        """Look below ``root``, where ``sys/fs/cgroup`` is."""
        self._base = str(root / "sys/fs/cgroup")

    @property
    def has_memory(self) -> bool:
        """Whether this is cgroup v2 with the memory controller, without which there are no figures of pods."""
        controllers = _read(f"{self._base}/cgroup.controllers")
        return controllers is not None and b"memory" in controllers.split()

    def find(self, cgroup_parent: str) -> str | None:
        """Return the directory of a pod's cgroup, ``None`` if there is none by that name.

        Args:
            cgroup_parent: as the sandbox's configuration has it: ``/kubepods/burstable/podUID``, or a slice by its
                name alone, which stands for the slices it is nested in.
        """
        below = expand_parent(cgroup_parent)
        return self._existing(below) if below else None

    def find_container(self, cgroups_path: str, container_id: str, pod: str | None) -> str | None:
        """Return the directory of a container's cgroup, ``None`` if it is not found.

        Args:
            cgroups_path: of the container's runtime specification, a path or ``SLICE:PREFIX:NAME``; may be empty.
            container_id: to find it by among the pod's children where that path leads nowhere.
            pod: directory of the pod's cgroup.
        """
        below = expand_cgroups_path(cgroups_path)
        found = self._existing(below) if below else None
        if found is not None or pod is None or not container_id:
            return found
        try:
            with os.scandir(pod) as entries:
                return next((each.path for each in entries if container_id in each.name and each.is_dir()), None)
        except OSError:
            return None

    def _existing(self, below: str) -> str | None:
        path = f"{self._base}/{below}"
        return path if os.path.isdir(path) else None  # noqa: PTH112 - one call, no object


def expand_parent(cgroup_parent: str) -> str:
    """Return the path below the cgroup root that a cgroup parent stands for; empty if it stands for none.

    A lone slice is expanded: ``kubepods-burstable.slice`` lies in ``kubepods.slice``. Source: systemd.slice(5).
    """
    parts = [part for part in cgroup_parent.split("/") if part]
    if not parts or ".." in parts or "\0" in cgroup_parent:
        return ""
    name = parts[-1]
    if len(parts) > 1 or not name.endswith(_SLICE):
        return "/".join(parts)
    stem = name.removesuffix(_SLICE)
    if not stem.strip("-"):
        return ""
    words = stem.split("-")
    return "/".join("-".join(words[:count]) + _SLICE for count in range(1, len(words) + 1))


def expand_cgroups_path(cgroups_path: str) -> str:
    """Return the path below the cgroup root that a container's ``cgroupsPath`` stands for; empty if none.

    Source: OCI runtime specification, ``linux.cgroupsPath``; runc, ``SLICE:PREFIX:NAME`` for systemd.
    """
    if cgroups_path.count(":") != 2 or "/" in cgroups_path.partition(":")[2]:
        return expand_parent(cgroups_path)
    parent, prefix, name = cgroups_path.split(":")
    slice_ = expand_parent(parent or "system.slice")
    if not slice_ or not name:
        return ""
    unit = f"{prefix}-{name}" if prefix else name
    return f"{slice_}/{unit}" + ("" if unit.endswith(_UNIT_ENDS) else ".scope")


def read_usage(directory: str) -> CgroupUsage | None:
    """Return what a cgroup uses; ``None`` if nothing of it can be read, as when it is gone."""
    usage = CgroupUsage(
        read_working_set(directory),
        _number(f"{directory}/memory.swap.current"),
        _number(f"{directory}/pids.current"),
    )
    return None if usage == CgroupUsage() else usage


def read_working_set(directory: str) -> int | None:
    """Return the bytes a cgroup holds that the kernel could not simply drop; ``None`` if that cannot be read."""
    current = _number(f"{directory}/memory.current")
    if current is None:
        return None
    inactive = _field(_read(f"{directory}/memory.stat"), b"inactive_file")
    return None if inactive is None else max(0, current - inactive)


def read_working_sets(directories: Mapping[str, str]) -> dict[str, int]:
    """Return the working set of each cgroup, by the same keys; those that cannot be read are left out."""
    found = ((key, read_working_set(directory)) for key, directory in directories.items())
    return {key: size_bytes for key, size_bytes in found if size_bytes is not None}


def read_memory_min(directory: str) -> int | None:
    """Return the bytes the kernel never reclaims from a cgroup, 0 for none; ``None`` if that cannot be read."""
    return _number(f"{directory}/memory.min")


def read_oom_kills(directory: str) -> int | None:
    """Return how many processes of a cgroup and below the kernel killed for want of memory since it was made.

    Source: kernel cgroup-v2.rst, ``oom_kill`` of ``memory.events``.
    """
    return _field(_read(f"{directory}/memory.events"), b"oom_kill")


def read_processes(directories: Iterable[str]) -> frozenset[int] | None:
    """Return the processes in cgroups and in all below them.

    A cgroup that is gone has no processes. ``None`` if it cannot be told: one could not be read, or there are too many.

    Source: kernel cgroup-v2.rst, ``cgroup.procs``.
    """
    found: set[int] = set()
    waiting, looked = list(directories), 0
    while waiting:
        directory = waiting.pop()
        looked += 1
        if looked > _MAX_CGROUPS:
            return None
        try:
            with open(f"{directory}/cgroup.procs", "rb") as lines:  # noqa: PTH123 - one call, no object
                found.update(int(line) for line in lines.read().split())
            with os.scandir(directory) as entries:
                waiting += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            # It went while its file was open; or it is threaded, and its processes are told further up.
            if error.errno in (errno.ENODEV, errno.EOPNOTSUPP):
                continue
            return None
        except ValueError:
            return None
    return frozenset(found)


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _number(path: str) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.strip().isdigit() else None


def _field(text: bytes | None, name: bytes) -> int | None:
    """Return the number after a name at the start of a line."""
    if text is None:
        return None
    _, found, rest = (b"\n" + text).partition(b"\n" + name + b" ")
    value = rest.partition(b"\n")[0].strip()
    return int(value) if found and value.isdigit() else None
