"""Directories of the writable layers of running containers.

The runtime measures them as well, but containerd only every ten seconds. In such old readings a pod that fills a disk
appears small, and another pod would be evicted.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from nodeagent.host.filesystems import unescape

if TYPE_CHECKING:
    from collections.abc import Collection

_UPPER: Final = "upperdir="
_SNAPSHOTTER: Final = "io.containerd.snapshotter.v1."


def find_upper_directories(container_ids: Collection[str], mountinfo: str = "/proc/self/mountinfo") -> dict[str, str]:
    """Return the directories of writable layers by container id.

    They are found in this process's mounts: overlay root filesystems mounted directly below a directory with the name
    of the container, as by containerd. Other containers are omitted.

    Source: proc(5) on ``mountinfo``; the kernel's overlayfs document, ``upperdir``.
    """
    ids, found = frozenset(container_ids), dict[str, str]()
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123 - a fixed path
            for line in lines:
                left, _, right = line.partition(" - ")
                if not right.startswith("overlay "):
                    continue
                name = PurePosixPath(unescape(left.split()[4])).parent.name
                if name not in ids:  # also excludes mounts made inside a container
                    continue
                upper = next((each for each in right.split()[-1].split(",") if each.startswith(_UPPER)), "")
                if upper.startswith(f"{_UPPER}/"):
                    found[name] = unescape(upper.removeprefix(_UPPER))
    except (OSError, IndexError):
        return {}
    return found


def snapshotter_of(upper: str) -> str:
    """Return the containerd snapshotter of a writable layer's directory; empty without one.

    Source: containerd; the root directory of a plugin is named by its type and id.
    """
    names = (each.removeprefix(_SNAPSHOTTER) for each in PurePosixPath(upper).parts if each.startswith(_SNAPSHOTTER))
    return next(names, "")
