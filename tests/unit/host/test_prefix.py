"""Refusal of install prefixes by their path."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nodeagent.errors import InstallError, UsageError
from nodeagent.host.prefix import check_form, check_owner, check_place

SYSTEM = [
    *("/", "/opt", "/usr", "/usr/lib", "/usr/lib/nodeagent/venv", "/usr/local", "/usr/local/bin", "/usr/local/share/x"),
    *("/bin/x", "/sbin/nodeagent", "/etc/nodeagent", "/lib64/x", "/boot/x", "/dev/shm", "/proc/self", "/run/nodeagent"),
    *("/sys/x", "/var/lib", "/var/lib/nodeagent", "/var/lib/nodeagent/venv", "/var/lib/kubelet/x"),
]


@pytest.mark.parametrize("prefix", SYSTEM)
def test_prefix_inside_or_above_a_system_directory_is_refused(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--prefix"):
        check_place(Path(prefix), tmp_path, homes=())


@pytest.mark.parametrize(
    "prefix", ["/opt/nodeagent", "/srv/agent", "/usr/local/nodeagent", "/opt/a/b-1.0+x", "/var/opt/x"]
)
def test_separate_directory_is_accepted(prefix: str, tmp_path: Path) -> None:
    check_place(Path(prefix), tmp_path, homes=())


@pytest.mark.parametrize(
    "prefix",
    [
        *(
            "opt/nodeagent",
            "/opt/../usr",
            "",
            ".",
            "/opt/a b",
            "/opt/%n",
            "/opt/x\n",
            "/opt/$(id)",
            "/opt/'x'",
            "//opt/x",
        ),
        *("/opt/" + "x" * 100, "/opt/ä"),
    ],
)
def test_prefix_invalid_in_a_unit_or_a_shebang_line_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="--prefix"):
        check_form(Path(prefix))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root refuses directories of others")
@pytest.mark.parametrize(
    ("uid", "gid", "mode", "writer"),
    [
        (0, 0, 0o755, ""),
        (0, 0, 0o775, ""),
        (0, 50, 0o775, "group 50"),
        (0, 50, 0o1775, ""),
        (0, 0, 0o757, "all users"),
        (0, 0, 0o1777, ""),
        (1000, 0, 0o755, "uid 1000"),
    ],
)
def test_prefix_below_a_directory_that_others_can_write_is_refused(uid: int, gid: int, mode: int, writer: str) -> None:
    with TemporaryDirectory() as place:
        parent = Path(place, "parent")
        parent.mkdir()
        os.chown(parent, uid, gid)
        parent.chmod(mode)
        if not writer:
            check_owner(parent / "nodeagent")
            return
        with pytest.raises(InstallError, match=f"{parent} is writable by {writer}"):
            check_owner(parent / "nodeagent")


def test_home_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="home directory"):
        check_place(Path("/home/alice"), tmp_path, homes={Path("/home/alice")})


def test_prefix_of_the_interpreter_is_refused(tmp_path: Path) -> None:
    for path in (Path(sys.base_prefix), Path(sys.base_prefix).parent):
        with pytest.raises(UsageError, match="--prefix"):
            check_place(path, tmp_path, homes=())


def test_prefix_that_resolves_into_the_system_is_refused(tmp_path: Path) -> None:
    for name in ("usr/lib", "opt"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "opt/link").symlink_to(tmp_path / "usr/lib")
    with pytest.raises(UsageError, match=r"resolves to /usr/lib/x: /usr is part of the system"):
        check_place(Path("/opt/link/x"), tmp_path, homes=())


def test_prefix_that_resolves_outside_the_root_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (tmp_path / "outside").mkdir()
    (root / "opt").mkdir(parents=True)
    (root / "opt/link").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="resolves outside"):
        check_place(Path("/opt/link/x"), root, homes=())
