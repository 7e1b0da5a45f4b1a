"""Document of a configuration reload and its effect."""

from __future__ import annotations

from nodeagent.api.codec import Document, Number, Part, Time
from nodeagent.api.common import Reason
from nodeagent.gc.documents.passes import Decision
from nodeagent.model.decision import ItemKind
from nodeagent.schemas import SchemaId


class KindCount(Part, frozen=True, kw_only=True):
    """Number and predicted bytes of the removals of one kind of item."""

    kind: ItemKind
    items: int
    frees_bytes: int


class MetThreshold(Part, frozen=True, kw_only=True):
    """A threshold that is met and acted on after the reload."""

    text: str
    hard: bool
    grace_s: Number


class EvictedPod(Part, frozen=True, kw_only=True):
    """A pod that is evicted after the reload."""

    uid: str
    namespace: str
    name: str
    reason: Reason


class Effect(Part, frozen=True, kw_only=True):
    """The removals and evictions caused by a reload.

    Attributes:
        known: whether the complete effect is known; otherwise ``problem`` is the cause.
        first: the first removals, in order of execution; ``items`` is the number of all removals.
        pods: the pods evicted first.
    """

    known: bool
    problem: str
    items: int
    frees_bytes: int
    kinds: tuple[KindCount, ...]
    first: tuple[Decision, ...]
    thresholds: tuple[MetThreshold, ...]
    pods: tuple[EvictedPod, ...]


class Grace(Part, frozen=True, kw_only=True):
    """The reload grace period; ``until`` is ``None`` while a pause suspends it."""

    seconds: Number
    until: Time | None


class Reload(Document, frozen=True, kw_only=True, tag=SchemaId.RELOAD.value):
    """The outcome of a reload, or of its preview.

    Attributes:
        applied: whether the settings are in force.
        changes: changed settings, one line each.
        effect: removals and evictions caused by the changes; ``None`` without a change.
        grace: the reload grace period; ``None`` outside a grace period.
    """

    applied: bool
    changes: tuple[str, ...]
    dry_run: bool
    effect: Effect | None = None
    grace: Grace | None = None
