"""Tests of the reasons against project quotas as a source of disk usage, in a virtual machine.

Walks are the only source of the usage of volumes; ``nodeagent.host.disk_usage`` states the reasons.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support import images, reclaim, vm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vm import Node

pytestmark = [pytest.mark.node, pytest.mark.long]

MIB = 1 << 20
USED_MIB = 100
KUBELET_ROOT = "/var/lib/kubelet"
CHANGER = "node.test/project-changer:v1"
UNIT = vm.CHECKOUT / "systemd" / "nodeagent.service"
# Source: linux/fs.h (struct fsxattr), ioctl_xfs_fsgetxattr(2)
CHANGE_PROJECT = r"""
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <sys/ioctl.h>
int main(int count, char **words) {
    struct fsxattr attributes;
    int file = count == 3 ? open(words[2], O_RDONLY) : -1;
    if (file < 0 || ioctl(file, FS_IOC_FSGETXATTR, &attributes))
        return 1;
    attributes.fsx_projid = strtoul(words[1], 0, 10);
    return ioctl(file, FS_IOC_FSSETXATTR, &attributes) ? 1 : 0;
}
"""
# The system call is quotactl_fd, which needs no block device; the command is Q_GETQUOTA for PRJQUOTA, and the answer a
# struct if_dqblk. Source: linux/quota.h, quotactl(2)
READ_QUOTA = f"""
import ctypes, errno, os, struct, sys
directory = os.open({KUBELET_ROOT!r}, os.O_RDONLY | os.O_DIRECTORY)
answer = ctypes.create_string_buffer(72)
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(443, directory, 0x800007 << 8 | 2, int(sys.argv[1]), answer):
    print(errno.errorcode[ctypes.get_errno()])
else:
    print(struct.unpack_from("=3Q", answer)[2])
"""


@pytest.fixture(scope="module")
def node(disk: vm.Disk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Return a node with the kubelet's directory on a filesystem with project quotas."""
    changer = tmp_path_factory.mktemp("changer") / "project"
    subprocess.run(
        ["gcc", "-static", "-O2", "-s", "-Wall", "-Werror", "-o", changer, "-xc", "-"],
        input=CHANGE_PROJECT,
        text=True,
        check=True,
    )
    layer = images.Layer((images.File("bin/project", content=changer.read_bytes(), mode=0o755),))
    with vm.Node.boot(disk, memory_mib=1024) as booted:
        booted.run(
            "truncate -s 1G /nodefs.img && mkfs.ext4 -q -O project,quota /nodefs.img"
            f" && mkdir -p {KUBELET_ROOT} && mount -o loop,prjquota /nodefs.img {KUBELET_ROOT}"
        )
        booted.import_images(vm.pause_image(), images.image(CHANGER, layers=[layer]))
        booted.put("/read_quota.py", READ_QUOTA)
        booted.put("/etc/nodeagent/config.toml", 'role = "standalone"\n[kubelet]\nmanifests = ""\n')
        yield booted


def volume(pod: vm.Pod) -> str:
    return f"{KUBELET_ROOT}/pods/{pod.uid}/volumes/kubernetes.io~empty-dir/data"


def make_volume(node: Node, pod: vm.Pod, project: int) -> None:
    """Create the volume of a pod with a project id, as the kubelet does for pods with a user namespace."""
    node.run(f"mkdir -p {volume(pod)} && chattr -p {project} +P {volume(pod)}")


def writing_pod(name: str, uid: str, script: str) -> vm.Pod:
    place = volume(vm.Pod(name, CHANGER, uid=uid))
    return vm.Pod(name, CHANGER, ("/bin/sh", "-c", f"{script}; exec sleep 100000"), uid=uid, mounts={place: "/data"})


def read_quota(node: Node, project: int) -> int:
    """Return the usage of a project in bytes, as the kernel accounts it."""
    return int(node.run(f"sync; python3 /read_quota.py {project}").stdout)


def test_pod_that_charges_its_files_to_the_project_of_a_neighbour_ranks_by_its_own_usage(node: Node) -> None:
    own, other = 1048577, 1048578
    charge = f"dd if=/dev/zero of=/data/file bs=1M count={USED_MIB} && project {other} /data/file && touch /data/done"
    hog = writing_pod("hog", "6d2d3a4e-7c11-4a3e-9f0e-0d7f1f6c3b01", charge)
    neighbour = writing_pod("neighbour", "6d2d3a4e-7c11-4a3e-9f0e-0d7f1f6c3b02", "echo small > /data/file")
    make_volume(node, hog, own)
    make_volume(node, neighbour, other)
    node.run_pods(hog, neighbour)
    reclaim.poll(
        "the files have the project of the neighbour",
        lambda: node.run(f"test -e {volume(hog)}/done", check=False).code == 0,
        timeout_s=120,
        interval_s=0.5,
    )
    assert read_quota(node, own) < MIB
    assert read_quota(node, other) > USED_MIB * MIB
    shown = json.loads(node.run("nodeagent evict -s nodefs.available=1Mi -o json", timeout_s=120).stdout)
    ranking = {each["name"]: each["usage"] for each in shown["plan"]["ranking"]}
    assert list(ranking) == ["default/hog", "default/neighbour"]
    assert ranking["default/hog"] > USED_MIB * MIB
    assert ranking["default/neighbour"] < MIB


def test_project_quota_is_not_readable_with_the_capabilities_of_the_unit(node: Node) -> None:
    (bounding,) = [line for line in UNIT.read_text().splitlines() if line.startswith("CapabilityBoundingSet=")]
    command = "--wait --pipe --quiet /usr/bin/python3 /read_quota.py 0"
    assert node.run(f"systemd-run -p '{bounding}' {command}").stdout.strip() == "EPERM"
    assert node.run(f"systemd-run -p '{bounding} CAP_SYS_ADMIN' {command}").stdout.strip().isdecimal()


def test_project_of_a_file_cannot_be_changed_in_a_user_namespace(node: Node) -> None:
    directory = f"{KUBELET_ROOT}/projects"
    node.run(f"mkdir -p {directory} && chattr -p 7 +P {directory} && touch {directory}/file")
    for change in (f"-p 8 {directory}/file", f"-P {directory}"):
        refused = node.run(f"unshare --user --map-root-user chattr {change}", check=False)
        assert "Invalid argument" in refused.stderr
    node.run(f"chattr -p 8 {directory}/file")
