"""A node with true time and a different wall clock, for tests of timestamps written by other programs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from nodeagent.model.node import LogTree, NodeSnapshot, PodLogDirectory
from nodeagent.model.runtime import Container, ContainerState, Sandbox
from nodeagent.store.clock_record import ClockReading
from tests.unit.builders import RUNTIME, image

T0: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY_S: Final = 86_400.0


def _digest(written_s: float) -> str:
    """Return the digest of a log tree written at ``written_s``."""
    return hashlib.blake2b(repr(written_s).encode(), digest_size=16).hexdigest()


@dataclass
class Written:
    """A wall clock timestamp, with its true time in seconds."""

    true_s: float
    stamp: datetime


@dataclass
class Pod:
    image: str
    created: Written
    finished: Written | None = None

    @property
    def last_s(self) -> float:
        return self.finished.true_s if self.finished is not None else self.created.true_s


@dataclass
class Node:
    """True state of a node: clocks, pods, images, logs, image use.

    Attributes:
        boots: start and end of each former boot, the stop of the agent in its shutdown, ``None`` without one, and the
            error of the wall clock at its end.
    """

    true_s: float = 0.0
    wall_off_s: float = 0.0
    booted_s: float = -20 * DAY_S
    boot: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    images: dict[str, Written] = field(default_factory=dict)
    logs: dict[str, Written] = field(default_factory=dict)
    uses: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    names: int = 0
    lowest_off_s: float = 0.0
    boots: dict[int, tuple[float, float, float | None, float]] = field(default_factory=dict)

    @property
    def wall(self) -> datetime:
        return T0 + timedelta(seconds=self.true_s + self.wall_off_s)

    @property
    def reading(self) -> ClockReading:
        return ClockReading(f"boot {self.boot}", self.true_s - self.booted_s, self.wall)

    def write(self) -> Written:
        return Written(self.true_s, self.wall)

    def set_clock(self, off_s: float) -> None:
        self.wall_off_s = off_s
        self.lowest_off_s = min(self.lowest_off_s, off_s)

    def name(self) -> str:
        self.names += 1
        return f"{self.names:04}"

    def in_use(self) -> set[str]:
        return {pod.image for pod in self.pods.values()}

    def end(self, pod: Pod) -> None:
        if pod.finished is None:
            pod.finished = self.write()

    def remove(self, name: str) -> None:
        pod = self.pods.pop(name)
        started_s = pod.created.true_s
        self.uses.setdefault(pod.image, []).append((started_s, self.true_s))

    def snapshot(self) -> NodeSnapshot:
        def container(name: str, pod: Pod) -> Container:
            return Container(
                f"c-{name}",
                "main",
                f"s-{name}",
                ContainerState.EXITED if pod.finished else ContainerState.RUNNING,
                created_at=pod.created.stamp,
                finished_at=pod.finished.stamp if pod.finished else None,
                image_ref=pod.image,
                labels={"io.kubernetes.pod.uid": f"uid-{name}", "io.kubernetes.container.name": "main"},
            )

        return NodeSnapshot(
            self.wall,
            RUNTIME,
            images=tuple(image(name, f"r/{name}:1") for name in self.images),
            containers=tuple(container(name, pod) for name, pod in self.pods.items()),
            sandboxes=tuple(
                Sandbox(
                    f"s-{name}",
                    name,
                    "default",
                    f"uid-{name}",
                    pod.finished is None,
                    created_at=pod.created.stamp,
                    labels={"io.kubernetes.pod.uid": f"uid-{name}"},
                )
                for name, pod in self.pods.items()
            ),
            pod_log_directories=tuple(
                PodLogDirectory(f"default_x_{name}", name, True, LogTree(each.stamp, _digest(each.true_s)))
                for name, each in self.logs.items()
            ),
            booted_at=self.wall - timedelta(seconds=self.true_s - self.booted_s),
        )
