"""A whole node in a virtual machine: Debian with systemd, cgroup v2, logind and containerd, and this checkout's agent.

The machine is emulated by QEMU's TCG, without hardware virtualisation, with a CPU model that its kernel supports (it
panics with ``max`` and ``qemu64``). The root image is built once per set of packages and kept in the cache of
``rootfs``, the disk once per state of the checkout; a node boots a copy of the disk. There is no network: commands are
sent over a virtio port to ``vm_guest`` in the node, which systemd starts early and stops last in a power-off.

    with Node.boot(ensure_disk(), memory_mib=2048) as node:
        print(node.run("nodeagent version").stdout)
        node.poweroff()
        print(node.journal())
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import threading
import tomllib
import uuid
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from tests.support import images, reclaim, rootfs, vm_guest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SUITE = "trixie"
PYTHON = "3.13"  # version of the Debian release
NAME = "node-1"
HARNESS = "/opt/harness"  # tests.support, importable in the node

BOOT_S = 300.0
HUNG_S = 120.0
OFF_S = 120.0
RUN_S = 60.0

CHECKOUT = Path(__file__).parents[2]
_INSTALLED = ("nodeagent", "systemd", "pyproject.toml", "README.md", "LICENSE")
_START_S = 30.0
_TAIL_LINES = 60
_SEND_S = 60
_BUILD_S = 1200.0
_CLOCK_SKEW_S = 15.0  # margin of a deadline on the host over the same one in the node
_DISK_MIB = 3072
_KEPT = 3  # number of cached disks and bases; each state of a checkout has its own

# fmt: off
_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "udev", "linux-image-cloud-amd64", "containerd", "runc", "busybox-static",
    "python3", "python3-venv", "iproute2", "procps", "kmod", "e2fsprogs",
)
_MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "getty@tty1.service",
    "serial-getty@ttyS0.service", "systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount", "modprobe@drm.service", "modprobe@efi_pstore.service", "modprobe@fuse.service",
)
# fmt: on

# The kernel has ext4 and the PCI bus built in; a small initramfs is unpacked fast under emulation.
_EARLY_HOOK = """
mkdir -p "$1/etc/initramfs-tools/conf.d"
echo MODULES=list > "$1/etc/initramfs-tools/conf.d/node"
echo virtio_blk > "$1/etc/initramfs-tools/modules"
"""

_FILES = {
    "etc/hostname": f"{NAME}\n",
    "etc/hosts": f"127.0.0.1 localhost {NAME}\n",
    "etc/resolv.conf": "",
    "etc/machine-id": "6e6f64656167656e742d746573742d31\n",
    "etc/containerd/config.toml": f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
""",
    "etc/systemd/system/control.service": """\
[Unit]
Description=Commands of the test
DefaultDependencies=no

[Service]
ExecStart=/usr/bin/python3 /opt/harness/tests/support/vm_guest.py
Environment=LANG=C.UTF-8 PYTHONUNBUFFERED=1
Restart=always
OOMScoreAdjust=-1000

[Install]
WantedBy=sysinit.target
""",
    "etc/systemd/journald.conf.d/node.conf": """\
[Journal]
Storage=persistent
RateLimitIntervalSec=0
SyncIntervalSec=5s
""",
}

# $1 is the root, the rest runs in it, in a mount namespace of its own.
_IN_ROOT = """
set -e
root=$1; shift
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
exec chroot "$root" "$@"
"""

# $1 is the base's root, $2 a scratch directory with the overlay in upper/, $3 the image to create, $4 its size in MiB.
_MAKE_DISK = """
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/merged"
mount -t proc proc "$2/merged/proc"
mount --bind /dev "$2/merged/dev"
chroot "$2/merged" env -i PATH=/usr/bin:/bin PIP_NO_INDEX=1 PIP_FIND_LINKS=/opt/wheels \
    /opt/nodeagent/bin/pip install --quiet --disable-pip-version-check --root-user-action ignore /usr/src/nodeagent
umount "$2/merged/dev" "$2/merged/proc"
touch "$2/merged/etc/.updated" "$2/merged/var/.updated"
mke2fs -q -t ext4 -d "$2/merged" "$3" "$4M"
"""

_PYTHON = "/opt/nodeagent/bin/python"
_OOM_SCORES = {"guaranteed": -997, "burstable": 500, "besteffort": 1000}

_live: dict[Path, Node] = {}


def pause_image() -> images.Image:
    """Return the sandbox image, which exits on SIGTERM; otherwise a power-off would wait 90 s for it."""
    forever = "trap 'exit 0' TERM; while :; do /busybox-pause sleep 2147483647 & wait $!; done"
    return replace(images.pause_image(), command=("/busybox-pause", "sh", "-c", forever))


class NodeError(Exception):
    """The node, or a command in it, failed; the text contains the output."""


class NodeOffError(NodeError):
    """The node is powered off."""


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a command in the node."""

    command: str
    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One journal entry; ``fields`` contains all journald fields."""

    realtime_us: int
    boot_id: str
    unit: str
    identifier: str
    priority: int
    message: str
    fields: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of one container to run in the node; ``resources`` are the fields of CRI's LinuxContainerResources.

    Its cgroup and its OOM score follow from ``qos`` as with the kubelet; the score can be given in ``resources``.
    """

    name: str
    image: str
    command: tuple[str, ...] = ()
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    container: str = "main"
    qos: Literal["guaranteed", "burstable", "besteffort"] = "burstable"
    resources: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def slice(self) -> str:
        """Systemd unit of the pod's cgroup."""
        parent = "kubepods" if self.qos == "guaranteed" else f"kubepods-{self.qos}"
        return f"{parent}-pod{self.uid.replace('-', '_')}.slice"

    @property
    def cgroup(self) -> str:
        """Directory of the pod's cgroup in the node."""
        between = "" if self.qos == "guaranteed" else f"kubepods-{self.qos}.slice/"
        return f"/sys/fs/cgroup/kubepods.slice/{between}{self.slice}"

    def request(self) -> dict[str, object]:
        """Return the description of the pod for ``vm_pods``."""
        return {
            "name": self.name,
            "image": self.image,
            "container": self.container,
            "command": list(self.command),
            "resources": {"oom_score_adj": _OOM_SCORES[self.qos], **self.resources},
            "sandbox": {
                "namespace": self.namespace,
                "uid": self.uid,
                "cgroup_parent": self.slice,
                "labels": dict(self.labels),
                "annotations": dict(self.annotations),
            },
        }


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A started pod in the node."""

    pod: Pod
    sandbox_id: str
    container_id: str
    log_file: str

    @property
    def cgroup(self) -> str:
        """Directory of the container's cgroup in the node."""
        return f"{self.pod.cgroup}/cri-containerd-{self.container_id}.scope"


@dataclass(frozen=True, slots=True)
class Disk:
    """Boot files of a node: a disk image, copied before use, and its kernel."""

    image: Path
    root: Path

    @property
    def kernel(self) -> Path:
        return next((self.root / "boot").glob("vmlinuz-*"))

    @property
    def initrd(self) -> Path:
        return next((self.root / "boot").glob("initrd.img-*"))


def unavailable() -> str | None:
    """Return the reason that no node can be booted here; ``None`` if one can."""
    if platform.machine() != "x86_64":
        return "the virtual machine requires x86_64"
    if os.geteuid() != 0:
        return "building the root image requires root"
    needed = ["qemu-system-x86_64", "mmdebstrap", "mke2fs", "e2fsck", "debugfs", "unshare", "setpriv", "gcc"]
    missing = [name for name in needed if shutil.which(name, path=_environment()["PATH"]) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def ensure_disk() -> Disk:
    """Return the disk with this checkout installed; a missing one is built (requires mirrors of Debian and PyPI)."""
    cache = rootfs.cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with rootfs.locked(cache / "node.lock"):
        base = cache / f"node-{_base_key()}"
        if not base.exists():
            _build_base(base)
        image = base / f"disk-{_checkout_key()}.img"
        if not image.exists():
            for old in sorted(base.glob("disk-*.img"), key=lambda disk: disk.stat().st_mtime)[: -_KEPT + 1]:
                old.unlink()
            _build_disk(base, image)
    return Disk(image, base / "root")


class Node:
    """A running node, as a context manager; its exit stops the machine and removes its files.

    Created with ``boot``. After a power-off the disk is kept until the end of the block: ``journal`` and ``read_disk``
    read it, ``start`` boots it again. The thread that starts the machine must outlive it, since the kernel kills the
    emulator at the end of that thread. ``console`` is the serial output of kernel and systemd, of all boots.
    """

    def __init__(self, disk: Disk, *, memory_mib: int, cpus: int) -> None:
        self.source = disk
        self.memory_mib = memory_mib
        self.cpus = cpus
        self.base = reclaim.make_base()
        self.disk = self.base / "disk.img"
        self.console_file = self.base / "console.log"
        self._machine_log = self.base / "machine.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._control: _Control | None = None
        _live[self.base] = self

    @classmethod
    @contextlib.contextmanager
    def boot(cls, disk: Disk, *, memory_mib: int = 2048, cpus: int = 2, timeout_s: float = BOOT_S) -> Iterator[Self]:
        """Boot a copy of the disk and wait until systemd has started everything.

        A kernel under emulation occasionally hangs at boot; a first boot that exceeds its timeout is aborted,
        reported with its console, and booted again.
        """
        node = cls(disk, memory_mib=memory_mib, cpus=cpus)
        try:
            _run(["cp", "--sparse=always", str(disk.image), str(node.disk)])
            try:
                node.start(timeout_s=min(timeout_s, HUNG_S))
            except TimeoutError as error:
                print(f"boot timed out: {error}; booting again", file=sys.stderr)
                node.print_console()
                node.cut_power()
                _run(["cp", "--sparse=always", str(disk.image), str(node.disk)])
                node.start(timeout_s=timeout_s)
            yield node
        except BaseException:
            node.print_console()
            raise
        finally:
            node.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def console(self) -> str:
        return self.console_file.read_text(errors="replace") if self.console_file.exists() else ""

    def start(self, *, timeout_s: float = BOOT_S) -> None:
        """Boot the machine and wait until systemd has started everything; a unit may have failed."""
        if self.running:
            raise NodeError("the node is already running")
        with self._machine_log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        reclaim.poll("the emulator listens on its sockets", self._connected, timeout_s=_START_S)
        self.run("systemctl is-system-running --wait", check=False, timeout_s=timeout_s)

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "/root",
        timeout_s: float = RUN_S,
        check: bool = True,
    ) -> Done:
        """Run a command as root, a string by the shell, and return exit code and output.

        Raises NodeError when ``check`` is on and the exit code is not 0, TimeoutError at the timeout (the command
        and its process group are killed then), NodeOffError when the node powers off meanwhile. Background
        programs require a unit: ``systemd-run``.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        code, stdout, stderr = self._request(argv, _bytes(stdin), dict(env or {}), cwd, timeout_s)
        done = Done(command if isinstance(command, str) else " ".join(command), code, _text(stdout), _text(stderr))
        if check and code != 0:
            raise NodeError(f"{done.command}: exit {code}: {done.stderr.strip()}\n{done.stdout.strip()}")
        return done

    def put(self, path: str, content: str | bytes | Path, *, mode: int = 0o644) -> None:
        """Write a file in the node, with its parents; a Path is copied from the host."""
        raw = content.read_bytes() if isinstance(content, Path) else _bytes(content)
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
        self.run(["/bin/sh", "-c", script, "sh", path, f"{mode:o}"], stdin=raw)

    def get(self, path: str) -> bytes:
        """Return the content of a file in the node."""
        code, stdout, stderr = self._request(["cat", path], b"", {}, "/", RUN_S)
        if code != 0:
            raise NodeError(f"cannot read {path}: {_text(stderr).strip()}")
        return stdout

    def python(self, code: str, *, stdin: str | bytes = b"", timeout_s: float = RUN_S) -> str:
        """Run Python in the node, by the agent's interpreter and with ``tests.support``; return its output."""
        environment = {"PYTHONPATH": HARNESS}
        return self.run([_PYTHON, "-c", code], stdin=stdin, env=environment, timeout_s=timeout_s).stdout

    def import_images(self, *described: images.Image | images.Index) -> images.Archive:
        """Write the images on the host and import them into the node's containerd."""
        archive = images.write_oci(self.base / "images.tar", *described)
        self.put("/root/images.tar", archive.path)
        self.run("ctr -n k8s.io images import /root/images.tar && rm /root/images.tar", timeout_s=RUN_S * 2)
        return archive

    def run_pods(self, *described: Pod) -> list[RunningPod]:
        """Run pods as the kubelet does with the systemd cgroup driver; the pause image must be imported already."""
        sent = json.dumps([one.request() for one in described])
        code = "from tests.support import vm_pods; vm_pods.main()"
        made = json.loads(self.python(code, stdin=sent, timeout_s=RUN_S * (1 + len(described))))
        return [RunningPod(pod, **result) for pod, result in zip(described, made, strict=True)]

    def press_power_button(self) -> None:
        """Request a power-off by the ACPI button, as a hypervisor does; ``wait_off`` waits for it."""
        watching = "journalctl --boot --unit systemd-logind --grep 'Watching system buttons.*Power Button'"
        reclaim.poll("logind watches the button", lambda: self.run(watching, check=False).code == 0, timeout_s=RUN_S)
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(_START_S)
            monitor.connect(str(self._socket("monitor")))
            with monitor.makefile("rw") as lines:
                lines.readline()  # the greeting precedes every response of QMP
                for command in ("qmp_capabilities", "system_powerdown"):
                    lines.write(json.dumps({"execute": command}) + "\n")
                    lines.flush()
                    answer = json.loads(lines.readline())
                    if "error" in answer:
                        raise NodeError(f"{command}: {answer['error']}")

    def poweroff(self, *, timeout_s: float = OFF_S) -> None:
        """Power off as an administrator does, by logind and its inhibitors, and wait for the end."""
        self.run("systemctl poweroff")
        self.wait_off(timeout_s=timeout_s)

    def wait_off(self, *, timeout_s: float = OFF_S) -> None:
        """Wait for the power-off; raises TimeoutError if the machine still runs, NodeError after a crash."""
        if self._process is None:
            raise NodeOffError("the node is already powered off")
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"node not powered off after {timeout_s:g} s") from None
        output = self._ended()
        if code != 0:
            raise NodeError(f"emulator failed with exit code {code}: {output}")

    def cut_power(self) -> None:
        """Cut the power of the machine."""
        if self._process is None:
            raise NodeOffError("the node is already powered off")
        self._process.kill()
        self._process.wait()
        self._ended()

    def close(self) -> None:
        """Stop the machine and remove its files; idempotent."""
        if self._process is not None:
            self.cut_power()
        try:
            reclaim.reclaim(self.base)
        finally:
            _live.pop(self.base, None)

    def journal(self, *, boot: int = -1) -> list[Entry]:
        """Return the journal of one boot, the last one by default; from the disk of a powered-off node.

        ``boot`` is an index: 0 is the first boot, -1 the last.
        """
        if self.running:
            entries = _entries(self.run("journalctl --sync && journalctl --output json --all").stdout)
        else:
            entries = self._journal_of_disk()
        boots = list(dict.fromkeys(entry.boot_id for entry in entries))
        return [entry for entry in entries if entry.boot_id == boots[boot]]

    def read_disk(self, path: str) -> bytes:
        """Return the content of a file on the disk of a powered-off node."""
        with self._dumped(path) as copy:
            return copy.read_bytes()

    def print_console(self) -> None:
        print(f"--- console of {self.base} ---\n{self.console_tail()}", file=sys.stderr)

    def console_tail(self) -> str:
        return "\n".join([line for line in self.console.splitlines() if line.strip()][-_TAIL_LINES:])

    def _command(self) -> list[str]:
        return [
            *("setpriv", "--pdeathsig", "KILL"),
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "Nehalem"),
            *("-m", str(self.memory_mib), "-smp", str(self.cpus), "-nodefaults", "-display", "none", "-no-reboot"),
            *("-kernel", str(self.source.kernel), "-initrd", str(self.source.initrd)),
            *("-append", "root=/dev/vda rw console=ttyS0 psi=1 loglevel=5 systemd.show_status=1 TERM=dumb"),
            *("-drive", f"file={self.disk},format=raw,if=virtio,cache=unsafe"),
            *("-chardev", f"file,id=console,path={self.console_file},append=on", "-serial", "chardev:console"),
            *("-qmp", f"unix:{self._socket('monitor')},server=on,wait=off"),
            *("-chardev", f"socket,id=control,path={self._socket('control')},server=on,wait=off"),
            *("-device", "virtio-serial-pci", "-device", f"virtserialport,chardev=control,name={vm_guest.PORT}"),
        ]

    def _socket(self, name: str) -> Path:
        return self.base / f"{name}.sock"

    def _connected(self) -> bool:
        if not self.running:
            raise NodeError(f"emulator exited at its start: {self._ended()}")
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self._socket("control")))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return False
        self._control = _Control(connection)
        return True

    def _request(
        self, argv: list[str], stdin: bytes, env: dict[str, str], cwd: str, timeout_s: float
    ) -> tuple[int, bytes, bytes]:
        if self._control is None:
            raise NodeOffError(f"{argv}: node powered off")
        head = {"argv": argv, "env": env, "cwd": cwd, "timeout_s": timeout_s}
        answer, raw = self._control.ask(head, stdin, timeout_s + _CLOCK_SKEW_S)
        if "error" in answer:
            raise NodeError(f"{argv}: {answer['error']}")
        stdout, stderr = raw[: answer["stdout"]], raw[answer["stdout"] :]
        if answer["code"] is None:
            raise TimeoutError(f"{argv}: timed out after {timeout_s:g} s: {_text(stdout + stderr)}")
        return answer["code"], stdout, stderr

    def _ended(self) -> str:
        """Release a stopped machine and return the standard error of its emulator."""
        process, self._process = self._process, None
        control, self._control = self._control, None
        if control is not None:
            control.close()
        if process is not None:
            for name in ("control", "monitor"):
                self._socket(name).unlink(missing_ok=True)
        return self._machine_log.read_text(errors="replace").strip()

    def _journal_of_disk(self) -> list[Entry]:
        with self._dumped("/var/log/journal") as copy:
            # journalctl of the node, as the journal format depends on its version.
            script = (
                'root=$1; mount --bind "$2" "$root/mnt"; exec chroot "$root" journalctl -D /mnt --output json --all'
            )
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"]
            return _entries(_run([*command, str(self.source.root), str(copy)]))

    @contextlib.contextmanager
    def _dumped(self, path: str) -> Iterator[Path]:
        """Copy a file or directory from the disk's filesystem, after a replay of its log as at boot."""
        if self.running:
            raise NodeError("cannot read the disk: the node is running")
        replay = ["e2fsck", "-p", "-E", "journal_only", str(self.disk)]
        _run(replay)
        target = self.base / "dumped"
        target.mkdir()
        try:
            _run(["debugfs", "-R", f'rdump "{path}" "{target}"', str(self.disk)])
            copy = target / Path(path).name
            if not copy.exists():
                raise NodeError(f"{path} not found on the disk")
            yield copy
        finally:
            shutil.rmtree(target)


class _Control(vm_guest.Channel):
    """Host side of the control channel; thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        super().__init__(self._socket.fileno())
        self._waiting: dict[int, Future[tuple[dict[str, Any], bytes]]] = {}
        self._guard = threading.Lock()
        self._numbers = 0
        self._ended = False
        self._receiver = threading.Thread(target=self._receive_all, name="node control", daemon=True)
        self._receiver.start()

    def ask(self, head: dict[str, Any], raw: bytes, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for the response."""
        answer: Future[tuple[dict[str, Any], bytes]] = Future()
        with self._guard:
            if self._ended:
                raise NodeOffError(f"{head['argv']}: node powered off")
            self._numbers += 1
            number = self._numbers
            self._waiting[number] = answer
        try:
            self.send({**head, "id": number}, raw)
            return answer.result(timeout_s)
        except BlockingIOError:
            raise TimeoutError(f"{head['argv']}: request not accepted by the node in {_SEND_S} s") from None
        except FutureTimeoutError:
            raise TimeoutError(f"{head['argv']}: no response of the node in {timeout_s:g} s") from None
        except OSError as error:
            raise NodeOffError(f"{head['argv']}: {error}") from error
        finally:
            with self._guard:
                self._waiting.pop(number, None)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._receiver.join()
        self._socket.close()

    def nothing_read(self) -> None:
        raise EOFError("the node powered off")

    def _receive_all(self) -> None:
        try:
            while True:
                head, raw = self.receive()
                with self._guard:
                    waiting = self._waiting.get(head["id"])
                if waiting is not None:
                    waiting.set_result((head, raw))
        except (EOFError, OSError) as error:
            with self._guard:
                self._ended = True
                lost = list(self._waiting.values())
            for one in lost:
                one.set_exception(NodeOffError(str(error)))


def live() -> list[Node]:
    """Return the nodes not yet closed, for their consoles."""
    return list(_live.values())


def _base_key() -> str:
    return _digest(SUITE, *_PACKAGES, *_MASKED, _EARLY_HOOK, *_dependencies(), json.dumps(_FILES))


def _checkout_key() -> str:
    parts = []
    for top in (*_INSTALLED, "tests/support"):
        place = CHECKOUT / top
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file() and "__pycache__" not in file.parts:
                parts += [str(file.relative_to(CHECKOUT)), file.read_bytes().hex()]
    return _digest(*parts, _MAKE_DISK, str(_DISK_MIB))


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _dependencies() -> list[str]:
    described = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    return [*described["build-system"]["requires"], *described["project"]["dependencies"]]


def _build_base(base: Path) -> None:
    """Build the root without the checkout: packages, settings, and the wheels of the agent's dependencies."""
    others = sorted(base.parent.glob("node-*/"), key=lambda one: one.stat().st_mtime)
    for old in (*base.parent.glob("node-*.partial"), *others[: -_KEPT + 1]):
        shutil.rmtree(old)
    partial = base.with_suffix(".partial")
    partial.mkdir()
    root = partial / "root"
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    packages = f"--include={','.join(_PACKAGES)}"
    hook = f"--extract-hook={_EARLY_HOOK}"
    _run(["mmdebstrap", "--variant=minbase", packages, hook, *left_out, SUITE, str(root)])
    for name, text in _FILES.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for directory in ("usr/src/nodeagent", "var/log/journal", HARNESS.lstrip("/")):
        (root / directory).mkdir(parents=True, exist_ok=True)
    _in_root(root, "systemctl", "mask", *_MASKED)
    _in_root(root, "systemctl", "enable", "control.service", "containerd.service")
    platforms = [f"--platform=manylinux{version}_x86_64" for version in ("_2_28", "_2_17", "2014")]
    only = ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}", *platforms]
    wheels = ["--quiet", "--dest", str(root / "opt/wheels"), *only, *_dependencies()]
    _run([sys.executable, "-m", "pip", "download", *wheels])
    _in_root(root, "python3", "-m", "venv", "/opt/nodeagent")
    requirements = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
    pip = ["/opt/nodeagent/bin/pip", "install", "--quiet", "--no-index", "--find-links=/opt/wheels"]
    _in_root(root, *pip, "--root-user-action=ignore", *requirements)
    (root / "usr/local/bin/nodeagent").symlink_to("/opt/nodeagent/bin/nodeagent")
    partial.rename(base)


def _build_disk(base: Path, image: Path) -> None:
    """Install the checkout on top of the base as the README describes, and create a disk image of both."""
    scratch = base / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    for name in ("upper/usr/src/nodeagent", "work", "merged"):
        (scratch / name).mkdir(parents=True)
    without = shutil.ignore_patterns("__pycache__")
    for top in _INSTALLED:
        source, target = CHECKOUT / top, scratch / "upper/usr/src/nodeagent" / top
        if source.is_dir():
            shutil.copytree(source, target, ignore=without)
        else:
            shutil.copy(source, target)
    harness = scratch / "upper" / HARNESS.lstrip("/")
    shutil.copytree(CHECKOUT / "tests/support", harness / "tests/support", ignore=without)
    (harness / "tests/__init__.py").touch()
    partial = image.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MAKE_DISK, "sh"]
    _run([*command, str(base / "root"), str(scratch), str(partial), str(_DISK_MIB)])
    shutil.rmtree(scratch)
    partial.rename(image)


def _in_root(root: Path, *command: str) -> None:
    cleared = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
    script = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _IN_ROOT, "sh", str(root)]
    _run([*script, *cleared, *command])


def _entries(lines: str) -> list[Entry]:
    return [_entry(json.loads(line)) for line in lines.splitlines()]


def _entry(parsed: dict[str, Any]) -> Entry:
    fields = {name: _field(value) for name, value in parsed.items()}
    return Entry(
        int(fields["__REALTIME_TIMESTAMP"]),
        fields.get("_BOOT_ID", ""),
        fields.get("_SYSTEMD_UNIT", ""),
        fields.get("SYSLOG_IDENTIFIER", ""),
        int(fields.get("PRIORITY", "6")),
        fields.get("MESSAGE", ""),
        fields,
    )


def _field(value: object) -> str:
    """Return the text of a field: journald exports non-text bytes as numbers, and a repeated field as a list."""
    if isinstance(value, list):
        if all(isinstance(part, int) for part in value):
            return _text(bytes(value))
        return "\n".join(_field(part) for part in value)
    return "" if value is None else str(value)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False, timeout=_BUILD_S)
    if done.returncode != 0:
        raise NodeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-4000:].strip()}")
    return done.stdout
