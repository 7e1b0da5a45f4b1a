"""Graceful shutdown settings of a daemon started with an invalid configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import ConfigError
from nodeagent.settings.loading import FILE_NAME, checked, standby_settings, write_last_settings
from nodeagent.settings.settings import Origin

if TYPE_CHECKING:
    from pathlib import Path

BAD = ConfigError("config.toml: [shutdown] grace_period: invalid")
CONFIG = """
role = "standalone"
state.directory = "{state}"
[image_gc]
interval = "7m"
[shutdown]
phases = [
    {{name = "ordinary", seconds = 7, min_priority = 0}},
    {{name = "network \\"last\\"", seconds = 2.5, select = [{{namespaces = ["a", "b"], labels = {{"x.y/z" = "1"}}}}]}},
]
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def valid(tmp_path: Path, state: Path, text: str = CONFIG) -> Origin:
    path = tmp_path / "config.toml"
    path.write_text(text.format(state=state))
    return Origin(path)


def test_last_valid_settings_are_used(tmp_path: Path, state: Path) -> None:
    origin = valid(tmp_path, state)
    settings = checked(origin)
    write_last_settings(settings)
    found = standby_settings(origin, BAD, has_lock=False, directory=state)
    assert found is not None
    assert (found.shutdown, found.role, found.state_directory) == (settings.shutdown, settings.role, state)
    assert dict(found.values) == dict(settings.values)
    assert (found.invalid_because, found.origin) == (str(BAD), origin)
    assert found.standby_source == str(state / FILE_NAME)


def test_unchanged_settings_are_not_written_again(tmp_path: Path, state: Path) -> None:
    settings = checked(valid(tmp_path, state))
    write_last_settings(settings)
    written = (state / FILE_NAME).stat()
    write_last_settings(settings)
    assert (state / FILE_NAME).stat().st_ino == written.st_ino


def test_dry_run_of_the_command_line_is_kept(tmp_path: Path, state: Path) -> None:
    origin = valid(tmp_path, state)
    write_last_settings(checked(origin))
    found = standby_settings(Origin(origin.path, (), dry_run=True), BAD, has_lock=True, directory=state)
    assert found is not None
    assert found.dry_run


@pytest.mark.parametrize("content", [None, "", "not toml [", "unknown_key = 1\n"], ids=str)
def test_defaults_are_used_only_for_a_stored_lock(state: Path, content: str | None) -> None:
    state.mkdir()
    if content is not None:
        (state / FILE_NAME).write_text(content)
    without_lock = standby_settings(Origin(), BAD, has_lock=False, directory=state)
    with_lock = standby_settings(Origin(), BAD, has_lock=True, directory=state)
    assert with_lock is not None
    assert sum(each.seconds for each in with_lock.shutdown.phases) == 30
    if content == "":
        assert without_lock is not None
    else:
        assert (without_lock, with_lock.standby_source) == (None, "defaults")


def test_invalid_environment_does_not_prevent_it(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = valid(tmp_path, state)
    write_last_settings(checked(origin))
    monkeypatch.setenv("NODEAGENT_SHUTDOWN__GRACE_PERIOD", "soon")
    with pytest.raises(ConfigError):
        checked(origin)
    assert standby_settings(origin, BAD, has_lock=False, directory=state) is not None
