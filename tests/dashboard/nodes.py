"""Nodes of the dashboard campaign, on which the events of all panels occur.

``PressedDaemon``: a real containerd with two image filesystems, without a kubelet. Passes, removals and evictions are
real; logind and the kernel's counters of OOM kills are simulated in the daemon's mount namespace. ``BesideKubelet``: a
simulated runtime and a kubelet's pod list; the runtime refuses to remove containers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.dashboard.prometheus import is_answered
from tests.sim.scenario import example_node
from tests.sim.server import SimServer
from tests.support import images
from tests.support.containerd import Containerd, LoopFs
from tests.support.kernel_tree import add_cgroup, make_tree
from tests.support.kubelet_api import Answer, kubelet, pod_list
from tests.support.login1 import Login1, PrivateBus
from tests.support.pressed import MIB, PressedNode
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future
    from typing import Any

_REPOSITORY: Final = Path(__file__).parents[2]
_START_S: Final = 60.0
_EVENT_S: Final = 180.0
_WRITER_MIB: Final = 160
_WRITE: Final = f"touch /done; until [ -e /go ]; do sleep 0.1; done; dd if=/dev/zero of=/data bs=1M count={_WRITER_MIB}"
_RESTART, _RELOAD, _FULL = 2, 1, 3
_PERIOD: Final = 5
"""Number of rounds after which the restart of containerd, the reload and the full disk are repeated."""
_NAMESPACE: Final = (
    'mount --bind "$0" /sys/fs/cgroup && mkdir -p /run/dbus && mount -t tmpfs none /run/dbus && '
    'ln -s "$1" /run/dbus/system_bus_socket && shift && exec "$@"'
)
"""Shell script that mounts the simulated cgroups and the private bus for one daemon."""
_PLACES: Final = """
role = "{role}"
reload_grace = "0s"
[runtime]
endpoint = "unix://{socket}"
[state]
directory = "{directory}/state"
[control]
socket = "{directory}/control.sock"
[metrics]
listen = "127.0.0.1:{port}"
[log]
format = "json"
[image_gc]
interval = "10s"
high_threshold_percent = 2
low_threshold_percent = 1
minimum_age = "20s"
[container_gc]
interval = "10s"
deleted_pod_grace = "20s"
sandbox_minimum_age = "10s"
log_minimum_age = "20s"
pod_log_root = "{logs}"
container_log_root = "{directory}/links"
"""
_PRESSED: Final = """
[eviction]
enabled = "on"
interval = "2s"
pressure_transition_period = "5s"
hard = "imagefs.available<{limit}Mi,pid.available<10%"
soft = "imagefs.inodesFree<10%"
soft_grace_period = "imagefs.inodesFree=1m"
[shutdown]
enabled = "on"
[protect]
images = ["pressed.test/app:*"]
"""
_BESIDE: Final = '[kubelet]\nurl = "{url}"\n'


class _Loop:
    """Event loop in a thread, for the simulations."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the event loop until it ends."""
        future: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.result(_START_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Daemon:
    """Daemon in a separate process, with metrics on a loopback port."""

    def __init__(self, directory: Path, port: int) -> None:
        directory.mkdir()
        (directory / "links").mkdir()
        self._directory, self._port = directory, port
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, configuration: str, prefix: tuple[str, ...] = ()) -> None:
        config = self._directory / "config.toml"
        config.write_text(configuration)
        command = [*prefix, sys.executable, "-m", "nodeagent", "run", "--config", str(config)]
        log = self._stack.enter_context((self._directory / "log").open("wb"))
        self._process = subprocess.Popen(command, stderr=log, cwd=_REPOSITORY)
        self._stack.callback(self._stop)
        poll("the daemon listens", self._is_live, timeout_s=_START_S, interval_s=0.2)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _is_live(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()
        return is_answered(f"http://127.0.0.1:{self._port}/healthz")


class PressedDaemon(_Daemon):
    """Daemon without a kubelet on a real containerd, under disk pressure in every round."""

    def __enter__(self) -> Self:
        containerd = self._stack.enter_context(Containerd(imagefs=LoopFs(700, native_mib=160)))
        self._containerd = containerd
        self._node = PressedNode(containerd, self._directory)
        self._node.import_images()
        self._loop = _Loop()
        self._stack.callback(self._loop.close)
        bus = PrivateBus(self._directory)
        bus.start()
        self._stack.callback(bus.stop)
        self._logind = Login1(bus.address, self._directory, limit_us=30_000_000)
        self._loop.run(self._logind.start())
        self._cgroups = self._directory / "kernel"
        tree = make_tree(self._cgroups)
        limit = self._node.available_bytes // MIB - _WRITER_MIB * 2 // 3
        text = _PLACES.format(
            role="standalone",
            socket=containerd.socket,
            directory=self._directory,
            port=self._port,
            logs=containerd.log_root,
        )
        shell = ("unshare", "--mount", "--propagation", "slave", "sh", "-c", _NAMESPACE, str(tree))
        self._start(text + _PRESSED.format(limit=limit), (*shell, str(self._directory / "bus")))
        return self

    def step(self, number: int) -> None:
        """Import images; run a pod that ends, a pod with an OOM kill, and a pod that is evicted for disk usage."""
        self._import_unused(number)
        if number % _PERIOD == _RESTART:
            lost = len(self._node.events("runtime_unavailable"))
            self._containerd.stop()
            self._node.wait_for("runtime_unavailable", lost + 1, timeout_s=_EVENT_S)
            self._containerd.start()
        if number % _PERIOD == _RELOAD:
            self._signal(signal.SIGHUP)
        pods = self._node.pods
        ended = pods.run_sandbox(f"job-{number}")
        pods.wait_exited(pods.run_container(ended, "main", "pressed.test/app:v1", ["sh", "-c", "echo done"]))
        pods.stop_sandbox(ended)
        self._kill(f"killed-{number}")
        if number % _PERIOD == _FULL:
            before = len(self._node.events("no_evictable_pod"))
            with (self._containerd.root / "ballast").open("wb") as ballast:
                os.posix_fallocate(ballast.fileno(), 0, _WRITER_MIB * MIB)
            self._node.wait_for("no_evictable_pod", before + 1, timeout_s=_EVENT_S)
            (self._containerd.root / "ballast").unlink()
        else:
            before = len(self._node.events("evicted"))
            self._node.run_pod(f"writer-{number}", _WRITE)
            self._node.touch(f"writer-{number}", "/go")
            self._node.wait_for("evicted", before + 1, timeout_s=_EVENT_S)

    def shut_down(self) -> None:
        """Announce a shutdown and wait until the daemon has stopped all pods."""
        self._node.run_pod("last", "true")

        async def request() -> None:
            self._logind.request_shutdown()

        self._loop.run(request())
        self._node.wait_for("shutdown_finished", timeout_s=_EVENT_S)

    def _import_unused(self, number: int) -> None:
        for store in ("overlayfs", "native"):
            tag = f"pressed.test/{store}:v{number}"
            unused = images.image(tag, layers=[images.blob(f"{store} {number}", 4 * MIB)])
            archive = images.write_oci(self._directory / f"{store}.tar", unused)
            self._containerd.import_images(archive, pulled=True, into=store)

    def _kill(self, name: str) -> None:
        """Run a pod, count an OOM kill in its cgroup, and stop the pod."""
        parents = self._node.pods.cgroup_parents
        before = set(parents)
        pod = self._node.run_pod(name, "true")
        (parent,) = parents - before
        killed = len(self._node.events("oom_kill")) + 1
        add_cgroup(self._cgroups, parent, kills=1)
        self._node.wait_for("oom_kill", killed, timeout_s=_EVENT_S)
        self._node.pods.stop_sandbox(pod.sandbox)


class BesideKubelet(_Daemon):
    """Daemon beside a simulated kubelet, on a simulated runtime that refuses to remove containers."""

    def __enter__(self) -> Self:
        loop = _Loop()
        self._stack.callback(loop.close)
        root = self._directory / "root"
        scenario = example_node(now=datetime.now(UTC), root_path=str(root))
        Path(scenario.node.imagefs_path).mkdir(parents=True)
        scenario.write_logs(self._directory / "logs")
        self._server = SimServer(scenario.node, self._directory / "sim.sock")
        loop.run(self._server.start())
        self._stack.callback(lambda: loop.run(self._server.stop()))
        self._server.faults.fail("RemoveContainer", times=None, status="INTERNAL")
        url = self._stack.enter_context(kubelet(Answer(body=pod_list("web"))))
        text = _PLACES.format(
            role="beside-kubelet",
            socket=self._directory / "sim.sock",
            directory=self._directory,
            port=self._port,
            logs=self._directory / "logs",
        )
        self._start(text + _BESIDE.format(url=url))
        return self

    def step(self, number: int) -> None:
        """Make one ``ListImages`` call of the runtime fail in this round."""
        del number
        self._server.faults.fail("ListImages", status="DEADLINE_EXCEEDED")
