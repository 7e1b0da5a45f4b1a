"""Debian root filesystems with other versions of containerd, built once, cached, and entered by a mount namespace."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.support import reclaim

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PackagedVersion = Literal["1.7", "2.1"]

_SUITES: dict[PackagedVersion, str] = {"1.7": "trixie", "2.1": "unstable"}
_PACKAGES = "containerd,runc,busybox-static"
_KEYRING = "usr/share/keyrings/debian-archive-keyring.gpg"

# $1 is the root filesystem; the other arguments are directories, which are mounted in it at equal paths. The root is
# bind-mounted onto itself, since containerd searches its root in mountinfo. It becomes the root of the namespace and
# the former root is unmounted: a chroot would keep copies of every mount of the host, and with them the loop devices of
# other tests.
_ENTER = """
set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
for shown; do mkdir -p "$root$shown"; mount --bind "$shown" "$root$shown"; done
mkdir "$root/run/host"
cd "$root"
pivot_root . run/host
umount --lazy /run/host
echo entered
exec cat
"""


class RootfsError(Exception):
    """Failure to build or enter a root filesystem; the text contains the error of the tool."""


def hold_namespace(
    command: Sequence[str], failure: str, within: Sequence[str] = ()
) -> tuple[subprocess.Popen[bytes], tuple[str, ...]]:
    """Return a process in a new mount namespace, and the argument prefix of commands that run in the namespace.

    Args:
        command: command that configures the namespace, writes ``entered``, and exits at the end of its input.
        failure: start of the error message.
        within: argument prefix of the namespace in which the new one is created; by default that of this process.

    Raises:
        RootfsError: the output of the command is not ``entered``.
    """
    holder = subprocess.Popen(
        [*within, "unshare", "--mount", "--propagation", "private", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    first_line = holder.stdout.readline() if holder.stdout else b""
    if first_line != b"entered\n":
        rest, _ = holder.communicate()
        raise RootfsError(f"{failure}: {(first_line + rest).decode()}")
    return holder, ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--")


class Namespace:
    """Mount namespace with a root filesystem as its root; it exists until it is closed or this process ends.

    The namespace outlives containerd, since shims and their sockets survive a restart. The temporary directory and
    mounts below ``base`` have the same path in the namespace, so that paths reported by containerd are valid outside.
    """

    def __init__(self, root: Path, base: Path) -> None:
        shown = [tempfile.gettempdir(), *reversed(reclaim.mounts(base))]
        self._holder, self.prefix = hold_namespace(
            ["sh", "-c", _ENTER, "sh", str(root), *shown], f"cannot enter {root}"
        )

    def close(self) -> None:
        """Release the namespace; the kernel removes it when its last process ends."""
        self._holder.communicate()  # the shell in the namespace exits at the end of its input


def cache_directory() -> Path:
    """Return the cache directory of root filesystems: NODEAGENT_TEST_CACHE, or the user's cache directory."""
    chosen = os.environ.get("NODEAGENT_TEST_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "nodeagent-tests"


def ensure(version: PackagedVersion) -> Path:
    """Return the root filesystem with a containerd version, and build it if it is missing.

    A build lasts about 20 s and requires a Debian mirror.

    The version determines the Debian suite: trixie has 1.7, unstable has the current 2.x.
    """
    suite = _SUITES[version]
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / f"rootfs-{suite}"
    with locked(cache / f"{suite}.lock"):
        if not root.exists():
            _build(suite, root)
    return root


def _build(suite: str, root: Path) -> None:
    options = []
    if suite == "unstable":
        # The keyring of an old host lacks the archive keys of unstable; that of trixie has them. A mirror's Release
        # file may have expired.
        keyring = ensure("1.7") / _KEYRING
        options = [f"--keyring={keyring}", '--aptopt=Acquire::Check-Valid-Until "false"']
    partial = root.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = ["mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", *options, suite, str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RootfsError(f"mmdebstrap {suite}: {done.stderr[-4000:]}")
    for name, text in (("hosts", "127.0.0.1 localhost\n"), ("resolv.conf", "")):
        (partial / "etc" / name).write_text(text)
    partial.rename(root)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock with a name during the block; all test runs with the cache directory share the lock."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
