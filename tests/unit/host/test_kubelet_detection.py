"""Detection of a kubelet, in temporary trees and with real processes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.kubelet_traces import KubeletTraceReader
from nodeagent.model.node import KubeletProcess, KubeletTraces, Role
from nodeagent.pods.plan.role import decide_role
from tests.support.kubelet_tree import ESTABLISHED, add_file, add_process, add_socket, make_node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        return self.seconds


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


def read(root: Path) -> KubeletTraces:
    return KubeletTraceReader(Clock(), root, uid=0).read()


def names(root: Path) -> list[str]:
    return [each.name for each in read(root).processes]


def test_node_without_a_kubelet_has_no_traces(root: Path) -> None:
    assert read(root) == KubeletTraces()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("kubelet", ("/usr/bin/kubelet", "--config=/etc/kubelet.yaml")),
        ("kubelet-v1.36.0", ("/opt/bin/kubelet-v1.36.0",)),
        ("k3s-server", ("/usr/local/bin/k3s server",)),
        ("k3s", ("k3s", "agent")),
        ("rke2", ("/usr/local/bin/rke2", "agent")),
        ("k0s", ("/usr/local/bin/k0s", "worker")),
        ("kubelite", ("/snap/microk8s/1/kubelite",)),
        ("edgecore", ("/usr/local/bin/edgecore",)),
        ("EdgeCore", ("EdgeCore",)),
        ("microshift", ("/usr/bin/microshift", "run")),
        ("hyperkube", ("/hyperkube", "kubelet", "--v=2")),
        ("agent", ("/opt/bin/kubelet", "--v=2")),
    ],
)
def test_process_that_runs_a_kubelet_is_found(root: Path, name: str, arguments: Sequence[str]) -> None:
    add_process(root, 812, name, arguments)
    (found,) = read(root).processes
    assert found.pid == 812


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("kubectl", ("kubectl", "get", "pods")),
        ("journalctl", ("journalctl", "-u", "kubelet")),
        ("vim", ("vim", "/var/lib/kubelet/config.yaml")),
        ("k0sctl", ("k0sctl", "apply")),
        ("hyperkube", ("/hyperkube", "kube-proxy")),
        ("kworker/0:1", ()),
        ("virtual-kubelet", ("virtual-kubelet",)),
    ],
)
def test_other_process_is_ignored(root: Path, name: str, arguments: Sequence[str]) -> None:
    add_process(root, 812, name, arguments)
    assert names(root) == []


def test_process_of_a_nested_pid_namespace_is_ignored(root: Path) -> None:
    add_process(root, 812, "kubelet", ("kubelet",), inside=(7,))
    assert names(root) == []


def test_process_of_another_user_than_root_or_the_agent_is_ignored(root: Path) -> None:
    add_process(root, 812, "kubelet", ("kubelet",), uid=4711)
    assert names(root) == []
    assert KubeletTraceReader(Clock(), root, uid=4711).read().processes == (KubeletProcess(812, "kubelet"),)


def test_set_user_id_program_of_another_user_is_ignored(root: Path) -> None:
    add_process(root, 812, "su", ("kubelet", "--config=/tmp/config"), real_uid=4711)
    assert read(root).processes == ()


@pytest.mark.parametrize("state", ["Z (zombie)", "X (dead)"])
def test_dead_process_is_ignored(root: Path, state: str) -> None:
    add_process(root, 812, "kubelet", ("kubelet",), state=state)
    assert names(root) == []


def test_process_name_is_reduced_to_plain_characters(root: Path) -> None:
    add_process(root, 812, "kubelet-\x1b[/x]", ("x",))
    assert names(root) == ["kubelet-???x?"]


def test_process_that_executes_a_kubelet_after_its_first_reading_is_found_in_the_next(root: Path) -> None:
    reader = KubeletTraceReader(Clock(), root, uid=0)
    add_process(root, 812, "(kubelet)", ("(kubelet)",))
    assert reader.read().processes == ()
    add_process(root, 812, "kubelet", ("/usr/bin/kubelet",))
    assert [each.pid for each in reader.read().processes] == [812]


def test_late_exec_of_a_kubelet_is_found_by_the_next_complete_reading(root: Path) -> None:
    clock = Clock()
    reader = KubeletTraceReader(clock, root, uid=0)
    add_process(root, 812, "sh", ("sh", "-c", "wait-for-config; exec kubelet"))
    for _ in range(3):
        assert reader.read().processes == ()
    add_process(root, 812, "kubelet", ("kubelet",))
    clock.seconds += 31
    assert [each.pid for each in reader.read().processes] == [812]


def test_kubelet_is_found_by_its_command_name_without_command_lines(root: Path) -> None:
    add_process(root, 812, "kubelet", ("/usr/bin/kubelet",))
    add_process(root, 813, "agent", ("/usr/bin/kubelet",))
    reader = KubeletTraceReader(Clock(), root, uid=0)
    assert [each.pid for each in reader.read(arguments=False).processes] == [812]
    assert [each.pid for each in reader.read().processes] == [812, 813]


def test_kubelet_that_exited_is_absent_from_the_next_reading(root: Path) -> None:
    reader = KubeletTraceReader(Clock(), root, uid=0)
    directory = add_process(root, 812, "kubelet", ("kubelet",))
    assert reader.read().processes
    shutil.rmtree(directory)
    assert reader.read() == KubeletTraces()


def test_hidden_process_1_makes_the_reading_incomplete(root: Path) -> None:
    add_process(root, 812, "kubelet", ("kubelet",))
    shutil.rmtree(root / "proc/1")
    found = read(root)
    assert [each.pid for each in found.processes] == [812]
    assert any("process 1 is hidden" in each for each in found.unreadable)


def test_missing_proc_makes_the_reading_incomplete(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert len(found.unreadable) == 1
    assert str(tmp_path / "proc") in found.unreadable[0]


@pytest.mark.parametrize(("namespace", "complete"), [("pid:[4026531836]", True), ("pid:[4026532201]", False)])
def test_nested_pid_namespace_makes_the_reading_incomplete(root: Path, namespace: str, complete: bool) -> None:
    (root / "proc/self/ns").mkdir()
    (root / "proc/self/ns/pid").symlink_to(namespace)
    assert (read(root) == KubeletTraces()) == complete


@pytest.mark.parametrize(
    ("namespace", "cgroup", "complete"),
    [
        ("cgroup:[4026531835]", "0::/system.slice/nodeagent.service\n", True),
        ("cgroup:[4026531835]", f"0::/user.slice/{'a' * 63}\n", True),
        ("", "", True),
        ("cgroup:[4026532711]", "0::/\n", False),
        ("cgroup:[4026531835]", "0::/kubepods.slice/kubepods-pod12.slice/x.scope\n", False),
        ("cgroup:[4026531835]", f"9:pids:/docker/{'0a' * 32}\n8:cpu:/\n", False),
        ("cgroup:[4026531835]", f"0::/system.slice/nerdctl-{'0a' * 32}.scope\n", False),
        ("", f"0::/machine.slice/libpod-{'0a' * 32}.scope/container\n", False),
    ],
)
def test_container_with_the_pids_of_the_host_makes_the_reading_incomplete(
    root: Path, namespace: str, cgroup: str, complete: bool
) -> None:
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    if namespace:
        (root / "proc/self/ns/cgroup").symlink_to(namespace)
    if cgroup:
        (root / "proc/self/cgroup").write_text(cgroup)
    found = read(root)
    hidden = "files of the node are hidden: the agent runs in a container"
    assert found.unreadable == (() if complete else (hidden,))
    assert decide_role(found, None).role is (Role.STANDALONE if complete else Role.BESIDE_KUBELET)


@pytest.mark.parametrize("port", [10248, 10250])
@pytest.mark.parametrize("name", ["tcp", "tcp6"])
@pytest.mark.parametrize("network", ["proc/1/net", "proc/self/net"])
def test_listener_on_a_kubelet_port_is_found(root: Path, port: int, name: str, network: str) -> None:
    add_socket(root, 22, network=network, name=name)
    add_socket(root, port, network=network, name=name)
    add_socket(root, 443, state=ESTABLISHED, network=network, name=name)
    assert read(root).ports == (port,)


def test_sockets_of_other_users_states_and_ports_are_ignored(root: Path) -> None:
    add_socket(root, 10250, uid=4711)
    add_socket(root, 10255)
    add_socket(root, 10250, state=ESTABLISHED)
    add_socket(root, 10248, state="06")
    assert read(root) == KubeletTraces()


def test_listener_after_many_others_is_found(root: Path) -> None:
    for port in range(20_000, 20_300):
        add_socket(root, port)
    add_socket(root, 10250)
    for port in range(20_000, 20_300):
        add_socket(root, port, state=ESTABLISHED)
    assert read(root).ports == (10250,)


def test_node_without_ipv6_has_a_complete_reading(root: Path) -> None:
    for network in ("proc/1/net", "proc/self/net"):
        (root / network / "tcp6").unlink()
    assert read(root) == KubeletTraces()


@pytest.mark.parametrize("text", ["", "garbage\n"])
def test_socket_table_of_another_format_hides_no_listener_of_the_others(root: Path, text: str) -> None:
    (root / "proc/1/net/tcp").write_text(text)
    add_socket(root, 10250, name="tcp6")
    assert read(root) == KubeletTraces(ports=(10250,))


def test_listeners_are_read_once_a_minute(root: Path) -> None:
    clock = Clock()
    reader = KubeletTraceReader(clock, root, uid=0)
    assert reader.read().ports == ()
    add_socket(root, 10250)
    clock.seconds += 59
    assert reader.read().ports == ()
    clock.seconds += 1
    assert reader.read().ports == (10250,)


@pytest.mark.parametrize(
    "name",
    [
        "var/lib/kubelet/config.yaml",
        "var/lib/kubelet/pki/kubelet.crt",
        "var/lib/kubelet/pods/uid/etc-hosts",
        "var/lib/kubelet/cpu_manager_state",
        "var/lib/kubelet/device-plugins/kubelet.sock",
        "etc/kubernetes/kubelet.conf",
        "etc/kubernetes/bootstrap-kubelet.conf",
        "etc/kubernetes/kubelet/config.json",
        "etc/rancher/k3s/k3s.yaml",
        "var/lib/rancher/rke2/agent/kubelet.kubeconfig",
        "run/k3s/containerd/containerd.sock",
        "var/lib/k0s/kubelet/pki",
        "var/snap/microk8s/current/credentials/kubelet.config",
        "etc/kubeedge/config/edgecore.yaml",
        "etc/systemd/system/multi-user.target.wants/kubelet.service",
        "var/run/secrets/kubernetes.io/serviceaccount/token",
    ],
)
def test_state_or_configuration_of_a_kubelet_is_found(root: Path, name: str) -> None:
    add_file(root, name)
    (found,) = read(root).files
    assert f"{root / name}".startswith(found)


@pytest.mark.parametrize(
    "name",
    ["var/lib/kubelet/seccomp/profile.json", "etc/kubernetes/manifests/web.yaml", "etc/cni/net.d/10-bridge.conf"],
)
def test_files_of_other_tools_are_ignored(root: Path, name: str) -> None:
    add_file(root, name)
    assert read(root) == KubeletTraces()


def test_dangling_link_of_an_enabled_unit_is_found(root: Path) -> None:
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "k3s-agent.service").symlink_to("/nowhere/k3s-agent.service")
    assert len(read(root).files) == 1


def test_file_that_cannot_be_read_makes_the_reading_incomplete(root: Path) -> None:
    (root / "etc").mkdir()
    (root / "etc/kubernetes").symlink_to("kubernetes")
    (problem,) = read(root).unreadable
    assert "etc/kubernetes: Too many levels of symbolic links" in problem


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("kubelet", "--root-dir=/data/kubelet"), "data/kubelet/cpu_manager_state"),
        (("kubelet", "--root-dir", "/data/kubelet", "--v=2"), "data/kubelet/pods/uid"),
        (("kubelet", "--config=/srv/node/kubelet.yaml"), "srv/node/kubelet.yaml"),
        (("kubelet", "--kubeconfig=//srv//node/kubeconfig"), "srv/node/kubeconfig"),
        (("kubelet", "--cert-dir=/srv/node/pki"), "srv/node/pki/kubelet.crt"),
        (("k3s", "agent", "--data-dir", "/data/k3s"), "data/k3s/agent/kubelet.kubeconfig"),
        (("k0s", "worker", "--data-dir=/data/k0s"), "data/k0s/kubelet/pki"),
    ],
)
def test_file_at_a_path_of_the_command_line_is_a_trace_after_the_kubelet_stopped(
    root: Path, arguments: Sequence[str], name: str
) -> None:
    reader = KubeletTraceReader(Clock(), root, uid=0)
    add_file(root, name)
    assert reader.read() == KubeletTraces()
    directory = add_process(root, 812, arguments[0], arguments)
    assert reader.read().processes
    shutil.rmtree(directory)
    found = reader.read()
    assert found.processes == ()
    assert [name.startswith(each.removeprefix(f"{root}/")) for each in found.files] == [True]


@pytest.mark.parametrize("value", ["data", "/data/../..", "", "/", "/" + "x" * 5000, "/data/[/x]", "/data\x1b"])
def test_invalid_path_of_a_command_line_is_ignored(root: Path, value: str) -> None:
    add_process(root, 812, "kubelet", ("kubelet", f"--root-dir={value}", "--config", "--cert-dir"))
    found = read(root)
    assert (len(found.processes), found.files) == (1, ())
