"""Parts that several documents share: reasons, filesystem readings, the container runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import convert, structs

from nodeagent.api.codec import Part
from nodeagent.model import FsObservation, Role
from nodeagent.model.decision import ReasonCode, sentence_of
from nodeagent.record import Time, equal_fields

if TYPE_CHECKING:
    from nodeagent.model import NodeSnapshot, decision


class Reason(Part, frozen=True, kw_only=True):
    """A reason with its code and its details.

    Attributes:
        details: values in the sentence of the reason; keys contain the unit, values of ``_at`` keys are times.
    """

    code: ReasonCode
    details: dict[str, Any]

    @property
    def sentence(self) -> str:
        """The reason as a sentence, from code and details."""
        return sentence_of(self.code, self.details)

    @classmethod
    def of(cls, value: decision.Reason) -> Reason:
        """Return the document form of a reason."""
        return cls(code=value.code, details=dict(value.details))


class RecordedReason(Part, frozen=True, kw_only=True):
    """A reason as stored in the history: a code, possibly of another version, and a sentence instead of details."""

    code: str
    sentence: str


class Filesystem(Part, frozen=True, kw_only=True):
    """One reading of a filesystem."""

    path: str
    capacity_bytes: int
    available_bytes: int
    used_percent: int
    inodes: int
    inodes_free: int
    observed_at: Time

    @classmethod
    def of(cls, value: FsObservation) -> Filesystem:
        """Return the document form of a reading."""
        return convert(value, cls, from_attributes=True)

    @classmethod
    def of_optional(cls, value: FsObservation | None) -> Filesystem | None:
        """Return the document form of a reading; ``None`` for ``None``."""
        return None if value is None else cls.of(value)

    def to_model(self) -> FsObservation:
        """Return the model's form of the reading, with device id 0, since documents contain no device id."""
        return FsObservation(**equal_fields(FsObservation, self, device_id=0))


class RuntimeVersion(Part, frozen=True, kw_only=True):
    """Name, version and socket of the runtime."""

    name: str
    version: str
    api_version: str
    endpoint: str


class Runtime(RuntimeVersion, frozen=True, kw_only=True):
    """The container runtime, and whether a kubelet manages the node (``role``)."""

    role: Role

    @classmethod
    def of(cls, snapshot: NodeSnapshot) -> Runtime:
        """Return the document form of the runtime and role in a snapshot."""
        return cls(**structs.asdict(snapshot.runtime), role=snapshot.role)
