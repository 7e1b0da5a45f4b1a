"""Revision of containerd's metadata database, read from database files with and without a lock by containerd."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.database_revision import read_database_revision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PAGE = 4096
MAGIC = 0xED0CDAED


def database(*transactions: int, magic: int = MAGIC, version: int = 2, page_bytes: int = PAGE) -> bytes:
    """Return the meta pages of a bbolt database with these transaction ids."""
    pages = [
        struct.pack("=QHHIIIIIQQQQQ", number, 4, 0, 0, magic, version, page_bytes, 0, 3, 0, 2, 9, each).ljust(
            PAGE, b"\0"
        )
        for number, each in enumerate(transactions)
    ]
    return b"".join(pages)


@pytest.fixture
def runtime_socket(tmp_path: Path) -> Iterator[str]:
    """Listen on a socket, so that this process counts as the runtime; yield the path of the socket."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
        bound.listen()
        yield path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "meta.db"
    path.write_bytes(database(6, 7))
    return path


@pytest.fixture
def root(tmp_path: Path, file: Path) -> Path:
    """Return the root of a tree with a ``proc/locks`` in which this process has locked the file."""
    set_locks(tmp_path, lock_of(file))
    return tmp_path


def set_locks(root: Path, *lines: str) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/locks").write_text("".join(f"{number}: {each}\n" for number, each in enumerate(lines, 1)))


def lock_of(file: Path, kind: str = "FLOCK  ADVISORY  WRITE", pid: int | None = None) -> str:
    found = file.stat()
    name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return f"{kind} {os.getpid() if pid is None else pid} {name} 0 EOF"


def test_revision_of_an_unchanged_database_is_equal(runtime_socket: str, file: Path, root: Path) -> None:
    first = read_database_revision(runtime_socket, str(file), root)
    assert first is not None
    assert first.transaction == 7
    assert read_database_revision(runtime_socket, str(file), root) == first


@pytest.mark.parametrize("transactions", [(8, 7), (6, 8)], ids=["first-page", "second-page"])
def test_transaction_in_either_page_is_another_revision(
    runtime_socket: str, file: Path, root: Path, transactions: tuple[int, int]
) -> None:
    first = read_database_revision(runtime_socket, str(file), root)
    file.write_bytes(database(*transactions))
    second = read_database_revision(runtime_socket, str(file), root)
    assert second is not None
    assert second != first


def test_replaced_database_is_another_revision(runtime_socket: str, file: Path, root: Path) -> None:
    first = read_database_revision(runtime_socket, str(file), root)
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.rename(file)
    set_locks(root, lock_of(file))
    second = read_database_revision(runtime_socket, str(file), root)
    assert second is not None
    assert second != first


@pytest.mark.parametrize(
    "content",
    [
        b"",
        database(7)[:70],
        database(7),
        database(6, 7, magic=1),
        database(6, 7, version=3),
        database(6, 7, page_bytes=0),
        database(6, 7, page_bytes=1 << 20),
        database(6, 7, page_bytes=8192),
    ],
    ids=["empty", "short", "one-page", "magic", "version", "no-page-size", "large-pages", "wrong-page-size"],
)
def test_file_of_another_format_has_no_revision(runtime_socket: str, file: Path, root: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert read_database_revision(runtime_socket, str(file), root) is None


@pytest.mark.parametrize(
    "lock",
    [
        lambda _: "",
        lambda file: lock_of(file, pid=1),
        lambda file: lock_of(file, "FLOCK  ADVISORY  READ "),
        lambda file: lock_of(file, "POSIX  ADVISORY  WRITE"),
        lambda file: lock_of(file, "-> FLOCK  ADVISORY  WRITE"),
        lambda file: lock_of(file.with_name("other")),
    ],
    ids=["none", "of-another-process", "shared", "of-a-range", "waiting", "of-another-file"],
)
def test_database_without_a_lock_of_the_runtime_has_no_revision(
    runtime_socket: str, file: Path, root: Path, lock: Callable[[Path], str]
) -> None:
    file.with_name("other").touch()
    set_locks(root, lock(file))
    assert read_database_revision(runtime_socket, str(file), root) is None


def test_link_to_the_database_has_no_revision(runtime_socket: str, file: Path, root: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    assert read_database_revision(runtime_socket, str(link), root) is None


@pytest.mark.parametrize("missing", ["socket", "database", "locks"])
def test_missing_part_results_in_no_revision(runtime_socket: str, file: Path, root: Path, missing: str) -> None:
    paths = {"socket": runtime_socket, "database": str(file)}
    if missing == "locks":
        (root / "proc/locks").unlink()
    else:
        paths[missing] += ".missing"
    assert read_database_revision(paths["socket"], paths["database"], root) is None


def test_lock_reported_by_the_kernel_is_recognised(runtime_socket: str, file: Path) -> None:
    assert read_database_revision(runtime_socket, str(file)) is None
    with file.open("rb+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert read_database_revision(runtime_socket, str(file)) is not None
