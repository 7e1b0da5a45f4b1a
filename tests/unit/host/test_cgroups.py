"""Cgroups of pods: names, usage, processes, removed and malformed files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.host.cgroups import (
    Cgroups,
    CgroupUsage,
    expand_cgroups_path,
    expand_parent,
    read_memory_min,
    read_memory_stalls,
    read_oom_kills,
    read_processes,
    read_usage,
    read_working_set,
    read_working_sets,
)
from tests.support.kernel_tree import add_cgroup, make_tree

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
UID = "0b5a1c9e-1111-4222-8333-abcdefabcdef"
SLICED = UID.replace("-", "_")

PSI_REST = "avg60=0.00 avg300=0.00 total=7"


@pytest.mark.parametrize(
    ("parent", "path"),
    [
        (f"/kubepods/burstable/pod{UID}", f"kubepods/burstable/pod{UID}"),
        (f"kubepods/pod{UID}/", f"kubepods/pod{UID}"),
        (
            f"kubepods-burstable-pod{SLICED}.slice",
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICED}.slice",
        ),
        (
            f"/kubepods.slice/kubepods-pod{SLICED}.slice",
            f"kubepods.slice/kubepods-pod{SLICED}.slice",
        ),
        ("system.slice", "system.slice"),
        ("-.slice", ""),
        ("", ""),
        ("/", ""),
        ("/kubepods/../system.slice", ""),
        ("a\0b", ""),
    ],
)
def test_cgroup_parent_is_expanded(parent: str, path: str) -> None:
    assert expand_parent(parent) == path


@pytest.mark.parametrize(
    ("cgroups_path", "path"),
    [
        ("/kubepods/podx/abc", "kubepods/podx/abc"),
        ("kubepods-podx.slice:cri-containerd:abc", "kubepods.slice/kubepods-podx.slice/cri-containerd-abc.scope"),
        ("system.slice::abc", "system.slice/abc.scope"),
        (":crio:abc", "system.slice/crio-abc.scope"),
        ("a.slice:x:y.slice", "a.slice/x-y.slice"),
        ("a.slice:x:", ""),
        ("", ""),
    ],
)
def test_cgroups_path_is_expanded(cgroups_path: str, path: str) -> None:
    assert expand_cgroups_path(cgroups_path) == path


@pytest.mark.parametrize(
    ("parent", "child"),
    [
        (f"/kubepods/besteffort/pod{UID}", "{id}"),
        (
            f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICED}.slice",
            "cri-containerd-{id}.scope",
        ),
    ],
    ids=["cgroupfs", "systemd"],
)
def test_cgroups_of_a_pod_and_its_containers_are_found(tmp_path: Path, parent: str, child: str) -> None:
    make_tree(tmp_path)
    pod = add_cgroup(tmp_path, parent)
    container = add_cgroup(tmp_path, f"{parent}/{child.format(id='c' * 64)}")
    cgroups = Cgroups(tmp_path)
    configured = parent.rpartition("/")[2] if parent.endswith(".slice") else parent
    assert cgroups.find(configured) == str(pod)
    assert cgroups.find_container("", "c" * 64, str(pod)) == str(container)
    assert cgroups.find_container(f"/{parent.strip('/')}/{container.name}", "", None) == str(container)
    assert cgroups.find_container("/missing", "d" * 64, str(pod)) is None
    assert cgroups.find_container("", "c" * 64, str(tmp_path / "missing")) is None
    assert cgroups.find("/kubepods/podmissing") is None
    assert cgroups.find("") is None


@pytest.mark.parametrize(("controllers", "has_memory"), [("cpu memory pids", True), ("cpu pids", False)])
def test_memory_controller_is_detected(tmp_path: Path, controllers: str, has_memory: bool) -> None:
    make_tree(tmp_path, controllers=controllers)
    assert Cgroups(tmp_path).has_memory is has_memory
    assert not Cgroups(tmp_path / "elsewhere").has_memory


def test_working_set_excludes_inactive_pages(tmp_path: Path) -> None:
    directory = str(add_cgroup(tmp_path, "p", memory_bytes=300 * MIB, inactive_bytes=120 * MIB, swap_bytes=7, pids=9))
    assert read_usage(directory) == CgroupUsage(180 * MIB, 7, 9, cache_bytes=4096)
    assert read_working_sets({"a": directory, "b": f"{directory}/missing"}) == {"a": 180 * MIB}


def test_usage_of_a_cgroup_has_its_shared_memory_and_its_caches(tmp_path: Path) -> None:
    directory = add_cgroup(tmp_path, "p", memory_bytes=300 * MIB)
    stat = f"anon 5\nshmem {70 * MIB}\nshmem_thp 9\ninactive_file 0\nactive_file 40\nslab_reclaimable 2\n"
    (directory / "memory.stat").write_text(stat)
    assert read_usage(str(directory)) == CgroupUsage(300 * MIB, 0, 1, 70 * MIB, 42)


@pytest.mark.parametrize(
    ("text", "stalls"),
    [
        (f"some avg10=24.31 {PSI_REST}\nfull avg10=1.00 {PSI_REST}\n", (24.31, 1.0)),
        (f"some avg10=0.00 {PSI_REST}\n", (0.0, None)),
        (f"some avg10=nan {PSI_REST}\n", (None, None)),
        ("", (None, None)),
    ],
)
def test_memory_stalls_are_the_ten_second_averages(
    tmp_path: Path, text: str, stalls: tuple[float | None, float | None]
) -> None:
    directory = add_cgroup(tmp_path, "p")
    (directory / "memory.pressure").write_text(text)
    assert read_memory_stalls(str(directory)) == stalls
    assert read_memory_stalls(str(directory / "missing")) == (None, None)


def test_working_set_is_at_least_zero(tmp_path: Path) -> None:
    assert read_working_set(str(add_cgroup(tmp_path, "p", memory_bytes=MIB, inactive_bytes=2 * MIB))) == 0


@pytest.mark.parametrize(
    ("name", "text", "usage"),
    [
        ("memory.current", "max\n", CgroupUsage(None, 0, 1)),
        ("memory.current", "", CgroupUsage(None, 0, 1)),
        ("memory.stat", "anon 5\n", CgroupUsage(None, 0, 1)),
        ("memory.stat", "inactive_file x\n", CgroupUsage(None, 0, 1)),
        ("memory.stat", "inactive_file 24\nanon 5\n", CgroupUsage(1000, 0, 1)),
        ("memory.stat", "workingset_inactive_file 24\n", CgroupUsage(None, 0, 1)),
        ("memory.swap.current", "-1\n", CgroupUsage(1024, None, 1, cache_bytes=4096)),
        ("pids.current", "\xff", CgroupUsage(1024, 0, None, cache_bytes=4096)),
    ],
)
def test_malformed_value_is_unknown(tmp_path: Path, name: str, text: str, usage: CgroupUsage) -> None:
    directory = add_cgroup(tmp_path, "p", memory_bytes=1024)
    (directory / name).write_text(text, encoding="latin-1")
    assert read_usage(str(directory)) == usage


def test_removed_cgroup_has_no_usage(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert read_usage(missing) is None
    assert read_oom_kills(missing) is None
    assert read_memory_min(missing) is None


def test_oom_kills_and_memory_min_are_read(tmp_path: Path) -> None:
    directory = str(add_cgroup(tmp_path, "p", kills=3, min_bytes=5 * MIB))
    assert read_oom_kills(directory) == 3
    assert read_memory_min(directory) == 5 * MIB


def test_processes_include_those_of_descendants(tmp_path: Path) -> None:
    pod = add_cgroup(tmp_path, "p", processes=[1])
    add_cgroup(tmp_path, "p/a", processes=[2])
    add_cgroup(tmp_path, "p/a/b", processes=[3])
    (pod / "link").symlink_to(add_cgroup(tmp_path, "other", processes=[4]))
    assert read_processes([str(pod)]) == frozenset({1, 2, 3})
    assert read_processes([str(pod), str(tmp_path / "missing")]) == frozenset({1, 2, 3})
    assert read_processes([str(tmp_path / "missing")]) == frozenset()
    assert read_processes([]) == frozenset()


def test_unreadable_processes_are_unknown_and_not_empty(tmp_path: Path) -> None:
    pod = add_cgroup(tmp_path, "p", processes=[1])
    (pod / "cgroup.procs").write_text("1\nx\n")
    assert read_processes([str(pod)]) is None
    (pod / "cgroup.procs").unlink()
    (pod / "cgroup.procs").mkdir()
    assert read_processes([str(pod)]) is None
