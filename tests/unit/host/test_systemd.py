"""What systemctl is asked, and what its answers mean; systemctl is a script here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import InhibitorError
from nodeagent.host.systemd import LogindUnit, UnitStop, read_unit_stop

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def script(directory: Path, text: str) -> None:
    path = directory / "systemctl"
    path.write_text(f'#!/bin/sh\necho "$@" >> {directory}/asked\n{text}\n')
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("state", "timeout", "expected"),
    [
        ("running", "1min", UnitStop("running")),
        ("stopping", "1min", UnitStop("stopping", 60_000_000)),
        ("stopping", "1min 30s", UnitStop("stopping", 90_000_000)),
        ("stopping", "infinity", UnitStop("stopping")),
        ("stopping", "", UnitStop("stopping")),
        ("", "", UnitStop("")),
    ],
)
def test_why_the_unit_stops(says: Path, state: str, timeout: str, expected: UnitStop) -> None:
    script(says, f'case "$1" in is-system-running) echo "{state}"; exit 1;; show) echo "{timeout}";; esac')
    told = read_unit_stop("nodeagent.service")
    assert told == expected
    assert told.node_goes_down is (state == "stopping")


def test_without_systemd_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_unit_stop("nodeagent.service") == UnitStop("")
    assert not LogindUnit().runs_beside_the_bus()
    with pytest.raises(InhibitorError, match="no answer"):
        LogindUnit().restart()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("active\nactive", True), ("active\nactivating", False), ("inactive\nactive", False), ("", False)],
)
def test_whether_logind_runs_beside_the_bus(says: Path, answer: str, expected: bool) -> None:
    script(says, f"printf '{answer}'")
    assert LogindUnit().runs_beside_the_bus() is expected
    assert (says / "asked").read_text() == "is-active dbus.service systemd-logind.service\n"


def test_logind_is_restarted(says: Path) -> None:
    script(says, "exit 0")
    LogindUnit().restart()
    assert (says / "asked").read_text() == "restart systemd-logind.service\n"
    script(says, "echo 'Access denied' >&2; exit 4")
    with pytest.raises(InhibitorError, match="Access denied"):
        LogindUnit().restart()
