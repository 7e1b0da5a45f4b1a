"""Duration of the planners on large nodes: ``python tests/bench/bench_planner.py`` in the root of the repository.

Node snapshots are made before the measurement, from a fixed seed. Each case is run several times on one snapshot, which
no planner changes, after a full garbage collection; Python's garbage collector remains enabled, as in the agent. The
shortest and the median wall time are printed. The shortest time is compared with the budget, since other processes
cause the excess of longer times. On a slower machine the budgets are multiplied, see :mod:`tests.bench.machine`. The
exit code is 1 if a budget is exceeded.

The snapshot is of a busy node: a tenth of the images in use, a twentieth pinned, a third of the containers dead, and
thresholds that remove about a third of the images. The budgets are for the default policy; the cases with protection
rules (two globs, a regular expression, a digest, and the newest image of each repository) have separate budgets.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nodeagent.gc.plan.image_protection import ProtectionPolicy, parse_rule
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.planner import plan_all
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy
from nodeagent.model.node import NodeSnapshot, RuntimeInfo
from nodeagent.model.runtime import (
    Container,
    ContainerState,
    FsObservation,
    Image,
    ImageUsage,
    PieceKind,
    Sandbox,
    StorageGraph,
    StoredPiece,
)
from tests.bench.machine import slowdown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
MIB = 1024 * 1024
RULES = ("registry.example/platform/*", "regex:^quay\\.io/.*-operator", "*/coredns", "sha256:" + "ab" * 32)
RULED = ImageGCPolicy(protection=ProtectionPolicy(tuple(map(parse_rule, RULES)), keep_last_n_tags_per_repository=1))


@dataclass(frozen=True, slots=True)
class Case:
    """Call of a planner on a node snapshot, and its budget."""

    name: str
    budget_ms: float
    make: Callable[[], NodeSnapshot]
    plan: Callable[[NodeSnapshot], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Measured durations of a case."""

    name: str
    runs: int
    min_ms: float
    median_ms: float
    budget_ms: float

    @property
    def met(self) -> bool:
        """Whether the shortest duration is within the budget."""
        return self.min_ms <= self.budget_ms


def make_images(count: int, dice: random.Random) -> tuple[Image, ...]:
    """Return ``count`` images, most of them in separate repositories."""
    images = []
    for number in range(count):
        repository = f"registry.example/team-{number % 97}/service-{number % max(1, count // 8)}"
        made = f"{dice.getrandbits(256):064x}"
        reference = f"{repository}@sha256:{dice.getrandbits(256):064x}"
        size_bytes = dice.randrange(5, 500) * MIB
        images.append(Image(f"sha256:{made}", (f"{repository}:v{number}",), (reference,), size_bytes, number % 20 == 0))
    return tuple(images)


def make_workload(
    count: int, images: Sequence[Image], dice: random.Random
) -> tuple[tuple[Container, ...], tuple[Sandbox, ...]]:
    """Return ``count`` containers, four per pod; a third of the pods is dead."""
    pool = images[: max(1, len(images) // 10)]
    containers, sandboxes = [], []
    for pod in range((count + 3) // 4):
        dead, uid, created_at = pod % 3 == 0, f"{pod:08d}-uid", NOW - timedelta(seconds=dice.randrange(1000, 10**6))
        labels = {
            "io.kubernetes.pod.name": f"pod-{pod}",
            "io.kubernetes.pod.namespace": f"ns-{pod % 40}",
            "io.kubernetes.pod.uid": uid,
        }
        sandboxes.append(
            Sandbox(f"{pod:064x}", f"pod-{pod}", f"ns-{pod % 40}", uid, not dead, 0, created_at, labels, image="pause")
        )
        for index in range(min(4, count - 4 * pod)):
            used = pool[dice.randrange(len(pool))]
            containers.append(
                Container(
                    id=f"{pod:060x}c{index:03x}",
                    name=f"c{index}",
                    sandbox_id=f"{pod:064x}",
                    state=ContainerState.EXITED if dead or index == 3 else ContainerState.RUNNING,
                    created_at=created_at,
                    image_ref=used.id,
                    image_name=used.repo_tags[0],
                    labels=labels | {"io.kubernetes.container.name": f"c{index}"},
                    finished_at=created_at + timedelta(seconds=500) if dead or index == 3 else None,
                )
            )
    return tuple(containers), tuple(sandboxes)


def make_storage(images: Sequence[Image], dice: random.Random) -> StorageGraph:
    """Return a storage graph with ten layers per image, each a snapshot and a blob; lower layers are shared."""
    pieces: list[StoredPiece] = []

    def add_layer(number: int) -> tuple[int, int]:
        size_bytes = dice.randrange(1, 60) * MIB
        pieces.append(StoredPiece(f"chain-{number}", PieceKind.SNAPSHOT, size_bytes, dice.randrange(10, 900)))
        pieces.append(StoredPiece(f"blob-{number}", PieceKind.BLOB, size_bytes // 3, 1))
        return len(pieces) - 2, len(pieces) - 1

    bases = [[add_layer(base * 100 + layer) for layer in range(5)] for base in range(max(1, len(images) // 20))]
    by_image = {}
    for number, image in enumerate(images):
        own = [add_layer(10**6 + number * 10 + layer) for layer in range(5)]
        by_image[image.id] = tuple(index for pair in (*bases[dice.randrange(len(bases))], *own) for index in pair)
    return StorageGraph(tuple(pieces), by_image)


def make_node(images: int, containers: int, *, storage: bool = False) -> NodeSnapshot:
    """Return the snapshot of a node at 90% disk usage with the given numbers of images and containers."""
    dice = random.Random(images)
    listed = make_images(images, dice)
    running, sandboxes = make_workload(containers, listed, dice)
    usage = {}
    for image in listed:
        first = NOW - timedelta(seconds=dice.randrange(30, 10**7))
        last = first + (NOW - first) * dice.random()
        usage[image.id] = ImageUsage(first, last if dice.random() < 0.8 else None)
    capacity_bytes = sum(image.size_bytes or 0 for image in listed) * 5 // 2
    return NodeSnapshot(
        observed_at=NOW,
        runtime=RuntimeInfo("containerd", "2.1.0", "v1"),
        images=listed,
        containers=running,
        sandboxes=sandboxes,
        image_usage=usage,
        sandbox_images=frozenset({"registry.k8s.io/pause:3.10"}),
        image_filesystem=FsObservation("/", 1, capacity_bytes, capacity_bytes // 10, 0, 0, NOW),
        storage=make_storage(listed, dice) if storage else None,
        booted_at=NOW - timedelta(days=30),
    )


def cases() -> list[Case]:
    """Return the measured cases: one for each planner and policy."""
    plain, ruled = GCPolicy(), GCPolicy(images=RULED)
    return [
        Case(
            "10,000 images and 20,000 containers, all plans",
            150,
            lambda: make_node(10_000, 20_000),
            lambda node: plan_all(node, plain),
        ),
        Case(
            "the same with protection rules",
            250,
            lambda: make_node(10_000, 20_000),
            lambda node: plan_all(node, ruled),
        ),
        Case(
            "10,000 images of 10 layers, marginal accounting",
            400,
            lambda: make_node(10_000, 20_000, storage=True),
            lambda node: plan_image_gc(node, plain.images),
        ),
        Case(
            "100,000 images",
            1500,
            lambda: make_node(100_000, 20_000),
            lambda node: plan_image_gc(node, plain.images),
        ),
        Case(
            "the same with protection rules",
            2000,
            lambda: make_node(100_000, 20_000),
            lambda node: plan_image_gc(node, ruled.images),
        ),
    ]


def measure(case: Case, runs: int, slower: float) -> Timing:
    """Run a case and return its durations; the time to free the plan is excluded.

    Args:
        case: the planner, its node snapshot and its budget.
        runs: number of measured runs.
        slower: factor of the budget on this machine.
    """
    node = case.make()
    taken_ms = []
    for _ in range(runs):
        gc.collect()
        began = time.perf_counter()
        made = case.plan(node)
        taken_ms.append((time.perf_counter() - began) * 1000)
        del made
    return Timing(case.name, runs, min(taken_ms), statistics.median(taken_ms), case.budget_ms * slower)


def main() -> int:
    """Print the durations with their budgets; return 1 if a budget is missed."""
    parser = argparse.ArgumentParser(description="measure the planners on large nodes")
    parser.add_argument("--runs", type=int, default=7, help="number of runs of each case")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    slower = slowdown()
    timings = [measure(case, arguments.runs, slower) for case in cases()]
    if arguments.json:
        rows = [
            {
                "name": each.name,
                "runs": each.runs,
                "min_ms": round(each.min_ms, 2),
                "median_ms": round(each.median_ms, 2),
                "budget_ms": each.budget_ms,
                "met": each.met,
            }
            for each in timings
        ]
        print(json.dumps({"schema": "nodeagent/bench-planner/v1", "cases": rows}, indent=2))
    else:
        print(f"{'case':<52}{'runs':>5}{'min ms':>10}{'median ms':>11}{'budget ms':>11}")
        for each in timings:
            line = f"{each.name:<52}{each.runs:>5}{each.min_ms:>10.1f}{each.median_ms:>11.1f}{each.budget_ms:>11.0f}"
            print(line + ("" if each.met else "  MISSED"))
    return 0 if all(each.met for each in timings) else 1


if __name__ == "__main__":
    sys.exit(main())
