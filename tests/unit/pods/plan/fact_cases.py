"""Fact sources and checks for tests of pod facts."""

from __future__ import annotations

from typing import Any

from nodeagent.eviction.plan.policy import EvictionPolicy, Protection
from nodeagent.model.pressure import FactSource, PodFacts

K, M, C, I, A = (  # noqa: E741 - short names for tables of sources
    FactSource.KUBELET,
    FactSource.MANIFEST,
    FactSource.CRI,
    FactSource.INFERRED,
    FactSource.ASSUMED,
)

FILE = {"kubernetes.io/config.source": "file"}


def kept(facts: PodFacts, **policy: Any) -> str | None:
    """Return the code of the protection rule that keeps a pod; ``None`` for a pod that can be evicted."""
    reason = Protection([facts], EvictionPolicy(**policy)).keep_reason(facts)
    return None if reason is None else reason.code.value
