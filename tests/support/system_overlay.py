"""Temporary copy of the machine's system directories, for real installations as root without changing the machine.

In a mount namespace, overlays with changes in memory cover the directories that an installation writes to. A copy can
be created from another copy, so that tests share one installation and change only their own copy.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.rootfs import hold_namespace
from tests.support.system_command import PATH, find_missing

if TYPE_CHECKING:
    from types import TracebackType

CHECKOUT = Path(__file__).parents[2]

# $1 is an empty directory, $2 the layers of other copies, uppermost first, and $3 the mount point of the machine's
# directories below all layers; the other arguments are the covered directories. Layers are passed as lower directories
# of one overlay, since the kernel stacks at most two overlays. A copy contains no systemd, so that no unit is started.
_ENTER = """
set -e
base=$1 layers=$2 machine=$3; shift 3
mount -t tmpfs tmpfs "$base"
for covered; do
    mkdir -p "$base/upper$covered" "$base/work$covered" "$base/machine$covered"
    if [ "$machine" = "$base/machine" ]; then mount --bind "$covered" "$machine$covered"; fi
done
for covered; do
    lower=
    for layer in $layers; do lower=$lower$layer$covered:; done
    mount -t overlay overlay \\
        -o "lowerdir=$lower$machine$covered,upperdir=$base/upper$covered,workdir=$base/work$covered" "$covered"
done
mount -t tmpfs tmpfs /run
echo entered
exec cat
"""


def unavailable() -> str | None:
    """Return the reason why no copy can be created on this machine; ``None`` if a copy can be created."""
    if os.geteuid() != 0:
        return "a mount namespace requires root"
    missing = find_missing(("unshare", "nsenter", "mount", "make"))
    return f"not installed: {', '.join(missing)}" if missing else None


class SystemOverlay:
    """Copy of the system directories of the machine or of another copy; it exists until it is closed."""

    def __init__(self, directory: Path, parent: SystemOverlay | None = None) -> None:
        directory.mkdir()
        within = parent.prefix if parent is not None else ()
        layers = parent.layers if parent is not None else ()
        self.machine: Path = parent.machine if parent is not None else directory / "machine"
        self.layers: tuple[str, ...] = (f"{directory}/upper", *layers)
        covered = ("/etc", "/usr", "/opt", "/var", "/root", str(CHECKOUT))
        script = ["sh", "-c", _ENTER, "sh", str(directory), " ".join(layers), str(self.machine), *covered]
        self.prefix: tuple[str, ...]
        self._holder, self.prefix = hold_namespace(script, "cannot cover the system directories", within)

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a shell script in the checkout; ``stdout`` of the result contains standard output and standard error."""
        environment = {key: value for key, value in os.environ.items() if key.startswith("PIP_") or key == "HOME"}
        return subprocess.run(
            [*self.prefix, "sh", "-c", f'cd "$0" && {{ {script}\n}}', str(CHECKOUT)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
            env={**environment, "PATH": PATH, **variables},
        )

    def must(self, script: str, **variables: str) -> str:
        """Run a shell script, assert that it succeeds, and return its output."""
        done = self.run(script, **variables)
        assert done.returncode == 0, f"{script}: exit {done.returncode}\n{done.stdout}"
        return done.stdout

    def close(self) -> None:
        """Release the namespace; the kernel removes it when its last process ends."""
        self._holder.communicate()  # the shell in the namespace exits at the end of its input

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
