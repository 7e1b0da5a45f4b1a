"""A simulated node with cgroup files and a runtime on a socket, for tests of the pod reader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodeagent.errors import ObservationError
from nodeagent.eviction.plan.policy import EvictionPolicy, Protection
from nodeagent.model.kubernetes import KubeletAccess
from nodeagent.model.node import Role
from nodeagent.pods.reader import PodReader, PodSettings
from tests.sim import workload
from tests.support.kernel_tree import add_cgroup

if TYPE_CHECKING:
    import asyncio
    from collections import Counter
    from datetime import datetime
    from pathlib import Path

    from nodeagent.model.kubernetes import KubeletAccess
    from nodeagent.model.pods import PodInventory, PodSpec
    from nodeagent.model.pressure import PodFacts
    from nodeagent.pods.watched import WatchedPods
    from nodeagent.runtime.cri import CriClient
    from tests.sim.node import SimNode
    from tests.sim.server import SimServer
    from tests.sim.workload import SimSandbox


@dataclass
class Lister:
    """A fake kubelet pod list that succeeds, raises ``error``, or first waits for ``gate``."""

    pods: list[PodSpec] = field(default_factory=list)
    error: str = ""
    gate: asyncio.Event | None = None
    reads: int = 0

    async def read(self) -> tuple[PodSpec, ...]:
        self.reads += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error:
            raise ObservationError(self.error)
        return tuple(self.pods)


MIB = 1 << 20

IMAGE = "registry.example/app:v1"

BURSTABLE, GUARANTEED, BEST_EFFORT = (
    workload.QosClass.BURSTABLE,
    workload.QosClass.GUARANTEED,
    workload.QosClass.BEST_EFFORT,
)


class Clock:
    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.at_s = 100.0

    def now(self) -> datetime:
        return self.node.now

    def monotonic_s(self) -> float:
        return self.at_s


@dataclass
class Node:
    """A simulated node with its runtime on a socket and its cgroup files below ``root``."""

    sim: SimNode
    server: SimServer
    cri: CriClient
    root: Path
    clock: Clock
    calls: Counter[str]

    def reader(
        self,
        *,
        role: Role = Role.STANDALONE,
        kubelet: Lister | None = None,
        access: KubeletAccess | None = None,
        watched: WatchedPods | None = None,
        **more: Any,
    ) -> PodReader:
        more["kubelet"] = access
        settings = PodSettings(
            node_name="node-1", pod_log_root=self.root / "logs", kubelet_root=self.root / "kubelet", **more
        )
        return PodReader(
            self.cri,
            settings=settings,
            clock=self.clock,
            role=lambda: role,
            kubelet=kubelet,
            root=self.root,
            watched=watched,
        )

    def pod(self, name: str, qos: workload.QosClass = BURSTABLE, *, containers: int = 1, **fields: Any) -> SimSandbox:
        """Run a pod in a cgroup with 300 MiB, of which 50 MiB are inactive file cache, and 100 MiB per container."""
        sandbox = self.sim.add_pod(name, qos=qos, **fields)
        path = sandbox.cgroup_parent
        add_cgroup(self.root, path, memory_bytes=300 * MIB, inactive_bytes=50 * MIB, swap_bytes=MIB, pids=9)
        for number in range(containers):
            made = self.sim.add_container(sandbox, f"c{number}", IMAGE, memory_limit_bytes=64 * MIB)
            add_cgroup(self.root, f"{path}/{made.id}", memory_bytes=100 * MIB, pids=4)
        return sandbox


def facts_of(inventory: PodInventory, name: str) -> PodFacts:
    (found,) = (each for each in inventory.facts if each.name == name)
    return found


def kept(inventory: PodInventory, name: str) -> str | None:
    reason = Protection(inventory.facts, EvictionPolicy()).keep_reason(facts_of(inventory, name))
    return None if reason is None else reason.code.value
