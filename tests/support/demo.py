"""Demo on a real containerd: a used node, preview, run and result; all resources are removed at the end."""

from __future__ import annotations

import subprocess
import sys

from tests.support import reclaim
from tests.support.containerd import Containerd, LoopFs, unavailable
from tests.support.worn_node import WornNode, wear


def main() -> int:
    """Show preview, run and result; fall back to the simulated node where no containerd can run."""
    reason = unavailable()
    if reason is not None:
        print(f"no real containerd here ({reason}); showing the simulated node instead")
        return subprocess.run([sys.executable, "-m", "nodeagent", "demo"], check=False).returncode
    print("nodeagent demo: a REAL containerd of its own on a small loop-mounted image filesystem, removed afterwards")
    reclaim.sweep()
    print("making images that share layers, a running pod, a crash loop, a deleted pod ...", flush=True)
    with Containerd(imagefs=LoopFs(420, "ext4")) as containerd:
        node = wear(containerd)
        codes = [
            _show(node, "preview", "gc", "all", "--dry-run"),
            _show(node, "run", "gc", "all", "--yes", "--undo-window", "0s"),
            _show(node, "result: a second run removes nothing", "gc", "all", "--dry-run"),
        ]
        print(f"image filesystem now {node.used_percent}% full; cleaning up")
    return max(codes)


def _show(node: WornNode, title: str, *arguments: str) -> int:
    command = [*arguments, "--config", str(node.config), "--minimum-age", node.minimum_age]
    print(f"\n=== {title}: nodeagent {' '.join(arguments)} ===", flush=True)
    return subprocess.run([sys.executable, "-m", "nodeagent", *command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
