"""Document with the explanation of the verdict on an image, a container or a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from nodeagent.api.common import Document, Part, ReasonDocument, RecordedReason
from nodeagent.gc.documents.history import base64_of
from nodeagent.gc.documents.passes import DecisionDocument, decision_fields
from nodeagent.record import Time
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.gc.plan import explanation
    from nodeagent.store import history


class SharedImage(Part, frozen=True, kw_only=True):
    """Another image that shares layers with the explained image, with the bytes of these layers."""

    name: str
    bytes: int


class OtherReferences(Part, frozen=True, kw_only=True):
    """Bytes of an image's layers that are referenced by objects of one other kind, such as ``container``."""

    kind: str
    bytes: int


class SharingDocument(Part, frozen=True, kw_only=True):
    """Bytes of an image's unique and shared layers, with the images and other objects that share them."""

    unique_bytes: int
    shared_bytes: int
    with_images: tuple[SharedImage, ...]
    with_others: tuple[OtherReferences, ...]

    @classmethod
    def of(cls, value: explanation.Sharing) -> SharingDocument:
        """Return the document form of an image's sharing."""
        return cls(
            unique_bytes=value.unique_bytes,
            shared_bytes=value.shared_bytes,
            with_images=tuple(SharedImage(name=name, bytes=size) for name, size in value.with_images),
            with_others=tuple(OtherReferences(kind=kind, bytes=size) for kind, size in value.with_others),
        )


class PodState(Part, frozen=True, kw_only=True):
    """Whether the pod of an item counts as deleted, with the evidence."""

    gone: bool
    how: str


class Explained(DecisionDocument, frozen=True, kw_only=True):
    """The decision on one item, with its basis.

    Attributes:
        attempt: attempt of a container or sandbox; ``None`` for other items.
        also_kept_by: further reasons to keep the item.
        when: condition of its removal, as text.
        eligible_at: time from which the item can be removed; ``None`` if the removal has other conditions.
        position: place in removal order, from 1: the removals of the plan, then those of all other unused images;
            ``None`` for other images and items, as for ``positions``.
        origin: origin of an image: ``pulled``, ``unknown``, or why it cannot be pulled again; empty for other items.
        frees_alone_bytes: bytes freed by the removal of this image alone; ``frees_bytes`` are the bytes freed after
            ``removals_before`` other removals of the plan.
    """

    attempt: int | None
    names: tuple[str, ...]
    also_kept_by: tuple[ReasonDocument, ...]
    when: str
    eligible_at: Time | None
    users: tuple[str, ...]
    position: int | None
    positions: int | None
    origin: str = ""
    first_detected: Time | None
    last_used: Time | None
    size_bytes: int | None
    frees_alone_bytes: int | None
    removals_before: int
    sharing: SharingDocument | None
    pod: PodState | None

    @classmethod
    def of_explanation(cls, value: explanation.Explanation) -> Explained:
        """Return the document form of an explanation."""
        return cls.from_value(
            value,
            **decision_fields(value.decision),
            also_kept_by=tuple(map(ReasonDocument.of, value.also)),
            position=value.position or None,
            positions=value.positions or None,
            sharing=None if value.sharing is None else SharingDocument.of(value.sharing),
            pod=None if value.pod is None else PodState(gone=value.pod.deleted, how=value.pod.how),
        )


class PastRemoval(Part, frozen=True, kw_only=True):
    """A past removal of the explained item, from the history."""

    pass_id: str
    started_at: Time
    trigger: str
    dry_run: bool
    id: str
    id_base64: str | UnsetType = UNSET
    name: str
    outcome: str
    detail: str
    reason: RecordedReason

    @classmethod
    def of(cls, past: history.PastPass, action: history.PastAction) -> PastRemoval:
        """Return the document form of an action of a pass."""
        return cls.from_value(
            action,
            pass_id=past.id,
            started_at=past.started_at,
            trigger=past.trigger,
            dry_run=past.dry_run,
            id=action.item_id,
            id_base64=base64_of(action.item_id),
            reason=RecordedReason(code=action.reason, sentence=action.sentence),
        )


class ExplanationDocument(Document, frozen=True, kw_only=True, tag=SchemaId.EXPLANATION.value):
    """The items that match a query, with their past removals; ``asked`` is the query.

    Attributes:
        similar: names of images that end with the query, if no item matches the query.
        warnings: causes of missing past removals.
    """

    asked: str
    observed_at: Time
    explanations: tuple[Explained, ...]
    past: tuple[PastRemoval, ...]
    similar: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
