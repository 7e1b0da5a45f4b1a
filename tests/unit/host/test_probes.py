"""Facts of the host, read from temporary trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.host.probes import (
    has_journald,
    probe_directory,
    read_cgroup_controllers,
    read_psi_resources,
)

if TYPE_CHECKING:
    from pathlib import Path


def write(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_controllers_and_psi_are_read_from_the_kernel_tree(tmp_path: Path) -> None:
    assert read_cgroup_controllers(tmp_path) is None
    assert read_psi_resources(tmp_path) == []
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
    write(tmp_path, "proc/pressure/memory")
    assert read_cgroup_controllers(tmp_path) == ["cpu", "memory", "pids"]
    assert read_psi_resources(tmp_path) == ["memory"]


def test_missing_directory_is_probed_through_its_parent(tmp_path: Path) -> None:
    probe = probe_directory(tmp_path / "state")
    assert (probe.problem, probe.mode) == ("", 0)
    assert probe.available_bytes is not None
    (tmp_path / "state").mkdir(mode=0o750)
    assert probe_directory(tmp_path / "state").mode == 0o750
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]


def test_file_in_place_of_a_directory_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, "state")
    probe = probe_directory(tmp_path / "state")
    assert (probe.problem, probe.available_bytes) == ("Not a directory", None)


def test_journald_is_found_by_its_socket(tmp_path: Path) -> None:
    assert not has_journald(tmp_path)
    write(tmp_path, "run/systemd/journal/socket")
    assert has_journald(tmp_path)
