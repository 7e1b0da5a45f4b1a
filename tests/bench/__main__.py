"""Run all benchmarks: ``python -m tests.bench``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from tests.bench import (
    bench_agent,
    bench_bulk,
    bench_commands,
    bench_history,
    bench_kubernetes,
    bench_large,
    bench_layers,
    bench_node,
    bench_planner,
    bench_pods,
    bench_shutdown,
    bench_start,
    bench_wake,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MEASUREMENTS: Final[dict[str, Callable[[], object]]] = {
    "planners": bench_planner.main,
    "layer graph": bench_layers.main,
    "pods": bench_pods.main,
    "shutdown": lambda: bench_shutdown.main([]),
    "wake to decision": bench_wake.main,
    "history": bench_history.main,
    "large node": lambda: bench_large.main(["--rotate"]),
    "daemon on a large node": lambda: bench_node.main([]),
    "agent": bench_agent.main,
    "Kubernetes": bench_kubernetes.main,
    "start of commands": bench_start.main,
    "bulk removal on a real containerd": bench_bulk.main,
    "commands beside crictl": lambda: bench_commands.main([]),
}
_REQUIRES_ROOT: Final = frozenset({"bulk removal on a real containerd", "commands beside crictl"})


def main() -> int:
    """Run all benchmarks; return 1 if a benchmark exceeded its budget."""
    sys.argv = sys.argv[:1]
    missed = []
    for name, measure in MEASUREMENTS.items():
        print(f"\n{name}", flush=True)
        if name in _REQUIRES_ROOT and os.geteuid() != 0:
            print("skipped: requires root")
            continue
        try:
            code = measure()
        except SystemExit as ended:
            code = ended.code
        if code:
            print(f"exit {code}")
            missed.append(name)
    if missed:
        print(f"\nover budget: {', '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
