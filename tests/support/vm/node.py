"""Node in a virtual machine: boot, commands over the control channel, power-off and journal."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support import images, reclaim, vm_guest
from tests.support.vm.channel import ControlChannel, NodeError, NodeOffError
from tests.support.vm.disk import HARNESS, Disk, run_tool
from tests.support.vm.journal import Entry, parse_entries
from tests.support.vm.pod import Pod, RunningPod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BOOT_S = 300.0
HUNG_S = 120.0
OFF_S = 120.0
RUN_S = 60.0

_START_S = 30.0
_TAIL_LINES = 60

_COUNTED = "shift=1,align=off,sleep=on"  # counted clock: 2 ns per instruction, one processor at a time
_COUNTED_SLOWNESS = 10

_CLOCK_SKEW_S = 15.0  # margin by which a timeout on the host exceeds the timeout in the node

_PYTHON = "/opt/nodeagent/bin/python"

_live: dict[Path, Node] = {}


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a command in the node."""

    command: str
    code: int
    stdout: str
    stderr: str


class Node:
    """Context manager for a running node; its exit stops the machine and removes its files.

    A node is created by ``boot``. After a power-off the disk is kept until the end of the block: ``journal`` and
    ``read_disk`` read the disk, ``start`` boots it again. The thread that starts the machine must outlive the machine,
    since the kernel kills the emulator at the end of that thread. ``console`` is the serial output of kernel and
    systemd during all boots; ``counted`` is whether its clock counts instructions.
    """

    def __init__(self, disk: Disk, *, memory_mib: int, cpus: int, counted: bool = False) -> None:
        self.source = disk
        self.counted = counted
        self.memory_mib = memory_mib
        self.cpus = cpus
        self.base = reclaim.make_base()
        self.disk = self.base / "disk.img"
        self.console_file = self.base / "console.log"
        self._machine_log = self.base / "machine.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._control: ControlChannel | None = None
        _live[self.base] = self

    @classmethod
    @contextlib.contextmanager
    def boot(
        cls, disk: Disk, *, memory_mib: int = 2048, cpus: int = 2, timeout_s: float = BOOT_S, counted: bool = False
    ) -> Iterator[Self]:
        """Boot a copy of the disk, wait until systemd has started all units, and return the node.

        With ``counted`` the clock of the node advances by executed instructions, so that the load of this machine
        changes no time measured in the node. The node is then slower: a wait in the node can last ten times as long on
        this machine.

        A kernel under emulation occasionally hangs at boot. If the first boot exceeds its timeout, it is aborted, its
        console is printed, and the node is booted again.
        """
        node = cls(disk, memory_mib=memory_mib, cpus=cpus, counted=counted)
        try:
            run_tool(["cp", "--sparse=always", str(disk.image), str(node.disk)])
            try:
                node.start(timeout_s=timeout_s if counted else min(timeout_s, HUNG_S))
            except TimeoutError as error:
                print(f"boot timed out: {error}; booting again", file=sys.stderr)
                node.print_console()
                node.cut_power()
                run_tool(["cp", "--sparse=always", str(disk.image), str(node.disk)])
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
        """Boot the machine and wait until systemd has started all units; failed units are accepted."""
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
        """Run a command as root, or a string by the shell; return its exit code and output.

        Background programs require a systemd unit (``systemd-run``).

        Raises:
            NodeError: the exit code is not 0 and ``check`` is true.
            TimeoutError: the timeout has expired; the command and its process group are killed.
            NodeOffError: the node was powered off before the end of the command.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        code, stdout, stderr = self._request(argv, _bytes(stdin), dict(env or {}), cwd, timeout_s)
        done = Done(command if isinstance(command, str) else " ".join(command), code, _text(stdout), _text(stderr))
        if check and code != 0:
            raise NodeError(f"{done.command}: exit {code}: {done.stderr.strip()}\n{done.stdout.strip()}")
        return done

    def put(self, path: str, content: str | bytes | Path, *, mode: int = 0o644) -> None:
        """Write a file in the node and create its parent directories; a Path as content is a file on the host."""
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
        """Run Python code in the node by the agent's interpreter, which finds ``tests.support``; return its output."""
        environment = {"PYTHONPATH": HARNESS}
        return self.run([_PYTHON, "-c", code], stdin=stdin, env=environment, timeout_s=timeout_s).stdout

    def import_images(self, *described: images.Image | images.Index) -> images.Archive:
        """Write the described images to an archive on the host and import it into the node's containerd."""
        archive = images.write_oci(self.base / "images.tar", *described)
        self.put("/root/images.tar", archive.path)
        self.run("ctr -n k8s.io images import /root/images.tar && rm /root/images.tar", timeout_s=RUN_S * 2)
        return archive

    def run_pods(self, *described: Pod) -> list[RunningPod]:
        """Run pods as the kubelet does with the systemd cgroup driver; the pause image must have been imported."""
        sent = json.dumps([one.request() for one in described])
        code = "from tests.support import vm_pods; vm_pods.main()"
        made = json.loads(self.python(code, stdin=sent, timeout_s=RUN_S * (1 + len(described))))
        return [RunningPod(pod, **result) for pod, result in zip(described, made, strict=True)]

    def press_power_button(self) -> None:
        """Request a power-off by the ACPI button, as a hypervisor does; ``wait_off`` waits for the power-off."""
        watching = "journalctl --boot --unit systemd-logind --grep 'Watching system buttons.*Power Button'"
        reclaim.poll("logind watches the button", lambda: self.run(watching, check=False).code == 0, timeout_s=RUN_S)
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(_START_S)
            monitor.connect(str(self._socket("monitor")))
            with monitor.makefile("rw") as lines:
                lines.readline()  # QMP sends a greeting before any response
                for command in ("qmp_capabilities", "system_powerdown"):
                    lines.write(json.dumps({"execute": command}) + "\n")
                    lines.flush()
                    answer = json.loads(lines.readline())
                    if "error" in answer:
                        raise NodeError(f"{command}: {answer['error']}")

    def poweroff(self, *, timeout_s: float = OFF_S) -> None:
        """Power off through logind with its inhibitor locks, as an administrator does, and wait for the power-off."""
        self.run("systemctl poweroff")
        self.wait_off(timeout_s=timeout_s)

    def wait_off(self, *, timeout_s: float = OFF_S) -> None:
        """Wait for the power-off.

        Raises:
            TimeoutError: the machine is still running at the timeout.
            NodeError: the emulator crashed.
        """
        if self._process is None:
            raise NodeOffError("the node is already powered off")
        try:
            code = self._process.wait(self._host_s(timeout_s))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"node not powered off after {timeout_s:g} s") from None
        output = self._ended()
        if code != 0:
            raise NodeError(f"emulator failed with exit code {code}: {output}")

    def cut_power(self) -> None:
        """Cut the power of the machine without a shutdown."""
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
        """Return the journal of one boot, by default the last boot; if the node is powered off, from its disk.

        ``boot`` is the index of the boot: 0 is the first boot, -1 the last boot.
        """
        if self.running:
            entries = parse_entries(self.run("journalctl --sync && journalctl --output json --all").stdout)
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
            *(
                "qemu-system-x86_64",
                "-accel",
                f"tcg,thread={'single' if self.counted else 'multi'}",
                "-cpu",
                "Nehalem",
            ),
            *(("-icount", _COUNTED) if self.counted else ()),
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
        self._control = ControlChannel(connection)
        return True

    def _request(
        self, argv: list[str], stdin: bytes, env: dict[str, str], cwd: str, timeout_s: float
    ) -> tuple[int, bytes, bytes]:
        if self._control is None:
            raise NodeOffError(f"{argv}: node powered off")
        head = {"argv": argv, "env": env, "cwd": cwd, "timeout_s": timeout_s}
        answer, raw = self._control.ask(head, stdin, self._host_s(timeout_s) + _CLOCK_SKEW_S)
        if "error" in answer:
            raise NodeError(f"{argv}: {answer['error']}")
        stdout, stderr = raw[: answer["stdout"]], raw[answer["stdout"] :]
        if answer["code"] is None:
            raise TimeoutError(f"{argv}: timed out after {timeout_s:g} s: {_text(stdout + stderr)}")
        return answer["code"], stdout, stderr

    def _host_s(self, node_s: float) -> float:
        """Return the longest duration on the host of a duration in the node."""
        return node_s * _COUNTED_SLOWNESS if self.counted else node_s

    def _ended(self) -> str:
        """Release the resources of a stopped machine; return the standard error of its emulator."""
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
            # The node's journalctl is used, since the journal format depends on the version of systemd.
            script = (
                'root=$1; mount --bind "$2" "$root/mnt"; exec chroot "$root" journalctl -D /mnt --output json --all'
            )
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"]
            return parse_entries(run_tool([*command, str(self.source.root), str(copy)]))

    @contextlib.contextmanager
    def _dumped(self, path: str) -> Iterator[Path]:
        """Copy a file or directory from the disk's filesystem, after a replay of the filesystem journal as at boot."""
        if self.running:
            raise NodeError("cannot read the disk: the node is running")
        replay = ["e2fsck", "-p", "-E", "journal_only", str(self.disk)]
        run_tool(replay)
        target = self.base / "dumped"
        target.mkdir()
        try:
            run_tool(["debugfs", "-R", f'rdump "{path}" "{target}"', str(self.disk)])
            copy = target / Path(path).name
            if not copy.exists():
                raise NodeError(f"{path} not found on the disk")
            yield copy
        finally:
            shutil.rmtree(target)


def live() -> list[Node]:
    """Return the nodes that are not closed yet; used to report their consoles."""
    return list(_live.values())


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
