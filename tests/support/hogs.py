"""Images with a program that causes resource pressure on a node at a known rate; see ``hog.c``."""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.support import images

HOG = "node.test/hog:v1"
PATH_IN_NODE = "/opt/harness/hog"  # path of the program on the node, for runs outside pods

_SOURCE = Path(__file__).with_name("hog.c")


@cache
def program() -> bytes:
    """Compile the program statically; return its path. Requires gcc and the static C library."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "hog"
        subprocess.run(["gcc", "-static", "-O2", "-s", "-Wall", "-Werror", "-o", made, _SOURCE], check=True)
        return made.read_bytes()


def image(tag: str = HOG) -> images.Image:
    """Return the description of an image with the program and busybox."""
    return images.image(tag, layers=[images.Layer((images.File("bin/hog", content=program(), mode=0o755),))])
