"""Container image of the agent, built by ``make image``, and the comparison of its plans with those of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.support.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.pods import Pods

VARIABLE: Final = "NODEAGENT_TEST_IMAGE"
IMAGE: Final = "localhost/nodeagent:test"
NOT_RUNNING: Final = 1
"""Exit code of ``status`` without a daemon."""
Document = dict[str, Any]


def image_path() -> Path | None:
    """Return the path of the image; ``None`` if no image is configured."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else None


def import_image(ctr: Callable[..., object], pods: Pods) -> None:
    """Import the image with ``ctr`` and tag it with the reference ``IMAGE``."""
    path = image_path()
    assert path is not None
    ctr("images", "import", "--index-name", "localhost/unused:index", str(path))
    (name,) = {tag for each in pods.list_images() for tag in each.tags if tag.startswith("localhost/nodeagent")}
    ctr("images", "tag", name, IMAGE)


def static_pod(*options: str) -> Document:
    """Return the static pod printed by ``manifest static-pod`` for the image."""
    command = [sys.executable, "-m", "nodeagent", "manifest", "static-pod", "--image", IMAGE, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    document: Document = yaml.safe_load(done.stdout)
    return document


def decisions(document: Document) -> list[tuple[str, ...]]:
    """Return the decisions on images in eviction order, without ages."""
    return [
        (each["id"], each["verdict"], each["reason"]["code"], str(each.get("frees_bytes")))
        for plan in document["plans"]
        for each in plan["decisions"]
    ]
