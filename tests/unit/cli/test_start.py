"""Imports and exits of the entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOR_TABLES = {"rich.console", "yaml"}  # not rich: importtime lists its blocked import
FOR_FILES = {"nodeagent.settings.settings"}
FOR_CLUSTERS = {"nodeagent.kube.api_client", "nodeagent.cluster.node_session", "nodeagent.host.machine"}
FOR_NODES = {"grpc", "google.protobuf", "psutil", "sqlite3", "structlog", "dbus_fast"}
DAEMON = "import nodeagent.cli.run, nodeagent.telemetry.logging, nodeagent.gc.agent, nodeagent.daemon.supervisor"


def imported(*arguments: str) -> set[str]:
    """Return the modules that a Python process with these arguments imports."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    rows = [line.rpartition("|") for line in ended.stderr.splitlines() if line.startswith("import time:")]
    return {name.strip() for _, _, name in rows}


def test_command_tree_does_not_import_libraries_of_commands() -> None:
    modules = imported("-c", "import nodeagent.cli.main")
    assert "nodeagent.cli.main" in modules
    assert modules & (FOR_TABLES | FOR_FILES | FOR_NODES | {"asyncio", "json"}) == set()


@pytest.mark.parametrize("words", ["gc", "config show", "doctor"])
def test_help_of_a_command_does_not_import_its_libraries(words: str) -> None:
    modules = imported("-m", "nodeagent", *words.split(), "--help")
    assert modules & (FOR_TABLES | FOR_FILES | FOR_NODES) == set()


def test_daemon_does_not_import_the_command_line() -> None:
    modules = imported("-c", DAEMON)
    assert "nodeagent.daemon.supervisor" in modules
    assert modules & ({"typer", "yaml"} | FOR_CLUSTERS) == set()


@pytest.mark.parametrize("words", [["--version"], ["config", "show"], ["__complete"]])
def test_process_ends_after_its_whole_output(words: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "NODEAGENT_STATE__DIRECTORY": str(tmp_path)}
    in_process = "import sys; from nodeagent.cli.start import main; sys.argv[:] = ['nodeagent', *sys.argv[1:]]; main()"
    outputs = [
        subprocess.run(
            [sys.executable, *start, *words], capture_output=True, timeout=60, check=True, cwd=ROOT, env=environment
        ).stdout
        for start in (("-m", "nodeagent"), ("-c", in_process))
    ]
    assert outputs[0] == outputs[1] != b""


def test_full_disk_at_the_end_of_a_command_is_an_error() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device file
        ended = subprocess.run(
            [sys.executable, "-m", "nodeagent", "config", "show"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            cwd=ROOT,
        )
    assert (ended.returncode, b"No space left on device" in ended.stderr) == (1, True)
