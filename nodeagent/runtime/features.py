"""Features of a runtime, derived from its name and version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeagent.model import RuntimeInfo

_VERSION_NUMBER = re.compile(r"v?(\d+)\.(\d+)")


def mounts_images(info: RuntimeInfo) -> bool:
    """Return whether this runtime may mount images as volumes, so that the mounts of containers must be read.

    containerd 2.1 and CRI-O 1.31 or newer mount images; an unknown runtime is assumed to mount images.
    """
    match = _VERSION_NUMBER.match(info.version)
    if match is None:
        return True
    version = (int(match[1]), int(match[2]))
    first = {"containerd": (2, 1), "cri-o": (1, 31)}.get(info.name.lower())
    return first is None or version >= first
