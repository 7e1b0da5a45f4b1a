"""Node under disk pressure on a real containerd: a writing pod, other pods, and the daemon with its log.

Images and writable layers are on a small dedicated filesystem, so that the signals of ``imagefs`` are real.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent.host.pod_disk import find_upper_directories
from tests.support import images, reclaim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.containerd import Containerd, LoopFs
    from tests.support.pods import Container, Pods, Sandbox

MIB = 1 << 20
APP = "pressed.test/app:v1"
UNUSED = tuple(f"pressed.test/unused:v{number}" for number in (1, 2, 3))
_ROOT = Path(__file__).parents[2]
_START_S = 60.0


@dataclass
class Pod:
    """Pod with its only container."""

    sandbox: Sandbox
    container: Container


@dataclass
class PressedNode:
    """Containerd with a dedicated image filesystem, its pods, and the configuration of the agent.

    Attributes:
        directory: directory for configuration, state and log of the agent, on another filesystem.
        nodefs: directory used as the kubelet's root, which determines nodefs; ``None`` for the machine's own disk.
        container_gc: additional lines of the table ``container_gc`` of the configuration.
        runtime: additional lines of the table ``runtime`` of the configuration.
        kubelet: additional lines of the table ``kubelet`` of the configuration.
    """

    containerd: Containerd
    directory: Path
    nodefs: Path | None = None
    container_gc: str = ""
    runtime: str = ""
    kubelet: str = ""
    pods: Pods = field(init=False)
    created: dict[str, Pod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pods = self.containerd.pods()

    @property
    def log(self) -> Path:
        """Log of the daemon, one JSON document per line."""
        return self.directory / "log"

    @property
    def available_bytes(self) -> int:
        """Available bytes on the image filesystem."""
        usage = os.statvfs(self.containerd.root)
        return usage.f_bavail * usage.f_frsize

    @property
    def inodes_free(self) -> int:
        """Free inodes of the image filesystem."""
        return os.statvfs(self.containerd.root).f_favail

    def import_images(self, *, unused: bool = False) -> None:
        """Import the image of the pods; with ``unused``, also import three unused images of 12 MiB each."""
        imported = [images.image(APP)]
        if unused:
            imported += [images.image(tag, layers=[images.blob(tag.rpartition(":")[2], 12 * MIB)]) for tag in UNUSED]
        self.containerd.import_images(images.write_oci(self.directory / "images.tar", *imported))

    def tags(self) -> set[str]:
        """Return every image name that CRI lists."""
        return {tag for each in self.pods.list_images() for tag in each.tags}

    def run_pod(
        self,
        name: str,
        command: str,
        *,
        done: str = "/done",
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        runtime_handler: str = "",
        image: str = APP,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[Path, str] | None = None,
        pod_uid: str = "",
    ) -> Pod:
        """Run a burstable pod as a kubelet does, and wait until its command has created the file ``done``.

        After the command, the container sleeps until SIGTERM. Sandbox and container have the given labels and
        annotations.
        """
        uid = pod_uid or str(uuid.uuid4())
        parent = f"{self.pods.cgroup_parent}/kubepods/burstable/pod{uid}"
        sandbox = self.pods.run_sandbox(
            name,
            namespace=namespace,
            uid=uid,
            cgroup_parent=parent,
            labels=labels,
            annotations=annotations,
            runtime_handler=runtime_handler,
        )
        script = f"trap 'exit 0' TERM; {command}; touch {done}; while :; do sleep 1000 & wait $!; done"
        container = self.pods.create_container(
            sandbox,
            "main",
            image,
            ["sh", "-c", script],
            resources={"oom_score_adj": 999},
            labels=labels,
            annotations=annotations,
            env=env,
            mounts=mounts,
        )
        self.pods.start(container)
        root = self._root(container)
        reclaim.poll(f"command of {name} finished", (root / done.lstrip("/")).exists, timeout_s=60)
        self.created[name] = Pod(sandbox, container)
        return self.created[name]

    def run_writer(self, name: str, mib: int, *, runtime_handler: str = "") -> Pod:
        """Run a pod that writes ``mib`` MiB to its writable layer, synced to disk."""
        command = f"dd if=/dev/zero of=/data bs=1M count={mib} 2>/dev/null; sync"
        pod = self.run_pod(name, command, runtime_handler=runtime_handler)
        os.sync()
        return pod

    def with_nodefs(self, filesystem: LoopFs) -> Path:
        """Mount a dedicated filesystem as nodefs, with the logs of later pods on it; return its mount point."""
        self.nodefs = self.containerd.log_root
        filesystem.mount(self.containerd.base / "nodefs.img", self.nodefs)
        return self.nodefs

    def with_single_filesystem(self) -> None:
        """Use the image filesystem as nodefs too, with the logs of later pods on it."""
        logs = self.containerd.root / "pods"
        logs.mkdir()
        self.containerd.log_root.mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", str(logs), str(self.containerd.log_root)], check=True)
        self.nodefs = self.containerd.root

    def touch(self, name: str, path: str) -> None:
        """Create an empty file in the root filesystem of a pod."""
        (self._root(self.created[name].container) / path.lstrip("/")).touch()

    def layer(self, pod: Pod) -> Path:
        """Return the directory of a pod's writable layer."""
        found = find_upper_directories([pod.container.id])
        return Path(found[pod.container.id])

    def running(self) -> set[str]:
        """Return the names of the pods with a running container."""
        names = {each.id: each.name for each in self.pods.list_sandboxes()}
        return {names[each.sandbox_id] for each in self.pods.list_containers() if each.state == "RUNNING"}

    def configure(self, eviction: str) -> Path:
        """Write the configuration of the agent with the given eviction settings; return its path."""
        config = self.directory / "nodeagent.toml"
        state = self.directory / "state"
        config.write_text(
            f"""role = "standalone"
[runtime]
endpoint = {json.dumps(f"unix://{self.containerd.socket}")}
{self.runtime}
[image_gc]
enabled = false
minimum_age = "0s"
undo_window = "0s"
[container_gc]
enabled = false
pod_log_root = {json.dumps(str(self.containerd.log_root))}
container_log_root = {json.dumps(str(self.directory / "links"))}
{self.container_gc}
[kubelet]
manifests = ""
{self.kubelet}
[shutdown]
enabled = "off"
[state]
directory = {json.dumps(str(state))}
[control]
socket = ""
[metrics]
listen = {json.dumps(f"unix://{self.metrics_socket}")}
[log]
format = "json"
[eviction]
enabled = "on"
pressure_transition_period = "1s"
interval = "1s"
{eviction}
"""
        )
        return config

    @contextmanager
    def daemon(self, eviction: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the daemon with the given eviction settings until the end of the block."""
        config = self.configure(eviction)
        started = len(self.events("eviction_monitoring_started"))
        command = [*self.with_mounted_nodefs(), sys.executable, "-m", "nodeagent", "run", "--config", str(config)]
        with self.log.open("ab") as out, subprocess.Popen(command, stderr=out, cwd=_ROOT) as process:
            try:
                reclaim.poll(
                    "the eviction loop started",
                    lambda: process.poll() is not None or len(self.events("eviction_monitoring_started")) > started,
                    timeout_s=_START_S,
                )
                assert process.poll() is None, self.log.read_text()
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()
                    assert process.wait(timeout=60) == 0

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return the log events with a name; without a name, return all events."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [each for each in found if not name or each["event"] == name]

    def wait_for(self, name: str, count: int = 1, *, timeout_s: float = 60) -> list[dict[str, Any]]:
        """Wait for ``count`` log events with a name; return the events."""
        try:
            reclaim.poll(
                f"{count} x {name}", lambda: len(self.events(name)) >= count, timeout_s=timeout_s, interval_s=0.1
            )
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log.read_text() if self.log.exists() else ''}") from error
        return self.events(name)

    def wait_until_any(self, *names: str, timeout_s: float = 90) -> None:
        """Wait for a log event with one of these names."""
        reclaim.poll(" or ".join(names), lambda: any(map(self.events, names)), timeout_s=timeout_s, interval_s=0.1)

    def wait_passes(self, count: int) -> None:
        """Wait until the eviction loop has finished ``count`` more passes."""
        ends = self._passes() + count
        reclaim.poll(f"{count} more passes", lambda: self._passes() >= ends, timeout_s=60 + 10 * count, interval_s=0.1)

    @property
    def metrics_socket(self) -> Path:
        """Path of the socket for metrics and health probes."""
        return self.containerd.base / "metrics.sock"

    def metrics(self) -> str:
        """Return the metrics of the daemon, with the header of the response."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(self.metrics_socket))
            connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()

    def _passes(self) -> int:
        """Return the number of passes of the eviction loop, from the daemon's metrics."""
        found = re.search(r'^nodeagent_task_runs_total\{task="eviction"\} (\d+)', self.metrics(), re.MULTILINE)
        return int(found[1]) if found else 0

    def with_mounted_nodefs(self) -> list[str]:
        """Return a command prefix that mounts ``nodefs`` at the kubelet's root in a new mount namespace."""
        if self.nodefs is None:
            return []
        mount = 'mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet && mount --rbind "$0" /var/lib/kubelet'
        return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", f'{mount} && exec "$@"', str(self.nodefs)]

    def _root(self, container: Container) -> Path:
        task = f"state/io.containerd.runtime.v2.task/k8s.io/{container.id}/init.pid"
        return Path(f"/proc/{int((self.containerd.base / task).read_text())}/root")
