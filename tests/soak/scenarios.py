"""Scenarios of the soak test: pods and images that are created and removed, and an unavailable runtime."""

from __future__ import annotations

import http.client
import os
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.api.client import ControlClient
from tests.support import images

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.containerd import Containerd

RESTARTS_EVERY: Final = 25
READ: Final = ("Status", "Images", "Containers", "PodList", "DiskUsage", "History", "Pods", "Pressure", "Leaks")


class Scenario(Protocol):
    """Repeated work on a node with a running daemon."""

    def step(self, number: int, daemon_pid: int) -> None:
        """Perform one round of work."""


class Churn:
    """Scenario in which pods start, end and are deleted, images are imported, and the runtime restarts occasionally."""

    def __init__(self, containerd: Containerd, directory: Path) -> None:
        self._containerd, self._directory = containerd, directory
        self._pods = containerd.pods()
        self._kept = "registry.example.com/tools/app:v1"
        containerd.import_images(images.write_oci(directory / "kept.tar", images.image(self._kept)))

    def step(self, number: int, daemon_pid: int) -> None:
        """Run a pod with a new image and read all documents; occasionally restart the runtime or reload the daemon."""
        if number % RESTARTS_EVERY == RESTARTS_EVERY - 1:
            self._containerd.restart()
        if number % RESTARTS_EVERY == RESTARTS_EVERY // 2:
            os.kill(daemon_pid, signal.SIGHUP)
        tag = f"registry.example.com/churn/app{number}:v1"
        made = images.image(tag, layers=[images.blob(f"churn {number}", 1 << 16)])
        self._containerd.import_images(images.write_oci(self._directory / "churn.tar", made))
        sandbox = self._pods.run_sandbox(f"churn-{number}")
        self._pods.wait_exited(self._pods.run_container(sandbox, "done", tag, ["sh", "-c", "echo done"]))
        self._pods.stop_sandbox(sandbox)
        read_everything(self._directory)


class Away:
    """Scenario in which the runtime is stopped after the first round and not started again."""

    def __init__(self, containerd: Containerd, directory: Path) -> None:
        self._containerd, self._directory = containerd, directory

    def step(self, number: int, daemon_pid: int) -> None:
        """Stop the runtime in round 1, and read all documents."""
        del daemon_pid
        if number == 1:
            self._containerd.stop()
        read_everything(self._directory)


def read_everything(directory: Path) -> None:
    """Request every document, the metrics and the probes; ignore errors, since the runtime may be unavailable."""
    client = ControlClient(directory / "control.sock")
    for name in READ:
        with suppress(Exception):
            client.call(name)
    for path in ("/metrics", "/healthz", "/readyz"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(directory / "metrics.sock"))
            request = http.client.HTTPConnection("localhost")
            request.sock = connection
            request.request("GET", path)
            request.getresponse().read()
            request.close()
