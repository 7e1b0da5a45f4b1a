"""Deleted files that a process keeps open."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nodeagent.host.deleted_files import read_deleted_files

(_NAMES,) = re.findall(
    r"^CapabilityBoundingSet=(.+)$", (Path(__file__).parents[3] / "systemd/nodeagent.service").read_text(), re.MULTILINE
)
UNIT = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in _NAMES.split())
"""Capabilities of the unit, for ``setpriv``."""

WITHIN_S = 60.0
SIZE_BYTES = 300_000


def sizes(directory: Path, *, within_s: float = WITHIN_S) -> list[int]:
    found, _ = read_deleted_files({directory.stat().st_dev}, time.monotonic() + within_s)
    return [each.size_bytes for each in found if each.pid == os.getpid()]


def test_deleted_file_counts_until_the_last_descriptor_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(os.urandom(SIZE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        before = sizes(tmp_path)
        path.unlink()
        second = os.dup(file.fileno())
        added = sizes(tmp_path)
    assert sum(added) - sum(before) >= SIZE_BYTES
    assert len(added) == len(before) + 1, "two descriptors of one file count once"
    assert sizes(tmp_path) == added
    os.close(second)
    assert sizes(tmp_path) == before


def test_existing_file_with_the_mark_of_a_deleted_one_in_its_name_does_not_count(tmp_path: Path) -> None:
    before = sizes(tmp_path)
    with (tmp_path / "log (deleted)").open("wb") as file:
        file.write(os.urandom(SIZE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        assert sizes(tmp_path) == before


def test_deleted_file_on_another_filesystem_does_not_count(tmp_path: Path) -> None:
    with Path("/dev/shm", f"nodeagent-test-{os.getpid()}").open("wb") as file:
        file.write(os.urandom(SIZE_BYTES))
        file.flush()
        before = sizes(tmp_path)
        Path(file.name).unlink()
        assert sizes(tmp_path) == before


def test_reading_after_the_deadline_is_incomplete(tmp_path: Path) -> None:
    found, unread = read_deleted_files({tmp_path.stat().st_dev}, time.monotonic() - 1)
    assert not found
    assert unread > 0


@pytest.fixture
def reader_of_one() -> list[str]:
    """Return a command, without PID and device, that reads the deleted files of one process."""
    script = (
        "import sys, time; from nodeagent.host import deleted_files\n"
        "deleted_files.psutil.pids = lambda: [int(sys.argv[1])]\n"
        "found, unread = deleted_files.read_deleted_files({int(sys.argv[2])}, time.monotonic() + 60)\n"
        "print(len(found), unread)"
    )
    return [sys.executable, "-c", script]


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping capabilities requires root")
@pytest.mark.parametrize(
    ("privileges", "expected"),
    [
        (["--reuid=65534", "--clear-groups"], "0 1"),
        (["--bounding-set=-all,+net_raw,+kill"], "0 1"),
        (["--bounding-set=-all,+kill"], "1 0"),
    ],
    ids=["other-user", "root-with-a-further-capability", "root-with-capabilities-of-the-unit"],
)
def test_files_of_processes_with_further_privileges_are_unknown_with_the_capabilities_of_the_unit(
    tmp_path: Path, reader_of_one: list[str], privileges: list[str], expected: str
) -> None:
    path = tmp_path / "log"
    path.write_bytes(os.urandom(SIZE_BYTES))
    holder = ["setpriv", "--inh-caps=-all", *privileges, "sh", "-c", "echo; read -r line"]
    with (
        path.open("rb") as file,
        subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file.fileno()]) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        path.unlink()
        command = [*reader_of_one, str(process.pid), str(tmp_path.stat().st_dev)]
        assert output(["setpriv", f"--bounding-set=-all,{UNIT}", "--inh-caps=-all", *command]) == expected
        assert output(command) == "1 0"


def output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
