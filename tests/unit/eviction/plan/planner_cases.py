"""Thresholds and reclaim steps for tests of the eviction plan."""

from __future__ import annotations

from nodeagent.eviction.plan.reclaim import ReclaimAction, ReclaimStep
from nodeagent.model.pressure import FilesystemRole
from tests.unit.eviction.plan.cases import thresholds


def steps(*names: str, filesystem: str = "nodefs") -> frozenset[ReclaimStep]:
    return frozenset(ReclaimStep(ReclaimAction(name), FilesystemRole(filesystem)) for name in names)


ALL_STEPS = steps("dead-containers", "logs", "unused-images", "irreplaceable-images")

SOFT = thresholds("", soft="memory.available<100Mi", soft_grace_period="memory.available=90s")
