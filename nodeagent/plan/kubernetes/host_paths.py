"""Host paths that the agent uses: one table for the mounts of its container and the write access of its unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE: Final = "/var/lib/nodeagent"
"""Created by the unit's ``StateDirectory=``."""


class HostPath(Record):
    """A directory of the host, at the same path in the container, since the runtime reports paths of the host.

    Attributes:
        name: of the volume.
        purpose: for display.
        writable: whether the agent writes below it.
        create: whether it is created if it does not exist.
        has_mounts: whether the runtime mounts below it. The mounts must end in the container with those of the host: a
            copy would keep the files of removed containers on the disk.
    """

    name: str
    path: str
    purpose: str
    writable: bool = False
    create: bool = False
    has_mounts: bool = False


LOG_ROOTS: Final = (
    HostPath("pod-logs", "/var/log/pods", "removal of the logs of deleted pods", writable=True, create=True),
    HostPath("container-logs", "/var/log/containers", "removal of links without a target", writable=True, create=True),
)
OWN: Final = (
    HostPath("state", STATE, "image use, history, holds; shared by all versions", writable=True, create=True),
    HostPath("control", "/run/nodeagent", "control socket, also for commands on the host", writable=True, create=True),
)
CGROUPS: Final = HostPath("cgroups", "/sys/fs/cgroup", "usage of pods; running containers, checked against the lists")


def host_paths(socket_directory: str, image_root: str, manifests: str) -> Iterator[HostPath]:
    """Yield the directories of the host that an agent in a container needs beside a kubelet.

    Not among them: the kubelet's directory, whose volumes have the secrets of all pods, and the socket of D-Bus, since
    graceful shutdown is the kubelet's there.

    Args:
        socket_directory: of the runtime's socket; a mount of the socket itself would keep that of a stopped runtime.
        image_root: root directory of the runtime's images and snapshots.
        manifests: directory of static pods; empty for none.
    """
    yield HostPath("runtime", socket_directory, "socket of the container runtime", has_mounts=True)
    yield HostPath("images", image_root, "usage of the image filesystem, sizes of writable layers", has_mounts=True)
    yield CGROUPS
    if manifests:
        yield HostPath("manifests", manifests, "images of static pods, which are kept", create=True)
    yield from LOG_ROOTS
    yield from OWN
