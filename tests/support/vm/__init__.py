"""Complete node in a virtual machine: Debian 12 or 13 with systemd, cgroup v2, logind and containerd, and the agent.

The machine is emulated by QEMU's TCG, without hardware virtualisation, with a CPU model that its kernel supports (the
kernel panics with ``max`` and ``qemu64``). The root image is built once per set of packages and stored in the cache of
``rootfs``; the disk is built once per state of the checkout; a node boots a copy of the disk. The node has no network:
commands are sent over a virtio port to ``vm_guest`` in the node, which systemd starts early and stops last in a
power-off.

    with Node.boot(ensure_disk(), memory_mib=2048) as node:
        print(node.run("nodeagent version").stdout)
        node.poweroff()
        print(node.journal())
"""

from __future__ import annotations

from tests.support.vm.channel import NodeError, NodeOffError
from tests.support.vm.disk import CHECKOUT, HARNESS, Disk, Release, ensure_disk, pause_image, release, unavailable
from tests.support.vm.journal import Entry
from tests.support.vm.node import RUN_S, Done, Node, live
from tests.support.vm.pod import Pod, RunningPod

__all__ = [
    "CHECKOUT",
    "HARNESS",
    "RUN_S",
    "Disk",
    "Done",
    "Entry",
    "Node",
    "NodeError",
    "NodeOffError",
    "Pod",
    "Release",
    "RunningPod",
    "ensure_disk",
    "live",
    "pause_image",
    "release",
    "unavailable",
]
