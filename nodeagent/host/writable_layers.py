"""Current disk usage of the writable layers of running containers.

The runtime measures them as well, but containerd only every ten seconds. In such old readings a pod that fills a disk
appears small, and another pod would be evicted.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from nodeagent.host.disk_usage import TreeReader

if TYPE_CHECKING:
    from collections.abc import Collection

    from nodeagent.host.disk_usage import Tree

_OCTAL: Final = re.compile(r"\\([0-7]{3})")
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
                name = PurePosixPath(_plain(left.split()[4])).parent.name
                if name not in ids:  # also excludes mounts made inside a container
                    continue
                upper = next((each for each in right.split()[-1].split(",") if each.startswith(_UPPER)), "")
                if upper.startswith(f"{_UPPER}/"):
                    found[name] = _plain(upper.removeprefix(_UPPER))
    except (OSError, IndexError):
        return {}
    return found


def snapshotter_of(upper: str) -> str:
    """Return the containerd snapshotter of a writable layer's directory; empty without one.

    Source: containerd; the root directory of a plugin is named by its type and id.
    """
    names = (each.removeprefix(_SNAPSHOTTER) for each in PurePosixPath(upper).parts if each.startswith(_SNAPSHOTTER))
    return next(names, "")


def measure_writable_layer(upper: str, deadline_s: float) -> Tree | None:
    """Return the disk usage of a writable layer; ``None`` if its directory is inaccessible.

    ``deadline_s`` is on the clock of ``time.monotonic``. Links are not followed, mounts not crossed.
    """
    try:
        device = os.lstat(upper).st_dev
    except OSError:
        return None
    return TreeReader(device, deadline_s).measure(upper)


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
