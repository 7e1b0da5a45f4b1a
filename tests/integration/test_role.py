"""Tests of garbage collection on a real containerd beside a fake kubelet, in a PID namespace of agent and kubelet.

The namespace hides the fake kubelet from other tests on this machine, and other processes from the agent. Without a
kubelet in the namespace the agent cannot detect its role; tests without a kubelet configure the role.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.host.kubelet_traces import API_PORT, read_kubelet_traces
from nodeagent.model.decision import sentence_of
from nodeagent.model.node import Role
from nodeagent.pods.role import read_role
from nodeagent.units import SystemClock
from tests.support import images, reclaim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.containerd import Containerd
    from tests.support.pods import Container, Pods, Sandbox

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
IMAGE = "role.test/app:v1"
NODE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec")
BESIDE = '"$KUBELET" --root-dir="$DIRECTORY/kubelet-root" & while ! grep -qsx kubelet /proc/$!/comm; do :; done; '
ON_COMMAND = '(read -r _ < "$DIRECTORY/join"; exec "$KUBELET" --root-dir="$DIRECTORY/kubelet-root") & '


class Node:
    """Containerd with a configuration for the agent, and a fake kubelet."""

    def __init__(self, containerd: Containerd, pods: Pods, directory: Path) -> None:
        self.pods = pods
        self.directory = directory
        self.config = directory / "config.toml"
        self.config.write_text(
            f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
            f'[state]\ndirectory = "{directory}/state"\n'
            '[container_gc]\ninterval = "1s"\ndeleted_pod_grace = "0s"\nsandbox_minimum_age = "0s"\n'
            f'log_minimum_age = "0s"\npod_log_root = "{pods.log_root}"\ncontainer_log_root = "{directory}/links"\n'
            '[image_gc]\nenabled = false\n[eviction]\nenabled = "on"\nhard = "pid.available<1"\n'
            f'[shutdown]\nenabled = "off"\n[control]\nsocket = ""\n[metrics]\nlisten = "off"\n'
        )
        kubelet = directory / "kubelet"
        kubelet.write_text("#!/bin/sh\nsleep 600\n:\n")
        kubelet.chmod(0o755)
        self.environment = {
            **os.environ,
            "KUBELET": str(kubelet),
            "DIRECTORY": str(directory),
            "PYTHON": sys.executable,
            "CONFIG": str(self.config),
        }

    def nodeagent(self, *arguments: str, kubelet: bool) -> dict[str, Any]:
        """Run a ``nodeagent`` command in the PID namespace and return its JSON document."""
        command = '"$PYTHON" -m nodeagent "$@" --config "$CONFIG" --output json'
        ended = subprocess.run(
            [*NODE, (BESIDE if kubelet else "") + command, "sh", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=ROOT,
            env=self.environment,
        )
        assert ended.returncode == 0, f"{ended.returncode}\n{ended.stdout}\n{ended.stderr}"
        document: dict[str, Any] = json.loads(ended.stdout)
        return document

    def finished_pod(self, name: str, **more: Any) -> tuple[Sandbox, Container]:
        """Run a pod to completion, as a pod of a Job, and stop its sandbox."""
        sandbox = self.pods.run_sandbox(name, namespace="batch", **more)
        container = self.pods.run_container(sandbox, "main", IMAGE, ["sh", "-c", "echo done"])
        self.pods.wait_exited(container)
        self.pods.stop_sandbox(sandbox)
        return sandbox, container

    def has_leftovers(self, sandbox: Sandbox, container: Container) -> tuple[bool, bool, bool]:
        """Return whether the container, the sandbox and the log directory of a pod exist, in this order."""
        assert sandbox.log_directory is not None
        return (
            container.id in {each.id for each in self.pods.list_containers()},
            sandbox.id in {each.id for each in self.pods.list_sandboxes()},
            sandbox.log_directory.is_dir(),
        )

    @contextmanager
    def daemon(self) -> Iterator[Path]:
        """Run the daemon; yield the path of a pipe, in which a line starts the fake kubelet."""
        os.mkfifo(self.directory / "join")
        log = self.directory / "log"
        command = ON_COMMAND + 'exec "$PYTHON" -m nodeagent run --config "$CONFIG"'
        with (
            log.open("w") as errors,
            subprocess.Popen([*NODE, command], stderr=errors, cwd=ROOT, env=self.environment) as process,
        ):
            try:
                yield self.directory / "join"
            finally:
                process.kill()  # unshare ignores SIGTERM; by --kill-child its end also kills the daemon

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.directory / "log").read_text().splitlines()
        return [
            each for each in map(json.loads, filter(lambda line: line.endswith("}"), lines)) if each["event"] == name
        ]


@pytest.fixture
def node(containerd: Containerd, pods: Pods, tmp_path: Path) -> Node:
    containerd.import_images(images.write_oci(tmp_path / "app.tar", images.image(IMAGE)))
    return Node(containerd, pods, tmp_path)


def kept_reasons(report: dict[str, Any]) -> list[str]:
    return [
        sentence_of(each["reason"]["code"], each["reason"]["details"])
        for plan in report["plans"]
        for each in plan["decisions"]
    ]


@pytest.mark.parametrize("role", ["auto", "standalone"])
def test_leftovers_of_a_pod_are_kept_beside_a_kubelet_and_removed_without(node: Node, role: str) -> None:
    job = node.finished_pod("job")
    if role != "standalone":
        node.config.write_text(node.config.read_text().replace('"standalone"', f'"{role}"', 1))
    report = node.nodeagent("gc", "containers", "--yes", kubelet=True)
    assert report["results"] == []
    assert node.has_leftovers(*job) == (True, True, True)
    assert any("a kubelet manages this node" in each for each in kept_reasons(report))

    report = node.nodeagent("gc", "containers", "--yes", kubelet=False)
    assert node.has_leftovers(*job) == ((True,) * 3 if role == "auto" else (False,) * 3)


def test_eviction_configured_on_is_refused_beside_a_kubelet(node: Node) -> None:
    assert node.nodeagent("evict", "--dry-run", kubelet=False)["daemon_evicts"] is True
    shown = node.nodeagent("evict", "--dry-run", kubelet=True)
    assert shown["daemon_evicts"] is False
    assert "is refused: a kubelet manages this node (kubelet process" in shown["daemon_off_because"]


def test_pod_from_an_api_server_is_kept_although_the_role_is_standalone(node: Node) -> None:
    job = node.finished_pod("job", annotations={"kubernetes.io/config.source": "api"})
    preview = node.nodeagent("gc", "containers", "--dry-run", kubelet=False)
    assert preview["runtime"]["role"] == "standalone"
    report = node.nodeagent("gc", "containers", "--yes", kubelet=False)
    assert report["results"] == []
    assert node.has_leftovers(*job) == (True, True, True)
    assert any("kubernetes.io/config.source=api" in each for each in kept_reasons(report))


def test_daemon_keeps_pods_and_evicts_none_after_the_start_of_a_kubelet(node: Node) -> None:
    with node.daemon() as join:
        before = node.finished_pod("before")
        reclaim.poll(
            "the pod's container, sandbox and logs are removed",
            lambda: not any(node.has_leftovers(*before)),
            timeout_s=60,
        )
        assert node.events("agent_started")[0]["role"] == "standalone"
        assert node.events("eviction_monitoring_started")
        join.write_text("\n")
        reclaim.poll("the kubelet is detected", lambda: bool(node.events("role_changed")), timeout_s=60)
        (changed,) = node.events("role_changed")
        assert (changed["role"], "(kubelet)" in changed["because"]) == ("beside-kubelet", True)
        reclaim.poll("the eviction loop is disabled", lambda: bool(node.events("loop_disabled")), timeout_s=60)
        after, passes = node.finished_pod("after"), len(node.events("pass_finished"))
        reclaim.poll(
            "two more passes have finished", lambda: len(node.events("pass_finished")) >= passes + 2, timeout_s=60
        )
        assert node.has_leftovers(*after) == (True, True, True)


def test_listener_of_a_root_container_on_the_kubelets_port_is_reported_and_changes_nothing(node: Node) -> None:
    sandbox = node.pods.run_sandbox("impostor")
    container = node.pods.create_container(
        sandbox,
        "kubelet",
        IMAGE,
        ["/bin/busybox", "httpd", "-f", "-p", f"127.0.0.1:{API_PORT}"],
        security={"capabilities": {"drop_capabilities": ["ALL"]}},
    )
    node.pods.start(container)
    reclaim.poll("the container listens", lambda: API_PORT in read_kubelet_traces(SystemClock(), Path("/")).ports)
    decision = read_role(Role.STANDALONE, Path("/"))
    assert decision.role is Role.STANDALONE
    assert f"listener on kubelet port {API_PORT} without a kubelet process" in decision.warning
