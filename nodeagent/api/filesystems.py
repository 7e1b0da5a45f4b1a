"""Parts of documents on nodes with several image filesystems; absent on nodes with only one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from nodeagent.api.codec import Part
from nodeagent.api.common import Filesystem
from nodeagent.model import ImageFilesystem
from nodeagent.plan.decision import FilesystemTarget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.act.gc.outcomes import MeasuredFilesystem
    from nodeagent.model import NodeSnapshot


class FreedSpace(Part, frozen=True, kw_only=True):
    """Bytes that a removal frees on one image filesystem."""

    path: str
    bytes: int


class TargetSpace(Part, frozen=True, kw_only=True):
    """The target of a plan on one image filesystem; ``pending_bytes`` are freed by the runtime's own GC."""

    path: str
    wanted_bytes: int
    pending_bytes: int


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


def freed_spaces(values: Iterable[tuple[str, int]]) -> tuple[FreedSpace, ...] | UnsetType:
    """Return the document form of the bytes freed on each image filesystem; unset if empty."""
    return tuple(FreedSpace(path=path, bytes=size) for path, size in values) or UNSET


def target_spaces(values: Iterable[FilesystemTarget]) -> tuple[TargetSpace, ...] | UnsetType:
    """Return the document form of the targets on several image filesystems; unset if empty."""
    return (
        tuple(
            TargetSpace(path=each.path, wanted_bytes=each.wanted_bytes, pending_bytes=each.pending_bytes)
            for each in values
        )
        or UNSET
    )


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
            FilesystemEffect(
                path=each.before.path,
                freed_bytes=each.freed_bytes,
                before=Filesystem.of(each.before),
                after=Filesystem.of(each.after),
            )
            for each in values
        )
        or UNSET
    )


def spaces_to_model(values: tuple[FreedSpace, ...] | UnsetType) -> tuple[tuple[str, int], ...]:
    """Return the model's form of the bytes freed on each image filesystem, by path."""
    return tuple((each.path, each.bytes) for each in values) if isinstance(values, tuple) else ()


def targets_to_model(values: tuple[TargetSpace, ...] | UnsetType) -> tuple[FilesystemTarget, ...]:
    """Return the planner's form of the targets."""
    found = values if isinstance(values, tuple) else ()
    return tuple(FilesystemTarget(each.path, each.wanted_bytes, each.pending_bytes) for each in found)


def filesystems_to_model(values: tuple[ImageFilesystemUsage, ...] | UnsetType) -> tuple[ImageFilesystem, ...]:
    """Return the model's form of several image filesystems."""
    found = values if isinstance(values, tuple) else ()
    return tuple(
        ImageFilesystem(
            each.path,
            frozenset(each.snapshotters) | ({""} if each.content else set()),
            None if each.usage is None else each.usage.to_model(),
            each.problem,
        )
        for each in found
    )
