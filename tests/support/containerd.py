"""Private real containerd with separate root, state and socket, and optionally a small dedicated image filesystem."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypedDict

import grpc

from tests.support import images, reclaim, rootfs
from tests.support.containerd_config import ROOT, SOCKET, STATE, config_text
from tests.support.pods import Pods
from tests.support.system_command import environment, find_missing, run

Version = Literal["host", "1.7", "2.1"]
VERSIONS: tuple[Version, ...] = ("host", "1.7", "2.1")

_START_S = 60.0
_STOP_S = 60.0
_LOG_TAIL_BYTES = 16 << 10
_live: dict[Path, Containerd] = {}


class ContainerdError(Exception):
    """Failure of containerd or of ``ctr``; the text contains the output."""


@dataclass(frozen=True, slots=True)
class LoopFs:
    """A dedicated filesystem for containerd's root, in a sparse file; xfs and btrfs need 300 MiB or more.

    ``inodes`` is the number of inodes (ext4 only); ``reserved_percent`` is the share that ext4 reserves for root.
    ``copy_of`` is the file of a filesystem that is copied instead, see :meth:`Containerd.checkpoint`.
    """

    size_mib: int = 512
    kind: Literal["ext4", "xfs", "btrfs"] = "ext4"
    inodes: int | None = None
    reserved_percent: int = 5
    native_mib: int = 0  # size of another filesystem, for the snapshotter native
    copy_of: Path | None = None

    def mount(self, file: Path, point: Path) -> None:
        if self.copy_of is not None:
            _run(["cp", "--sparse=always", str(self.copy_of), str(file)])
            self.attach(file, point)
            return
        with file.open("wb") as sparse:
            sparse.truncate(self.size_mib << 20)
        make = [f"mkfs.{self.kind}", "-q"]
        if self.kind == "ext4":
            inodes = ["-N", str(self.inodes)] if self.inodes else []
            make = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", str(self.reserved_percent), *inodes]
        _run([*make, str(file)])
        self.attach(file, point)
        if self.native_mib:
            LoopFs(self.native_mib).mount(file.with_suffix(".native"), point / "io.containerd.snapshotter.v1.native")

    def attach(self, file: Path, point: Path) -> None:
        """Mount an existing filesystem image."""
        point.mkdir(parents=True, exist_ok=True)
        _run(["mount", "-t", self.kind, "-o", "loop", str(file), str(point)])


class Options(TypedDict, total=False):
    """Options of :class:`Containerd` in addition to its version."""

    imagefs: LoopFs | None
    sandbox_image: str
    with_pause: bool
    config: str


class Containerd:
    """Context manager for a private containerd.

    The exit of the context stops every started container and shim, unmounts, detaches loop devices and removes all
    files, also after a crash of containerd. After a killed test run, the next run removes its files and processes. A
    ``version`` other than ``host`` runs Debian's package of that version in a separate mount namespace, in which the
    temporary directory has the same path as outside. ``config`` is appended to the generated configuration.
    """

    def __init__(
        self,
        version: Version = "host",
        *,
        imagefs: LoopFs | None = None,
        sandbox_image: str = images.PAUSE,
        with_pause: bool = True,
        config: str = "",
    ) -> None:
        self.version: Version = version
        self.imagefs = imagefs
        self.sandbox_image = sandbox_image
        self.base = reclaim.make_base()
        self._with_pause = with_pause
        self._extra_config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._namespace: rootfs.Namespace | None = None
        self._pods: list[Pods] = []
        self._cri: Pods | None = None
        _live[self.base] = self

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self.start()
            if self._with_pause:
                self.import_images(images.write_oci(self.base / "pause.tar", images.pause_image(self.sandbox_image)))
        except BaseException:
            self.print_log()
            self.close()
            raise
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is not None:
            self.print_log()
        self.close()

    @property
    def root(self) -> Path:
        return self.base / ROOT

    @property
    def state(self) -> Path:
        return self.base / STATE

    @property
    def socket(self) -> Path:
        return self.base / SOCKET

    @property
    def log_root(self) -> Path:
        """Root directory of pod logs."""
        return self.base / "pods"

    @property
    def log_file(self) -> Path:
        """Log file of the daemon."""
        return self.base / "containerd.log"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ContainerdError("containerd is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start containerd and wait until CRI is available."""
        if self.running:
            raise ContainerdError("containerd is already running")
        command = self._inside("containerd", "--config", str(self.base / "config.toml"))
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True
            )
        try:
            reclaim.poll("containerd responds to CRI", self._serves, timeout_s=_START_S)
        except TimeoutError as error:
            raise ContainerdError(f"{error}\n{self.log_tail()}") from error

    def stop(self) -> None:
        """Stop containerd by SIGTERM, as systemd does; containers continue to run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill containerd by SIGKILL; containers continue to run."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start containerd."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Suspend containerd: its socket accepts connections, but calls hang."""
        reclaim.suspend(self.pid)

    def thaw(self) -> None:
        """Resume a suspended containerd."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop containerd and remove all its resources; idempotent."""
        for client in [*self._pods, *([self._cri] if self._cri else [])]:
            client.close()
        if self._process is not None:
            self.kill()
        # The namespace is closed first: mounts of the image filesystem in it would keep the loop device busy.
        reclaim.kill_all(self.base)
        if self._namespace is not None:
            self._namespace.close()
        try:
            reclaim.reclaim(self.base, {parent for pods in self._pods for parent in pods.cgroup_parents})
        finally:
            _live.pop(self.base, None)

    def ctr(self, *arguments: str, namespace: str = "k8s.io", stdin: bytes = b"") -> str:
        """Run ``ctr`` of this version and return its output; raise ContainerdError with its error output."""
        return _run(self._inside("ctr", "--address", str(self.socket), "--namespace", namespace, *arguments), stdin)

    def dump_config(self, file: Path) -> str:
        """Return the configuration that this version reads from a file and its imports, with all defaults."""
        return _run(self._inside("containerd", "--config", str(file), "config", "dump"))

    def import_images(self, archive: images.Archive | Path, *, pulled: bool = False, into: str = "overlayfs") -> None:
        """Import an archive and, if its contents are known, wait until CRI lists all its images.

        CRI updates its list by events, on 2.x with a delay of seconds for hundreds of images. An archive with artifacts
        is not unpacked and its import is not waited for, since CRI lists no artifacts. With ``pulled`` the images have
        the labels of a pull by their names, so that they count as images of a registry.
        """
        path = archive if isinstance(archive, Path) else archive.path
        known = isinstance(archive, images.Archive) and not archive.has_artifacts
        options = [] if isinstance(archive, Path) or known else ["--no-unpack"]
        options += ["--local"] if self.version == "2.1" and into != "overlayfs" else []  # unpacks for any snapshotter
        self.ctr("images", "import", "--snapshotter", into, *options, str(path))
        for image in archive.images if pulled and isinstance(archive, images.Archive) else ():
            for tag in image.tags:
                registry, _, repository = tag.rpartition(":")[0].partition("/")
                self.ctr("content", "label", image.digest, f"containerd.io/distribution.source.{registry}={repository}")
        if isinstance(archive, images.Archive) and known:
            expected = set(archive.tags)
            cri = self._client()
            reclaim.poll(
                f"CRI lists the {len(expected)} names of {path.name}",
                lambda: expected <= {tag for image in cri.list_images() for tag in image.tags},
                timeout_s=60,
            )

    def fill(self, available_bytes: int) -> None:
        """Fill the image filesystem by a ballast file until ``available_bytes`` are available; later calls resize it.

        Only for a containerd with a dedicated ``imagefs``. Blocks reserved by ext4 for root are not available, but
        containerd, as root, can use them; with ``reserved_percent=0`` the disk is also full for root. Raises
        ContainerdError if fewer bytes are already available.
        """
        if self.imagefs is None:
            raise ContainerdError("cannot fill the image filesystem: daemon created without imagefs")
        ballast = self.root / "ballast"
        ballast.unlink(missing_ok=True)
        usage = os.statvfs(self.root)
        surplus = usage.f_bavail * usage.f_frsize - available_bytes
        if surplus < 0:
            raise ContainerdError(f"cannot fill the image filesystem: {-surplus} bytes fewer available than requested")
        with ballast.open("wb") as file:
            if surplus:
                os.posix_fallocate(file.fileno(), 0, surplus)

    def checkpoint(self) -> Path:
        """Save a copy of the image filesystem for :meth:`rewind`, and return its file; containerd is restarted.

        Only for a containerd with a dedicated ``imagefs`` and without running sandboxes, since their mounts would keep
        the filesystem busy. The filesystem contains the whole state: images, container records and the state of the CRI
        plugin.
        """
        imagefs = self._detach()
        _run(["cp", "--sparse=always", str(self._imagefs_file), str(self._kept_file)])
        self._resume(imagefs)
        return self._kept_file

    def rewind(self) -> None:
        """Restore the image filesystem from the checkpoint; containerd is restarted."""
        imagefs = self._detach()
        _run(["cp", "--sparse=always", str(self._kept_file), str(self._imagefs_file)])
        self._resume(imagefs)

    def pods(self) -> Pods:
        """Return a CRI client that is closed with this containerd; its pods write logs below ``log_root``."""
        pods = Pods(self.socket, log_root=self.log_root, cgroup_parent=reclaim.cgroup_parent(self.base))
        self._pods.append(pods)
        return pods

    def shims(self) -> list[int]:
        """Return the process ids of the shims, one per sandbox."""
        return reclaim.shims(self.base)

    def log_tail(self) -> str:
        """Return the end of containerd's log, without the many lines of the start-up."""
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(max(0, self.log_file.stat().st_size - _LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(
            line for line in lines if "loading plugin" not in line and "cri plugin with config" not in line
        )

    def print_log(self) -> None:
        print(f"--- log of {self.base} (containerd {self.version}) ---\n{self.log_tail()}", file=sys.stderr)

    def _prepare(self) -> None:
        for directory in (self.root, self.state, self.log_root):
            directory.mkdir()
        if self.imagefs is not None:
            self.imagefs.mount(self._imagefs_file, self.root)
        self._enter()
        major = int(_matched(r"v?(\d+)\.\d+\.\d+", _run(self._inside("containerd", "--version"))))
        pause, extra = self.sandbox_image, self._extra_config
        (self.base / "config.toml").write_text(config_text(major, self.base, pause, extra))

    @property
    def _imagefs_file(self) -> Path:
        return self.base / "imagefs.img"

    @property
    def _kept_file(self) -> Path:
        return self.base / "imagefs.kept"

    def _resume(self, imagefs: LoopFs) -> None:
        imagefs.attach(self._imagefs_file, self.root)
        self._enter()
        self.start()

    def _enter(self) -> None:
        """Create the mount namespace of a version other than ``host``, with the current mounts."""
        if self.version != "host":
            self._namespace = rootfs.Namespace(rootfs.ensure(self.version), self.base)

    def _detach(self) -> LoopFs:
        """Stop containerd if it is running, and unmount its image filesystem."""
        if self.imagefs is None:
            raise ContainerdError("cannot save or restore the image filesystem: daemon created without imagefs")
        if self.running:
            self.stop()
        if self._namespace is not None:
            self._namespace.close()
            self._namespace = None
        reclaim.unmount(self.root)
        return self.imagefs

    def _inside(self, *command: str) -> list[str]:
        return [*(self._namespace.prefix if self._namespace else ()), *command]

    def _client(self) -> Pods:
        if self._cri is None:
            self._cri = Pods(self.socket)
        return self._cri

    def _serves(self) -> bool:
        if not self.running:
            raise ContainerdError(f"containerd exited at its start\n{self.log_tail()}")
        if not self.socket.exists():
            return False
        try:
            self._client().call("Version", timeout_s=2)
        except grpc.RpcError:
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            raise ContainerdError("containerd is not running")
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise ContainerdError(f"containerd did not stop within {_STOP_S:g} s\n{self.log_tail()}") from error
        self.socket.unlink(missing_ok=True)


def live() -> list[Containerd]:
    """Return the containerds that are not closed yet; used to report their logs."""
    return list(_live.values())


def unavailable(version: Version = "host") -> str | None:
    """Return the reason why no real containerd can run on this machine; ``None`` if containerd can run."""
    if os.geteuid() != 0:
        return "a real containerd requires root"
    needed = ["ctr", "containerd", "runc"] if version == "host" else ["mmdebstrap", "nsenter", "unshare"]
    missing = find_missing([*needed, "mount", "mkfs.ext4"])
    if not images.BUSYBOX.exists():
        missing.append("busybox-static")
    return f"not installed: {', '.join(missing)}" if missing else None


def _run(command: list[str], stdin: bytes = b"") -> str:
    return run(command, ContainerdError, stdin=stdin)


def _matched(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise ContainerdError(f"no {pattern} in {text!r}")
    return found[1]


@atexit.register
def _close_all() -> None:
    for one in live():
        with contextlib.suppress(reclaim.ReclaimError):
            one.close()
