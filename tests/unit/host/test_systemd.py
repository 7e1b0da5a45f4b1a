"""Values read with systemctl, which is replaced by a script."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import InhibitorError
from nodeagent.host.systemd import LogindUnit, UnitStop, read_unit_stop

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def bin_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    script(tmp_path, "echo no", "loginctl")
    return tmp_path


def script(directory: Path, text: str, name: str = "systemctl") -> None:
    path = directory / name
    path.write_text(f'#!/bin/sh\necho "$@" >> {directory}/calls\n{text}\n')
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
def test_system_state_and_time_limit_of_a_unit_stop_are_read(
    bin_directory: Path, state: str, timeout: str, expected: UnitStop
) -> None:
    script(bin_directory, f'case "$1" in is-system-running) echo "{state}"; exit 1;; show) echo "{timeout}";; esac')
    unit_stop = read_unit_stop("nodeagent.service")
    assert unit_stop == expected
    assert unit_stop.is_node_stopping is (state == "stopping")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("yes", UnitStop("running", 60_000_000, is_announced=True)),
        ("no", UnitStop("running")),
        ("", UnitStop("running", 60_000_000, is_announced=True)),
    ],
    ids=["announced", "not-announced", "no-answer"],
)
def test_shutdown_announced_by_logind_is_read_before_systemd_begins_it(
    bin_directory: Path, answer: str, expected: UnitStop
) -> None:
    script(bin_directory, 'case "$1" in is-system-running) echo running;; show) echo 1min;; esac')
    script(bin_directory, f'echo "{answer}"', "loginctl")
    assert read_unit_stop("nodeagent.service") == expected
    assert not expected.is_node_stopping


def test_without_systemctl_the_state_is_unknown_and_a_restart_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_unit_stop("nodeagent.service") == UnitStop("", is_announced=True)
    assert not LogindUnit().runs_beside_the_bus()
    with pytest.raises(InhibitorError, match="no answer"):
        LogindUnit().restart()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("active\nactive", True), ("active\nactivating", False), ("inactive\nactive", False), ("", False)],
)
def test_logind_is_off_the_bus_only_with_both_units_active(bin_directory: Path, answer: str, expected: bool) -> None:
    script(bin_directory, f"case $1 in is-system-running) echo degraded;; *) printf '{answer}';; esac")
    assert LogindUnit().runs_beside_the_bus() is expected
    assert "is-active dbus.service systemd-logind.service\n" in (bin_directory / "calls").read_text()


@pytest.mark.parametrize("state", ["stopping", ""], ids=["stopping", "no-answer"])
def test_logind_does_not_count_as_off_the_bus_while_the_system_may_be_stopped(bin_directory: Path, state: str) -> None:
    script(bin_directory, f"case $1 in is-system-running) echo {state};; *) printf 'active\nactive';; esac")
    assert not LogindUnit().runs_beside_the_bus()


def test_logind_is_restarted_and_a_failure_is_reported(bin_directory: Path) -> None:
    script(bin_directory, "exit 0")
    LogindUnit().restart()
    assert (bin_directory / "calls").read_text() == "restart systemd-logind.service\n"
    script(bin_directory, "echo 'Access denied' >&2; exit 4")
    with pytest.raises(InhibitorError, match="Access denied"):
        LogindUnit().restart()
