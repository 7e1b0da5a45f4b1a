"""Effective kubelet configuration, read from file trees of common distributions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.settings.kubelet_config import merge_patch, parse_flags, read_kubelet_config
from tests.support.kubelet_tree import add_process

if TYPE_CHECKING:
    from pathlib import Path

PID = 812
pytestmark = pytest.mark.usefixtures("proc")


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def kubelet(**fields: Any) -> str:
    """Return a KubeletConfiguration with these fields, as JSON."""
    return json.dumps({"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1", **fields})


def run(root: Path, *words: str) -> None:
    (root / "proc").mkdir(exist_ok=True)
    add_process(root, PID, "kubelet", words)


HIGH = "imageGCHighThresholdPercent"


@pytest.mark.parametrize(
    ("command", "files", "high", "sources"),
    [
        pytest.param(
            ["/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml"],
            {"var/lib/kubelet/config.yaml": kubelet(**{HIGH: 70})},
            70,
            ("/var/lib/kubelet/config.yaml",),
            id="kubeadm",
        ),
        pytest.param(
            None,
            {"var/lib/kubelet/config.yaml": kubelet(**{HIGH: 70})},
            70,
            ("/var/lib/kubelet/config.yaml",),
            id="kubeadm, stopped",
        ),
        pytest.param(
            ["/usr/bin/kubelet", "--config", "/srv/k.yaml", "--image-gc-high-threshold=60"],
            {"srv/k.yaml": kubelet(**{HIGH: 70}), "var/lib/kubelet/config.yaml": kubelet(**{HIGH: 10})},
            60,
            ("/srv/k.yaml", "command line"),
            id="flag above its file",
        ),
        pytest.param(
            [
                "/usr/bin/kubelet",
                "--config=/etc/kubernetes/kubelet/config.json",
                "--config-dir=/etc/kubernetes/kubelet/config.json.d",
            ],
            {
                "etc/kubernetes/kubelet/config.json": kubelet(**{HIGH: 70}),
                "etc/kubernetes/kubelet/config.json.d/10-a.conf": kubelet(**{HIGH: 71}),
                "etc/kubernetes/kubelet/config.json.d/20-b.conf": kubelet(**{HIGH: 72}),
                "etc/kubernetes/kubelet/config.json.d/30-c.json": kubelet(**{HIGH: 73}),
            },
            72,
            (
                "/etc/kubernetes/kubelet/config.json",
                "/etc/kubernetes/kubelet/config.json.d/10-a.conf",
                "/etc/kubernetes/kubelet/config.json.d/20-b.conf",
            ),
            id="EKS with drop-ins",
        ),
        pytest.param(
            None,
            {"etc/kubernetes/kubelet/kubelet-config.json": kubelet(**{HIGH: 75})},
            75,
            ("/etc/kubernetes/kubelet/kubelet-config.json",),
            id="EKS, Amazon Linux 2",
        ),
        pytest.param(
            None,
            {"home/kubernetes/kubelet-config.yaml": kubelet(**{HIGH: 76})},
            76,
            ("/home/kubernetes/kubelet-config.yaml",),
            id="GKE",
        ),
        pytest.param(
            ["/usr/local/bin/kubelet", "--image-gc-high-threshold", "77", "--enable-server"],
            {},
            77,
            ("command line",),
            id="AKS, flags only",
        ),
        pytest.param(
            ["/usr/local/bin/k3s", "server", "--kubelet-arg=image-gc-high-threshold=78"],
            {"etc/rancher/k3s/config.yaml": "kubelet-arg: [image-gc-high-threshold=60]"},
            78,
            ("command line",),
            id="k3s, argument",
        ),
        pytest.param(
            ["/usr/local/bin/k3s server"],
            {
                "etc/rancher/k3s/config.yaml": "node-label: [x=y]",
                "etc/rancher/k3s/config.yaml.d/gc.yaml": "kubelet-arg: image-gc-high-threshold=79",
                "var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf": kubelet(**{HIGH: 20}),
            },
            79,
            ("/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf", "command line"),
            id="k3s, files",
        ),
        pytest.param(
            ["kubelet", "--config-dir=/var/lib/rancher/rke2/agent/etc/kubelet.conf.d"],
            {"var/lib/rancher/rke2/agent/etc/kubelet.conf.d/00-rke2.conf": kubelet(**{HIGH: 81})},
            81,
            ("/var/lib/rancher/rke2/agent/etc/kubelet.conf.d/00-rke2.conf",),
            id="rke2",
        ),
        pytest.param(
            ["/snap/microk8s/1/kubelite", "--scheduler-args-file=x"],
            {
                "var/snap/microk8s/current/args/kubelet": "--image-gc-high-threshold=82\n--config=${SNAP_DATA}/k.yaml",
                "var/snap/microk8s/current/k.yaml": kubelet(**{HIGH: 10}),
            },
            82,
            ("/var/snap/microk8s/current/k.yaml", "command line"),
            id="microk8s",
        ),
        pytest.param(
            None,
            {"var/lib/k0s/kubelet-config.yaml": kubelet(**{HIGH: 83})},
            83,
            ("/var/lib/k0s/kubelet-config.yaml",),
            id="k0s",
        ),
        pytest.param(None, {}, None, (), id="no kubelet"),
    ],
)
def test_configuration_of_each_distribution_is_found(
    tmp_path: Path, command: list[str] | None, files: dict[str, str], high: int | None, sources: tuple[str, ...]
) -> None:
    for path, text in files.items():
        write(tmp_path, path, text)
    if command is not None:
        run(tmp_path, *command)
    found = read_kubelet_config(tmp_path, () if command is None else (PID,))
    assert found.problems == ()
    assert found.fields.get(HIGH) == high
    assert found.sources == sources


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


def test_files_that_cannot_be_used_are_problems_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path, "etc/c.d/10.conf", "{")
    write(tmp_path, "etc/c.d/20.conf", "kind: Pod")
    write(tmp_path, "etc/c.d/sub/30.conf", kubelet(**{HIGH: 70}))
    write(tmp_path, "etc/rancher/k3s/config.yaml", "{")
    run(tmp_path, "kubelet", "--config=/none.yaml", "--config-dir=/etc/c.d")
    found = read_kubelet_config(tmp_path, [PID])
    assert (found.fields, found.sources) == ({HIGH: 70}, ("/etc/c.d/sub/30.conf",))
    missing, broken, other = found.problems
    assert missing == "cannot read /none.yaml: No such file or directory"
    assert broken.startswith("/etc/c.d/10.conf: neither YAML nor JSON")
    assert other.startswith("/etc/c.d/20.conf: 0 documents of kind KubeletConfiguration")
    (faulty,) = read_kubelet_config(tmp_path).problems
    assert faulty.startswith("/etc/rancher/k3s/config.yaml: ")


def test_process_that_has_exited_counts_as_none(tmp_path: Path) -> None:
    write(tmp_path, "var/lib/kubelet/config.yaml", kubelet(**{HIGH: 70}))
    run(tmp_path, "")
    found = read_kubelet_config(tmp_path, [1, PID])
    assert (found.fields, found.problems) == ({HIGH: 70}, ())


def test_flags_of_a_command_line_are_parsed() -> None:
    assert parse_flags(["--a=1", "stray", "-b", "2", "--c", "--d", "--a=3", "stray"]) == {
        "a": "3",
        "b": "2",
        "c": "true",
        "d": "true",
    }
