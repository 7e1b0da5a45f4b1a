"""Document of a leak audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.api.codec import Document, Number, Part, Time
from nodeagent.model.runtime_objects import ObjectKind
from nodeagent.plan.gc.deep_leaks import ADVICE
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.act.gc.deep_audit import DeepAudit
    from nodeagent.plan.gc import deep_leaks


class DeepLeak(Part, frozen=True, kw_only=True):
    """An object on the host without a record in the runtime.

    Attributes:
        name: path, process id, or name of a record.
        id: id of the object in the runtime.
        scope: namespace, or snapshotter; empty for none.
        changed_at: last change, or expiry of a lease; ``None`` if unknown.
        size_bytes: size of the object; ``None`` if not measured.
        why: description of the missing record.
        safe: whether its removal is safe without a further check.
        how: instruction for its removal.
    """

    kind: ObjectKind
    name: str
    id: str
    scope: str
    changed_at: Time | None
    size_bytes: int | None
    why: str
    safe: bool
    how: str

    @classmethod
    def of(cls, value: deep_leaks.DeepLeak) -> DeepLeak:
        """Return the document form of a leak."""
        found, advice = value.found, ADVICE[value.found.kind]
        return cls(
            kind=found.kind,
            name=found.name,
            id=found.key,
            scope=found.namespace or found.scope,
            changed_at=found.changed_at,
            size_bytes=found.size_bytes,
            why=value.why,
            safe=advice.safe,
            how=advice.how,
        )


class DeepLeaks(Document, frozen=True, kw_only=True, tag=SchemaId.DEEP_LEAKS.value):
    """Leak audit: comparison of disk, databases, mounts, processes and cgroups with the records of containerd.

    Attributes:
        compared: number of compared objects.
    """

    observed_at: Time
    minimum_age_s: Number
    compared: int
    leaks: tuple[DeepLeak, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, audit: DeepAudit, minimum_age_s: float) -> DeepLeaks:
        """Return the document of an audit."""
        return cls(
            observed_at=audit.observed_at,
            minimum_age_s=minimum_age_s,
            compared=audit.compared,
            leaks=tuple(map(DeepLeak.of, audit.leaks)),
            warnings=audit.warnings,
        )
