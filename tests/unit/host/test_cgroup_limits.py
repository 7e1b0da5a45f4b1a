"""The cgroup of all pods, and the limits of the cgroups above it, in temporary trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import ObservationError
from nodeagent.host.cgroup_limits import find_pods_cgroups

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
UNIT = "system.slice/nodeagent.service"


def tree(root: Path, *directories: str, agent: str = "", limits: dict[str, str] | None = None) -> Path:
    """Write a cgroup tree with these directories, the cgroup of the agent, and files with limits; return ``root``."""
    for name in ("", *directories):
        (root / "sys/fs/cgroup" / name).mkdir(parents=True, exist_ok=True)
    for name, text in (limits or {}).items():
        (root / "sys/fs/cgroup" / name).write_text(text)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"1:name=systemd:/x\n0::/{agent}\n")
    return root


@pytest.mark.parametrize(
    ("directories", "agent", "pods"),
    [
        pytest.param(["kubepods.slice", UNIT], UNIT, "kubepods.slice", id="systemd"),
        pytest.param(["kubepods", UNIT], UNIT, "kubepods", id="cgroupfs"),
        pytest.param(["kubelet/kubepods", UNIT], UNIT, "kubelet/kubepods", id="kind-cgroupfs"),
        pytest.param(
            ["kubelet.slice/kubelet-kubepods.slice"], UNIT, "kubelet.slice/kubelet-kubepods.slice", id="kind-systemd"
        ),
        pytest.param(
            ["a.slice/a-b.slice/a-b-kubepods.slice"],
            "a.slice/a-b.slice/nodeagent.service",
            "a.slice/a-b.slice/a-b-kubepods.slice",
            id="slice-of-the-agent",
        ),
        pytest.param(
            ["kubepods.slice", "system.slice/docker-1.scope/kubepods.slice"],
            f"system.slice/docker-1.scope/{UNIT}",
            "system.slice/docker-1.scope/kubepods.slice",
            id="container-in-the-cgroup-namespace-of-the-host",
        ),
        pytest.param(["kubepods.slice", "x.slice/x-kubepods.slice"], UNIT, "kubepods.slice", id="root-before-children"),
        pytest.param(["system.slice/docker-1.scope/kubepods.slice"], UNIT, None, id="pods-of-a-node-in-a-container"),
        pytest.param(["lxc.payload.one/kubepods", "x.scope/kubepods"], UNIT, None, id="pods-of-a-node-in-lxc"),
        pytest.param(["docker/1/kubelet/kubepods"], UNIT, None, id="pods-of-kind-on-this-machine"),
        pytest.param(["one/kubepods", "two/kubepods"], UNIT, None, id="several"),
        pytest.param(["kubepods.slice"], "../../outside", "kubepods.slice", id="agent-outside-of-its-namespace"),
        pytest.param([], UNIT, None, id="none"),
    ],
)
def test_cgroup_of_the_pods_is_found_below_the_agents_cgroups_or_a_child_of_the_root(
    tmp_path: Path, directories: list[str], agent: str, pods: str | None
) -> None:
    found = find_pods_cgroups(tree(tmp_path, *directories, agent=agent))
    assert found.pods == (None if pods is None else tmp_path / "sys/fs/cgroup" / pods)


@pytest.mark.parametrize("directories", [["kubepods.slice", "kubepods"], ["one/kubepods", "two/kubepods"]])
@pytest.mark.parametrize("used", [0, 1])
def test_of_several_cgroups_the_one_with_processes_is_chosen(tmp_path: Path, directories: list[str], used: int) -> None:
    events = {f"{each}/cgroup.events": f"populated {int(each == directories[used])}\n" for each in directories}
    found = find_pods_cgroups(tree(tmp_path, *directories, limits=events))
    assert found.pods == tmp_path / "sys/fs/cgroup" / directories[used]


@pytest.mark.parametrize(
    ("directories", "limits", "expected"),
    [
        pytest.param(["kubepods.slice"], {"kubepods.slice/memory.max": f"{GIB}\n"}, [], id="allocatable-alone"),
        pytest.param(["kubepods.slice"], {"memory.max": f"{GIB}\n"}, ["."], id="namespace"),
        pytest.param(["kubepods.slice"], {"memory.max": "max\n"}, [], id="namespace-without-limit"),
        pytest.param(["kubepods.slice"], {"memory.max": f"{1 << 62}\n"}, [], id="as-good-as-unlimited"),
        pytest.param(
            ["kubepods.slice", UNIT], {"system.slice/memory.max": "1\n", f"{UNIT}/memory.max": "1\n"}, [], id="agent"
        ),
        pytest.param(
            ["x.slice/x-kubepods.slice"],
            {"x.slice/memory.max": "5\n", "memory.max": "9\n", "x.slice/x-kubepods.slice/memory.max": "1\n"},
            ["x.slice", "."],
            id="every-cgroup-above",
        ),
        pytest.param([UNIT], {"memory.max": "9\n"}, [], id="agent-alone-in-a-container"),
        pytest.param(
            [UNIT], {"memory.max": "9\n", "cgroup.subtree_control": "memory\n"}, ["."], id="no-pods-in-a-container"
        ),
        pytest.param([UNIT], {"memory.max": "9\n", "cgroup.subtree_control": "\n"}, [], id="no-controllers"),
    ],
)
def test_limits_of_the_cgroups_above_the_pods_are_read(
    tmp_path: Path, directories: list[str], limits: dict[str, str], expected: list[str]
) -> None:
    found = find_pods_cgroups(tree(tmp_path, *directories, agent=UNIT, limits=limits)).limits("memory.max")
    assert [each.directory for each in found] == [tmp_path / "sys/fs/cgroup" / each for each in expected]


@pytest.mark.parametrize(
    ("file", "text", "value"),
    [
        ("memory.max", f"{4 * GIB}\n", 4 * GIB),
        ("memory.max", "0\n", 0),
        ("pids.max", "500\n", 500),
        ("pids.max", "max\n", None),
        ("cpu.max", "max 100000\n", None),
        ("cpu.max", "150000 100000\n", 1500),
    ],
)
def test_limit_is_read_in_its_unit(tmp_path: Path, file: str, text: str, value: int | None) -> None:
    found = find_pods_cgroups(tree(tmp_path, "kubepods", limits={file: text})).limits(file)
    assert [each.value for each in found] == ([] if value is None else [value])


@pytest.mark.parametrize("text", ["", "\n", "many\n", "-1\n", "1 2 3\n", "100 0\n", "1.5\n"])
def test_malformed_limit_is_an_error_with_its_path(tmp_path: Path, text: str) -> None:
    groups = find_pods_cgroups(tree(tmp_path, "kubepods", limits={"memory.max": text}))
    with pytest.raises(ObservationError, match=r"sys/fs/cgroup/memory\.max: .* is not a limit"):
        groups.limits("memory.max")


def test_unreadable_limit_is_an_error(tmp_path: Path) -> None:
    groups = find_pods_cgroups(tree(tmp_path, "kubepods", "memory.max"))
    with pytest.raises(ObservationError, match="cannot read"):
        groups.limits("memory.max")


def test_limit_is_named_with_its_cgroup(tmp_path: Path) -> None:
    groups = find_pods_cgroups(tree(tmp_path, "kubepods", limits={"memory.max": f"{4 * GIB}\n", "pids.max": "500\n"}))
    shown = [each.text for file in ("memory.max", "pids.max") for each in groups.limits(file)]
    top = tmp_path / "sys/fs/cgroup"
    assert shown == [f"memory.max 4.00 GiB of {top}", f"pids.max 500 of {top}"]
