"""Complete walks of pod log directories, and detection of open log files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nodeagent.host import pod_logs as log_removal, pod_logs as log_trees, pod_logs as podlogs
from nodeagent.host.pod_logs import RemovalRefusedError
from nodeagent.model.node import LogOpeners, LogTree
from nodeagent.units import SystemClock

UID = "0a1b2c3d-1111-2222-3333-444455556666"
NAME = f"shop_web_{UID}"
CLOCK = SystemClock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pods = tmp_path / "pods"
    (pods / NAME / "web").mkdir(parents=True)
    for name in ("0.log", "0.log.20260101-000000.gz"):
        (pods / NAME / "web" / name).write_text("line\n")
    return pods


def read(root: Path) -> LogTree:
    tree = log_trees.read_log_tree(root, NAME, CLOCK)
    assert tree is not None
    return tree


def set_old_times(root: Path) -> None:
    """Set all modification times below a log root to 1970; status change times cannot be set."""
    for directory, _, files in os.walk(root):
        for each in (*files, "."):
            os.utime(os.path.join(directory, each), (0, 0))  # noqa: PTH118 - a string of os.walk


def test_newest_change_is_that_of_a_container_log_three_levels_deep(root: Path) -> None:
    set_old_times(root)
    future = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
    os.utime(root / NAME / "web" / "0.log", (future, future))
    assert read(root).changed_at == datetime(2100, 1, 1, tzinfo=UTC)


def test_status_change_counts_as_a_change(root: Path) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    set_old_times(root)
    assert read(root).changed_at > before


def test_time_beyond_2200_is_kept(root: Path) -> None:
    os.utime(root / NAME, (2**33, 2**33))
    assert read(root).changed_at.year > 2200


def test_digest_changes_with_every_change_of_the_tree(root: Path) -> None:
    readings = [read(root), read(root)]
    assert readings[0].digest == readings[1].digest
    log = root / NAME / "web" / "0.log"
    with log.open("a") as lines:
        lines.write("more\n")
    readings.append(read(root))
    log.rename(log.with_name("1.log"))
    readings.append(read(root))
    (root / NAME / "web" / "0.log.20260101-000000.gz").unlink()
    readings.append(read(root))
    assert len({each.digest for each in readings}) == 4


def test_space_of_a_tree_equals_the_space_freed_by_its_removal(root: Path) -> None:
    directory = root / NAME / "web"
    (directory / "0.log").write_bytes(b"x" * 100_000)
    (directory / "0.log.20260101-000000.gz").write_bytes(b"x" * 9000)
    (directory / "10.log").write_bytes(b"x" * 5000)
    (directory / "0.logx").write_bytes(b"x" * 5000)
    os.link(directory / "10.log", root / "linked")
    (root / NAME / "0.log").write_text("of no container")
    tree = read(root)
    by_log = {
        each: log_removal.remove_container_logs(root, directory / each).size_bytes for each in ("0.log", "10.log")
    }
    assert {key: each.size_bytes for key, each in tree.container_logs.items()} == {"web/0.log": by_log["0.log"]}
    assert by_log == {"0.log": tree.container_logs["web/0.log"].size_bytes, "10.log": 0}
    assert tree.container_logs["web/0.log"].inodes == 2
    directories_bytes = sum(each.stat().st_blocks * 512 for each in (root / NAME, directory))
    rest = log_removal.remove_pod_log_directory(root, NAME, UID, podlogs.FAR_FUTURE)
    assert tree.size.size_bytes == rest.size_bytes + directories_bytes + by_log["0.log"]
    assert tree.size.inodes == rest.inodes + 2


def test_open_file_is_detected_in_another_process(root: Path) -> None:
    log = root / NAME / "web" / "0.log"
    assert read(root).openers is LogOpeners.NONE
    for mode, expected in (("r", LogOpeners.READERS), ("a", LogOpeners.WRITERS)):
        script = f"import sys; f = open({str(log)!r}, {mode!r}); print('open', flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-I", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "open\n"
            tree = read(root)
            assert (tree.openers, tree.openers_detail) == (expected, str(log))
            holder.communicate()
    assert read(root).openers is LogOpeners.NONE


def test_writer_has_precedence_over_readers_of_other_files(root: Path) -> None:
    with (root / NAME / "web" / "0.log.20260101-000000.gz").open(), (root / NAME / "web" / "0.log").open("a"):
        assert read(root).openers is LogOpeners.WRITERS


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="dropping capabilities requires root")
@pytest.mark.parametrize(
    ("owner", "expected"), [(0, "writers "), (65534, "unknown ")], ids=["own file", "file of another user"]
)
def test_writer_is_detected_with_the_capabilities_of_the_unit_in_own_files_only(
    root: Path, owner: int, expected: str
) -> None:
    unit = (Path(__file__).parents[3] / "systemd" / "nodeagent.service").read_text()
    (names,) = re.findall(r"^CapabilityBoundingSet=(.+)$", unit, re.MULTILINE)
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in names.split())
    script = (
        "import sys; from pathlib import Path; from nodeagent.units import SystemClock\n"
        "from nodeagent.host.pod_logs import read_log_tree\n"
        "tree = read_log_tree(Path(sys.argv[1]), sys.argv[2], SystemClock()); print(tree.openers, tree.openers_detail)"
    )
    python = [sys.executable, "-c", script, str(root), NAME]
    log = root / NAME / "web" / "0.log"
    os.chown(log, owner, owner)
    with log.open("a"):  # opened with all capabilities, like containerd
        done = subprocess.run(
            ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all", *python],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert done.stdout.startswith(expected)
    assert owner == 0 or "no file lease: Permission denied" in done.stdout


@pytest.mark.difference("unread-log-directory")
def test_reading_is_incomplete_without_permission_or_time_or_with_too_many_entries(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = log_trees.read_log_tree(root, NAME, CLOCK, within_s=-1.0)
    assert late is not None
    assert "not read in time" in late.problem
    monkeypatch.setattr(log_trees, "MAX_ENTRIES", 3)
    assert read(root).problem == "more than 3 entries"


@pytest.mark.difference("unread-log-directory")
def test_reading_is_incomplete_below_the_deepest_level(root: Path) -> None:
    deep = root / NAME
    descriptor = os.open(deep, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    assert read(root).problem == "deeper than 256 levels"


def test_symlink_is_not_followed(root: Path, tmp_path: Path) -> None:
    set_old_times(root)
    (tmp_path / "new").mkdir()
    future = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
    (root / NAME / "link").symlink_to(tmp_path / "new")
    os.utime(tmp_path / "new", (future, future))
    assert read(root).changed_at.year < 2100
    (root / f"shop_other_{UID}").symlink_to(tmp_path / "new")
    other = log_trees.read_log_tree(root, f"shop_other_{UID}", CLOCK)
    assert other is not None
    assert "is not a directory" in other.problem


def test_fifo_and_socket_in_a_tree_do_not_block_the_reading(root: Path) -> None:
    os.mkfifo(root / NAME / "web" / "fifo")
    assert (read(root).problem, read(root).openers) == ("", LogOpeners.NONE)


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="bind mounts require root")
def test_reading_of_a_tree_with_a_mount_is_incomplete(root: Path, tmp_path: Path) -> None:
    mounted = root / NAME / "zz"
    mounted.mkdir()
    (tmp_path / "other").mkdir()
    subprocess.run(["mount", "--bind", str(tmp_path / "other"), str(mounted)], check=True)
    try:
        assert "zz is a mount point" in read(root).problem
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_absent_directory_has_no_reading(root: Path) -> None:
    assert log_trees.read_log_tree(root, f"shop_none_{UID}", CLOCK) is None
    assert log_trees.read_log_tree(root / "none", NAME, CLOCK) is None


def test_file_changed_after_the_reading_is_not_removed(root: Path) -> None:
    tree = read(root)
    future = (tree.changed_at + timedelta(seconds=5)).timestamp()
    os.utime(root / NAME / "web" / "0.log", (future, future))
    with pytest.raises(RemovalRefusedError, match="changed after it was read"):
        log_removal.remove_pod_log_directory(root, NAME, UID, tree.changed_at)
    assert (root / NAME / "web" / "0.log").exists()
    log_removal.remove_pod_log_directory(root, NAME, UID, read(root).changed_at)
    assert podlogs.list_pod_log_directories(root) == ()
