"""Document of the history: past passes and node stops."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from nodeagent.api.common import Document, Number, Part, RecordedReason
from nodeagent.record import Time
from nodeagent.schemas import SchemaId
from nodeagent.text import raw_bytes

if TYPE_CHECKING:
    from nodeagent.model import stops as node_stop
    from nodeagent.store import history


def base64_of(text: str) -> str | UnsetType:
    """Return a file name that is not UTF-8 as base64; unset for any other text."""
    raw = raw_bytes(text)
    return UNSET if raw is None else b64encode(raw).decode()


class PastActionDocument(Part, frozen=True, kw_only=True):
    """A planned removal and its outcome. Kinds, outcomes and codes may be from another version.

    Attributes:
        id_base64: the id in base64 if it is a file name that is not UTF-8; absent otherwise.
        outcome: ``planned`` before the removal; ``unknown`` if its pass ended before the outcome was recorded.
    """

    kind: str
    id: str
    id_base64: str | UnsetType = UNSET
    name: str
    references: tuple[str, ...]
    outcome: str
    detail: str
    reason: RecordedReason
    frees_bytes: int | None
    duration_s: Number

    @classmethod
    def of(cls, value: history.PastAction) -> PastActionDocument:
        """Return the document form of an action."""
        return cls.from_value(
            value,
            id=value.item_id,
            id_base64=base64_of(value.item_id),
            reason=RecordedReason(code=value.reason, sentence=value.sentence),
            duration_s=round(value.duration_s, 4),
        )


class PastPassDocument(Part, frozen=True, kw_only=True):
    """A pass of the history.

    Attributes:
        end: result of the pass; ``running`` before its end, ``interrupted`` if the process ended during the pass.
            ``end_detail`` gives the cause.
        settled_s: part of the duration spent waiting for container creations in progress.
        freed_bytes: measured freed bytes; ``None`` without a measurement, as for the percentages.
        eviction: the stored record of an eviction, possibly of an older version; absent for other passes.
    """

    id: str
    started_at: Time
    duration_s: Number
    settled_s: Number = 0.0
    trigger: str
    scope: str
    plan_id: str
    dry_run: bool
    end: str
    end_detail: str
    predicted_bytes: int
    freed_bytes: int | None
    imagefs_percent_before: int | None
    imagefs_percent_after: int | None
    actions: tuple[PastActionDocument, ...]
    eviction: dict[str, Any] | UnsetType = UNSET

    @property
    def done(self) -> int:
        """Number of items that the pass removed or found already removed; of an undo, the restored images."""
        return sum(each.outcome in ("done", "gone", "restored") for each in self.actions)

    @classmethod
    def of(cls, value: history.PastPass) -> PastPassDocument:
        """Return the document form of a pass."""
        return cls.from_value(
            value,
            duration_s=round(value.duration_s, 4),
            settled_s=round(value.settled_s, 4),
            end=value.result,
            end_detail=value.detail,
            imagefs_percent_before=value.percent_before,
            imagefs_percent_after=value.percent_after,
            actions=tuple(map(PastActionDocument.of, value.actions)),
            eviction=json.loads(value.eviction) if value.eviction else UNSET,
        )


class StoppedPodDocument(Part, frozen=True, kw_only=True):
    """A pod of a node stop.

    Attributes:
        why: reason for its phase.
        outcome: outcome of the stop; ``None`` before the stop request.
        asked_s: time of the stop request, in seconds from the beginning of the node stop.
        took_s: seconds until its end; ``None`` while it runs.
    """

    uid: str
    namespace: str
    name: str
    phase: str
    why: str
    outcome: str | None
    asked_s: Number
    took_s: Number | None
    detail: str

    @classmethod
    def of(cls, pod: node_stop.StoppedPod) -> StoppedPodDocument:
        """Return the document form of a stopped pod."""
        outcome = pod.outcome.value if pod.outcome else None
        asked_s, took_s = pod.requested_at_ms / 1000, None if pod.took_ms is None else pod.took_ms / 1000
        return cls.from_value(pod, outcome=outcome, asked_s=asked_s, took_s=took_s)


class NodeStopDocument(Part, frozen=True, kw_only=True):
    """One shutdown of the node, planned or not.

    Attributes:
        ended_at: end time; ``None`` while in progress, and for an unobserved end.
        granted_s: time limit for all pods, in seconds.
        operation: ``poweroff``, ``reboot``, ``halt``, ``kexec`` or ``soft-reboot``; empty if unknown.
    """

    id: str
    boot_id: str
    kind: str
    end: str
    started_at: Time
    ended_at: Time | None
    granted_s: Number
    operation: str
    pods: tuple[StoppedPodDocument, ...]

    @classmethod
    def of(cls, stop: node_stop.NodeStop) -> NodeStopDocument:
        """Return the document form of a node stop."""
        kind, end, pods = stop.kind.value, stop.end.value, tuple(map(StoppedPodDocument.of, stop.pods))
        return cls.from_value(stop, kind=kind, end=end, granted_s=stop.granted_ms / 1000, pods=pods)


class HistoryDocument(Document, frozen=True, kw_only=True, tag=SchemaId.HISTORY.value):
    """Past passes and node stops, newest first."""

    passes: tuple[PastPassDocument, ...]
    node_stops: tuple[NodeStopDocument, ...]

    @classmethod
    def of(cls, passes: Iterable[history.PastPass], stops: Iterable[node_stop.NodeStop]) -> HistoryDocument:
        """Return the history document of these passes and node stops."""
        return cls(passes=tuple(map(PastPassDocument.of, passes)), node_stops=tuple(map(NodeStopDocument.of, stops)))
