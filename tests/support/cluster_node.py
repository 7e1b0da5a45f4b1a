"""Separate node on this machine: mount, network, UTS and PID namespaces with a disk and a real containerd.

All default paths of a node are valid in these namespaces. Mounts, sysctls and processes end with the first process of
the node, so that none remains on the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support import images, reclaim
from tests.support.command import ROOT
from tests.support.containerd_config import STATE, config_text
from tests.support.pods import Pods
from tests.support.system_command import environment, run

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "node-1"
ADDRESS = "192.0.2.10"
CONTAINERD = "/run/containerd/containerd.sock"
_CGROUPS = Path("/sys/fs/cgroup")
_DISK_MIB = 1024
_STOP_S = 20.0
_LOG_LINES = 60

# $1 is the base directory, $2 the name, $3 the address. A kubelet sets sysctls of the whole machine, so that files of a
# tmpfs are mounted over them.
_ENTER = """
set -e
base=$1
hostname "$2"
ip link set lo up
ip link add eth0 type veth peer name peer0
ip address add "$3/24" dev eth0
ip link set eth0 up; ip link set peer0 up
ip route add default via 192.0.2.1
for name in etc var/lib; do
  mkdir -p "$base/over/$name" "$base/work/$name"
  mount -t overlay overlay -o "lowerdir=/$name,upperdir=$base/over/$name,workdir=$base/work/$name" "/$name"
done
echo "$2" | md5sum | cut -c 1-32 > /etc/machine-id
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mkdir -p "$base/disk" /run/sysctls /var/lib/kubelet /var/log/pods /var/log/containers
mount -t ext4 -o loop "$base/disk.img" "$base/disk"
mkdir "$base/disk/kubelet" "$base/disk/pods" "$base/disk/containerd"
mount --bind "$base/disk/kubelet" /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount --bind "$base/disk/pods" /var/log/pods
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
    kernel/keys/root_maxbytes; do
  cp "/proc/sys/$name" "/run/sysctls/${name##*/}"
  mount --bind "/run/sysctls/${name##*/}" "/proc/sys/$name"
done
echo entered
exec sleep infinity
"""

# Network plugin without effect: pods have the network of the node or no network.
_CNI_PLUGIN = """#!/bin/sh
cat > /dev/null
test "$CNI_COMMAND" != ADD || echo '{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "198.51.100.2/24"}]}'
test "$CNI_COMMAND" != VERSION || echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0"]}'
"""
_CNI_CONFIG = '{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]}'


class ClusterError(Exception):
    """Failure of a process of the cluster; the text contains the end of its log."""


class Part:
    """Process of the node, with its log."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line[:400] for line in lines[-_LOG_LINES:])


class ClusterNode:
    """Context manager for the namespaces of a node and its containerd."""

    def __init__(self, name: str = NAME, address: str = ADDRESS) -> None:
        self.name = name
        self.address = address
        self.base = Path(tempfile.mkdtemp(prefix="nodeagent-cluster-"))
        self.parts: dict[str, Part] = {}
        self._holder: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Self:
        try:
            self._enter()
            self._start_containerd()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def logs(self) -> list[tuple[str, str]]:
        """Title and end of the log of every process of the node."""
        return [(part.name, part.log_tail()) for part in self.parts.values()]

    def path(self, inside: str) -> Path:
        """Return the path of a node's file as seen from outside the node."""
        return Path(f"/proc/{self._init}/root{inside}")

    def pods(self) -> Pods:
        """Return a CRI client of the node's runtime; the caller must close the client."""
        return Pods(self.path(CONTAINERD))

    def command(self, *words: str) -> list[str]:
        """Return the arguments that run a command in the namespaces of the node."""
        return ["nsenter", f"--target={self._init}", "--mount", "--uts", "--net", "--pid", "--", *words]

    def run(self, *words: str) -> str:
        """Run a command in the node and return its output.

        Raises:
            ClusterError: the command failed.
        """
        return run(self.command(*words), ClusterError, timeout_s=60)

    def start(self, name: str, *words: str) -> Part:
        """Start a process in the node; its output is appended to the log with its name."""
        log = self.base / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**environment(), "PYTHONPATH": str(ROOT)},  # nsenter changes the working directory
                start_new_session=True,
            )
        part = self.parts[name] = Part(name, process, log)
        return part

    def start_module(self, name: str, module: str, *words: str) -> Part:
        """Start a Python module in the node."""
        return self.start(name, sys.executable, "-m", module, *words)

    def stop(self, name: str, *, kill: bool = False) -> None:
        """Stop the process with a name, by SIGTERM or with ``kill`` by SIGKILL."""
        part = self.parts.pop(name)
        for pid in _children(part.process.pid) or [part.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9 if kill else 15)
        try:
            part.process.wait(_STOP_S)
        except subprocess.TimeoutExpired as error:
            part.process.kill()
            raise ClusterError(f"{name} did not stop within {_STOP_S:g} s\n{part.log_tail()}") from error

    def close(self) -> None:
        """End all processes of the node and remove all its files; idempotent."""
        if self._holder is not None:
            self._holder.kill()  # unshare --kill-child: kills the whole PID namespace
            self._holder.communicate()
            self._holder = None
        for part in self.parts.values():
            part.process.wait(_STOP_S)
        self.parts.clear()
        deadline = time.monotonic() + _STOP_S
        while (left := self._cgroups()) and time.monotonic() < deadline:
            for each in left:
                with contextlib.suppress(OSError):
                    each.rmdir()
        shutil.rmtree(self.base, ignore_errors=True)

    def _cgroups(self) -> list[Path]:
        """Return the cgroups of the node's last containers; those of other nodes of the machine are beside them."""
        tasks = self.base / STATE / "io.containerd.runtime.v2.task" / "k8s.io"
        names = [each.name for each in tasks.iterdir()] if tasks.is_dir() else []
        return [path for name in names for path in _CGROUPS.glob(f"*/k8s.io/{name}")]

    def _enter(self) -> None:
        disk = self.base / "disk.img"
        with disk.open("wb") as sparse:
            sparse.truncate(_DISK_MIB << 20)
        run(["mkfs.ext4", "-q", "-F", "-m", "0", str(disk)], ClusterError)
        arguments = (str(self.base), self.name, self.address)
        namespaces = ["--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._holder = subprocess.Popen(
            ["unshare", *namespaces, "--propagation", "private", "sh", "-c", _ENTER, "sh", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
        first_line = self._holder.stdout.readline() if self._holder.stdout else b""
        if first_line != b"entered\n":
            rest, _ = self._holder.communicate()
            raise ClusterError(f"cannot enter the namespaces of a node: {(first_line + rest).decode()}")
        (self._init,) = _children(self._holder.pid)

    def _start_containerd(self) -> None:
        cni = self.base / "cni"
        cni.mkdir()
        for plugin in ("none", "loopback"):
            (cni / plugin).write_text(_CNI_PLUGIN)
            (cni / plugin).chmod(0o755)
        (cni / "10-none.conflist").write_text(_CNI_CONFIG)
        text = config_text(1, self.base, images.PAUSE, "")
        text = text.replace(f'root = "{self.base}/root"', f'root = "{self.base}/disk/containerd"', 1)
        text = text.replace(f"{self.base}/containerd.sock", CONTAINERD)
        (self.base / "config.toml").write_text(text)
        self.start("containerd", "containerd", "--config", str(self.base / "config.toml"))
        reclaim.poll("the socket of containerd exists", lambda: self.path(CONTAINERD).exists(), timeout_s=60)
        self.import_images([images.pause_image(images.PAUSE)])

    def import_images(self, made: Iterable[images.Image]) -> None:
        """Import images into containerd and wait until CRI lists them."""
        archive = images.write_oci(self.base / "images.tar", *made)
        self.run("ctr", "-n", "k8s.io", "images", "import", str(archive.path))
        archive.path.unlink()
        expected = set(archive.tags)
        with self.pods() as client:
            reclaim.poll(
                "the runtime lists the images",
                lambda: expected <= {tag for image in client.list_images() for tag in image.tags},
                timeout_s=60,
            )


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
