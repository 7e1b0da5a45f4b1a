"""Path of the control socket in valid and invalid configurations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.config import paths as socket_path
from nodeagent.config.paths import CONTROL_SOCKET, VARIABLE, read_socket_path
from nodeagent.errors import ConfigError
from nodeagent.settings.loading import load

if TYPE_CHECKING:
    from pathlib import Path

SET = '[control]\nsocket = "/run/a.sock"\n'


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the default configuration file, which does not exist."""
    monkeypatch.setattr(socket_path, "CONFIG_FILE", str(tmp_path / "default.toml"))
    return tmp_path / "default.toml"


@pytest.mark.parametrize(
    "text",
    ["", SET, '[control]\nsocket = ""\n', '# socket = "/run/b.sock"\n', 'control.socket = "/run/c.sock"\n'],
    ids=["unset", "set", "disabled", "commented", "dotted"],
)
def test_path_of_a_valid_file_equals_the_path_of_the_daemon(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    assert read_socket_path(str(config), {}) == (load(config, environment={}).config.control.socket or None)


@pytest.mark.parametrize(
    "text",
    [
        f"dry_run = yes please\n{SET}",
        f"{SET}[image_gc]\nminimum_age = 2m\n",
        '[control]\nsocket = "/run/a.sock"\ngroup = nobody\n',
        f"{SET}[control]\n",
        f"[broken\n{SET}",
        f"unknown_key = 1\n{SET}",
        f"{SET}x = {'[' * 5000}\n",
    ],
    ids=["before", "after", "same-table", "twice", "header", "unknown-key", "nested"],
)
def test_path_is_read_from_a_file_with_one_invalid_line(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    assert read_socket_path(str(config), {}) == "/run/a.sock"


@pytest.mark.parametrize(
    "text",
    ["[[[\n", "[control]\nsocket = 5\n", '[control]\nsocket = "relative"\n', 'control = "socket"\n', 'socket = "/x"\n'],
)
def test_file_without_a_valid_path_results_in_the_default(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    assert read_socket_path(str(config), {}) == CONTROL_SOCKET


def test_drop_in_overrides_the_file_and_the_variable_overrides_both(tmp_path: Path) -> None:
    config, directory = tmp_path / "config.toml", tmp_path / "config.d"
    config.write_text(SET)
    directory.mkdir()
    (directory / "20.toml").write_text('bad\ncontrol = {socket = "/run/d.sock"}\n')
    (directory / "10.toml").write_text('[control]\nsocket = "/run/e.sock"\n')
    (directory / ".30.toml").write_text('[control]\nsocket = "/run/f.sock"\n')
    (directory / "40.toml").write_bytes(b"\xff socket")
    assert read_socket_path(str(config), {}) == "/run/d.sock"
    assert read_socket_path(str(config), {VARIABLE: "/run/g.sock"}) == "/run/g.sock"
    assert read_socket_path(str(config), {VARIABLE: ""}) is None


def test_missing_or_unreadable_default_file_results_in_the_default(default: Path) -> None:
    assert read_socket_path(None, {}) == CONTROL_SOCKET
    default.mkdir()
    assert read_socket_path(None, {}) == CONTROL_SOCKET
    default.rmdir()
    default.write_text(SET)
    assert read_socket_path(None, {}) == "/run/a.sock"


def test_named_pipe_as_drop_in_does_not_block_the_command(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(SET)
    (tmp_path / "config.d").mkdir()
    os.mkfifo(tmp_path / "config.d" / "10.toml")
    assert read_socket_path(str(tmp_path / "config.toml"), {}) == "/run/a.sock"


def test_missing_given_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot read file: No such file"):
        read_socket_path(str(tmp_path / "none.toml"), {})


def test_relative_variable_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must be an absolute path"):
        read_socket_path(None, {VARIABLE: "control.sock"})
