"""Fake root directory for kubelet detection: processes, sockets, state and configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_STATUS = """\
Name:\t{name}
Umask:\t0022
State:\t{state}
Tgid:\t{pid}
Ngid:\t0
Pid:\t{pid}
PPid:\t1
TracerPid:\t0
Uid:\t{real_uid}\t{uid}\t{uid}\t{uid}
Gid:\t{uid}\t{uid}\t{uid}\t{uid}
FDSize:\t256
Groups:\t \n\
NStgid:\t{inside}
NSpid:\t{inside}
NSpgid:\t{inside}
NSsid:\t{inside}
Kthread:\t0
VmPeak:\t 1284712 kB
"""
_TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
    "                                                     "
)
_TCP6 = (
    "  sl  local_address                         remote_address                        st tx_queue rx_queue tr "
    "tm->when retrnsmt   uid  timeout inode"
)
LISTENING = "0A"
ESTABLISHED = "01"


def make_node(root: Path) -> Path:
    """Write the files of a node with process 1 and without a kubelet; return its root directory."""
    (root / "proc").mkdir(parents=True)
    add_process(root, 1, "systemd", ("/sbin/init",))
    for network in ("proc/1/net", "proc/self/net"):
        (root / network).mkdir(parents=True)
        (root / network / "tcp").write_text(_TCP + "\n")
        (root / network / "tcp6").write_text(_TCP6 + "\n")
    return root


def add_process(
    root: Path,
    pid: int,
    name: str,
    arguments: Iterable[str] = (),
    *,
    uid: int = 0,
    real_uid: int | None = None,
    inside: Iterable[int] = (),
    state: str = "S (sleeping)",
) -> Path:
    """Write the ``/proc`` files of a process; return its directory.

    ``inside`` has its PIDs in nested namespaces, outermost first.
    """
    directory = root / "proc" / str(pid)
    directory.mkdir(exist_ok=True)
    (directory / "comm").write_text(f"{name[:15]}\n")
    (directory / "stat").write_text(f"{pid} ({name[:15]}) {state[0]} 1{' 0' * 48}\n")
    (directory / "cmdline").write_text("".join(f"{each}\0" for each in arguments))
    numbers = "\t".join(map(str, (pid, *inside)))
    (directory / "status").write_text(
        _STATUS.format(
            name=name[:15],
            state=state,
            pid=pid,
            uid=uid,
            real_uid=uid if real_uid is None else real_uid,
            inside=numbers,
        )
    )
    return directory


def add_socket(
    root: Path, port: int, *, uid: int = 0, state: str = LISTENING, network: str = "proc/1/net", name: str = "tcp"
) -> None:
    """Add a row to a socket table of ``/proc/net`` in the kernel's format."""
    path = root / network / name
    number = len(path.read_text().splitlines()) - 1
    address, none = ("00000000", "00000000") if name == "tcp" else ("0" * 32, "0" * 32)
    row = (
        f"{number:4d}: {address}:{port:04X} {none}:{0:04X} {state} 00000000:00000000 00:00000000 00000000 "
        f"{uid:5d}        0 {1000 + number} 1 000000006678c9f3 100 0 0 10 0"
    )
    with path.open("a") as table:
        table.write(f"{row:<149}\n")


def add_file(root: Path, name: str) -> None:
    """Write an empty file and create its parent directories."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
