"""Values read with systemctl, which is replaced by a script."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import InhibitorError
from nodeagent.host.systemd import LogindUnit, PodSlices, UnitStop, read_unit_stop

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


_RELOADS = """
case "$*" in
show*) [ -e {0}/pending ] && echo yes || echo no ;;
is-system-running) echo {1} ;;
daemon-reload) rm {0}/pending ;;
esac
"""
DROP_INS = ("kubepods-.slice.d/50-nodeagent.conf", "kubepods.slice.d/50-nodeagent.conf")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    for each in DROP_INS:
        (tmp_path / "units" / each).parent.mkdir(parents=True)
    return tmp_path / "units"


def systemd(directory: Path, state: str = "running") -> None:
    script(directory, _RELOADS.format(directory, state))


def drop_ins(units: Path) -> list[str]:
    return sorted(str(each.relative_to(units)) for each in units.rglob("*") if each.is_file())


def reloads(directory: Path) -> int:
    return (directory / "calls").read_text().splitlines().count("daemon-reload")


def test_slices_are_exempt_until_they_are_restored(bin_directory: Path, units: Path) -> None:
    systemd(bin_directory)
    slices = PodSlices(units)
    (bin_directory / "pending").touch()
    slices.exempt()
    assert drop_ins(units) == list(DROP_INS)
    assert "DefaultDependencies=no" in (units / DROP_INS[0]).read_text()
    slices.exempt()
    assert reloads(bin_directory) == 1, "none without a change"
    (bin_directory / "pending").touch()
    PodSlices(units).restore()  # as by another process
    assert (drop_ins(units), reloads(bin_directory)) == ([], 2)


@pytest.mark.parametrize("exempt", [True, False])
def test_reload_that_an_earlier_process_did_not_reach_is_made_up_for(
    bin_directory: Path, units: Path, exempt: bool
) -> None:
    systemd(bin_directory)
    (bin_directory / "pending").touch()
    for each in DROP_INS if exempt else ():
        (units / each).write_text("[Unit]\n")
    (PodSlices(units).exempt if exempt else PodSlices(units).restore)()
    assert reloads(bin_directory) == 1


def test_systemd_is_not_reloaded_in_a_shutdown(bin_directory: Path, units: Path) -> None:
    systemd(bin_directory, "stopping")
    (bin_directory / "pending").touch()
    (units / DROP_INS[0]).touch()
    PodSlices(units).restore()
    assert (drop_ins(units), reloads(bin_directory)) == ([], 0)


@pytest.mark.parametrize("text", ["exit 1", "exit 127"], ids=["refused", "no-answer"])
def test_no_drop_in_remains_that_systemd_did_not_load(bin_directory: Path, units: Path, text: str) -> None:
    script(bin_directory, text)
    with pytest.raises(InhibitorError, match="cannot reload systemd"):
        PodSlices(units).exempt()
    assert drop_ins(units) == []


def test_unused_drop_ins_are_restored_without_an_answer_of_systemd(bin_directory: Path, units: Path) -> None:
    script(bin_directory, "exit 1")
    PodSlices(units).restore()
    assert reloads(bin_directory) == 0


def test_missing_directory_of_the_drop_ins_is_reported(bin_directory: Path, tmp_path: Path) -> None:
    systemd(bin_directory)
    (tmp_path / "units").mkdir()
    with pytest.raises(InhibitorError, match="cannot write"):
        PodSlices(tmp_path / "units").exempt()


def test_slices_are_unchanged_without_systemd(tmp_path: Path) -> None:
    PodSlices(tmp_path / "units").exempt()
    PodSlices(tmp_path / "units").restore()
    assert not (tmp_path / "units").exists()
