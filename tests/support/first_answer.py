"""First answer of a package on a fresh node: the three commands of the README, on a containerd of the node's release.

``python -m tests.support.first_answer PID PACKAGE`` runs in the namespaces and the root directory of a process that has
no network; the root directory is a filesystem of its own with containerd of Debian, an addition to the packages of the
release.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support import images, reclaim
from tests.support.pods import Pods

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS: Final = ("apt install ./nodeagent_*~deb{}_amd64.deb", "nodeagent du", "nodeagent gc all --dry-run")
"""Commands of the README from the files of a release to the content of the disk and the removals with their reasons."""
LIMIT_S: Final = 300.0
USED: Final = "registry.example.com/shop/web:v2"
UNUSED: Final = ("registry.example.com/shop/web:v1", "registry.example.com/batch/report:v1")
_README: Final = Path(__file__).parents[2] / "README.md"
_MINIMUM_AGE_S: Final = 120
_USED_PERCENT: Final = 87  # above the high threshold
_MIB: Final = 1 << 20
# The machine of the test may lack CAP_SYS_RESOURCE.
_CONFIG: Final = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
"""


@dataclass(frozen=True, slots=True)
class Root:
    """Root directory with the namespaces of a process."""

    pid: int

    @property
    def path(self) -> Path:
        return Path(f"/proc/{self.pid}/root").resolve()

    def command(self, *words: str) -> list[str]:
        """Return the words of a command in the root directory, as of a shell of root."""
        environment = ("HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "TERM=dumb")
        enter = ("nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--root", "--wd")
        return [*enter, "env", "-i", "-C", "/root", *environment, *words]

    def run(self, *words: str) -> str:
        """Run a command without input; return its output, which is printed if the command fails."""
        done = subprocess.run(
            self.command(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"first answer: {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


@contextlib.contextmanager
def containerd(root: Root) -> Iterator[Pods]:
    """Run containerd with its default paths; its pods are removed at the end."""
    for name, text in (("hosts", "127.0.0.1 localhost\n"), ("resolv.conf", ""), ("containerd/config.toml", _CONFIG)):
        file = root.path / "etc" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    socket = root.path / "run/containerd/containerd.sock"
    with (
        (root.path / "var/log/containerd.log").open("wb") as log,
        subprocess.Popen(root.command("containerd"), stdout=log, stderr=log) as daemon,
        Pods(socket, cgroup_parent=f"/nodeagent-try-{root.pid}", timeout_s=60) as pods,
    ):
        try:
            reclaim.poll("containerd listens", socket.exists)
            yield pods
            pods.remove_made()
        finally:
            daemon.terminate()


def use(root: Root, pods: Pods) -> None:
    """Import images, run a pod whose container exited three times before, and fill the disk."""
    base = images.blob("web base", 40 * _MIB)
    made = [images.image(name, layers=[base, images.blob(name, 10 * _MIB)]) for name in (USED, UNUSED[0])]
    made.append(images.image(UNUSED[1], layers=[images.blob("report", 160 * _MIB)]))
    archive = images.write_oci(root.path / "srv/images.tar", images.pause_image(images.PAUSE), *made)
    root.run("ctr", "-n", "k8s.io", "images", "import", "/srv/images.tar")
    archive.path.unlink()
    for each in archive.images:  # as if pulled
        registry, _, repository = each.tags[0].rpartition(":")[0].partition("/")
        label = f"containerd.io/distribution.source.{registry}={repository}"
        root.run("ctr", "-n", "k8s.io", "content", "label", each.digest, label)
    reclaim.poll(
        "CRI lists the images", lambda: set(archive.tags) <= {tag for each in pods.list_images() for tag in each.tags}
    )
    sandbox = pods.run_sandbox("web-0", namespace="shop")
    for attempt in range(3):
        pods.wait_exited(pods.run_container(sandbox, "web", USED, ["sh", "-c", "exit 1"], attempt=attempt))
    pods.run_container(sandbox, "web", USED, attempt=3)
    usage = os.statvfs(root.path)
    total = usage.f_blocks - usage.f_bfree + usage.f_bavail
    with (root.path / "srv/backup.img").open("wb") as ballast:
        os.posix_fallocate(
            ballast.fileno(), 0, usage.f_frsize * (usage.f_bavail - total * (100 - _USED_PERCENT) // 100)
        )


def answer(root: Root, release: str) -> None:
    """Run the commands as the README states them, and check the last two outputs against the node."""
    readme, started, shown = _README.read_text(encoding="utf-8"), time.monotonic(), []
    for command in COMMANDS:
        if f"\n# {command.format(13)}  " not in readme:
            raise SystemExit(f"first answer: not in the README: {command}")
        shown.append(root.run("sh", "-c", command.format(release)))
        print(
            f"# {command.format(release)}\n{shown[-1]}[{time.monotonic() - started:.1f} s after the start]", flush=True
        )
    if (lasted := time.monotonic() - started) > LIMIT_S:
        raise SystemExit(f"first answer: {lasted:.0f} s, more than {LIMIT_S:.0f} s")
    expected = [
        (1, USED),
        (1, UNUSED[1]),
        (1, "/srv"),
        (2, "Removes 2 of 4 containers"),
        (2, "over-per-container-limit"),
    ]
    expected += [(2, each) for each in UNUSED]
    missing = [text for number, text in expected if text not in shown[number]]
    if missing or not re.search(r"^Total: imagefs \d+% -> \d+%", shown[2], re.MULTILINE):
        raise SystemExit(f"first answer: not in the output: {missing}")


def main(arguments: list[str]) -> None:
    """Install a package and get the first answer in a fresh root directory."""
    root, package = Root(int(arguments[0])), Path(arguments[1])
    release = package.name.partition("~deb")[2].partition("_")[0]
    with containerd(root) as pods:
        use(root, pods)
        time.sleep(_MINIMUM_AGE_S)  # since the import: the default of image_gc.minimum_age
        shutil.copy(package, root.path / "root")
        answer(root, release)
        (root.path / "root" / package.name).unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
