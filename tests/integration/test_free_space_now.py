"""The commands of the page "Free space now", in its order, on a real containerd without a free byte."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.command import nodeagent
from tests.support.containerd import LoopFs
from tests.support.worn_node import FRESH, wear

if TYPE_CHECKING:
    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real
PAGE = Path(__file__).parents[2] / "nodeagent/docs/free-space-now.md"
CHANGES = {
    "10Gi": "10Mi",
    "70%": "85%",
    "registry.example.com/shop/frontend:v1": FRESH,
}  # to the size and the images of the node


def write_until_full(file: Path) -> None:
    """Write to a file until its filesystem has no free byte, also for root."""
    with file.open("ab", buffering=0) as ballast:
        for block in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    ballast.write(bytes(block))


def test_commands_of_the_page_free_space_on_a_disk_without_a_free_byte_twice(
    containerd_factory: ContainerdFactory,
) -> None:
    node = wear(containerd_factory(imagefs=LoopFs(351, "ext4", reserved_percent=0)))
    state = node.containerd.root / "agent-state"
    config = node.config.read_text().replace(str(node.containerd.base / "agent-state"), str(state))
    node.config.write_text(f'{config}[image_gc]\nminimum_age = "1s"\n[metrics]\nlisten = "off"\n')
    options = ("--config", str(node.config))
    first = ("rmi", "registry.example.com/batch/report:v1", "--undo-window", "0s", "--yes")
    assert nodeagent(*first, *options).returncode == 0  # writes the state
    commands = re.findall(r"^# nodeagent ([^#\n]+?)(?: +#.*)?$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    used = []
    for command in commands:
        if command.startswith(("status", "gc --free", "gc --to")):
            write_until_full(node.containerd.root / "ballast")
        words = [CHANGES.get(each, each) for each in command.split()]
        confirmed = () if words[0] not in {"gc", "rmi"} or "--dry-run" in words else ("--yes",)
        ended = nodeagent(*words, *confirmed, *options)
        used.append(node.used_percent)
        assert ended.returncode == (1 if words[0] == "status" else 0), (words, ended.stdout, ended.stderr)
    full, free, to, one = used[0], used[-3], used[-2], used[-1]
    assert full == 100
    assert free < full
    assert to <= 85
    assert one < to
    containers = nodeagent("containers", "--filter", "state=running", "-o", "name", *options)
    assert containers.stdout.split() == ["shop/web/web"]
