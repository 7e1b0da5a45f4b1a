"""Documents of pods: their eviction facts, and their usage in eviction order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.api.codec import Document, Part, Time
from nodeagent.api.common import Reason
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from nodeagent.eviction.plan.ranking import RankedPod
    from nodeagent.model import decision, pressure


class Fact(Part, frozen=True, kw_only=True):
    """A fact about a pod and its source; the value is ``None`` if the source is ``missing``."""

    value: bool | int | float | str | None
    source: str

    @classmethod
    def of(cls, fact: pressure.Fact[object]) -> Fact:
        """Return the document form of a fact."""
        value = fact.value
        shown = value if value is None or isinstance(value, bool | int | float | str) else str(value)
        return cls(value=shown, source=fact.source.value)


class PodFacts(Part, frozen=True, kw_only=True):
    """The facts about a pod that are relevant for eviction."""

    priority: Fact
    qos: Fact
    static: Fact
    mirror: Fact
    critical: Fact
    memory_request_bytes: Fact
    ephemeral_request_bytes: Fact
    termination_grace_s: Fact
    priority_class: str
    contradictions: tuple[str, ...]

    @classmethod
    def of(cls, pod: pressure.PodFacts) -> PodFacts:
        """Return the document form of a pod's facts."""
        return cls(
            priority=Fact.of(pod.priority),
            qos=Fact.of(pod.qos),
            static=Fact.of(pod.static),
            mirror=Fact.of(pod.mirror),
            critical=Fact.of(pod.critical),
            memory_request_bytes=Fact.of(pod.memory_request_bytes),
            ephemeral_request_bytes=Fact.of(pod.ephemeral_request_bytes),
            termination_grace_s=Fact.of(pod.termination_grace_s),
            priority_class=pod.priority_class,
            contradictions=pod.contradictions,
        )


class RankedPodUsage(Part, frozen=True, kw_only=True):
    """A pod with its usage; unknown values are ``None``.

    Attributes:
        rank: place in the eviction order under memory pressure, from 1.
        kept_because: reason to keep the pod; ``None`` for an evictable pod.
    """

    rank: int
    uid: str
    namespace: str
    name: str
    memory_bytes: int | None
    memory_request_bytes: int | None
    pids: int | None
    writable_bytes: int | None
    logs_bytes: int | None
    volumes_bytes: int | None
    kept_because: Reason | None
    facts: PodFacts

    @classmethod
    def of(cls, ranked: RankedPod, kept: decision.Reason | None) -> RankedPodUsage:
        """Return the document form of a ranked pod with the reason to keep it."""
        pod, usage = ranked.pod, ranked.pod.usage
        return cls(
            rank=ranked.rank,
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            memory_bytes=usage.memory_bytes if usage else None,
            memory_request_bytes=pod.memory_request_bytes.value,
            pids=usage.pids if usage else None,
            writable_bytes=usage.writable.used_bytes if usage else None,
            logs_bytes=usage.logs.used_bytes if usage else None,
            volumes_bytes=usage.volumes.used_bytes if usage else None,
            kept_because=None if kept is None else Reason.of(kept),
            facts=PodFacts.of(pod),
        )


class PodUsage(Document, frozen=True, kw_only=True, tag=SchemaId.POD_USAGE.value):
    """The pods with their usage, in eviction order under memory pressure."""

    observed_at: Time
    pods: tuple[RankedPodUsage, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls,
        order: Iterable[tuple[RankedPod, decision.Reason | None]],
        *,
        observed_at: datetime,
        warnings: Iterable[str],
    ) -> PodUsage:
        """Return the document of the pods in eviction order; see ``eviction_order``."""
        return cls(
            observed_at=observed_at,
            pods=tuple(RankedPodUsage.of(ranked, kept) for ranked, kept in order),
            warnings=tuple(warnings),
        )
