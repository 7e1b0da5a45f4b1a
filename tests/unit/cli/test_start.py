"""Imports of the entry points, which determine the run time of the help and the memory of the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.api.operations import OPERATIONS
from nodeagent.cli import help as help_text
from nodeagent.cli.start import early_target

ROOT = Path(__file__).parents[3]
FOR_TABLES = {"rich.console", "yaml"}  # not rich: importtime lists its blocked import
FOR_FILES = {"pydantic", "nodeagent.config.models"}
FOR_CLUSTERS = {"nodeagent.kube.api_client", "nodeagent.daemon.kubernetes.session", "nodeagent.host.machine"}
FOR_NODES = {"grpc", "google.protobuf", "psutil", "sqlite3", "structlog", "dbus_fast"}
DAEMON = "import nodeagent.cli.run, nodeagent.telemetry.logging, nodeagent.act.agent, nodeagent.daemon.supervisor"


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


@pytest.mark.parametrize("word", ["--help", "-h", "--version"])
def test_help_and_version_import_only_the_entry_point(word: str) -> None:
    modules = imported("-m", "nodeagent", word)
    own = {"nodeagent", "nodeagent.cli", "nodeagent.cli.start"}
    assert {each for each in modules if each.startswith("nodeagent")} == own
    assert modules & (FOR_TABLES | FOR_FILES | FOR_NODES | {"asyncio", "json", "typer"}) == set()


def test_stored_help_is_that_of_the_command_tree() -> None:
    assert help_text.HELP.read_text() == help_text.rendered()


def test_command_tree_does_not_import_libraries_of_commands() -> None:
    modules = imported("-c", "import nodeagent.cli.main")
    assert "nodeagent.cli.main" in modules
    assert modules & (FOR_TABLES | FOR_FILES | FOR_NODES | {"asyncio", "json"}) == set()


@pytest.mark.parametrize("words", ["gc", "config show", "doctor"])
def test_help_of_a_command_does_not_import_its_libraries(words: str) -> None:
    modules = imported("-m", "nodeagent", *words.split(), "--help")
    ours = FOR_FILES - {"pydantic"}  # typer may import pydantic to convert options
    assert modules & (FOR_TABLES | ours | FOR_NODES) == set()


def test_daemon_does_not_import_command_line_and_configuration_models() -> None:
    modules = imported("-c", DAEMON)
    assert "nodeagent.daemon.supervisor" in modules
    assert modules & ({"typer", "prometheus_client"} | FOR_TABLES | FOR_FILES | FOR_CLUSTERS) == set()


def test_plain_status_does_not_import_the_parser() -> None:
    modules = imported(
        "-c",
        "import sys; from nodeagent.cli import start, status; sys.argv[1:] = ['status']\n"
        "status.show_status = lambda *_, **__: None\n"
        "start.main()",
    )
    assert modules & ({"typer"} | FOR_TABLES | FOR_FILES) == set()


@pytest.mark.parametrize(
    ("words", "operation"),
    [
        (["images"], "Images"),
        (["images", "-o", "wide", "--sort-by", "size", "--filter=name=a", "--no-headers", "--no-trunc"], "Images"),
        (["containers", "-q"], "Containers"),
        (["pods"], "PodList"),
        (["pressure", "--output", "json"], "Pressure"),
        (["status"], "Status"),
        (["version"], "Version"),
    ],
)
def test_request_of_a_plain_list_is_sent_before_the_imports(words: list[str], operation: str) -> None:
    assert early_target(words) == OPERATIONS[operation].path


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["gc", "all", "--dry-run"],
        ["history"],
        ["images", "--config", "a.toml"],
        ["images", "--config=a.toml"],
        ["images", "--direct"],
        ["images", "--endpoint", "unix:///a"],
        ["images", "--help"],
        ["images", "--tree"],
        ["images", "-h"],
        ["--config", "a.toml", "images"],
        ["status", "--watch"],
    ],
    ids=" ".join,
)
def test_no_request_is_sent_before_the_options_are_known(words: list[str]) -> None:
    assert not early_target(words)


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
