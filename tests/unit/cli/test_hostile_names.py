"""Every command on a node with hostile names of items: no crash, no control sequence on the terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from nodeagent.cli import control_client, main as command_line
from nodeagent.text import escape
from tests.support.hostile import DIRECTORIES, NAMES
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
STYLE = re.compile(r"\x1b\[[0-9;]*m")
WITHIN_DIRECTORY = """
from nodeagent.cli.start import main
from nodeagent.gc.snapshot import usage

usage.mount_point = lambda _: "{directory}"
main()
"""
"""Program that runs a command with the usage breakdown limited to the test directory, not its whole filesystem."""
CURSOR = re.compile(r"\x1b\[(?:\?25[lh]|[0-9]*[AK])")  # control sequences of the progress bar
SHOWN = [escape(os.fsdecode(each)) for each in DIRECTORIES]


@contextmanager
def serving() -> Iterator[Path]:
    """Serve the node from a separate process; yield the directory of its files."""
    with tempfile.TemporaryDirectory(prefix="h") as name:
        directory = Path(name)
        words = [sys.executable, "-m", "tests.support.hostile", name]
        with subprocess.Popen(words, cwd=ROOT) as process:
            try:
                poll("the simulated runtime is listening", (directory / "s").exists, timeout_s=60)
                yield directory
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def node() -> Iterator[Path]:
    """Yield the directory of a node shared by the tests that change no item."""
    with serving() as directory:
        yield directory


@pytest.fixture(autouse=True)
def _walk_of_own_files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the usage breakdown to the test directory, not its whole filesystem."""
    monkeypatch.setattr("nodeagent.gc.snapshot.usage.mount_point", lambda path: str(Path(path).parents[0]))


@pytest.fixture(scope="module")
def daemon(node: Path) -> Iterator[Path]:
    """Run a daemon in a dry run on the node; yield the directory of the node."""
    words = [sys.executable, "-m", "nodeagent", "run", "--dry-run", "--config", str(node / "config.toml")]
    with (node / "log").open("wb") as log, subprocess.Popen(words, cwd=ROOT, stderr=log) as process:
        try:
            poll(
                "the agent has finished its passes",
                lambda: (node / "log").read_text().count("pass_finished") > 1,
                timeout_s=60,
            )
            yield node
        finally:
            process.terminate()


class Ended:
    """Exit code, output and error output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def run(capfd: pytest.CaptureFixture[str], *words: str) -> Ended:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["nodeagent", *words])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
    shown = capfd.readouterr()
    return Ended(int(ended.value.code or 0), shown.out, shown.err)


def assert_harmless(*texts: str) -> None:
    for text in texts:
        assert [each for each in text.split("\n") if escape(each) != each] == []
        assert "Traceback" not in text


READ_ONLY = [
    "images",
    "images --tree",
    "containers",
    "pods",
    "du --details",
    "gc images --dry-run --kept",
    "gc containers --dry-run --kept",
    "gc all --dry-run --kept",
    "gc leaks --dry-run --kept --minimum-age 0s",
    "evict --dry-run",
    "evict -s memory.available=1Mi",
    "pressure",
    "shutdown --dry-run",
    "shutdown status",
    "doctor",
    "version",
    "status",
    "top",
    "config show --effective",
    "history",
    "history --details",
    "hold list",
]


@pytest.mark.parametrize("colours", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("command", READ_ONLY)
def test_table_shows_hostile_names_escaped(
    node: Path, command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, colours: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
    ended = run(capfd, *command.split(), "--config", str(node / "config.toml"))
    assert ended.code in (0, 1, 3)
    assert_harmless(STYLE.sub("", ended.out), ended.err)
    if command in ("images", "containers", "pods", "gc all --dry-run --kept", "evict --dry-run"):
        assert all(escape(each) in ended.out for each in NAMES)
    if "gc containers" in command:
        assert all(each in ended.out for each in SHOWN)


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("command", READ_ONLY)
def test_document_has_the_same_names_and_no_control_characters(
    node: Path, command: str, form: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = run(capfd, *command.split(), "--output", form, "--config", str(node / "config.toml"))
    assert ended.code in (0, 1, 3)
    assert_harmless(ended.out, ended.err)
    parsed = json.loads(ended.out) if form == "json" else yaml.safe_load(ended.out)
    if command == "containers":
        assert {each["name"] for each in parsed["containers"]} == set(NAMES)
    if command == "gc containers --dry-run --kept":
        (logs,) = (each for each in parsed["plans"] if each["kind"] == "logs")
        assert "ns\\xff_pod\\x80_0f1e2d3c-4b5a-4968-8778-695a4b3c2d1e" in {each["id"] for each in logs["decisions"]}


@pytest.mark.parametrize("name", NAMES)
def test_explain_accepts_a_hostile_name(node: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    ended = run(capfd, "explain", f"registry.example/used/{name}:{name}", "--config", str(node / "config.toml"))
    assert (ended.code, escape(name) in ended.out) == (0, True)
    assert_harmless(ended.out, ended.err)
    missing = run(capfd, "explain", f"no {name}\udcff", "--config", str(node / "config.toml"))
    assert (missing.code, escape(f"no {name}\udcff") in missing.err) == (2, True)
    assert_harmless(missing.out, missing.err)


@pytest.mark.parametrize("command", ["status", "top", "trigger containers --wait", "reload", "pause", "resume"])
def test_control_commands_work_on_a_hostile_node(daemon: Path, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    ended = run(capfd, *command.split(), "--config", str(daemon / "config.toml"))
    assert ended.code in (0, 3), ended.err
    assert_harmless(ended.out, ended.err)


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("command", ["gc all --dry-run --kept", "history --all", "hold list", "pressure"])
def test_member_reads_hostile_names_escaped_through_the_agent(
    daemon: Path, command: str, form: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    monkeypatch.setattr(control_client, "find_socket", lambda _: daemon / "control.sock")
    ended = run(capfd, *command.split(), "--output", form)
    assert ended.code in (0, 3), ended.err
    assert_harmless(ended.out, ended.err)
    if command.startswith("gc"):
        assert "[/x]" in ended.out


@pytest.mark.parametrize("form", ["table", "json"])
def test_events_show_hostile_names_escaped(daemon: Path, form: str, capfd: pytest.CaptureFixture[str]) -> None:
    config, out = str(daemon / "config.toml"), daemon / f"events-{form}"
    options = ("--config", config)

    def removal_followed() -> bool:
        """Run image GC with and without a hold, since the event stream contains only changes between dry runs.

        Returns:
            Whether the stream contains the removals of all unused images.
        """
        pattern = "registry.example/unused/*"
        hold = json.loads(run(capfd, "hold", "add", pattern, "-o", "json", *options).out)
        assert run(capfd, "trigger", "images", "--wait", *options).code == 0
        assert run(capfd, "hold", "remove", hold["id"], *options).code == 0
        assert run(capfd, "trigger", "images", "--wait", *options).code == 0
        return out.read_text().count("registry.example/unused/") >= len(NAMES)

    words = [sys.executable, "-m", "nodeagent", "events", "-o", form, "--config", config]
    with out.open("wb") as stream, subprocess.Popen(words, cwd=ROOT, stdout=stream) as follower:
        try:
            poll("the changed removals are in the event stream", removal_followed, timeout_s=60)
        finally:
            follower.terminate()
    assert_harmless(out.read_text())


@pytest.fixture
def own_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the directory of a node for one test, without the containerd API.

    With the containerd API, sizes are exact and a pass waits for freed bytes on the disk of this machine.
    """
    monkeypatch.setenv("NODEAGENT_RUNTIME__CONTAINERD_API", "off")
    with serving() as directory:
        yield directory


def test_plans_with_hostile_names_are_saved_compared_and_applied(
    own_node: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = ("--config", str(own_node / "config.toml"))
    one, two = str(own_node / "one.json"), str(own_node / "two.json")
    assert run(capfd, "plan", "--out", one, *config).code == 0
    planned = {each["id"] for each in json.loads(Path(one).read_text())["decisions"] if each["verdict"] == "remove"}
    assert len(planned) > 3 * len(NAMES)
    hold = run(capfd, "hold", "add", "registry.example/unused/[/x]:[/x]", "--why", "[bold]", *config)
    refused = run(capfd, "hold", "add", "x", "--why", "\x1b[31m", *config)
    assert (refused.code, "--why: at most 4096 characters, all printable" in refused.err) == (2, True)
    assert (hold.code, "[/x]" in hold.out) == (0, True)
    assert run(capfd, "plan", "--out", two, *config).code == 0
    shown = [
        run(capfd, "plan", *config),
        run(capfd, "plan", "diff", one, two),
        run(capfd, "hold", "list", *config),
        run(capfd, "apply", one, "--dry-run", *config),
        run(capfd, "apply", one, "--yes", *config),
        run(capfd, "history", "--all", "--details", *config),
        run(capfd, "history", "--all", "--output", "json", *config),
        run(capfd, "explain", f"registry.example/unused/{NAMES[3]}:{NAMES[3]}", *config),
        run(capfd, "gc", "all", "--dry-run", "--kept", *config),
        run(capfd, "hold", "remove", "1", *config),
    ]
    assert_harmless(*(each.out for each in shown), *(each.err for each in shown))
    assert [each.code for each in shown] == [0, 1, 0, 3, 3, 0, 0, 0, 3, 0]
    (recorded,) = json.loads(shown[6].out)["passes"]
    removed = {each["id"] for each in recorded["actions"] if each["outcome"] == "done"}
    assert {each for each in planned if "_" in each} <= removed  # only names of log directories contain "_"
    assert not (own_node / "pods" / os.fsdecode(DIRECTORIES[0])).exists()
    assert (own_node / "pods" / os.fsdecode(DIRECTORIES[2])).exists()


@pytest.mark.parametrize("colours", [False, True], ids=["pipe", "terminal"])
def test_pass_with_hostile_names_is_executed_and_recorded(
    own_node: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, colours: bool
) -> None:
    config = ("--config", str(own_node / "config.toml"))
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
    ended = run(capfd, "gc", "all", "--yes", *config)
    assert ended.code in (0, 3)
    progress = CURSOR.sub("", ended.err).replace("\r", "") if colours else ended.err
    assert_harmless(STYLE.sub("", ended.out), STYLE.sub("", progress))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    recorded = run(capfd, "history", "--details", *config)
    assert recorded.code == 0
    assert_harmless(recorded.out, recorded.err)
    assert all(each in recorded.out for each in SHOWN[:2])


@pytest.mark.parametrize("form", ["console", "json"])
def test_log_of_a_pass_has_no_control_characters(own_node: Path, form: str) -> None:
    config = own_node / "config.toml"
    config.write_text(config.read_text() + f'[log]\nformat = "{form}"\nlevel = "debug"\n')
    words = [
        sys.executable,
        "-c",
        WITHIN_DIRECTORY.format(directory=own_node),
        "run",
        "--once",
        "--config",
        str(config),
    ]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, 3)
    assert_harmless(ended.stdout, ended.stderr)
    assert SHOWN[0] in ended.stderr.replace("\\\\", "\\")
    again = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode in (0, 3), again.stderr
    if form == "json":
        (warned,) = [json.loads(each) for each in again.stderr.splitlines() if "pass_finished" in each]
        assert warned["failed"] == 0
