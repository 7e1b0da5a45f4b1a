"""Daemon started with an invalid configuration: no agent until a valid configuration is loaded."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from nodeagent.cli import run
from nodeagent.daemon import supervisor
from nodeagent.daemon.service_manager import ReloadTask
from nodeagent.errors import ConfigError, RuntimeUnavailableError
from nodeagent.host.systemd import Notifier
from nodeagent.record import replace
from nodeagent.settings.loading import FILE_NAME, checked, standby_settings, write_last_settings
from nodeagent.settings.settings import Origin
from nodeagent.telemetry import logging as log

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.settings.settings import Settings

GOOD = 'role = "standalone"\nstate.directory = "{}"\ncontrol.socket = ""\n'
BAD = 'role = "nonsense"\n'


class Started(Exception):  # noqa: N818 - no error
    """Raised instead of the start of the daemon's tasks."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(GOOD.format(tmp_path / "state"))
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)


def standing_by(config: Path, tmp_path: Path) -> Settings:
    origin = Origin(config)
    write_last_settings(checked(origin))
    found = standby_settings(origin, ConfigError("role is invalid"), has_lock=False, directory=tmp_path / "state")
    assert found is not None
    return found


async def test_agent_starts_only_with_a_valid_configuration(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = asyncio.Event()

    def open_agent(*_: object, **__: object) -> None:
        agents.set()
        raise RuntimeUnavailableError("no runtime")

    monkeypatch.setattr(supervisor, "open_agent", open_agent)
    stream = io.StringIO()
    settings = standing_by(config, tmp_path)
    write(config, BAD)
    seen: list[Any] = []

    def tasks(context: Any) -> tuple[ReloadTask]:
        seen.append(context)
        return (ReloadTask(context, Notifier({})),)

    logger = log.configure("json", "info", stream)
    running = asyncio.ensure_future(supervisor.supervise(settings, logger, once=False, lasting_tasks=tasks))

    def events(name: str) -> list[dict[str, Any]]:
        return [each for each in map(json.loads, stream.getvalue().splitlines()) if each["event"] == name]

    async def until(name: str) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while not events(name):  # noqa: ASYNC110 - log writes set no asyncio.Event
                await asyncio.sleep(0.01)
        return events(name)[0]

    invalid = await until("config_invalid")
    assert invalid["error"] == "role is invalid"
    assert invalid["settings"] == str(tmp_path / "state" / FILE_NAME)
    os.kill(os.getpid(), signal.SIGHUP)
    await until("config_rejected")
    assert not agents.is_set()
    assert seen[0].config_problem
    write(config, GOOD.format(tmp_path / "state"))  # equal to the last valid settings
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.wait_for(agents.wait(), 20)
    assert seen[0].config_problem == ""
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 20)


@pytest.mark.parametrize("enabled", ["on", "off"])
def test_failing_start_without_inhibitor_task_releases_the_stored_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(BAD)
    reader, writer = os.pipe()
    messages: list[str] = []

    def standby(origin: Origin, problem: ConfigError, *, has_lock: bool) -> Settings:
        assert has_lock
        settings = checked(Origin(valid))
        return replace(settings, invalid_because=str(problem), origin=origin)

    def send(text: str, *_: object) -> bool:
        messages.append(text)
        return True

    def serve(settings: Settings, **_: object) -> NoReturn:
        raise Started(settings)

    valid = tmp_path / "valid.toml"
    valid.write_text(f'role = "standalone"\nshutdown.enabled = "{enabled}"\n')
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setattr(run, "stored_descriptor", lambda: writer)
    monkeypatch.setattr("nodeagent.host.systemd.send", send)
    monkeypatch.setattr(run, "standby_settings", standby)
    monkeypatch.setattr(run, "_serve", serve)
    monkeypatch.chdir("/")
    if enabled == "on":
        with pytest.raises(Started):
            run.run_daemon(config, {}, dry_run=False, once=False)
        assert messages == []
        os.close(writer)
    else:
        with pytest.raises(ConfigError):
            run.run_daemon(config, {}, dry_run=False, once=False)
        assert os.read(reader, 1) == b"", "the write end of the pipe is closed"
        assert messages == ["FDSTOREREMOVE=1\nFDNAME=shutdown-lock"]
    os.close(reader)
