"""Boot files of a node: a root image of Debian packages, and a disk with this checkout installed on that image."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support import images, rootfs
from tests.support.system_command import find_missing, run
from tests.support.vm.channel import NodeError

NAME = "node-1"
HARNESS = "/opt/harness"  # directory on the node from which tests.support is imported

CHECKOUT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Release:
    """Debian release of a node.

    Attributes:
        python: version of Python.
        systemd: version of systemd.
        modules: modules of the initramfs, for the disk and for the port, which must exist before the first unit.
    """

    number: int
    suite: str
    python: str
    systemd: int
    modules: tuple[str, ...]


_RELEASES = (
    Release(12, "bookworm", "3.11", 252, ("virtio_pci", "virtio_blk", "virtio_console")),
    Release(13, "trixie", "3.13", 257, ("virtio_blk",)),
)

_INSTALLED = ("nodeagent", "systemd", "pyproject.toml", "README.md", "LICENSE", "Makefile", "requirements.lock")

_BUILD_S = 1200.0

_DISK_MIB = 3072
_KEPT = 3  # maximum number of cached disks and of cached bases; each state of a checkout has a disk

# fmt: off
_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "udev", "linux-image-cloud-amd64", "containerd", "runc", "busybox-static",
    "python3", "python3-venv", "iproute2", "procps", "kmod", "e2fsprogs", "make",
)
_MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "getty@tty1.service",
    "serial-getty@ttyS0.service", "systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount", "modprobe@drm.service", "modprobe@efi_pstore.service", "modprobe@fuse.service",
)
# fmt: on

# The kernels have ext4 and the PCI bus built in. A small initramfs is unpacked faster under emulation.
_EARLY_HOOK = """
mkdir -p "$1/etc/initramfs-tools/conf.d"
echo MODULES=list > "$1/etc/initramfs-tools/conf.d/node"
for each in @MODULES@; do echo "$each"; done > "$1/etc/initramfs-tools/modules"
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

# $1 is the root directory; the other arguments are a command that runs in it, in a new mount namespace.
_IN_ROOT = """
set -e
root=$1; shift
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
exec chroot "$root" "$@"
"""

# $1 is the root directory of the base, $2 a scratch directory with the overlay in upper/, $3 the path of the new disk
# image, $4 its size in MiB.
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


def pause_image() -> images.Image:
    """Return a sandbox image with a process that exits on SIGTERM; otherwise a power-off would wait 90 s for it."""
    forever = "trap 'exit 0' TERM; while :; do /busybox-pause sleep 2147483647 & wait $!; done"
    return replace(images.pause_image(), command=("/busybox-pause", "sh", "-c", forever))


@dataclass(frozen=True, slots=True)
class Disk:
    """Boot files of a node: a disk image, which nodes copy, and its kernel."""

    image: Path
    root: Path

    @property
    def kernel(self) -> Path:
        return next((self.root / "boot").glob("vmlinuz-*"))

    @property
    def initrd(self) -> Path:
        return next((self.root / "boot").glob("initrd.img-*"))


def release() -> Release:
    """Return the Debian release of the nodes: that of NODEAGENT_TEST_SUITE, by default the newest.

    Raises:
        NodeError: the suite is unknown.
    """
    suite = os.environ.get("NODEAGENT_TEST_SUITE") or _RELEASES[-1].suite
    for one in _RELEASES:
        if one.suite == suite:
            return one
    raise NodeError(f"NODEAGENT_TEST_SUITE={suite}: not one of {', '.join(one.suite for one in _RELEASES)}")


def unavailable() -> str | None:
    """Return the reason why no node can be booted on this machine; ``None`` if a node can be booted."""
    if platform.machine() != "x86_64":
        return "the virtual machine requires x86_64"
    if os.geteuid() != 0:
        return "building the root image requires root"
    needed = ["qemu-system-x86_64", "mmdebstrap", "mke2fs", "e2fsck", "debugfs", "unshare", "setpriv", "gcc"]
    missing = find_missing(needed)
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


def _base_key() -> str:
    return _digest(
        release().suite, *_PACKAGES, *_MASKED, _EARLY_HOOK, *release().modules, *_dependencies(), json.dumps(_FILES)
    )


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
    """Build the base without the checkout: packages, settings, and the wheels of the agent's dependencies."""
    others = sorted(base.parent.glob("node-*/"), key=lambda one: one.stat().st_mtime)
    for old in (*base.parent.glob("node-*.partial"), *others[: -_KEPT + 1]):
        shutil.rmtree(old)
    partial = base.with_suffix(".partial")
    partial.mkdir()
    root = partial / "root"
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    packages = f"--include={','.join(_PACKAGES)}"
    hook = f"--extract-hook={_EARLY_HOOK.replace('@MODULES@', ' '.join(release().modules))}"
    run_tool(["mmdebstrap", "--variant=minbase", packages, hook, *left_out, release().suite, str(root)])
    for name, text in _FILES.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for directory in ("usr/src/nodeagent", "var/log/journal", HARNESS.lstrip("/")):
        (root / directory).mkdir(parents=True, exist_ok=True)
    _in_root(root, "systemctl", "mask", *_MASKED)
    _in_root(root, "systemctl", "enable", "control.service", "containerd.service")
    platforms = [f"--platform=manylinux{version}_x86_64" for version in ("_2_28", "_2_17", "2014")]
    only = ["--only-binary=:all:", "--implementation=cp", f"--python-version={release().python}", *platforms]
    wheels = ["--quiet", "--dest", str(root / "opt/wheels"), *only, *_dependencies()]
    run_tool([sys.executable, "-m", "pip", "download", *wheels])
    _in_root(root, "python3", "-m", "venv", "/opt/nodeagent")
    requirements = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
    pip = ["/opt/nodeagent/bin/pip", "install", "--quiet", "--no-index", "--find-links=/opt/wheels"]
    _in_root(root, *pip, "--root-user-action=ignore", *requirements)
    (root / "usr/local/bin/nodeagent").symlink_to("/opt/nodeagent/bin/nodeagent")
    partial.rename(base)


def _build_disk(base: Path, image: Path) -> None:
    """Install the checkout on an overlay of the base as the README describes, and create a disk image of both."""
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
    run_tool([*command, str(base / "root"), str(scratch), str(partial), str(_DISK_MIB)])
    shutil.rmtree(scratch)
    partial.rename(image)


def _in_root(root: Path, *command: str) -> None:
    cleared = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
    script = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _IN_ROOT, "sh", str(root)]
    run_tool([*script, *cleared, *command])


def run_tool(command: list[str]) -> str:
    """Run a tool on this machine and return its output.

    Raises:
        NodeError: the tool failed.
    """
    return run(command, NodeError, timeout_s=_BUILD_S)
