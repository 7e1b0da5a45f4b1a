"""Daemon in a separate process, on a simulated node in another process."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIGURATION: Final = """
role = "{1}"
reload_grace = "0s"
runtime.endpoint = "unix://{0}/sim.sock"
state.directory = "{0}/state"
container_gc.pod_log_root = "{0}/logs"
container_gc.container_log_root = "{0}/links"
control.socket = "{0}/run/control.sock"
metrics.listen = "{2}"
log.format = "json"
"""
_START_WITHIN_S: Final = 60
_STOP_WITHIN_S: Final = 60
_ROOT: Final = Path(__file__).parents[2]


class SimulatedDaemon(NamedTuple):
    """Process id, control socket and log of a daemon."""

    pid: int
    control_socket: Path
    log: Path


@contextmanager
def simulated_daemon(
    directory: Path, configuration: str = "", role: str = "standalone", *, images: int = 0, metrics: str = ""
) -> Iterator[SimulatedDaemon]:
    """Run a daemon until the end of the block, with its files in a directory and with additional settings.

    Args:
        directory: parent of all files.
        configuration: further settings.
        role: role of the node.
        images: number of images of the node; 0 for the default node.
        metrics: address of the metrics listener; empty for a unix socket.
    """
    (directory / "config.toml").write_text(
        _CONFIGURATION.format(directory, role, metrics or f"unix://{directory}/metrics.sock") + configuration
    )
    for each in ("logs", "links", "run"):
        (directory / each).mkdir(exist_ok=True)
    python = (sys.executable, "-m")
    node: tuple[str, ...] = (
        *python,
        "tests.sim",
        "--socket",
        str(directory / "sim.sock"),
        "--root",
        str(directory / "root"),
    )
    if images:
        node += ("--images", str(images))
    log = directory / "log"
    with log.open("w") as out, subprocess.Popen(node, stdout=out, cwd=_ROOT) as simulated:
        try:
            _wait_for(directory / "sim.sock")
            command = (*python, "nodeagent", "run", "--config", str(directory / "config.toml"))
            with subprocess.Popen(command, stdout=out, stderr=out, cwd=_ROOT) as daemon:
                try:
                    path = directory / "run" / "control.sock"
                    _wait_for(path)
                    yield SimulatedDaemon(daemon.pid, path, log)
                finally:
                    daemon.terminate()
                    try:
                        daemon.wait(_STOP_WITHIN_S)
                    except subprocess.TimeoutExpired:
                        daemon.kill()
                        raise
        finally:
            simulated.terminate()


def _wait_for(path: Path) -> None:
    ends_s = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < ends_s:
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.connect(str(path))
            return
        time.sleep(0.05)  # polled, since another process starts the socket
    raise TimeoutError(path)
