"""Host paths of the agent: one table for the mounts of its container and the write access of its systemd unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE: Final = "/var/lib/nodeagent"
"""State directory, created by ``StateDirectory=`` of the systemd unit."""


class HostPath(Record):
    """Host directory or file mounted at the same path in the agent's container, since the runtime reports host paths.

    Attributes:
        name: name of the volume.
        purpose: purpose of the mount, for display.
        writable: whether the agent writes to the directory.
        create: whether the directory is created if it does not exist.
        has_mounts: whether the runtime mounts filesystems below the directory. Unmounts on the host must propagate to
            the agent's container: a remaining mount would keep the files of removed containers on disk.
        is_file: whether the path is a file.
    """

    name: str
    path: str
    purpose: str
    writable: bool = False
    create: bool = False
    has_mounts: bool = False
    is_file: bool = False


LOG_ROOTS: Final = (
    HostPath("pod-logs", "/var/log/pods", "removal of the logs of deleted pods", writable=True, create=True),
    HostPath("container-logs", "/var/log/containers", "removal of links without a target", writable=True, create=True),
)
OWN: Final = (
    HostPath("state", STATE, "image use, history, holds; shared by all versions", writable=True, create=True),
    HostPath("control", "/run/nodeagent", "control socket, also for commands on the host", writable=True, create=True),
)
MACHINE_ID: Final = HostPath(
    "machine-id", "/etc/machine-id", "comparison of the Node object with this machine", is_file=True
)
CGROUPS: Final = HostPath("cgroups", "/sys/fs/cgroup", "usage of pods; running containers, checked against the lists")


def host_paths(socket_directory: str, image_root: str, manifests: str) -> Iterator[HostPath]:
    """Yield the host paths that an agent in a container needs beside a kubelet.

    Two directories are excluded: the kubelet root directory, since its volumes contain the secrets of all pods, and the
    D-Bus socket directory, since the kubelet performs graceful shutdown.

    Args:
        socket_directory: directory of the runtime socket. A mount of the socket file would still refer to the old
            socket after a restart of the runtime.
        image_root: root directory of the runtime's images and snapshots.
        manifests: directory of static pod manifests; empty without static pods.
    """
    yield HostPath("runtime", socket_directory, "socket of the container runtime", has_mounts=True)
    yield HostPath("images", image_root, "usage of the image filesystem, sizes of writable layers", has_mounts=True)
    yield CGROUPS
    yield MACHINE_ID
    if manifests:
        yield HostPath("manifests", manifests, "images of static pods, which are kept", create=True)
    yield from LOG_ROOTS
    yield from OWN
