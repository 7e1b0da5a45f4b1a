"""Host facts for ``doctor``, read from temporary trees."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

import pytest

from nodeagent.doctor.host_facts import (
    has_journald,
    is_hidden,
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


@pytest.mark.parametrize(
    ("properties", "hidden"),
    [
        ("ProtectHome=tmpfs\n", True),
        ("ProtectHome=yes\nBindReadOnlyPaths=-/home/kubernetes:/home/kubernetes:rbind\n", True),
        ("ProtectHome=tmpfs\nBindPaths=/srv/store:/home/store:rbind\n", False),
        ("ProtectHome=tmpfs\nBindReadOnlyPaths=-/home/kubernetes\nBindReadOnlyPaths=/home/store\n", False),
        ("ProtectHome=tmpfs\nBindReadOnlyPaths=\n", True),
        ("ProtectHome=read-only\n", False),
        ("ProtectHome=no\n", False),
        ("", False),
    ],
)
def test_store_in_a_home_directory_is_hidden_unless_the_unit_binds_it(properties: str, *, hidden: bool) -> None:
    assert is_hidden(PurePath("/home/store/containerd"), properties) is hidden
