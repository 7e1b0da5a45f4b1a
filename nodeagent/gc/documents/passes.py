"""Documents of garbage collection: preview, report, disk usage, and the explanation of a verdict."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import UNSET, UnsetType

from nodeagent.api import common as codec
from nodeagent.api.common import Document, Filesystem, Number, Part, ReasonDocument, RecordedReason, Runtime
from nodeagent.api.outlook import OutlookDocument
from nodeagent.gc.documents.history import base64_of
from nodeagent.gc.executor import MeasuredFilesystem, Outcome, PassEnd
from nodeagent.gc.plan import breakdown as storage_breakdown, saved_plan
from nodeagent.gc.plan.breakdown import UsageCategory as StoragePart
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.model import decision
from nodeagent.model.decision import Accounting, FilesystemTarget, ItemKind, Verdict
from nodeagent.model.node import NodeSnapshot, RuntimeInfo
from nodeagent.model.runtime import ImageFilesystem
from nodeagent.record import Time, equal_fields
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.gc import executor as outcomes
    from nodeagent.gc.plan import explanation
    from nodeagent.store import history


class FreedSpace(Part, frozen=True, kw_only=True):
    """Bytes that a removal frees on one image filesystem."""

    path: str
    bytes: int


class ImageFilesystemUsage(Part, frozen=True, kw_only=True):
    """One image filesystem of a node with several.

    Attributes:
        snapshotters: the snapshotters that store data on this filesystem.
        content: whether the filesystem has the content store.
        usage: reading of the filesystem; ``None`` if unreadable, with the cause in ``problem``.
    """

    path: str
    snapshotters: tuple[str, ...]
    content: bool
    usage: Filesystem | None
    problem: str


class FilesystemEffect(Part, frozen=True, kw_only=True):
    """The usage of one of several image filesystems before and after a pass; ``freed_bytes`` is the difference."""

    path: str
    freed_bytes: int | None
    before: Filesystem
    after: Filesystem


def image_filesystems(snapshot: NodeSnapshot) -> tuple[ImageFilesystemUsage, ...] | UnsetType:
    """Return the document form of several image filesystems; unset on a node with only one."""
    return (
        tuple(
            ImageFilesystemUsage(
                path=each.path,
                snapshotters=tuple(sorted(each.stores - {""})),
                content="" in each.stores,
                usage=Filesystem.of_optional(each.observed),
                problem=each.error,
            )
            for each in snapshot.image_filesystems
        )
        or UNSET
    )


def filesystem_effects(values: Iterable[MeasuredFilesystem]) -> tuple[FilesystemEffect, ...] | UnsetType:
    """Return the document form of the measured image filesystems; unset on a node with only one."""
    return (
        tuple(
            FilesystemEffect.from_value(
                each, path=each.before.path, before=Filesystem.of(each.before), after=Filesystem.of(each.after)
            )
            for each in values
        )
        or UNSET
    )


class DecisionDocument(Part, frozen=True, kw_only=True):
    """The decision on one item.

    Attributes:
        id_base64: the id in base64 if it is a file name that is not UTF-8; absent otherwise.
        frees_bytes: bytes freed by its removal; ``None`` if unknown, as for ``frees_inodes``.
        frees_on: bytes freed on each image filesystem; absent on a node with only one.
        last_used: last observed use of an image; absent without observed use, and for other items.
    """

    kind: ItemKind
    id: str
    id_base64: str | UnsetType = UNSET
    name: str
    verdict: Verdict
    reason: ReasonDocument
    frees_bytes: int | None
    frees_inodes: int | None
    frees_on: tuple[FreedSpace, ...] | UnsetType = UNSET
    last_used: Time | UnsetType | None = UNSET

    @classmethod
    def of(cls, value: decision.Decision) -> DecisionDocument:
        """Return the document form of a decision."""
        return cls(**decision_fields(value))

    def to_model(self) -> decision.Decision:
        """Return the planner's form of the decision."""
        details = {key: decision.decode_detail(key, each) for key, each in self.reason.details.items()}
        reason = decision.Reason(self.reason.code, details)
        encoded = self.id_base64
        item_id = b64decode(encoded).decode(errors="surrogateescape") if isinstance(encoded, str) else self.id
        return decision.Decision(
            self.kind,
            item_id,
            self.name,
            self.verdict,
            reason,
            self.frees_bytes,
            self.frees_inodes,
            tuple((each.path, each.bytes) for each in self.frees_on or ()),
            self.last_used or None,
        )


def decision_fields(value: decision.Decision) -> dict[str, Any]:
    """Return the fields of a decision, for the parts that extend ``DecisionDocument``."""
    return {
        "kind": value.kind,
        "id": value.id,
        "id_base64": base64_of(value.id),
        "name": value.name,
        "verdict": value.verdict,
        "reason": ReasonDocument.of(value.reason),
        "frees_bytes": value.frees_bytes,
        "frees_inodes": value.frees_inodes,
        "frees_on": tuple(FreedSpace(path=path, bytes=size) for path, size in value.frees_on) or UNSET,
        "last_used": value.last_used or UNSET,
    }


class PlanDocument(Part, frozen=True, kw_only=True):
    """A plan with every decision, kept items included.

    Attributes:
        wanted_bytes: bytes to free, the target of the plan; 0 without a target, as for ``wanted_inodes``.
        blocked: reason for a plan without decisions; empty normally.
        targets: the target on each image filesystem; absent on a node with only one.
    """

    kind: str
    made_at: Time
    accounting: Accounting
    wanted_bytes: int
    pending_bytes: int
    frees_bytes: int
    shortfall_bytes: int
    blocked: str
    warnings: tuple[str, ...]
    decisions: tuple[DecisionDocument, ...]
    targets: tuple[FilesystemTarget, ...] | UnsetType = UNSET
    wanted_inodes: int = 0
    frees_inodes: int = 0
    shortfall_inodes: int = 0

    @classmethod
    def of(cls, value: decision.Plan) -> PlanDocument:
        """Return the document form of a plan."""
        decisions = tuple(map(DecisionDocument.of, value.decisions))
        return cls.from_value(value, decisions=decisions, targets=value.targets or UNSET)

    def to_model(self) -> decision.Plan:
        """Return the planner's form of the plan."""
        decisions = tuple(each.to_model() for each in self.decisions)
        return decision.Plan(**equal_fields(decision.Plan, self, decisions=decisions, targets=self.targets or ()))


class PreviewDocument(Document, frozen=True, kw_only=True, tag=SchemaId.PREVIEW.value):
    """Preview of a pass.

    Attributes:
        imagefs_problem: cause of a missing reading of the image filesystem; empty normally.
        high_percent: usage at which image removal starts; ``None`` if unknown, as for ``low_percent``,
            ``high_inodes_percent`` and ``low_inodes_percent``.
        image_filesystems: all image filesystems, ``imagefs`` first; absent on a node with only one.
        undo_window_s: seconds for which the image removals can be undone if a user requests them, before their space is
            freed; 0 if it is freed at once.
    """

    scope: str
    dry_run: bool
    observed_at: Time
    runtime: Runtime
    imagefs: Filesystem | None
    warnings: tuple[str, ...]
    plans: tuple[PlanDocument, ...]
    imagefs_problem: str = ""
    high_percent: int | None = None
    low_percent: int | None = None
    high_inodes_percent: int | None = None
    low_inodes_percent: int | None = None
    image_filesystems: tuple[ImageFilesystemUsage, ...] | UnsetType = UNSET
    undo_window_s: Number = 0.0

    @classmethod
    def of(
        cls,
        scope: str,
        snapshot: NodeSnapshot,
        plans: Iterable[decision.Plan],
        policy: ImageGCPolicy | None = None,
        *,
        undo_window_s: float = 0.0,
    ) -> PreviewDocument:
        """Return the document of plans made from a snapshot, with the thresholds of a policy."""
        return cls.from_value(
            snapshot,
            scope=scope,
            dry_run=True,
            runtime=Runtime.of(snapshot),
            imagefs=Filesystem.of_optional(snapshot.image_filesystem),
            plans=tuple(map(PlanDocument.of, plans)),
            imagefs_problem=snapshot.image_filesystem_error,
            high_percent=None if policy is None else policy.high_threshold_percent,
            low_percent=None if policy is None else policy.low_threshold_percent,
            high_inodes_percent=None if policy is None else policy.high_threshold_inodes_percent,
            low_inodes_percent=None if policy is None else policy.low_threshold_inodes_percent,
            image_filesystems=image_filesystems(snapshot),
            undo_window_s=undo_window_s,
        )

    def thresholds(self) -> ImageGCPolicy | None:
        """Return a policy with the thresholds; ``None`` if unknown. Earlier daemons sent none for inodes."""
        if self.high_percent is None or self.low_percent is None:
            return None
        return ImageGCPolicy(
            high_threshold_percent=self.high_percent,
            low_threshold_percent=self.low_percent,
            high_threshold_inodes_percent=100 if self.high_inodes_percent is None else self.high_inodes_percent,
            low_threshold_inodes_percent=100 if self.low_inodes_percent is None else self.low_inodes_percent,
        )

    def snapshot(self) -> NodeSnapshot:
        """Return a snapshot with the contents of the document: runtime, role, image filesystem and warnings."""
        runtime = self.runtime
        return NodeSnapshot(
            self.observed_at,
            RuntimeInfo(runtime.name, runtime.version, runtime.api_version, runtime.endpoint),
            runtime.role,
            image_filesystem=None if self.imagefs is None else self.imagefs.to_model(),
            image_filesystem_error=self.imagefs_problem,
            image_filesystems=tuple(
                ImageFilesystem(
                    each.path,
                    frozenset(each.snapshotters) | ({""} if each.content else set()),
                    None if each.usage is None else each.usage.to_model(),
                    each.problem,
                )
                for each in self.image_filesystems or ()
            ),
            warnings=self.warnings,
        )


class ResultFields(DecisionDocument, frozen=True, kw_only=True):
    """A planned removal and its outcome."""

    outcome: Outcome
    detail: str
    duration_s: Number

    @classmethod
    def of_result(cls, value: outcomes.Result) -> Self:
        """Return the document form of a result."""
        return cls.from_value(value, **decision_fields(value.decision), duration_s=round(value.duration_s, 4))


class ResultDocument(ResultFields, Document, frozen=True, kw_only=True, tag=SchemaId.RESULT.value, tag_field="schema"):
    """Result of one removal, sent while the pass is running."""


class StorageMember(Part, frozen=True, kw_only=True):
    """One item of a storage share.

    Attributes:
        pod: ``NAMESPACE/NAME`` of the pod that wrote the data; for an image the pods that use it; empty if not known.
        detail: further facts; may be empty.
    """

    name: str
    bytes: int
    inodes: int = 0
    pod: str = ""
    detail: str = ""


class StorageShare(Part, frozen=True, kw_only=True):
    """One share of the image filesystem's usage.

    Attributes:
        complete: false for a lower bound.
        largest: its items, largest first; in the report of a pass at most 20.
    """

    part: StoragePart
    bytes: int
    complete: bool
    largest: tuple[StorageMember, ...]
    inodes: int = 0


class BreakdownFields(Part, frozen=True, kw_only=True):
    """The usage of the image filesystem by share.

    Attributes:
        exact: whether image sizes are counted by layers; otherwise the runtime's sizes are used.
        warnings: parts that could not be read, as sentences.
    """

    imagefs: Filesystem
    exact: bool
    shares: tuple[StorageShare, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: storage_breakdown.Breakdown, most: int | None = None) -> Self:
        """Return the document form of a breakdown, with at most ``most`` items of each share."""
        return cls(
            imagefs=Filesystem.of(value.filesystem),
            exact=value.exact,
            shares=tuple(
                StorageShare(
                    part=share.part,
                    bytes=share.size_bytes,
                    complete=share.exact,
                    largest=tuple(
                        StorageMember.from_value(each, bytes=each.size_bytes) for each in share.members[:most]
                    ),
                    inodes=share.inodes,
                )
                for share in value.shares
            ),
            warnings=value.warnings,
        )

    def to_model(self) -> storage_breakdown.Breakdown:
        """Return the model's form of the breakdown."""
        shares = tuple(
            storage_breakdown.Share(
                share.part,
                share.bytes,
                share.inodes,
                tuple(
                    storage_breakdown.Member(each.name, each.bytes, each.inodes, each.pod, each.detail)
                    for each in share.largest
                ),
                share.complete,
            )
            for share in self.shares
        )
        return storage_breakdown.Breakdown(self.imagefs.to_model(), shares, self.exact, self.warnings)


class DiskUsageDocument(
    BreakdownFields, Document, frozen=True, kw_only=True, tag=SchemaId.DISK_USAGE.value, tag_field="schema"
):
    """The usage of the image filesystem by share."""


_MOST_ITEMS: Final = 20
"""Maximum number of items of each storage share in a report."""


class DriftDocument(Part, frozen=True, kw_only=True):
    """An item of a saved plan that is no longer removable.

    Attributes:
        gone: whether the item no longer exists; otherwise the item is kept.
    """

    kind: ItemKind
    id: str
    name: str
    gone: bool
    why: str

    @classmethod
    def of(cls, value: saved_plan.Drift) -> DriftDocument:
        """Return the document form of a drift."""
        item = value.item
        return cls(kind=item.kind, id=item.id, name=item.name, gone=value.gone, why=value.why)


class Report(Document, frozen=True, kw_only=True, tag=SchemaId.REPORT.value):
    """The outcome of a pass.

    Attributes:
        end: result of the pass; ``end_detail`` gives the cause, empty on success.
        freed_bytes: freed bytes, measured on the image filesystem; ``None`` without a measurement.
        undo_until: end of the undo window of removed images; ``None`` without an undo window.
        undo_bytes: predicted bytes that the end of the undo window frees; not in ``predicted_bytes``.
        breakdown: usage of the image filesystem; present if the pass missed its target.
        drift: items of the applied saved plan that were no longer removable; absent for other passes.
        filesystems: all image filesystems, if measured; absent on a node with only one.
    """

    pass_id: str
    scope: str
    trigger: str
    dry_run: bool
    started_at: Time
    duration_s: Number
    settled_s: Number
    end: PassEnd
    end_detail: str
    predicted_bytes: int
    collected_bytes: int
    freed_bytes: int | None
    imagefs_before: Filesystem | None
    imagefs_after: Filesystem | None
    warnings: tuple[str, ...]
    results: tuple[ResultFields, ...]
    plans: tuple[PlanDocument, ...]
    undo_until: Time | None = None
    undo_bytes: int = 0
    breakdown: BreakdownFields | UnsetType = UNSET
    drift: tuple[DriftDocument, ...] | UnsetType = UNSET
    filesystems: tuple[FilesystemEffect, ...] | UnsetType = UNSET

    @classmethod
    def of(
        cls,
        value: outcomes.PassReport,
        *,
        breakdown: storage_breakdown.Breakdown | None = None,
        drift: Iterable[saved_plan.Drift] | None = None,
    ) -> Report:
        """Return the document of a pass; ``drift`` is that of an applied saved plan, ``None`` for other passes."""
        return cls.from_value(
            value,
            pass_id=value.id,
            duration_s=round(value.duration_s, 4),
            settled_s=round(value.settled_s, 4),
            imagefs_before=Filesystem.of_optional(value.before),
            imagefs_after=Filesystem.of_optional(value.after),
            results=tuple(map(ResultFields.of_result, value.results)),
            plans=tuple(map(PlanDocument.of, value.plans)),
            breakdown=UNSET if breakdown is None else BreakdownFields.of(breakdown, _MOST_ITEMS),
            drift=UNSET if drift is None else tuple(map(DriftDocument.of, drift)),
            filesystems=filesystem_effects(value.filesystems),
        )


def decode_progress(text: str) -> ResultDocument | Report:
    """Decode one document of the stream of a running pass: a result, or the final report.

    Raises:
        DocumentError: the text is neither a result nor a report.
    """
    document: ResultDocument | Report = codec.decode_any(text, ResultDocument | Report, "result or report")
    return document


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
            **{**decision_fields(value.decision), "last_used": value.last_used},
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
        outlook: outlook of the resources that the found pods and images grow, with the growth of these; if nothing is
            known to grow, that of the resources with too few readings.
        warnings: causes of missing past removals.
    """

    asked: str
    observed_at: Time
    explanations: tuple[Explained, ...]
    past: tuple[PastRemoval, ...]
    similar: tuple[str, ...] = ()
    outlook: tuple[OutlookDocument, ...] = ()
    warnings: tuple[str, ...] = ()
