"""Page cache sizes and reclaim of cgroups, with cgroup files in a temporary tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.host.cgroups import CgroupCache, is_writable, read_cache, reclaim_cache
from tests.support.kernel_tree import add_cgroup, make_tree

MIB = 1 << 20


def test_cache_of_cgroups_is_summed(tmp_path: Path) -> None:
    make_tree(tmp_path)
    directories = [
        str(add_cgroup(tmp_path, name, memory_bytes=50 * MIB, inactive_bytes=20 * MIB)) for name in ("a", "b")
    ]
    for each in directories:
        write(each, "memory.low", "4096\n")
        write(each, "memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=700\nfull avg10=0.00 total=1\n")
    assert read_cache(directories) == CgroupCache(2 * 4096, 40 * MIB, 60 * MIB, 2 * 4096, 1400)
    write(directories[0], "memory.pressure", "off")
    assert read_cache(directories) == CgroupCache(2 * 4096, 40 * MIB, 60 * MIB, 2 * 4096, 700)
    assert read_cache([*directories, str(tmp_path / "removed")]) is None


def write(directory: str, name: str, text: str) -> None:
    (Path(directory) / name).write_text(text)


@pytest.mark.parametrize(("swap", "text"), [(False, "1048576"), (True, "1048576 swappiness=0")])
def test_amount_is_written_without_swapping(tmp_path: Path, text: str, *, swap: bool) -> None:
    (tmp_path / "memory.reclaim").write_text("")
    assert is_writable(str(tmp_path))
    assert reclaim_cache(str(tmp_path), MIB, swap=swap) == ""
    assert (tmp_path / "memory.reclaim").read_text() == text


def test_removed_cgroup_is_an_error(tmp_path: Path) -> None:
    assert not is_writable(str(tmp_path / "removed"))
    assert "removed" in reclaim_cache(str(tmp_path / "removed"), MIB, swap=False)
