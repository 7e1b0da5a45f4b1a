"""Tests of the virtual machine harness: complete nodes, and removal of all their files and processes at the end."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.node.conftest import APP, remove_pods
from tests.support import images, reclaim, vm

if TYPE_CHECKING:
    from tests.support.vm import Disk, Node

pytestmark = pytest.mark.node

MIB = 1 << 20


def test_all_units_are_started(node: Node) -> None:
    state = node.run("systemctl is-system-running", check=False).stdout.strip()
    assert state in {"running", "degraded"}, node.run("systemctl --failed").stdout
    assert node.run("systemctl is-active containerd dbus systemd-logind").stdout.split() == ["active"] * 3


def test_node_has_cgroup_v2_with_psi(node: Node) -> None:
    assert node.run("stat --file-system --format %T /sys/fs/cgroup").stdout.strip() == "cgroup2fs"
    assert {"cpu", "io", "memory", "pids"} <= set(node.get("/sys/fs/cgroup/cgroup.controllers").decode().split())
    for file in ("/proc/pressure/memory", "/sys/fs/cgroup/system.slice/memory.pressure"):
        assert [line.split()[0] for line in node.get(file).decode().splitlines()] == ["some", "full"]


def test_agent_connects_to_containerd(node: Node) -> None:
    agent, runtime = node.run("nodeagent version").stdout.splitlines()
    assert agent.startswith("nodeagent ")
    assert runtime.startswith("containerd 1.7.")
    assert runtime.endswith("unix:///run/containerd/containerd.sock")


def test_pod_runs_with_its_limits(node: Node) -> None:
    limits = {"memory_limit_in_bytes": 64 * MIB, "cpu_period": 100_000, "cpu_quota": 50_000}
    command = ("sh", "-c", "echo here; exec sleep 10000")
    (web,) = node.run_pods(vm.Pod("web", APP, command, namespace="shop", resources=limits))
    assert node.get(f"{web.cgroup}/memory.max") == b"%d\n" % (64 * MIB)
    assert node.get(f"{web.cgroup}/cpu.max") == b"50000 100000\n"
    (pid,) = node.get(f"{web.cgroup}/cgroup.procs").decode().split()
    assert node.get(f"/proc/{pid}/oom_score_adj") == b"500\n"
    assert node.run(["systemctl", "is-active", web.pod.slice]).stdout == "active\n"
    reclaim.poll("the log is written", lambda: b" stdout F here\n" in node.get(web.log_file))
    assert web.log_file == f"/var/log/pods/shop_web_{web.pod.uid}/main/0.log"


def test_pods_of_each_qos_class_have_their_cgroup(node: Node) -> None:
    described = [
        vm.Pod("steady", APP, qos="guaranteed", resources={"memory_limit_in_bytes": 32 * MIB}),
        vm.Pod("loose", APP, qos="besteffort"),
    ]
    steady, loose = node.run_pods(*described)
    assert "/kubepods.slice/kubepods-pod" in steady.cgroup
    assert "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" in loose.cgroup
    for pod in (steady, loose):
        assert b"populated 1" in node.get(f"{pod.cgroup}/cgroup.events")
    listed = json.loads(node.run("nodeagent pods --output json").stdout)
    assert {"steady", "loose"} <= {pod["name"] for pod in listed["pods"]}


def test_dry_run_pass_changes_nothing(node: Node) -> None:
    before = node.run("ctr -n k8s.io images ls -q").stdout
    done = node.run("nodeagent run --once --dry-run")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["event"] for event in events if event["event"] == "pass_finished"] == ["pass_finished"]
    assert all(event["dry_run"] for event in events if event["event"] == "pass_finished")
    assert node.run("ctr -n k8s.io images ls -q").stdout == before


def test_index_and_its_layers_are_imported(node: Node) -> None:
    index = images.Index(("node.test/multi:v1",), (images.image(layers=[images.blob("big", 8 * MIB)]),))
    archive = node.import_images(index)
    assert set(archive.tags) <= set(node.run("ctr -n k8s.io images ls -q").stdout.split())


def test_commands_transfer_input_output_exit_code_and_environment(node: Node) -> None:
    content = bytes(range(256)) * (3 * MIB // 256)
    node.put("/root/deep/file", content, mode=0o600)
    assert node.get("/root/deep/file") == content
    assert node.run("stat -c %a /root/deep/file").stdout == "600\n"
    done = node.run(
        'cat; echo "$WORD in $PWD" >&2; exit 3', stdin="given", env={"WORD": "word"}, cwd="/tmp", check=False
    )
    assert (done.code, done.stdout, done.stderr) == (3, "given", "word in /tmp\n")
    with pytest.raises(vm.NodeError, match=r"exit 3: no"):
        node.run("echo no >&2; exit 3")
    with pytest.raises(vm.NodeError, match="nowhere"):
        node.get("/nowhere")
    assert node.python("import sys; print(sys.stdin.read()[::-1])", stdin="abc") == "cba\n"


def test_command_is_killed_at_its_deadline(node: Node) -> None:
    with pytest.raises(TimeoutError, match=r"timed out after 1 s: begun"):
        node.run("echo begun; exec sleep 4321", timeout_s=1)
    assert node.run("pgrep --full --exact 'sleep 4321'", check=False).stdout == ""


def test_commands_run_concurrently(node: Node) -> None:
    node.run("mkfifo /root/meet")
    read: list[str] = []
    waiting = threading.Thread(target=lambda: read.append(node.run("cat /root/meet").stdout))
    waiting.start()
    node.run("echo met > /root/meet")
    waiting.join(vm.RUN_S)
    assert read == ["met\n"]


def test_journal_of_a_running_node_is_readable(node: Node) -> None:
    node.run("systemd-run --wait --unit proof echo '<4>a line of the test'")
    (entry,) = [entry for entry in node.journal() if entry.identifier == "echo"]
    assert (entry.message, entry.priority, entry.unit) == ("a line of the test", 4, "proof.service")


def test_power_off_waits_for_inhibitor_locks_and_keeps_the_journal(node: Node) -> None:
    """The last test on the node of the module."""
    remove_pods(node)
    node.run_pods(vm.Pod("last", APP))
    holder = "systemd-inhibit --mode=delay --what=shutdown --who=proof --why=test"
    # The lock is released after the test has observed the start of the shutdown on the node.
    node.run(f"systemd-run --unit holder {holder} sh -c 'until [ -e /run/seen ]; do sleep 0.1; done'")
    reclaim.poll(
        "the lock is held", lambda: "proof" in node.run("systemd-inhibit --list").stdout, timeout_s=30, interval_s=1
    )
    node.run("systemctl poweroff")
    preparing = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
    reclaim.poll("logind prepares", lambda: "true" in node.run(f"{preparing} PreparingForShutdown").stdout)
    node.run("logger --tag proof seen; touch /run/seen")
    node.wait_off()

    assert not node.running
    with pytest.raises(vm.NodeOffError):
        node.run("true")
    assert "reboot: Power down" in node.console
    messages = [entry.message for entry in node.journal()]
    position = messages.index("seen")
    assert "Reached target multi-user.target - Multi-User System." in messages[:position]
    assert "Reached target poweroff.target - System Power Off." in messages[position:]
    assert node.read_disk("/etc/hostname") == b"node-1\n"


@pytest.mark.long
def test_node_boots_after_a_power_cut_and_powers_off_by_its_button(disk: Disk) -> None:
    with vm.Node.boot(disk, memory_mib=1024, cpus=1) as node:
        node.run("logger --tag proof first; journalctl --sync; echo kept > /root/kept; sync")
        node.cut_power()
        assert "first" in [entry.message for entry in node.journal()]
        node.start()
        assert node.get("/root/kept") == b"kept\n"
        node.run("logger --tag proof second")
        node.press_power_button()
        node.wait_off()
        logged = [[one.message for one in node.journal(boot=boot) if one.identifier == "proof"] for boot in (0, 1)]
        assert logged == [["first"], ["second"]]
        assert "System is powering down." in [entry.message for entry in node.journal()]


class SimulatedError(Exception):
    """Simulated failure of a test within the node's context."""


@pytest.mark.long
def test_all_resources_of_a_failed_test_are_removed(disk: Disk) -> None:
    with contextlib.suppress(SimulatedError), vm.Node.boot(disk, memory_mib=512, cpus=1) as node:
        machines = _machines(node.base)
        raise SimulatedError
    assert len(machines) == 1
    assert not [pid for pid in machines if reclaim.alive(pid)]
    assert reclaim.leftovers(node.base) == []


def _machines(base: Path) -> list[int]:
    """Return the emulator processes of the machines in a directory, found by their arguments."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{base}/disk.img" in file.read_text(errors="replace"):
                found.append(int(file.parent.name))
    return found
