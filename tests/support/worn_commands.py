"""Commands of the agent on a :class:`WornNode`, and changes of its configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.support.command import ROOT

if TYPE_CHECKING:
    from tests.support.worn_node import WornNode

Document = dict[str, Any]


def nodeagent(node: WornNode, *arguments: str, code: int = 0) -> str:
    """Run a ``nodeagent`` command with the configuration of a node; return its output."""
    ended = subprocess.run(
        [sys.executable, "-m", "nodeagent", *arguments, "--config", str(node.config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert ended.returncode == code, f"{ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def gc(node: WornNode, scope: str, *options: str, code: int = 0) -> Document:
    age = () if scope == "containers" else ("--minimum-age", node.minimum_age, "--undo-window", "0s")
    answer: Document = json.loads(nodeagent(node, "gc", scope, *options, *age, "--output", "json", code=code))
    return answer


def tags(node: WornNode) -> set[str]:
    return {tag for image in node.pods.list_images() for tag in image.tags}


def configure(node: WornNode, old: str, new: str) -> None:
    text = node.config.read_text()
    assert old in text
    node.config.write_text(text.replace(old, new))
