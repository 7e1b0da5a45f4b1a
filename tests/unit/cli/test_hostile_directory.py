"""Every command that starts a child process, run in a directory with planted modules and programs.

The commands are run by the installed console script, as in an attack; its child processes import the agent from the
interpreter's own environment. A planted module or program creates a file when executed, which a test detects regardless
of the result of the command.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.daemon.service_manager import read_again
from nodeagent.host.commands import DEFAULT_PATH, child_environment, run
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
COMMAND = str(Path(sys.executable).with_name("nodeagent"))
MODULES = (
    *("nodeagent", "venv", "json", "structlog", "typer", "yaml"),
    *("pip", "pickle", "tomllib", "encodings", "sitecustomize", "usercustomize"),
)
PROGRAMS = ("systemctl", "systemd-analyze", "journalctl", "getent", "python", "python3")
CONFIG = """\
role = "standalone"
[runtime]
endpoint = "unix://{0}/s"
[state]
directory = "{0}/state"
[control]
socket = ""
[metrics]
listen = "off"
[container_gc]
pod_log_root = "{0}/pods"
container_log_root = "{0}/containers"
"""


class Hostile:
    """A directory with planted modules and programs, with the names of imports and programs of the agent."""

    def __init__(self, base: Path) -> None:
        self.directory = base / "hostile"
        self.marks = base / "marks"
        self.directory.mkdir()
        self.marks.mkdir()
        (self.directory / "config.toml").write_text(CONFIG.format(base))
        for name in PROGRAMS:
            path = self.directory / name
            path.write_text(f"#!/bin/sh\n: >{self.marks}/program-{name}\n")
            path.chmod(0o755)

    def plant(self, form: str) -> None:
        for name in MODULES:
            path = str(self.marks / f"{form}-{name}")
            # posix.open, since a planted encodings module is imported before the built-in open() exists.
            mark = f"import posix\nposix.close(posix.open({path!r}, posix.O_CREAT | posix.O_WRONLY))\n"
            if form == "file":
                (self.directory / f"{name}.py").write_text(mark)
                continue
            package = self.directory / name
            package.mkdir()
            for file in ("__init__.py", "__main__.py"):
                (package / file).write_text(mark)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [COMMAND, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=self.directory,
            env={**os.environ, **variables},
        )

    def executed(self) -> list[str]:
        return sorted(each.name for each in self.marks.iterdir())


@pytest.fixture(params=["file", "package"])
def hostile(tmp_path: Path, request: pytest.FixtureRequest) -> Hostile:
    planted = Hostile(tmp_path)
    planted.plant(request.param)
    return planted


@contextmanager
def served(hostile: Hostile) -> Iterator[None]:
    base = hostile.directory.parent
    command = [sys.executable, "-m", "tests.sim", "--socket", str(base / "s"), "--root", str(base)]
    with subprocess.Popen(
        [*command, "--images", "3", "--containers", "2"], stdout=subprocess.DEVNULL, cwd=ROOT
    ) as process:
        try:
            poll("the simulated runtime is listening", (base / "s").exists, timeout_s=60)
            yield
        finally:
            process.terminate()


def test_planted_module_would_be_imported_without_isolation(hostile: Hostile) -> None:
    subprocess.run([sys.executable, "-c", "import typer"], cwd=hostile.directory, check=False, timeout=60)
    assert any("typer" in name for name in hostile.executed())


def test_install_and_uninstall_execute_no_file_of_the_working_directory(hostile: Hostile, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    for command in ("install", "uninstall"):
        ended = hostile.run(command, "--root", root, PATH=f".::{os.environ['PATH']}")
        assert ended.returncode == 0, ended.stderr
        assert hostile.executed() == []


def test_run_once_executes_no_file_of_the_working_directory_and_accepts_a_relative_config(hostile: Hostile) -> None:
    with served(hostile):
        ended = hostile.run("run", "--once", "--dry-run", "--config", "config.toml")
    assert ended.returncode == 0, ended.stderr
    assert "pass_finished" in ended.stdout + ended.stderr
    assert hostile.executed() == []


def test_reload_executes_no_file_of_the_working_directory_and_reads_a_relative_config(hostile: Hostile) -> None:
    config = hostile.directory / "config.toml"
    log = hostile.directory.parent / "log"
    with (
        served(hostile),
        log.open("w") as stream,
        subprocess.Popen(
            [COMMAND, "run", "--dry-run", "--config", "config.toml"],
            cwd=hostile.directory,
            env={**os.environ, "NODEAGENT_LOG__FORMAT": "json"},
            stdout=stream,
            stderr=subprocess.STDOUT,
        ) as daemon,
    ):

        def logged(event: str) -> list[dict[str, object]]:
            rows = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
            return [row for row in rows if row["event"] == event]

        try:
            poll("a pass has finished", lambda: bool(logged("pass_finished")), timeout_s=60)
            assert Path(f"/proc/{daemon.pid}/cwd").readlink() == Path("/")
            config.write_text(f"{config.read_text()}[image_gc]\nhigh_threshold_percent = 91\n")
            daemon.send_signal(signal.SIGHUP)
            poll("the configuration is reloaded", lambda: bool(logged("config_reloaded")), timeout_s=60)
        finally:
            daemon.terminate()
    assert logged("config_reloaded")[0]["changes"] == ["image_gc.high_threshold_percent: 85 -> 91"]
    assert hostile.executed() == []


def test_rereading_the_configuration_executes_no_file_of_the_working_directory(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = checked(Origin(hostile.directory / "config.toml"))
    monkeypatch.chdir(hostile.directory)
    monkeypatch.setenv("PYTHONPATH", str(hostile.directory))
    assert asyncio.run(read_again(settings)) == settings
    assert hostile.executed() == []


def test_doctor_runs_no_program_of_the_working_directory(hostile: Hostile) -> None:
    with served(hostile):
        hostile.run("doctor", "--config", "config.toml", PATH=f".::{os.environ['PATH']}")
    assert hostile.executed() == []


def test_python_variables_do_not_reach_children(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(hostile.directory))
    monkeypatch.setenv("PYTHONSTARTUP", "x")
    monkeypatch.setenv("NODEAGENT_LOG__LEVEL", "debug")
    child = run(sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")
    assert child is not None
    environment = json.loads(child.stdout)
    assert not [name for name in environment if name.startswith("PYTHON")]
    assert environment["NODEAGENT_LOG__LEVEL"] == "debug"
    assert hostile.executed() == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/usr/bin:/bin", "/usr/bin:/bin"),
        (".:/usr/bin", "/usr/bin"),
        (":/usr/bin:", "/usr/bin"),
        ("bin:../bin:/bin", "/bin"),
        ("", DEFAULT_PATH),
        (".", DEFAULT_PATH),
    ],
)
def test_search_path_of_children_keeps_absolute_entries_only(
    given: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", given)
    assert child_environment()["PATH"] == expected


def test_program_only_in_the_working_directory_is_not_found(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile.directory)
    for path in (".", "", f":{os.environ['PATH']}"):
        monkeypatch.setenv("PATH", path)
        planted = hostile.directory / "no-such-program"
        planted.write_text(f"#!/bin/sh\n: >{hostile.marks}/x\n")
        planted.chmod(0o755)
        assert run("no-such-program") is None
    assert hostile.executed() == []
