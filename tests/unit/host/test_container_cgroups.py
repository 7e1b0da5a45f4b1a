"""Running containers by their cgroups, in trees of both cgroup versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.host import container_processes as container_cgroups
from nodeagent.host.container_processes import find_running
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

A, B, C, D = (letter * 64 for letter in "abcd")
CLOCK = SystemClock()


def cgroup(root: Path, path: str, *, populated: bool = True, version: int = 2) -> None:
    base = root / "sys/fs/cgroup" / ("" if version == 2 else "pids")
    directory = base / path
    directory.mkdir(parents=True)
    if version == 2:
        (root / "sys/fs/cgroup/cgroup.controllers").write_text("memory pids\n")
        (directory / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
    else:
        (directory / "cgroup.procs").write_text("17\n" if populated else "")


FORMS = [
    "k8s.io/{}",
    "kubepods/burstable/pod0a1b/{}",
    "kubepods.slice/kubepods-pod0a1b.slice/cri-containerd-{}.scope",
    "kubepods.slice/kubepods-pod0a1b.slice/crio-{}.scope",
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_unlisted_container_named_like_a_listed_one_is_found(tmp_path: Path, form: str, version: int) -> None:
    cgroup(tmp_path, form.format(A), version=version)
    cgroup(tmp_path, form.format(B), version=version)
    cgroup(tmp_path, form.format(C), populated=False, version=version)
    assert find_running({A, D}, CLOCK, tmp_path) == (frozenset({A, B}), True)


def test_nested_processes_make_a_cgroup_of_version_1_populated(tmp_path: Path) -> None:
    cgroup(tmp_path, f"k8s.io/{A}", version=1)
    cgroup(tmp_path, f"k8s.io/{B}", populated=False, version=1)
    cgroup(tmp_path, f"k8s.io/{B}/init", version=1)
    assert find_running({A}, CLOCK, tmp_path) == (frozenset({A, B}), True)


@pytest.mark.parametrize(
    "other",
    [
        "docker/{}",
        "machine.slice/libpod-{}.scope",
        "system.slice/docker-{}.scope",
        "kubepods.slice/docker-{}.scope",
        "{}",
    ],
)
def test_container_of_another_runtime_is_ignored(tmp_path: Path, other: str) -> None:
    cgroup(tmp_path, f"kubepods.slice/pod.slice/cri-containerd-{A}.scope")
    cgroup(tmp_path, other.format(B))
    assert find_running({A}, CLOCK, tmp_path) == (frozenset({A}), True)


def test_result_is_empty_without_a_cgroup_of_a_listed_container(tmp_path: Path) -> None:
    assert find_running({A}, CLOCK, tmp_path) == (frozenset(), False)
    cgroup(tmp_path, f"k8s.io/{B}")
    assert find_running({A}, CLOCK, tmp_path) == (frozenset(), False)


def test_reading_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroup(tmp_path, f"k8s.io/{A}")
    monkeypatch.setattr(container_cgroups, "MAX_DIRECTORIES", 0)
    assert find_running({A}, CLOCK, tmp_path) == (frozenset(), False)
