"""What the writable layers of running containers hold now.

The runtime measures them too, but now and then: containerd every ten seconds. A pod that fills a disk looks small in
figures that old, and another one would be taken for the culprit.
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
    """Return where the writable layers of containers lie, by id.

    Only what can be told from this process's own mounts: containers whose root filesystem is an overlay that is
    mounted right below a directory named like the container, as containerd does it. All others are left out.

    Source: proc(5) on ``mountinfo``; the kernel's overlayfs document, ``upperdir``.
    """
    wanted, found = frozenset(container_ids), dict[str, str]()
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123 - no path of ours
            for line in lines:
                left, _, right = line.partition(" - ")
                if not right.startswith("overlay "):
                    continue
                name = PurePosixPath(_plain(left.split()[4])).parent.name
                if name not in wanted:  # nor are mounts that a container made below its own
                    continue
                upper = next((each for each in right.split()[-1].split(",") if each.startswith(_UPPER)), "")
                if upper.startswith(f"{_UPPER}/"):
                    found[name] = _plain(upper.removeprefix(_UPPER))
    except (OSError, IndexError):
        return {}
    return found


def snapshotter_of(upper: str) -> str:
    """Return the containerd snapshotter that a writable layer's directory belongs to; empty if it has none.

    Source: containerd, a plugin's root directory is its type and name below containerd's root.
    """
    names = (each.removeprefix(_SNAPSHOTTER) for each in PurePosixPath(upper).parts if each.startswith(_SNAPSHOTTER))
    return next(names, "")


def measure_writable_layer(upper: str, deadline_s: float) -> Tree | None:
    """Return what a writable layer occupies; ``None`` if it cannot be looked at.

    ``deadline_s`` is on the clock of ``time.monotonic``. Links are not followed, and mounts not crossed.
    """
    try:
        device = os.lstat(upper).st_dev
    except OSError:
        return None
    return TreeReader(device, deadline_s).measure(upper)


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
