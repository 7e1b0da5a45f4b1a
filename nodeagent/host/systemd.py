"""systemd: units and state of the system, notifications of the agent's service, and the descriptor store.

Without a service manager, notifications have no effect. The descriptor store keeps the inhibitor lock across a crash of
the agent: logind grants no locks during a shutdown, so a lock that is lost with its process cannot be acquired again.
systemd keeps a copy across restarts of the service and passes it to the next process.

Source: sd_notify(3), systemd.service(5), ``WatchdogSec=``.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeagent.errors import InhibitorError
from nodeagent.files import replace_file
from nodeagent.host.commands import run
from nodeagent.host.logind_config import parse_span_us
from nodeagent.host.node import boot_id
from nodeagent.record import Record
from nodeagent.text import escape
from nodeagent.units import USEC_INFINITY

STOPPING: Final = "stopping"
_BUS: Final = "dbus.service"
_LOGIND: Final = "systemd-logind.service"
_PREPARING: Final = ("--property=PreparingForShutdown", "--value")
_OPERATIONS: Final = frozenset({"poweroff", "reboot", "halt", "kexec", "soft-reboot"})
_WITHIN_S = 5.0
_RESTART_WITHIN_S = 30.0
_SLICE_DROP_INS: Final = ("kubepods.slice.d/50-nodeagent.conf", "kubepods-.slice.d/50-nodeagent.conf")
_SLICE_DROP_IN: Final = """\
# Written by nodeagent while it will stop the pods at a shutdown: systemd does not stop the slice at its start.
[Unit]
DefaultDependencies=no
"""


class UnitStop(Record):
    """A stop of the agent's unit in progress.

    Attributes:
        system_state: output of ``systemctl is-system-running``; empty if unknown.
        timeout_us: ``TimeoutStopUSec`` of the unit; ``None`` without a limit or if unknown.
        operation: the requested operation, such as ``reboot``; empty if unknown.
        is_announced: whether logind has announced a shutdown, and waits for the locks of services; also true if logind
            does not answer, such as on an overloaded node.
    """

    system_state: str
    timeout_us: int | None = None
    operation: str = ""
    is_announced: bool = False

    @property
    def is_node_stopping(self) -> bool:
        """Whether the node is being stopped, not only the unit."""
        return self.system_state == STOPPING


def is_node_stopping() -> bool:
    """Return whether systemd is stopping the node; false if unknown, as without systemd. Blocks."""
    return _systemctl_output("is-system-running") == STOPPING


def read_unit_stop(unit: str) -> UnitStop:
    """Return the system state and the time limit of a unit's stop; values that systemd does not report are omitted.

    Source: systemctl(1), ``is-system-running``; systemd.service(5), ``TimeoutStopSec=``; loginctl(1),
    ``show-session`` without a session; org.freedesktop.login1(5), ``PreparingForShutdown``.
    """
    state = _systemctl_output("is-system-running")
    announced = state != STOPPING and _output("loginctl", "show-session", *_PREPARING) != "no"
    if not unit or not (state == STOPPING or announced):
        return UnitStop(state, is_announced=announced)
    operation = "" if announced else _pending_operation(_systemctl_output("list-jobs", "--no-legend", "--plain"))
    return UnitStop(state, read_stop_timeout_us(unit), operation, announced)


def read_stop_timeout_us(unit: str) -> int | None:
    """Return ``TimeoutStopUSec`` of a unit; ``None`` without a limit or if unknown."""
    try:
        timeout_us = parse_span_us(_systemctl_output("show", "--property=TimeoutStopUSec", "--value", unit))
    except ValueError:
        return None
    return None if timeout_us == USEC_INFINITY else timeout_us


def _pending_operation(jobs: str) -> str:
    """Return the operation whose target is being started, from systemd's list of jobs; empty if unknown."""
    for line in jobs.splitlines():
        words = line.split()
        if len(words) >= 3 and words[2] == "start" and words[1].removesuffix(".target") in _OPERATIONS:
            return words[1].removesuffix(".target")
    return ""


def soft_reboots() -> int:
    """Return the number of soft reboots since the kernel started, which preserve the boot id; 0 if unknown.

    Source: org.freedesktop.systemd1(5), ``SoftRebootsCount``.
    """
    text = _systemctl_output("show", "--property=SoftRebootsCount", "--value")
    return int(text) if text.isdecimal() else 0


def userspace_id() -> str:
    """Return an id of this start of the userspace: the boot id, with the number of soft reboots unless 0."""
    count = soft_reboots()
    return f"{boot_id()}+{count}" if count else boot_id()


class PodSlices:
    """The slices of pods, exempt from a shutdown by runtime drop-ins. The methods block.

    systemd stops every slice at the start of a shutdown, and with it the pods, before the agent could stop them in
    order. Without default dependencies it stops the slices last, as a kubelet creates them. The drop-ins do not survive
    a reboot.
    """

    def __init__(self, directory: Path = Path("/run/systemd/system")) -> None:
        """Use drop-ins below ``directory``, in directories that the unit creates."""
        self._directory = directory
        self._paths = tuple(directory / name for name in _SLICE_DROP_INS)

    def exempt(self) -> None:
        """Exempt the slices, unless systemd does not run this machine.

        Raises:
            InhibitorError: a drop-in cannot be written, or systemd does not load it; no drop-in remains.
        """
        try:
            self._change(_write_drop_in)
        except InhibitorError:
            with suppress(InhibitorError):
                self.restore()
            raise

    def restore(self) -> None:
        """Remove the drop-ins; during a shutdown systemd does not reload them.

        Raises:
            InhibitorError: a drop-in cannot be removed, or systemd does not reload its units.
        """
        self._change(lambda path: path.unlink(missing_ok=True))

    def _change(self, change: Callable[[Path], None]) -> None:
        if not self._directory.is_dir():
            return
        try:
            for path in self._paths:
                change(path)
        except OSError as error:
            text = f"cannot write {error.filename}: {error.strerror}"
            raise InhibitorError(f"{text}; systemd stops pods in any order if logind does not signal") from error
        # Asked each time: a process that changed the files may have ended before the reload.
        state = _systemctl_output("show", "--property=NeedDaemonReload", "--value", "kubepods.slice")
        unknown_but_unused = not state and not any(each.exists() for each in self._paths)
        if state == "no" or unknown_but_unused or _systemctl_output("is-system-running") == STOPPING:
            return
        done = run("systemctl", "daemon-reload", within_s=_RESTART_WITHIN_S)
        if done is None or done.returncode:
            raise InhibitorError(f"cannot reload systemd: {done.stderr.strip() if done else 'no answer'}")


def _write_drop_in(path: Path) -> None:
    if not path.exists():  # a newer file would require a reload
        replace_file(path, _SLICE_DROP_IN, mode=0o644)


class LogindUnit:
    """logind as a unit of systemd; systemctl uses systemd's own socket, not the bus. The methods block."""

    def runs_beside_the_bus(self) -> bool:
        """Return whether the units of logind and the bus are active; a disconnected logind then does not reconnect.

        False if the system is stopping or the state is unknown.

        Source: observed with systemd 257 and dbus-daemon: after a restart of the bus, logind does not reconnect;
        systemctl(1), ``is-system-running``, which is ``stopping`` as soon as a shutdown is queued.
        """
        if _systemctl_output("is-system-running") in ("", STOPPING):
            return False
        return _systemctl_output("is-active", _BUS, _LOGIND).split() == ["active", "active"]

    def restart(self) -> None:
        """Restart logind, which preserves its locks and sessions.

        Raises:
            InhibitorError: systemd did not restart logind.
        """
        done = run("systemctl", "restart", _LOGIND, within_s=_RESTART_WITHIN_S)
        if done is None or done.returncode:
            raise InhibitorError(f"cannot restart {_LOGIND}: {done.stderr.strip() if done else 'no answer'}")


def _systemctl_output(*words: str) -> str:
    return _output("systemctl", *words)


def _output(*words: str) -> str:
    done = run(*words, within_s=_WITHIN_S)
    return done.stdout.strip() if done is not None else ""


_MAX_STATUS: Final = 800
"""Maximum length of a status line in characters, of at most 4 bytes each.

The service manager ignores a message of more than 4096 bytes, and with it READY=1. Source: systemd,
``NOTIFY_BUFFER_MAX``.
"""


class Notifier:
    """The service manager's notification socket, from the environment.

    Attributes:
        watchdog_s: watchdog timeout in seconds; ``None`` without a watchdog for this process.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        for_this_process = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self.watchdog_s = int(microseconds) / 1e6 if microseconds.isdecimal() and for_this_process else None

    @property
    def present(self) -> bool:
        """Whether a service manager started this process."""
        return bool(self._address)

    def ready(self, status: str = "") -> None:
        """Report that start-up, or a reload, has finished."""
        self._send("READY=1", status)

    def reloading(self) -> None:
        """Report the start of a reload."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report the start of the shutdown of this process."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def _send(self, state: str, status: str = "") -> None:
        shown = escape(" ".join(status.split()))
        lines = [line for line in (state, f"STATUS={shown[:_MAX_STATUS]}" if shown else "") if line]
        send("\n".join(lines), self._address)


def send(text: str, address: str, *descriptors: int) -> bool:
    """Send a message, with copies of descriptors, to the service manager; return whether it was sent.

    The call never blocks: without a listener, or with a full queue, the message is dropped.
    """
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            socket.send_fds(sender, [text.encode()], list(descriptors))
    except OSError:
        return False
    return True


LOCK_NAME: Final = "shutdown-lock"
_FIRST: Final = 3


def stored_descriptor(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the descriptor of the lock that systemd passed to this process; ``None`` without a descriptor.

    The caller closes the descriptor. If several descriptors have its name, the last is returned and the rest are
    closed.

    Source: sd_listen_fds(3), ``LISTEN_PID``, ``LISTEN_FDS`` and ``LISTEN_FDNAMES``.
    """
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return None
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    numbers = [_FIRST + index for index in range(int(count)) if index < len(names) and names[index] == LOCK_NAME]
    for number in numbers[:-1]:
        with suppress(OSError):
            os.close(number)
    return numbers[-1] if numbers else None


class DescriptorStore:
    """The descriptor store of this service; without systemd, or with a disabled store, calls have no effect."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")

    def keep(self, number: int) -> bool:
        """Store a copy of a descriptor in place of the earlier copy; return whether the message was sent.

        Source: sd_notify(3), ``FDSTORE=1``. systemd itself closes a copy whose other end is closed.
        """
        return self.forget() and send(f"FDSTORE=1\nFDNAME={LOCK_NAME}", self._address, number)

    def forget(self) -> bool:
        """Remove the stored copy; return whether the message was sent. Source: sd_notify(3), ``FDSTOREREMOVE=1``."""
        return send(f"FDSTOREREMOVE=1\nFDNAME={LOCK_NAME}", self._address)
