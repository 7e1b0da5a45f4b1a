"""Refused arguments and options: exit code and message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.command import nodeagent

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("apply", "PLAN", "--yes"), "cannot read plan /none.json: No such file or directory\n"),
        (("apply", "CONFIG", "--yes"), "not JSON"),
        (("plan", "--expires", "soon"), "--expires"),
        (("hold", "add"), "add --all"),
        (("hold", "add", "a", "--all"), "not both"),
        (("hold", "add", "a", "--for", "0"), "more than 0"),
        (("hold", "add", "a", "--for", "9999d"), "365d"),
        (("hold", "add", "regex:(", "--for", "1h"), "not a regular expression"),
        (("hold", "remove", "7"), "no hold 7; 'nodeagent hold list' lists all"),
        (("history", "--since", "soon"), "--since"),
    ],
)
def test_invalid_argument_exits_with_2_and_writes_nothing(
    config: Path, arguments: tuple[str, ...], message: str
) -> None:
    words = [{"PLAN": "/none.json", "CONFIG": str(config)}.get(each, each) for each in arguments]
    ended = nodeagent(*words, "--config", str(config))
    assert (ended.returncode, message in ended.stderr) == (2, True), ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (config.parent / "state").exists()


@pytest.mark.parametrize("name", ["", "  "])
def test_explain_of_an_empty_name_is_a_usage_error(config: Path, name: str) -> None:
    ended = nodeagent("explain", name, "--config", str(config))
    assert ended.returncode == 2
    assert "the name is empty" in ended.stderr
    assert not ended.stdout


@pytest.mark.parametrize("words", [("images",), ("gc", "all", "--dry-run"), ("history",), ("status",), ("pause",)])
def test_empty_name_of_the_configuration_file_is_a_usage_error(words: tuple[str, ...]) -> None:
    ended = nodeagent(*words, "--config", "")
    assert (ended.returncode, "no file name" in ended.stderr) == (2, True), ended.stderr


def test_endpoint_that_is_not_utf_8_is_a_usage_error() -> None:
    ended = nodeagent("images", "--endpoint", "unix:///\udcff")
    assert (ended.returncode, ended.stderr) == (2, "nodeagent: --endpoint unix:///\\xff: not UTF-8 text\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("history", ""), "PASS is empty"),
        (("explain", ""), "the name is empty"),
        (("hold", "remove", ""), "HOLD is empty"),
        (("apply", ""), "'FILE': no file name"),
        (("plan", "--out", ""), "'--out': no file name"),
        (("plan", "diff", "a", ""), "'B': no file name"),
        (("config", "import", ""), "'FILE|-': no file name"),
        (("config", "import", "x", "--out", ""), "'--out': no file name"),
        (("images", "-o", "x"), "--output x: must be table, wide, json, yaml, name, jsonpath=TEMPLATE or"),
        (("gc", "all", "--dry-run", "--high", "x"), "'--high': must be a whole number"),
        (("history", "--limit", "0"), "'--limit': must be at least 1"),
        (("history", "--limit", "x"), "'--limit': must be a whole number"),
        (("status", "-w", "--every", "x"), "'--every': must be a number"),
        (("status", "-w", "--every", "0.01"), "'--every': must be at least 0.2"),
        (("pause", "--for", "0s"), "--for 0s: must be more than 0 and at most 7d"),
        (("pause", "--for", "8d"), "--for 8d: must be more than 0 and at most 7d"),
        (("pause", "--why", "a\x07"), "--why: at most 4096 characters, all printable"),
        (("hold", "add", "x", "--why", "a\x07"), "--why: at most 4096 characters, all printable; no hold was placed"),
        (("hold", "add", "a\n"), "IMAGE: at most 4096 characters, all printable; no hold was placed"),
    ],
)
def test_error_of_a_value_names_the_option(words: tuple[str, ...], error: str) -> None:
    ended = nodeagent(*words)
    assert (ended.returncode, error in ended.stderr) == (2, True), ended.stderr
    assert "Value error" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("shutdown -o json status", "--output"),
        ("shutdown -c /nonexistent status", "--config"),
        ("gc --yes images", "--yes"),
    ],
)
def test_option_before_a_subcommand_is_a_usage_error(words: str, option: str) -> None:
    ended = nodeagent(*words.split())
    assert ended.returncode == 2
    assert f"{option}: options must follow" in ended.stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("gc images --free 10Gi", "--free: only of 'nodeagent gc'"),
        ("gc containers --to 70%", "--to: only of 'nodeagent gc'"),
        ("gc --free 10Gi --yes images", "--free: only of 'nodeagent gc'"),
        ("plan --out plan.json --high 10 diff a b", "--out, --high: only of 'nodeagent plan'"),
        ("shutdown --dry-run status", "--dry-run: only of 'nodeagent shutdown'"),
    ],
)
def test_option_that_only_the_group_has_names_the_group(words: str, option: str) -> None:
    ended = nodeagent(*words.split())
    assert (ended.returncode, f"{option} without a subcommand" in ended.stderr) == (2, True), ended.stderr
    assert "Possible options" not in ended.stderr


def test_config_check_accepts_the_file_as_an_argument(config: Path, tmp_path: Path) -> None:
    ended = nodeagent("config", "check", str(config))
    assert (ended.returncode, str(config) in ended.stdout) == (0, True), ended.stderr
    ended = nodeagent("config", "check", str(tmp_path / "absent.toml"))
    assert (ended.returncode, "absent.toml: no such file" in ended.stderr) == (2, True), ended.stderr
    ended = nodeagent("config", "check", str(config), "--config", str(config))
    assert (ended.returncode, ended.stderr) == (2, "nodeagent: FILE, --config: give one of them\n")
