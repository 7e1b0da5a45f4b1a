"""Limits of the cgroups that contain the pods: memory, swap, PIDs and CPU of a node in a container or in a slice.

``/proc`` reports the machine. A node in a container (kind, minikube, LXC) or in a slice with limits has less: above the
limit of memory the kernel kills processes of the pods, however much of the machine is available. Only the cgroups above
the pods' own cgroup are read, up to the visible root. The limit of the pods' own cgroup is the allocatable memory, a
signal of its own; a limit of another cgroup, such as of the agent's unit, does not concern the pods.

The root of the machine has no limit files. In a cgroup namespace the visible root is the cgroup of the container, with
the limits of the container. Without a cgroup of pods it counts only with controllers for its children: otherwise it is
the cgroup of a container in which the agent runs alone, such as of a DaemonSet without the cgroups of the host.

``memory.high`` is no limit: above it the kernel slows processes down, which the stall signals show, and kills none.

Source: kernel cgroup-v2.rst; cgroup_namespaces(7).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from nodeagent.errors import ObservationError
from nodeagent.host.cgroups import is_populated
from nodeagent.units import format_bytes

_PODS: Final = "kubepods"
_SLICE: Final = ".slice"
_NODES: Final = ("lxc",)
_UNITS: Final = (".scope", ".service")
NO_LIMIT: Final = 1 << 62  # Source: kubelet, a larger memory limit means unlimited


class CgroupLimit(NamedTuple):
    """A limit of one cgroup.

    Attributes:
        file: name of the file, such as ``memory.max``.
        value: in bytes, PIDs or thousandths of a CPU.
    """

    directory: Path
    file: str
    value: int

    @property
    def text(self) -> str:
        """The limit for display, such as ``memory.max 4.00 GiB of /sys/fs/cgroup``."""
        shown = format_bytes(self.value) if self.file.startswith("memory") else str(self.value)
        return f"{self.file} {shown} of {self.directory}"


class PodsCgroups(NamedTuple):
    """The cgroup of all pods, and the cgroups that contain it.

    Attributes:
        pods: the cgroup of all pods; ``None`` without one.
        above: the cgroups that contain the pods, innermost first, without ``pods``.
        root: the visible root of the cgroups.
    """

    pods: Path | None
    above: tuple[Path, ...]
    root: Path

    def limits(self, file: str) -> list[CgroupLimit]:
        """Return the limits in a file of the cgroups that contain the pods; empty without a limit.

        Args:
            file: ``memory.max``, ``memory.swap.max``, ``pids.max`` or ``cpu.max``.

        Raises:
            ObservationError: a file exists, and its content is no limit.
        """
        found = ((each, _read_limit(each / file)) for each in self.above)
        return [CgroupLimit(directory, file, value) for directory, value in found if value is not None]


def find_pods_cgroups(root: Path) -> PodsCgroups:
    """Return the cgroup of all pods and the cgroups above; ``root`` is the parent of ``proc`` and ``sys``."""
    top = root / "sys/fs/cgroup"
    pods = find_pods(top, root)
    if pods is not None:
        return PodsCgroups(pods, tuple(pods.parents)[: len(pods.relative_to(top).parts)], top)
    try:
        has_children = bool((top / "cgroup.subtree_control").read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError):
        has_children = False
    return PodsCgroups(None, (top,) if has_children else (), top)


def find_pods(top: Path, root: Path) -> Path | None:
    """Return the cgroup of all pods in a hierarchy; ``None`` without one.

    It is a child of a cgroup that contains the agent, the nearest first, or of a child of the visible root, for a
    kubelet with ``cgroupRoot``. Of several, the one with processes is returned; without any process, none is returned
    of several children of the visible root. Cgroups of containers are not searched: they may be other nodes.

    Args:
        top: visible root of the hierarchy.
        root: parent of ``proc``.

    Source: kubelet ``cgroupRoot``, ``CgroupName.ToSystemd``, ``ToCgroupfs``.
    """
    for above in (*_above_agent(root, top), str(top)):
        names = (*_in_slice(above), f"{_PODS}{_SLICE}", _PODS)
        if found := _existing(f"{above}/{name}" for name in names):
            return Path(found[0] if len(found) == 1 else _populated(found) or found[0])
    try:
        with os.scandir(top) as entries:
            children = [each.path for each in entries if not each.name.startswith(_NODES)]
    except OSError:
        return None
    found = _existing(
        f"{each}/{name}" for each in children if not each.endswith(_UNITS) for name in _in_slice(each) or (_PODS,)
    )
    chosen = found[0] if len(found) == 1 else _populated(found)
    return None if chosen is None else Path(chosen)


def _existing(paths: Iterable[str]) -> list[str]:
    return [each for each in paths if os.path.isdir(each)]  # noqa: PTH112 - many calls in each reading, no objects


def _populated(found: list[str]) -> str | None:
    """Return the only cgroup with processes; ``None`` if none or several have processes."""
    used = [each for each in found if is_populated([each])]
    return used[0] if len(used) == 1 else None


def _above_agent(root: Path, top: Path) -> list[str]:
    """Return the cgroups that contain the agent below the visible root, innermost first."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/").strip("/")
    parts = path.split("/") if path else []
    if ".." in parts:  # the agent is outside of its cgroup namespace
        return []
    return ["/".join((str(top), *parts[:count])) for count in range(len(parts), 0, -1)]


def _in_slice(directory: str) -> tuple[str, ...]:
    """Return the name of the cgroup of all pods in a slice of systemd; empty for other cgroups."""
    if not directory.endswith(_SLICE):
        return ()
    return (f"{directory.rpartition('/')[2].removesuffix(_SLICE)}-{_PODS}{_SLICE}",)


def _read_limit(path: Path) -> int | None:
    """Return a limit; ``None`` for ``max``, and without the file, such as without its controller.

    Raises:
        ObservationError: the file cannot be read or contains no limit.
    """
    try:
        words = path.read_text(encoding="ascii").split()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ObservationError(f"cannot read {path}: {error}") from error
    numbers = [int(each) for each in words if each.isdecimal()]
    if words[:1] == ["max"]:
        return None
    if len(numbers) != len(words) or not 1 <= len(words) <= 2 or numbers[1:] == [0]:
        raise ObservationError(f"{path}: {' '.join(words)[:40]!r} is not a limit")
    value = numbers[0] * 1000 // numbers[1] if numbers[1:] else numbers[0]
    return value if value < NO_LIMIT else None
