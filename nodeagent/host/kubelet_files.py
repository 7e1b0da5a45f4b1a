"""Files that are traces of a kubelet: its state, its configuration, and the units that start it.

These files count without a running process, since a kubelet that is stopped for an upgrade still owns its pods.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
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
            if error.errno not in _ABSENT:
                unreadable.append(read_error(error))
            names = []
        yield from (f"{self._kubernetes}/{name}" for name in names if "kubelet" in name)
        yield from self._others
        yield from tuple(self._from_options)


def _exists(path: str, unreadable: list[str]) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno not in _ABSENT:
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
