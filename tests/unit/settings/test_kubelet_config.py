"""Effective kubelet configuration, read from file trees of common distributions."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from nodeagent.doctor.plan.kubelet import check_kubelet, check_kubelet_config
from nodeagent.doctor.plan.node import Grade
from nodeagent.doctor.plan.triggers import AgentTasks, NodeSizes, compare_triggers
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.model.node import Certainty
from nodeagent.settings.kubelet_config import merge_patch, parse_flags, read_kubelet_config
from tests.support.kubelet_tree import add_process

if TYPE_CHECKING:
    from collections.abc import Mapping

PID = 812
pytestmark = pytest.mark.usefixtures("proc")


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def kubelet(**fields: Any) -> str:
    """Return a KubeletConfiguration with these fields, as JSON."""
    return json.dumps({"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1", **fields})


def run(root: Path, *words: str, name: str = "kubelet") -> None:
    (root / "proc").mkdir(exist_ok=True)
    add_process(root, PID, name, words)


HIGH = "imageGCHighThresholdPercent"
TREES: Final = {
    path.stem: tomllib.loads(path.read_text())
    for path in sorted((Path(__file__).parents[2] / "data/kubelet").iterdir())
}
"""Files of a node for each distribution, with the configuration in force."""


def plant(root: Path, tree: Mapping[str, Any]) -> list[int]:
    """Write the files and the process of a tree; return the PIDs of the kubelet."""
    for path, text in tree["files"].items():
        write(root, path, text)
    if "command" not in tree:
        return []
    run(root, *tree["command"], name=tree.get("name", "kubelet"))
    write(root, f"proc/{PID}/cgroup", f"{tree.get('cgroup', '0::/')}\n")
    return [PID]


@pytest.mark.parametrize("name", TREES)
def test_configuration_of_each_distribution_is_that_of_its_documents(tmp_path: Path, name: str) -> None:
    tree = TREES[name]
    found = read_kubelet_config(tmp_path, plant(tmp_path, tree))
    assert found.distribution.lower() == tree.get("distribution", name).lower()
    assert found.sources == tuple(tree["sources"])
    assert found.fields == tree["fields"]
    unknown = tree.get("unknown", [])
    assert bool(found.missing) is bool(unknown)
    assert {each: found.certainty(each) for each in unknown} == dict.fromkeys(unknown, Certainty.UNKNOWN)


def test_every_distribution_has_a_tree() -> None:
    assert {each.get("distribution", name) for name, each in TREES.items()} >= {
        *("kubeadm", "k3s", "rke2", "k0s", "microk8s", "minikube", "eks", "aks", "gke", "openshift", "talos"),
        *("bottlerocket", "k8s-snap", "kind"),
    }


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, tree in TREES.items() for path in tree["missing"]])
def test_value_of_a_missing_source_is_unknown_and_not_the_default(tmp_path: Path, name: str, path: str) -> None:
    tree = TREES[name]
    pids = plant(tmp_path, tree)
    remove(tmp_path / path)
    found = read_kubelet_config(tmp_path, pids)
    assert found.missing
    names = tree["missing"][path]
    assert {each: found.certainty(each) for each in names} == dict.fromkeys(names, Certainty.UNKNOWN)
    partial = tree.get("partial", {}).get(path, [])
    assert {each: found.certainty(each) for each in partial} == dict.fromkeys(partial, Certainty.AT_LEAST)
    assert check_kubelet_config(found, has_kubelet=True).verdict is Grade.WARNING
    agent = AgentTasks(images=ImageGCPolicy(high_threshold_percent=1), stops=True)
    overlap = check_kubelet(found, compare_triggers(found, agent, NodeSizes()), has_kubelet=True)
    assert Grade.OK not in {each.verdict for each in overlap}


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("seed", range(75))
def test_damaged_tree_never_gives_a_false_value(tmp_path: Path, seed: int) -> None:
    """A file is removed, replaced by a directory, made unreadable, cut or changed; each kind in each tree."""
    random = Random(seed)
    name = sorted(TREES)[seed % len(TREES)]
    pids = plant(tmp_path, TREES[name])
    before = read_kubelet_config(tmp_path, pids)
    path = tmp_path / random.choice(sorted(TREES[name]["files"]))
    raw = bytearray(path.read_bytes())
    damage = seed // len(TREES) % 5
    if damage == 0:
        path.unlink()
    elif damage == 1:
        path.unlink()
        path.mkdir()
    elif damage == 2:
        path.write_bytes(b"\xff\0{[\"'" + bytes(raw))
    elif damage == 3:
        path.write_bytes(raw[: random.randrange(len(raw) + 1)])
    else:
        for _ in range(random.randrange(1, 20)):
            raw[random.randrange(len(raw)) :] = raw[random.randrange(len(raw)) :]
            if not raw:
                break
            raw[random.randrange(len(raw))] = random.randrange(256)
        path.write_bytes(raw)
    found = read_kubelet_config(tmp_path, pids)
    finding = check_kubelet_config(found, has_kubelet=True)
    assert (finding.verdict is Grade.OK) is not bool(found.missing)
    optional = damage < 2 and str(path.relative_to(tmp_path)) in TREES[name].get("optional", [])
    if damage < 3 and not optional:  # the file is unusable; without an optional file, the others are in force
        for field in set(found.fields) | set(before.fields):
            if found.certainty(field) is Certainty.IN_FORCE and not before.missing:
                assert found.fields.get(field) == before.fields.get(field), field


def test_thresholds_in_flags_replace_the_whole_map(tmp_path: Path) -> None:
    write(tmp_path, "k.yaml", kubelet(evictionHard={"memory.available": "1Gi", "nodefs.available": "5%"}))
    run(tmp_path, "kubelet", "--config=/k.yaml", "--eviction-hard=imagefs.available<20%, pid.available < 5%,,x")
    found = read_kubelet_config(tmp_path, [PID])
    assert found.fields["evictionHard"] == {"imagefs.available": "20%", "pid.available": "5%"}


def test_other_flags_are_returned_by_name(tmp_path: Path) -> None:
    run(tmp_path, "kubelet", "--root-dir=/srv/kubelet", "--v", "4", "--hostname-override=n1", "--enable-server")
    flags = read_kubelet_config(tmp_path, [PID]).flags
    assert flags == {"root-dir": "/srv/kubelet", "v": "4", "enable-server": "true", "hostname-override": "n1"}


@pytest.mark.parametrize(
    ("base", "patch", "merged"),
    [
        ({"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 3}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        ({"a": {"x": 1}}, {"a": None}, {}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"x": {"y": None, "z": 1}}}, {"a": {"x": {"z": 1}}}),
    ],
)
def test_drop_in_is_merged_as_a_json_merge_patch(
    base: dict[str, object], patch: dict[str, object], merged: dict[str, object]
) -> None:
    assert merge_patch(base, patch) == merged


def test_files_that_cannot_be_used_are_unread_and_a_later_file_is_in_force(tmp_path: Path) -> None:
    write(tmp_path, "etc/c.d/10.conf", "{")
    write(tmp_path, "etc/c.d/20.conf", "kind: Pod")
    write(tmp_path, "etc/c.d/sub/30.conf", kubelet(**{HIGH: 70}, evictionHard={"pid.available": "5%"}))
    run(tmp_path, "kubelet", "--config=/none.yaml", "--config-dir=/etc/c.d")
    found = read_kubelet_config(tmp_path, [PID])
    assert found.fields == {HIGH: 70, "evictionHard": {"pid.available": "5%"}}
    assert found.sources == ("/etc/c.d/sub/30.conf", "command line")
    assert [found.certainty(each) for each in (HIGH, "evictionHard", "evictionSoft")] == [*Certainty]
    missing, broken, other = found.unread
    assert missing == "cannot read /none.yaml: No such file or directory"
    assert broken.startswith("/etc/c.d/10.conf: neither YAML nor JSON")
    assert other.startswith("/etc/c.d/20.conf: 0 documents of kind KubeletConfiguration")


@pytest.mark.parametrize(
    ("files", "command", "missing"),
    [
        ({}, ["/usr/bin/edgecore"], "configuration of the kubelet in edgecore, process 812"),
        ({}, ["/usr/bin/microshift", "run"], "configuration of the kubelet in microshift, process 812"),
        ({}, None, "no process, unit or file of a known distribution found"),
        (
            {"etc/rancher/k3s/config.yaml": "{"},
            ["k3s", "server", "--node-name=a"],
            "/etc/rancher/k3s/config.yaml: ",
        ),
        (
            {"etc/rancher/k3s/config.yaml": "[]"},
            ["k3s", "agent", "-v=2"],
            "/etc/rancher/k3s/config.yaml: not a mapping",
        ),
        ({}, ["k3s", "server", "--config=https://x/y.yaml"], "configuration at https://x/y.yaml"),
        ({}, ["k3s", "server", "--config", "/none.yaml"], "cannot read /none.yaml: No such file or directory"),
        ({"var/lib/rancher/k3s/x": ""}, ["/bin/k3s server"], "unit of k3s not found: k3s.service, k3s-agent.service"),
        (
            {f"etc/systemd/system/{each}.service": "" for each in ("k3s", "k3s-agent")},
            ["/bin/k3s server"],
            "several units: k3s.service, k3s-agent.service",
        ),
        ({}, ["kubelet", "--config=k.yaml"], "cannot read k.yaml: not an absolute path"),
        (
            {"var/snap/microk8s/current/args/kubelet": "--config=${HOME}/x"},
            ["kubelite"],
            "/var/snap/microk8s/current/args/kubelet: variable HOME",
        ),
        (
            {"etc/systemd/system/kubelet.service": "[Service]\nExecStart=/bin/sh -c 'kubelet --v=2'"},
            None,
            "kubelet arguments of /bin/sh",
        ),
        (
            {"etc/systemd/system/kubelet.service": "[Service]\nExecStart=/bin/kubelet 'a"},
            None,
            "kubelet.service: no closing quotation",
        ),
        (
            {
                "etc/systemd/system/kubelet.service": (
                    "[Service]\nEnvironmentFile=/etc/kube/*.env\nExecStart=/bin/kubelet $ARGS"
                )
            },
            None,
            "cannot read /etc/kube/*.env: No such file or directory",
        ),
    ],
)
def test_source_that_is_not_understood_is_reported(
    tmp_path: Path, files: dict[str, str], command: list[str] | None, missing: str
) -> None:
    for path, text in files.items():
        write(tmp_path, path, text)
    if command is not None:
        run(tmp_path, *command)
    found = read_kubelet_config(tmp_path, [] if command is None else [PID])
    assert any(each.startswith(missing) for each in found.missing), found.missing
    assert found.certainty("evictionHard") is Certainty.UNKNOWN


@pytest.mark.parametrize("prefix", ["-", "@", ":", "+-", "!!"])
def test_prefix_of_a_command_in_a_unit_is_no_flag(tmp_path: Path, prefix: str) -> None:
    unit = f"[Service]\nExecStart={prefix}/usr/bin/kubelet --image-gc-high-threshold=61"
    write(tmp_path, "etc/systemd/system/kubelet.service", unit)
    assert read_kubelet_config(tmp_path, []).fields["imageGCHighThresholdPercent"] == 61


@pytest.mark.parametrize(
    ("files", "arguments", "high"),
    [
        ({"config.yaml": "kubelet-arg: [image-gc-high-threshold=60]"}, [], 60),
        ({"config.yaml": "kubelet-arg: [image-gc-high-threshold=60]"}, ["image-gc-high-threshold=61"], 61),
        ({"config.yaml": "kubelet-arg: [image_gc_high_threshold=60]"}, ["image-gc-high-threshold=61"], 60),
        ({"config.yaml": "kubelet-arg: [image-gc-high-threshold=60]"}, ["image-gc-high-threshold-=61"], 60),
        (
            {"config.yaml": "kubelet-arg: [image-gc-high-threshold=60]", "config.yaml.d/1.yaml": "kubelet-arg: v=1"},
            [],
            None,
        ),
        (
            {"config.yaml": "kubelet-arg: [image-gc-high-threshold=60]", "config.yaml.d/1.yaml": "kubelet-arg+: v=1"},
            [],
            60,
        ),
    ],
    ids=[
        "file",
        "command line after file",
        "order of names",
        "prepended",
        "replaced by drop-in",
        "appended by drop-in",
    ],
)
def test_arguments_of_k3s_are_merged_as_k3s_merges_them(
    tmp_path: Path, files: dict[str, str], arguments: list[str], high: int | None
) -> None:
    write(tmp_path, "var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf", kubelet())
    for path, text in files.items():
        write(tmp_path, f"etc/rancher/k3s/{path}", text)
    run(tmp_path, "k3s", "server", "--node-name=a", *(f"--kubelet-arg={each}" for each in arguments))
    found = read_kubelet_config(tmp_path, [PID])
    assert found.missing == ()
    assert found.fields.get(HIGH) == high


def test_process_that_has_exited_counts_as_none(tmp_path: Path) -> None:
    write(tmp_path, "var/lib/kubelet/config.yaml", kubelet(**{HIGH: 70}))
    run(tmp_path, "")
    found = read_kubelet_config(tmp_path, [1, PID])
    assert found.missing == ("unit of kubeadm not found: kubelet.service",)
    assert found.certainty(HIGH) is Certainty.UNKNOWN


def test_flags_of_a_command_line_are_parsed() -> None:
    words = ["--a=1", "stray", "-b", "2", "--c", "--d_e", "--a=3", "stray"]
    assert parse_flags(words) == {"a": "3", "b": "2", "c": "true", "d-e": "true"}
    repeated = ["--eviction-hard=a<1", "--eviction_hard", "b<2,a<3"]
    assert parse_flags(repeated) == {"eviction-hard": "a<1,b<2,a<3"}
