"""Traces of a kubelet on this node: processes, state and configuration; and listeners on its ports.

All traces are readable under the unit's hardening: ``hidepid`` (``ProtectProc=invisible``) exempts the group of the
mount, which is 0, so that root in group 0 can read every process. An agent in a container, or in a unit with
``PrivatePIDs=`` or another group, can read fewer processes. If process 1 is missing, or the PID namespace is not the
initial namespace, the reading is incomplete and the role unknown: on a node in a container (LXC, nspawn) the role must
be configured. The same applies to an agent in a container with the host's PID namespace, detected by its cgroup:
kubelet files, the only trace of a stopped kubelet, are hidden in the container.

A process counts as a kubelet by its command name or ``argv[0]``, if it runs as root or as the agent's user and in the
PID namespace of the agent. Set-user-ID programs of other users do not count: any user can start ``su`` under the name
of a kubelet. Processes of nested PID namespaces do not count: a kubelet needs the PIDs of its host, so that "kubelet"
in a nested namespace is a node in a container (kind, k3d) with a runtime of its own, or a tenant's attempt to disable
eviction. A kubelet in a container with the host's PID namespace (RKE, Talos) counts, and so does a tenant's process
there: such a pod is privileged anyway. ``/proc/PID/exe`` is not read, since that requires ``CAP_SYS_PTRACE``. psutil
reads no PID namespaces, and reads command lines for long names, even if command lines must not be read.

Listeners of root or the agent's user on the ports 10248 and 10250 are reported, and do not count: the listening process
is unknown, and can be a root process without capabilities of a pod in the host's network.

Files of a kubelet count without a running process, since a kubelet that is stopped for an upgrade still owns its pods.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from nodeagent.host.sockets import ListenerReader
from nodeagent.model.node import KubeletProcess, KubeletTraces

if TYPE_CHECKING:
    from nodeagent.units import Clock

_NO_FILE: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
_MAX_PATHS_FROM_OPTIONS: Final = 64
_PATH: Final = re.compile(r"/+[\w@:+=,~.-][\w./@:+=,~-]*")

KUBELET_ROOT: Final = Path("/var/lib/kubelet")
"""Default root directory of the kubelet. Source: kubelet ``--root-dir``."""

_ROOTS: Final = (str(KUBELET_ROOT).lstrip("/"), "var/snap/microk8s/common/var/lib/kubelet", "var/lib/k0s/kubelet")
_STATE: Final = (
    "config.yaml",
    "kubeconfig",
    "bootstrap-kubeconfig",
    "kubeadm-flags.env",
    "pki",
    "pods",
    "cpu_manager_state",
    "memory_manager_state",
    "dra_manager_state",
    "graceful_node_shutdown_state",
    "allocated_pods_state",
    "actuated_pods_state",
    "device-plugins/kubelet.sock",
    "pod-resources/kubelet.sock",
    "plugins_registry",
)
"""Traces below a kubelet's root directory. The directory alone is not a trace: other tools store files in it."""

_CONFIGURATION: Final = (
    "home/kubernetes/kubelet-config.yaml",
    "etc/rancher/node/password",
    "etc/rancher/k3s/config.yaml",
    "etc/rancher/k3s/k3s.yaml",
    "etc/rancher/rke2/config.yaml",
    "etc/rancher/rke2/rke2.yaml",
    "var/lib/rancher/k3s/agent",
    "var/lib/rancher/rke2/agent",
    "run/k3s/containerd",
    "run/k0s/containerd.sock",
    "etc/k0s/k0s.yaml",
    "var/lib/k0s/kubelet.conf",
    "var/lib/k0s/kubelet-config.yaml",
    "var/snap/microk8s/current/credentials/kubelet.config",
    "etc/kubeedge/config/edgecore.yaml",
    "var/lib/edged",
    "var/lib/microshift",
    "var/run/secrets/kubernetes.io/serviceaccount",  # exists if the agent itself runs in a pod
)
_KUBERNETES: Final = "etc/kubernetes"
"""Directory in which every entry with "kubelet" in its name is a trace, such as kubelet.conf and kubelet.env."""

_UNITS: Final = tuple(
    f"etc/systemd/system/multi-user.target.wants/{name}.service"
    for name in (
        "kubelet",
        "k3s",
        "k3s-agent",
        "rke2-server",
        "rke2-agent",
        "k0scontroller",
        "k0sworker",
        "edgecore",
        "microshift",
        "snap.microk8s.daemon-kubelite",
    )
)
_DATA: Final = ("agent", "kubelet", "kubelet.conf")
_OPTIONS: Final = {
    b"root-dir": _STATE,
    b"data-dir": _DATA,
    b"d": _DATA,
    b"config": ("",),
    b"kubeconfig": ("",),
    b"bootstrap-kubeconfig": ("",),
    b"cert-dir": ("",),
}
"""Options of kubelet, k3s, rke2 and k0s with a path, and the traces below that path; an empty name means the path."""


class KubeletFileReader:
    """Repeated readings of the trace files. Paths from the command line of a kubelet are remembered."""

    def __init__(self, root: Path) -> None:
        """Create a reader of the files below ``root``."""
        self._root = root
        prefix = str(root).rstrip("/")
        self._states = tuple(
            (f"{prefix}/{each}", tuple(f"{prefix}/{each}/{name}" for name in _STATE)) for each in _ROOTS
        )
        self._others = tuple(f"{prefix}/{each}" for each in (*_CONFIGURATION, *_UNITS))
        self._kubernetes = f"{prefix}/{_KUBERNETES}"
        self._from_options: dict[str, None] = {}

    def read(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the existing trace files and the read errors. Blocks."""
        unreadable: list[str] = []
        found = tuple(each for each in self._candidates(unreadable) if _exists(each, unreadable))
        return found, tuple(unreadable)

    def learn(self, words: Iterable[bytes]) -> None:
        """Add the paths of state and configuration on a kubelet's command line to later readings."""
        for option, value in _options(words):
            path = PurePosixPath(value.decode(errors="replace"))
            if not _PATH.fullmatch(str(path)) or ".." in path.parts:
                continue
            for name in _OPTIONS[option]:
                if len(self._from_options) < _MAX_PATHS_FROM_OPTIONS:
                    self._from_options[str(self._root / str(path).lstrip("/") / name)] = None

    def _candidates(self, unreadable: list[str]) -> Iterator[str]:
        for directory, state in self._states:
            if _exists(directory, unreadable):
                yield from state
        try:
            names = sorted(os.listdir(self._kubernetes))  # noqa: PTH208 - only names are needed
        except OSError as error:
            if error.errno not in _NO_FILE:
                unreadable.append(read_error(error))
            names = []
        yield from (f"{self._kubernetes}/{name}" for name in names if "kubelet" in name)
        yield from self._others
        yield from tuple(self._from_options)


def _exists(path: str, unreadable: list[str]) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno not in _NO_FILE:
            unreadable.append(read_error(error))
        return False
    return True


def read_error(error: OSError) -> str:
    """Return the error text of an unreadable file."""
    return f"cannot read {error.filename}: {error.strerror or error}"


def _options(words: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the options with a path, in the form ``--name=value`` or ``--name value``."""
    pending = b""
    for word in words:
        if not word.startswith(b"-"):
            if pending and word:
                yield pending, word
            pending = b""
            continue
        name, equals, value = word.lstrip(b"-").partition(b"=")
        pending = b"" if equals or name not in _OPTIONS else name
        if equals and name in _OPTIONS:
            yield name, value


HOST_ROOT: Path = Path("/")
"""Default root directory of all readers; tests replace it with a temporary tree."""

HEALTH_PORT: Final = 10248
API_PORT: Final = 10250

_ABSENT: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOTDIR})
_NAME: Final = re.compile(
    rb"(?:kubelet|kubelite|k3s|rke2|k0s|edgecore|microshift|hyperkube)(?:[-._ 0-9].*)?", re.IGNORECASE | re.DOTALL
)
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_HYPERKUBE: Final = b"hyperkube"
_FIRST_NAMESPACE: Final = "pid:[4026531836]"  # Source: kernel proc_ns.h, PROC_PID_INIT_INO
_FIRST_CGROUP_NAMESPACE: Final = "cgroup:[4026531835]"  # Source: kernel proc_ns.h, PROC_CGROUP_INIT_INO
_CONTAINER_CGROUP: Final = re.compile(rb"/kubepods|(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""Pattern of the cgroup path of a pod or a container."""
_READ_BYTES: Final = 4096
_MAX_ARGUMENTS_BYTES: Final = 128 << 10
_ALL_EVERY_S: Final = 30.0
_ALL_EVERY_S_PER_PROCESS: Final = 0.06  # 15 to 30 us per process were measured: below 0.05 % of a core


class KubeletTraceReader:
    """Repeated readings of the kubelet traces.

    A new process is read in two consecutive readings, since a forked process may execute the kubelet after the first
    reading. All processes are read every ``_ALL_EVERY_S`` seconds, less often on nodes with many processes.
    """

    def __init__(self, clock: Clock, root: Path | None = None, *, uid: int | None = None) -> None:
        """Create a reader of the kubelet traces.

        Args:
            clock: limits the read rate of processes and socket tables.
            root: parent of ``proc``, ``etc``, ``run`` and ``var``; ``None`` for ``HOST_ROOT``.
            uid: user whose processes count in addition to root's; ``None`` for the user of this process.
        """
        self._clock = clock
        root = HOST_ROOT if root is None else root
        self._proc = str(root / "proc")
        self._uids = frozenset({0, os.geteuid() if uid is None else uid})
        self._listeners = ListenerReader(root, (HEALTH_PORT, API_PORT), self._uids)
        self._files = KubeletFileReader(root)
        self._read_once: frozenset[int] = frozenset()
        self._settled: frozenset[int] = frozenset()
        self._all_due_s: float | None = None

    def read(self, *, arguments: bool = True) -> KubeletTraces:
        """Return the current traces. Blocks.

        Args:
            arguments: whether to read command lines. Reading a command line locks the address space of its process, and
                a process that waits for memory can hold the lock for a long time.
        """
        now_s = self._clock.monotonic_s()
        hidden: list[str] = []
        processes = tuple(self._processes(now_s, hidden, arguments=arguments))
        ports = self._listeners.read(now_s)
        files, file_errors = self._files.read()
        return KubeletTraces(processes, ports, files, (*hidden, *file_errors))

    def _processes(self, now_s: float, hidden: list[str], *, arguments: bool) -> Iterator[KubeletProcess]:
        """Yield the kubelet processes in order of PID; append the errors of unreadable processes to ``hidden``."""
        proc = self._proc
        try:
            pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())  # noqa: PTH208 - only names are needed
            if pids[:1] != [1]:
                hidden.append(f"process 1 is hidden in {proc}")
            elif _namespace(proc, "pid") not in ("", _FIRST_NAMESPACE):
                hidden.append("processes of the node are hidden: the agent runs in its own PID namespace")
            elif _is_container(proc):
                hidden.append("files of the node are hidden: the agent runs in a container")
        except OSError as error:
            hidden.append(read_error(error))
            return
        skipped = self._settled if arguments and not self._all_due(now_s, len(pids)) else frozenset()
        others = {pid for pid in pids if pid in skipped}
        for pid in (each for each in pids if each not in skipped):
            try:
                found = self._kubelet(f"{proc}/{pid}", pid, arguments=arguments)
            except OSError as error:
                if error.errno not in _ABSENT and not hidden:
                    hidden.append(read_error(error))
                continue
            if found is None:
                others.add(pid)
            else:
                yield found
        if arguments:
            settled = frozenset(others & (self._settled | self._read_once))
            self._settled, self._read_once = settled, frozenset(others - settled)

    def _all_due(self, now_s: float, count: int) -> bool:
        """Return whether a reading of all ``count`` processes is due, not only of new processes."""
        if self._all_due_s is not None and now_s < self._all_due_s:
            return False
        self._all_due_s = now_s + max(_ALL_EVERY_S, count * _ALL_EVERY_S_PER_PROCESS)
        return True

    def _kubelet(self, directory: str, pid: int, *, arguments: bool) -> KubeletProcess | None:
        """Return the process if it is a kubelet that can manage this node, otherwise ``None``.

        Raises:
            OSError: the process has exited or cannot be read.
        """
        name = _read(f"{directory}/comm").rstrip(b"\n")
        words = _read(f"{directory}/cmdline").split(b"\0") if arguments else [b""]
        first = words[0].split(b" ")[0].rpartition(b"/")[2]
        match = next((each for each in (name, first) if _NAME.fullmatch(each)), None)
        if match is None:
            return None
        if match.lower().startswith(_HYPERKUBE) and arguments and b"kubelet" not in words[1:]:
            return None
        if not self._manages_node(_read(f"{directory}/status")):
            return None
        if arguments:
            self._files.learn(_read(f"{directory}/cmdline", _MAX_ARGUMENTS_BYTES).split(b"\0"))
        printable = _UNSAFE.sub("?", match.decode("ascii", errors="replace"))  # any user can choose a process name
        return KubeletProcess(pid, printable[:32])

    def _manages_node(self, status: bytes) -> bool:
        """Return whether a process is alive, in this PID namespace, and of a user with access to the runtime.

        Source: proc(5), ``status``: ``State``, ``Uid`` (real, effective, saved and filesystem UID; the real UID is the
        user who started a set-user-ID program), ``NSpid`` (a PID for each nested namespace, starting with the namespace
        of the reader).
        """
        fields = dict(line.split(b":", 1) for line in status.splitlines() if b":" in line)
        if fields.get(b"State", b"").strip()[:1] in (b"Z", b"X"):
            return False
        if len(fields.get(b"NSpid", b"").split()) > 1:
            return False
        users = fields.get(b"Uid", b"").split()
        return all(not each.isdigit() or int(each) in self._uids for each in users)


def read_kubelet_traces(clock: Clock, root: Path | None = None) -> KubeletTraces:
    """Return the kubelet traces of a single reading. Blocks."""
    return KubeletTraceReader(clock, root).read()


def _read(path: str, limit_bytes: int = _READ_BYTES) -> bytes:
    """Return up to ``limit_bytes`` of a file.

    Raises:
        OSError: the file cannot be read; ``filename`` is the path.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit_bytes)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(descriptor)


def _namespace(proc: str, kind: str) -> str:
    """Return a namespace of the agent, ``pid`` or ``cgroup``; empty if the kernel does not report it."""
    try:
        return os.readlink(f"{proc}/self/ns/{kind}")  # noqa: PTH115 - the target is a name
    except OSError:
        return ""


def _is_container(proc: str) -> bool:
    """Return whether the agent is in a cgroup namespace of its own, or in the cgroup of a pod or container.

    Runtimes create a cgroup namespace with cgroup v2; with cgroup v1, and on request, the cgroup path contains the
    container id. A systemd service has neither. Mount namespaces of containers and services do not differ, and root
    directories cannot be compared without ``CAP_SYS_PTRACE``.
    """
    if _namespace(proc, "cgroup") not in ("", _FIRST_CGROUP_NAMESPACE):
        return True
    try:
        return _CONTAINER_CGROUP.search(_read(f"{proc}/self/cgroup")) is not None
    except OSError:
        return False
