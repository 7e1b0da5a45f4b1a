"""Words of the command line: aliases, suggestions for mistyped commands, and ``nodeagent logs``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import typer

from nodeagent.cli.help import ALIASES, expand_alias, reads_only
from nodeagent.cli.main import app
from tests.support.command import nodeagent
from tests.unit.cli.test_command_help import commands
from tests.unit.cli.test_completion import words

ROOT: Final = Path(__file__).parents[3]
ACTING: Final = {
    *(
        "apply",
        "evict",
        "shutdown at-stop",
        "run",
        "pause",
        "resume",
        "trigger",
        "reload",
        "install",
        "uninstall",
        "shutdown",
        "rmi",
    ),
    *("gc", "gc images", "gc containers", "gc all", "gc leaks", "gc undo", "hold", "hold add", "hold remove"),
}


def paths() -> list[str]:
    return [" ".join(each) for each in commands(typer.main.get_command(app)) if each]


def test_every_command_is_one_that_acts_or_one_that_may_be_suggested() -> None:
    assert {each for each in paths() if not reads_only(each.split())} == ACTING


@pytest.mark.parametrize("path", [*paths(), *ALIASES])
def test_mistyped_command_suggests_no_command_that_acts(path: str) -> None:
    *group, name = path.split()
    typed = {name[:-1], name + "s", name[:1] + name[2:], name[1:], name.upper(), name.replace("i", "l")}
    known = {*paths(), *ALIASES}
    for each in typed - {""}:
        if " ".join((*group, each)) in known:
            continue
        ended = nodeagent(*group, each)
        assert ended.returncode == 2
        if "did you mean" not in ended.stderr:
            continue
        suggested = ended.stderr.partition("did you mean ")[2].strip(" ?\n").split(" or ")
        assert suggested
        assert all(reads_only([*group, one.strip("'")]) for one in suggested), ended.stderr


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("imgaes",), "no command 'imgaes'; did you mean 'images'?"),
        (("gcc",), "no command 'gcc'\n"),
        (("ru",), "no command 'ru'\n"),
        (("prun",), "no command 'prun'\n"),
        (("rm",), "no command 'rm'\n"),
        (("rmii",), "no command 'rmii'\n"),
        (("gc", "image"), "no command 'gc image'\n"),
        (("hold", "lst"), "no command 'hold lst'; did you mean 'list'?"),
        (("prune", "image"), "no command 'gc image'\n"),
        (("--gc",), "No such option: --gc"),
    ],
)
def test_error_for_a_mistyped_command_has_only_reading_suggestions(typed: tuple[str, ...], message: str) -> None:
    ended = nodeagent(*typed)
    assert ended.returncode == 2
    assert message in ended.stderr


@pytest.mark.parametrize("alias", ALIASES)
def test_alias_is_its_command_in_usage_help_and_completion(alias: str) -> None:
    target = ALIASES[alias]
    assert nodeagent(alias, "--help").stdout == nodeagent(*target, "--help").stdout != ""
    assert nodeagent("help", alias).stdout == nodeagent("help", *target).stdout
    assert alias in words(alias[:1])
    assert words(alias, "-") == words(*target, "-") != []
    assert words(alias, "") == words(*target, "")


def test_aliases_are_on_one_line_of_the_help_and_no_commands() -> None:
    lines = nodeagent("--help").stdout.splitlines()
    assert "Aliases: df (du), prune (gc), ps (containers), undo (gc undo)" in lines
    assert not [each for each in lines if each.split()[:1] and each.split()[0] in ALIASES]
    assert not set(ALIASES) & set(paths())
    assert all(" ".join(target) in paths() for target in ALIASES.values())


def test_only_the_first_word_is_an_alias() -> None:
    assert expand_alias(["help", "ps"]) == ["help", "ps"]
    assert expand_alias([]) == []
    assert nodeagent("hold", "ps").returncode == 2


JOURNALCTL: Final = '#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\nexit ${CODE:-0}\n'


@pytest.fixture
def journalctl(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "journalctl"
    path.parent.mkdir()
    path.write_text(JOURNALCTL)
    path.chmod(0o755)
    return path


def logs(path: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``nodeagent logs``: the process is replaced by journalctl."""
    return subprocess.run(
        [sys.executable, "-m", "nodeagent", "logs", *arguments],
        env={**os.environ, "PATH": path, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ((), ["--lines=100"]),
        (("-n", "5"), ["--lines=5"]),
        (("--tail", "all"), ["--lines=all"]),
        (("-f",), ["--lines=100", "--follow"]),
        (("--since", "2026-03-01T12:00:00Z"), ["--lines=all", "--since=@1772366400"]),
        (("--since", "2026-03-01", "-n", "9"), ["--lines=9", "--since=@1772319600"]),
    ],
)
def test_logs_are_printed_by_journalctl(journalctl: Path, arguments: tuple[str, ...], passed: list[str]) -> None:
    ended = logs(str(journalctl.parent), *arguments, TZ="Europe/Berlin")
    expected = ["/", "--unit=nodeagent.service", "--no-pager", *passed]
    assert (ended.returncode, ended.stdout.splitlines(), ended.stderr) == (0, expected, "")


def test_exit_code_of_journalctl_is_the_exit_code(journalctl: Path) -> None:
    assert logs(str(journalctl.parent), CODE="7").returncode == 7


def test_logs_without_journalctl_are_an_error_with_the_way_for_a_container(tmp_path: Path) -> None:
    ended = logs(str(tmp_path))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(
        "nodeagent: cannot show the journal: journalctl not found; for an agent in a contain"
    )


def test_journalctl_in_a_relative_path_is_not_started(journalctl: Path) -> None:
    ended = logs(os.path.relpath(journalctl.parent, ROOT))
    assert "journalctl not found" in ended.stderr or ended.stdout.startswith("-- ")  # of the system


def test_journalctl_that_cannot_be_started_is_an_error(journalctl: Path) -> None:
    journalctl.write_text("#!/no/such/interpreter\n")
    assert "cannot start" in logs(str(journalctl.parent)).stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-n", "-5"), "--lines -5: must be a whole number or 'all'"),
        (("-n", "five"), "--lines five"),
        (("-n", "\u0665"), "--lines"),
        (("--since", "tomorrow"), "'tomorrow' is not a time: write a duration such as 2h"),
        (("--since", "2026-02-30"), "'2026-02-30' is not a time"),
        (("--since", "--follow"), "'--follow' is not a time"),
        (("--since", "0001-01-01"), "is not a time"),
        (("--since", "99999999999d"), "is not a time"),
    ],
)
def test_invalid_option_of_logs_is_refused(journalctl: Path, arguments: tuple[str, ...], problem: str) -> None:
    ended = logs(str(journalctl.parent), *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert problem in ended.stderr


def test_completion_offers_days_for_since() -> None:
    assert words("logs", "--since", "") == ["today", "yesterday"]
