"""Decisions and plans: one decision for every item of a planner, each with a reason from a closed list.

A reason is a code with details, and a sentence formatted from both, so that tables, JSON, log lines and ``explain``
agree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from operator import attrgetter, eq
from types import MappingProxyType
from typing import Final

from msgspec.structs import force_setattr

from nodeagent.model.reason_codes import SENTENCES, ReasonCode
from nodeagent.record import Record
from nodeagent.units import format_bytes, format_duration

__all__ = [
    "NO_FAILURES",
    "Accounting",
    "Decision",
    "Detail",
    "FilesystemTarget",
    "ItemKind",
    "Plan",
    "Reason",
    "ReasonCode",
    "Verdict",
    "decode_detail",
    "sentence_of",
    "sort_by_name",
]

Detail = str | int | float | bool | datetime | tuple[str, ...]

NO_FAILURES: Final[Mapping[str, str]] = MappingProxyType({})
"""Empty map from item id to failure cause: no item failed earlier in this pass."""


class ItemKind(StrEnum):
    """Kind of an item that a plan decides on."""

    IMAGE = "image"
    CONTAINER = "container"
    SANDBOX = "sandbox"
    POD_LOG_DIRECTORY = "pod-log-directory"
    CONTAINER_LOG_LINK = "container-log-link"
    BLOB = "blob"
    SNAPSHOT = "snapshot"
    LEASE = "lease"
    IMAGE_NAME = "image-name"
    POD = "pod"

    def counted(self, count: int) -> str:
        """Return a count with the noun in singular or plural, such as ``2 pod log directories``."""
        name = self.value.replace("-", " ")
        if count == 1:
            return f"1 {name}"
        return f"{count} {name[:-1]}ies" if name.endswith("y") else f"{count} {name}{'es' if name[-1] == 'x' else 's'}"


class Verdict(StrEnum):
    """Verdict on an item. The values are part of the JSON output and of logs."""

    REMOVE = "remove"
    KEEP = "keep"
    FAILED = "failed"


_SHOWN: Final = 3
"""Maximum number of list members in a sentence; the details contain the whole list."""


def _shown(key: str, value: Detail) -> str:
    """Format one detail for a sentence, by the unit suffix of its key."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(value, tuple):
        shown = ", ".join(value[:_SHOWN])
        return shown if len(value) <= _SHOWN else f"{shown} and {len(value) - _SHOWN} more"
    if key.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if key.endswith("_s") and isinstance(value, int | float):
        return format_duration(value)
    return str(value)


_USAGES: Final = {
    "low_percent": "is {used_percent}% full, target {low_percent}%",
    "wanted_available_bytes": "is {used_percent}% full, {wanted_available_bytes} available requested",
    "low_inodes_percent": "uses {inodes_used_percent}% of its inodes, target {low_inodes_percent}%",
}
"""Usage of a filesystem in a sentence, by the detail that is present if the resource is above its threshold."""
_PARTS: Final = {
    "writable_bytes": "writable layer {writable_bytes}",
    "logs_bytes": "logs {logs_bytes}",
    "unread": "not read: {unread}",
}
"""Parts of a usage in a sentence, by the detail that is present for the part."""
_NO_DETAILS: Final[Mapping[str, Detail]] = MappingProxyType({})


class Reason(Record, gc=False):
    """Reason of a decision: a code with its details.

    Keys of ``details`` for quantities and times have a unit suffix: ``_bytes``, ``_s`` (seconds), ``_percent``, ``_at``
    (aware UTC time).
    """

    code: ReasonCode
    details: Mapping[str, Detail] = _NO_DETAILS

    @property
    def sentence(self) -> str:
        """The reason as a sentence, without a full stop."""
        shown = {key: _shown(key, value) for key, value in self.details.items()}
        shown["on"] = f" {shown['filesystem']}" if "filesystem" in shown else ""  # on multi-imagefs nodes
        shown["usage"] = "; ".join(form.format_map(shown) for key, form in _USAGES.items() if key in shown)
        parts = ", ".join(form.format_map(shown) for key, form in _PARTS.items() if key in shown)
        shown["parts"] = f" ({parts})" if parts else ""
        return SENTENCES[self.code].format_map(shown)


def decode_detail(key: str, value: object) -> Detail:
    """Return a detail decoded from JSON: a list as a tuple, the value of an ``_at`` key as a datetime."""
    if isinstance(value, list):
        return tuple(map(str, value))
    if isinstance(value, str) and key.endswith("_at"):
        return datetime.fromisoformat(value)
    return value if isinstance(value, str | int | float | bool | datetime | tuple) else str(value)


def sentence_of(code: str, details: Mapping[str, object]) -> str:
    """Return the sentence for a reason from a JSON document; for an unknown code, the code and its details as text."""
    try:
        return Reason(ReasonCode(code), {key: decode_detail(key, value) for key, value in details.items()}).sentence
    except (ValueError, KeyError):
        shown = ", ".join(f"{key}={value}" for key, value in details.items())
        return f"{code} ({shown})" if shown else code


class Decision(Record, gc=False):
    """Decision of a plan on one item: verdict and reason.

    Attributes:
        kind: kind of the item.
        id: the runtime's id, or the entry's name for logs.
        name: display name.
        verdict: whether the item is removed or kept, or failed earlier in this pass.
        reason: reason of the verdict.
        frees_bytes: bytes freed by the removal of the item, after the earlier removals of the plan; for a kept item
            after all removals of the plan; ``None`` if unknown.
        frees_inodes: inodes freed, under the rules of ``frees_bytes``.
        frees_on: on a node with several image filesystems, the bytes freed on each, by path; filesystems with 0 bytes
            are omitted. Empty on a node with one image filesystem.
        last_used: time of the last observed use of an image; ``None`` without observed use, and for other items.
    """

    kind: ItemKind
    id: str
    name: str
    verdict: Verdict
    reason: Reason
    frees_bytes: int | None = None
    frees_inodes: int | None = None
    frees_on: tuple[tuple[str, int], ...] = ()
    last_used: datetime | None = None

    def bytes_on(self, path: str) -> int:
        """Return the bytes freed on the image filesystem with this path; 0 if the path is not in ``frees_on``."""
        return sum(size_bytes for each, size_bytes in self.frees_on if each == path)


_NAME: Final = attrgetter("name")
_ID: Final = attrgetter("id")


def sort_by_name(decisions: list[Decision]) -> None:
    """Sort decisions in place by name, then by id."""
    # Sorted in two steps: most names are unique, and comparing keys of name and id takes several times as long.
    decisions.sort(key=_NAME)
    names = list(map(_NAME, decisions))
    end = 0
    for start in [index for index, is_equal in enumerate(map(eq, names, names[1:])) if is_equal]:
        if start >= end:
            end = bisect_right(names, names[start], lo=start)
            decisions[start:end] = sorted(decisions[start:end], key=_ID)


class Accounting(StrEnum):
    """Accuracy of the byte figures of a plan. The values are part of the JSON output."""

    LAYERS = "layers"
    UPPER_BOUND = "upper-bound"
    NONE = "none"


class FilesystemTarget(Record):
    """Target of an image plan for one image filesystem, on a node with several.

    Attributes:
        path: path of the image filesystem.
        wanted_bytes: bytes to be freed by the removals.
        wanted_inodes: inodes to be freed by the removals.
        pending_bytes: bytes freed on this filesystem in addition, by the runtime's own garbage collection.
    """

    path: str
    wanted_bytes: int
    pending_bytes: int
    wanted_inodes: int = 0


class Plan(Record):
    """Decisions of a planner, in order of execution.

    Attributes:
        kind: ``images``, ``containers``, ``sandboxes``, ``logs``, ``leaks`` or ``pods``.
        made_at: time of the observation.
        decisions: one decision for each item of this kind in the snapshot; removals first, in order of execution.
        accounting: accuracy of the byte figures.
        wanted_bytes: bytes that the removals are to free; 0 for a plan without a target.
        wanted_inodes: inodes that the removals are to free; 0 for a plan without a target.
        pending_bytes: bytes freed by the runtime's own garbage collection, in addition to the removals; if
            ``ends_undo``, removed images in their undo window are included.
        warnings: warnings for the operator.
        blocked: reason that no decision is possible; empty normally. A blocked plan has no removals.
        ends_undo: whether the undo windows of removed images end before the removals, because space is needed.
        ahead_available_bytes: available bytes of the image filesystem at which a collection ahead of the forecast ends;
            ``None`` for any other plan.
        targets: on a node with several image filesystems, the target of each filesystem from which images are removed;
            ``wanted_bytes`` and ``wanted_inodes`` are their sums. Empty on a node with one image filesystem.
        removals: the decisions with the verdict ``remove``, in order of execution; computed.
    """

    kind: str
    made_at: datetime
    decisions: tuple[Decision, ...]
    accounting: Accounting = Accounting.NONE
    wanted_bytes: int = 0
    pending_bytes: int = 0
    warnings: tuple[str, ...] = ()
    blocked: str = ""
    ends_undo: bool = False
    targets: tuple[FilesystemTarget, ...] = ()
    wanted_inodes: int = 0
    ahead_available_bytes: int | None = None
    removals: tuple[Decision, ...] = ()

    def __post_init__(self) -> None:
        """Compute ``removals`` once, since it is read many times and plans of large nodes keep most items."""
        remove = Verdict.REMOVE
        force_setattr(self, "removals", tuple([each for each in self.decisions if each.verdict is remove]))

    @property
    def frees_bytes(self) -> int:
        """Bytes that all removals are predicted to free; an unknown amount counts as 0."""
        return sum(decision.frees_bytes or 0 for decision in self.removals)

    @property
    def shortfall_bytes(self) -> int:
        """Target minus the bytes that the removals are predicted to free; at least 0."""
        if self.targets:
            removals = self.removals
            freed = (sum(each.bytes_on(target.path) for each in removals) for target in self.targets)
            return sum(max(0, target.wanted_bytes - size) for target, size in zip(self.targets, freed, strict=True))
        return max(0, self.wanted_bytes - self.frees_bytes)

    @property
    def frees_inodes(self) -> int:
        """Inodes that all removals are predicted to free; an unknown number counts as 0."""
        return sum(decision.frees_inodes or 0 for decision in self.removals)

    @property
    def shortfall_inodes(self) -> int:
        """Target minus the inodes that the removals are predicted to free, over all filesystems; at least 0."""
        return max(0, self.wanted_inodes - self.frees_inodes)
