"""Imports of commands answered by a daemon, which determine most of a command's run time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.control_node import IMAGE, Node, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).parents[3]
ENTRY = """
import sys
before = set(sys.modules)
sys.argv[0] = "nodeagent"
from nodeagent.cli.start import main
try:
    main()
finally:
    sys.stderr.write("\\nmodules: " + " ".join(sorted(set(sys.modules) - before)))
"""
LIBRARIES = {
    "grpc",
    "google.protobuf",
    "structlog",
    "rich",
    "dbus_fast",
    "psutil",
    "prometheus_client",
}
THIN = LIBRARIES | {"yaml", "asyncio", "sqlite3", "http.client"}
FORBIDDEN = {
    "containers": THIN,
    "du": LIBRARIES,
    "evict --dry-run": LIBRARIES,
    f"explain {IMAGE}": LIBRARIES | {"asyncio"},
    "gc all --dry-run": LIBRARIES,
    "gc containers --dry-run": LIBRARIES,
    "gc images --dry-run": LIBRARIES,
    "gc leaks": LIBRARIES,
    "history": THIN,
    "hold list": THIN,
    "images": THIN,
    "images -o json --filter name=*app*": THIN,
    "pause": LIBRARIES | {"asyncio"},
    "pods": THIN,
    "pressure": THIN,
    "resume": LIBRARIES | {"asyncio"},
    "shutdown --dry-run": THIN,
    "shutdown status": THIN,
    "status": THIN,
    "top --once": THIN,
    "version": THIN,
}
"""Modules that the command must not import."""


DIRECT = LIBRARIES - {"grpc", "google.protobuf"} | {
    "nodeagent.gc.agent",
    "nodeagent.gc.collector",
    "nodeagent.kube.podspec",
    "nodeagent.store.history",
}
"""Modules that previews without a daemon must not import."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as made:
        made.path.parent.chmod(0o755)
        (Path(made.sim.root_path) / "io.containerd.snapshotter.v1.overlayfs").mkdir()
        yield made


@pytest.mark.parametrize("words", FORBIDDEN)
async def test_command_answered_by_the_daemon_does_not_import(node: Node, words: str) -> None:
    modules = await asyncio.to_thread(imported, words, {"NODEAGENT_CONTROL__SOCKET": str(node.path)})
    assert modules & FORBIDDEN[words] == set()


@pytest.mark.parametrize(
    ("words", "module"),
    [
        ("images --help", "inspection"),
        ("gc undo --help", "collection"),
        ("config --help", "operations"),
        ("--version", ""),
    ],
)
def test_command_imports_only_its_own_command_module(words: str, module: str) -> None:
    prefix = "nodeagent.cli.commands."
    modules = {each.removeprefix(prefix) for each in imported(words, {}) if each.startswith(prefix)}
    assert modules == ({module} if module else set())


@pytest.mark.parametrize("words", ["images", "containers", "pods", "gc all --dry-run"])
async def test_preview_without_a_daemon_does_not_import(node: Node, tmp_path: Path, words: str) -> None:
    environment = {
        "NODEAGENT_CONTROL__SOCKET": str(tmp_path / "none.sock"),
        "NODEAGENT_RUNTIME__ENDPOINT": node.context.settings.endpoint,
        "NODEAGENT_STATE__DIRECTORY": str(tmp_path / "state"),
        "NODEAGENT_ROLE": "standalone",
    }
    modules = await asyncio.to_thread(imported, words, environment)
    assert "nodeagent.gc.agent_parts" in modules
    assert modules & DIRECT == set()


def imported(words: str, environment: dict[str, str]) -> set[str]:
    """Return the modules that a command imports."""
    ended = subprocess.run(
        [sys.executable, "-c", ENTRY, *words.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
    )
    errors, _, names = ended.stderr.rpartition("\nmodules: ")
    assert ended.returncode in (0, 1), errors
    return set(names.split())
