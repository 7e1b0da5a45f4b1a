"""Command line that a unit starts: directories, drop-ins, masks and environment files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.unit_files import read_unit_command

if TYPE_CHECKING:
    from pathlib import Path

ETC, RUN, LOCAL, LIB = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
)
NAME = "a-b-c"
BASE = {f"{LIB}/{NAME}.service": "[Service]\nExecStart=/bin/start $ARGS"}

# Paths with a file of one name in each, highest precedence first.
BY_PRECEDENCE = [
    f"etc/systemd/system.control/{NAME}.service.d",
    f"run/systemd/transient/{NAME}.service.d",
    f"{ETC}/{NAME}.service.d",
    f"{ETC}/a-b-.service.d",
    f"{ETC}/a-.service.d",
    f"etc/systemd/system.attached/{NAME}.service.d",
    f"{RUN}/{NAME}.service.d",
    f"{RUN}/a-.service.d",
    f"{LOCAL}/{NAME}.service.d",
    f"{LIB}/{NAME}.service.d",
    f"{LIB}/a-b-.service.d",
    "etc/systemd/system.control/service.d",
    f"{ETC}/service.d",
    f"{LIB}/service.d",
]


def write(root: Path, files: dict[str, str | None]) -> None:
    """Write files by path; ``None`` for a link to ``/dev/null``."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.symlink_to("/dev/null")
        else:
            path.write_text(text)


def drop_in(value: str) -> str:
    return f"[Service]\nEnvironment=ARGS={value}"


CASES: dict[str, tuple[dict[str, str | None], tuple[str, ...]]] = {
    "names-across-directories": (
        {f"{LIB}/{NAME}.service.d/2.conf": drop_in("2"), f"{ETC}/service.d/1.conf": drop_in("1")},
        ("2",),
    ),
    "all-services": ({f"{ETC}/service.d/1.conf": drop_in("1")}, ("1",)),
    "start-of-the-name": ({f"{ETC}/a-.service.d/1.conf": drop_in("1")}, ("1",)),
    "other-start-of-the-name": (
        {f"{ETC}/a-c-.service.d/1.conf": drop_in("1"), f"{ETC}/a.service.d/1.conf": drop_in("2")},
        (),
    ),
    "whole-name-and-dash": ({f"{ETC}/{NAME}-.service.d/1.conf": drop_in("1")}, ()),
    "masked-drop-in": ({f"{LIB}/{NAME}.service.d/1.conf": drop_in("1"), f"{ETC}/{NAME}.service.d/1.conf": None}, ()),
    "mask-by-start-of-the-name": (
        {f"{RUN}/{NAME}.service.d/1.conf": drop_in("1"), f"{ETC}/a-.service.d/1.conf": ""},
        (),
    ),
    "mask-of-all-services-below": (
        {f"{LIB}/{NAME}.service.d/1.conf": drop_in("1"), f"{ETC}/service.d/1.conf": None},
        ("1",),
    ),
    "unit-of-first-directory": ({f"{ETC}/{NAME}.service": "[Service]\nExecStart=/bin/start other"}, ("other",)),
    "no-equals-sign": ({f"{ETC}/{NAME}.service.d/1.conf": "[Service]\nExecStart\nEnvironment"}, ()),
    "pattern": (
        {
            f"{ETC}/{NAME}.service.d/1.conf": "[Service]\nEnvironmentFile=/etc/x/*.env",
            "etc/x/b.env": "ARGS=b",
            "etc/x/a.env": "ARGS=a",
            "etc/x/.c.env": "ARGS=c",
        },
        ("b",),
    ),
    "optional-pattern": ({f"{ETC}/{NAME}.service.d/1.conf": "[Service]\nEnvironmentFile=-/etc/x/*.env"}, ()),
    "recursive-pattern": (
        {
            f"{ETC}/{NAME}.service.d/1.conf": "[Service]\nEnvironmentFile=-/etc/**/*.env",
            "etc/x/y/a.env": "ARGS=a",
        },
        (),
    ),
}


@pytest.mark.parametrize(("files", "arguments"), CASES.values(), ids=CASES)
def test_files_of_a_unit_are_merged_as_in_systemd(
    tmp_path: Path, files: dict[str, str | None], arguments: tuple[str, ...]
) -> None:
    write(tmp_path, {**BASE, **files})
    found = read_unit_command(tmp_path, NAME)
    assert (found.words, found.unread) == (("/bin/start", *arguments), ())


def test_drop_in_of_the_directory_with_the_highest_precedence_is_read(tmp_path: Path) -> None:
    write(tmp_path, {**BASE, **{f"{each}/1.conf": drop_in(each) for each in BY_PRECEDENCE}})
    for each in BY_PRECEDENCE:
        assert read_unit_command(tmp_path, NAME).words == ("/bin/start", each)
        (tmp_path / each / "1.conf").unlink()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_real_systemd_reads_the_same_drop_ins(tmp_path: Path) -> None:
    write(tmp_path, {**BASE, **{f"{each}/1.conf": "[Service]\nUnknown=1" for each in BY_PRECEDENCE}})
    listed = subprocess.run(["systemd-analyze", "unit-paths"], capture_output=True, text=True, check=True).stdout
    paths = ":".join(f"{tmp_path}{each}" for each in listed.split() if (tmp_path / each.lstrip("/")).is_dir())
    for each in BY_PRECEDENCE:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", f"{NAME}.service"],
            env={**os.environ, "SYSTEMD_UNIT_PATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert re.findall(rf"{tmp_path}/(\S+)/1\.conf:2: Unknown key", done.stderr) == [each]
        (tmp_path / each / "1.conf").unlink()


@pytest.mark.parametrize(
    ("files", "unread"),
    [
        ({f"{ETC}/{NAME}.service": None}, f"/{ETC}/{NAME}.service masks the unit"),
        ({f"{ETC}/{NAME}.service": ""}, f"/{ETC}/{NAME}.service masks the unit"),
        ({f"{ETC}/{NAME}.service.d/1.conf": "[Service"}, f"/{ETC}/{NAME}.service.d/1.conf:1: invalid section header"),
        ({f"{ETC}/{NAME}.service.d/1.conf": "[Service]\nEnvironmentFile=/x/*"}, "cannot read /x/*: No such file"),
    ],
    ids=["mask", "empty", "section-header", "pattern-without-files"],
)
def test_unit_that_systemd_does_not_start_is_unread(tmp_path: Path, files: dict[str, str | None], unread: str) -> None:
    write(tmp_path, {**BASE, **files})
    (found,) = read_unit_command(tmp_path, NAME).unread
    assert found.startswith(unread)
