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
    read_disabled_cri,
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


CONFIG = "etc/containerd/config.toml"
DISABLED_CRI = {
    "docker": ({CONFIG: '# c\ndisabled_plugins = ["cri"]\n'}, f"{CONFIG}:2"),
    "several-lines": ({CONFIG: '\ndisabled_plugins = [\n  "a",\n  "io.containerd.grpc.v1.cri",\n]\n'}, f"{CONFIG}:2"),
    "containerd-2": ({CONFIG: '"disabled_plugins" = ["io.containerd.cri.v1.runtime"]\n'}, f"{CONFIG}:1"),
    "import": (
        {
            CONFIG: 'imports = ["/etc/containerd/conf.d/*.toml"]\n',
            "etc/containerd/conf.d/a.toml": "disabled_plugins=['cri']",
        },
        "etc/containerd/conf.d/a.toml:1",
    ),
    "relative-import": (
        {CONFIG: 'imports = ["b.toml", "none.toml"]\n', "etc/containerd/b.toml": "disabled_plugins=['cri']"},
        "etc/containerd/b.toml:1",
    ),
    "import-of-itself": ({CONFIG: 'imports = ["config.toml", ""]\n'}, ""),
    "other-plugins": ({CONFIG: 'disabled_plugins = ["btrfs", 7]\n'}, ""),
    "comment": ({CONFIG: '#disabled_plugins = ["cri"]\n'}, ""),
    "invalid": ({CONFIG: 'disabled_plugins = ["cri"\n'}, ""),
    "no-list": ({CONFIG: 'disabled_plugins = "cri"\n'}, ""),
    "no-file": ({}, ""),
}


@pytest.mark.parametrize(("files", "expected"), DISABLED_CRI.values(), ids=DISABLED_CRI)
def test_line_that_disables_cri_is_found(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    for name, text in files.items():
        write(tmp_path, name, text)
    assert read_disabled_cri(tmp_path) == (f"{tmp_path}/{expected}" if expected else "")


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
