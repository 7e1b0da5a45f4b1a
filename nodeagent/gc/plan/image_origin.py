"""Irreplaceable images: images that cannot be pulled again.

An irreplaceable image was imported or built on this node, has a name under which it was never pulled, or is from a
registry that the configuration lists as unreachable. The removal of an irreplaceable image is a permanent loss.

Rejected alternative: probing registries. The agent must not depend on network access, and a reachable registry may
still deny the pull of an image.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.gc.plan.image_users import normalise, repository_of
from nodeagent.linear_expression import glob_search
from nodeagent.model.decision import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nodeagent.model import Image, NodeSnapshot

_IMPORTED: Final = "imported or built on this node, never pulled"
_UNKNOWN: Final = Reason(ReasonCode.ORIGIN_UNKNOWN)


class Irreplaceable(StrEnum):
    """Treatment of images that cannot be pulled again.

    ``LAST``: removed only if space is needed, after all other images. ``NEVER``: always kept. ``IGNORE``: removed like
    any other image.
    """

    LAST = "last"
    NEVER = "never"
    IGNORE = "ignore"


def irreplaceable_images(snapshot: NodeSnapshot, unreachable: Sequence[str]) -> dict[str, str]:
    """Return the cause, as text, for every image that is known to be irreplaceable, by image id.

    Args:
        snapshot: snapshot of the node.
        unreachable: registries without access, as ``HOST`` or ``HOST:PORT``; ``*`` matches any text.
    """
    sources = snapshot.image_sources
    if sources is None and not unreachable:
        return {}
    found = {}
    for image in snapshot.images:
        cause = _cause(image, None if sources is None else sources.get(image.id), unreachable)
        if cause:
            found[image.id] = cause
    return found


def describe_origins(snapshot: NodeSnapshot, unreachable: Sequence[str]) -> dict[str, str]:
    """Return the origin of every image as text, by image id: ``pulled``, ``unknown``, or why it cannot be pulled."""
    sources: Collection[str] = snapshot.image_sources or ()
    origins = {each.id: "pulled" if each.id in sources else "unknown" for each in snapshot.images}
    return origins | irreplaceable_images(snapshot, unreachable)


def origin_keep_reasons(
    snapshot: NodeSnapshot, treatment: Irreplaceable, unreachable: Sequence[str]
) -> dict[str, Reason]:
    """Return the reason for every image kept because of its origin, by image id.

    An image of unknown origin is kept too. If the runtime reports no origin for any image, images of unknown origin are
    kept only with ``NEVER``.
    """
    if treatment is Irreplaceable.IGNORE:
        return {}
    sources = snapshot.image_sources
    never = treatment is Irreplaceable.NEVER
    kept: dict[str, Reason] = {}
    if sources is not None or never:
        known: Collection[str] = () if sources is None else sources
        kept = {image.id: _UNKNOWN for image in snapshot.images if image.id not in known}
    if never:
        causes = irreplaceable_images(snapshot, unreachable)
        kept |= {image_id: Reason(ReasonCode.IRREPLACEABLE, {"how": how}) for image_id, how in causes.items()}
    return kept


def origin_warning(snapshot: NodeSnapshot, treatment: Irreplaceable, *, removes: bool) -> str:
    """Return the plan warning for a runtime that does not report the origin of images; empty without a warning."""
    if snapshot.image_sources is not None or treatment is Irreplaceable.IGNORE or not snapshot.images:
        return ""
    unknown = "origin of images unknown: not reported by this runtime through CRI"
    if treatment is Irreplaceable.NEVER:
        return f'no image is removed: {unknown}, and image_gc.irreplaceable = "never"'
    return f"{unknown}; imported images are removed like others" if removes else ""


def _cause(image: Image, sources: frozenset[str] | None, unreachable: Sequence[str]) -> str:
    """Return the cause why an image cannot be pulled again; empty if it can be pulled or its origin is unknown."""
    names = image.repo_tags or image.repo_digests
    if sources is not None:
        if not sources:
            return _IMPORTED
        for name in names:
            repository = repository_of(name)
            if repository not in sources and _source_of(name) not in sources:
                return f"never pulled as {repository}"
    for name in names if unreachable else ():
        registry = normalise(name).partition("/")[0]
        if any(glob_search(pattern)(registry) for pattern in unreachable):
            return f"registry {registry} is unreachable"
    return ""


def _source_of(reference: str) -> str:
    """Return the repository of a reference as recorded by containerd: with the registry host, without its port.

    Source: containerd ``AppendDistributionSourceLabel``.
    """
    registry, _, path = repository_of(normalise(reference)).partition("/")
    host = registry.partition("]")[0].removeprefix("[") if registry.startswith("[") else registry.partition(":")[0]
    return f"{host}/{path}"


def removal_reason(how: str, *, all_unused: bool) -> Reason:
    """Return the reason to remove an irreplaceable image, which is removed after all other images."""
    code = ReasonCode.IRREPLACEABLE_UNUSED if all_unused else ReasonCode.IRREPLACEABLE_LAST
    return Reason(code, {"how": how})


def with_last_reasons(kept: Mapping[str, Reason], last: Mapping[str, str]) -> dict[str, Reason]:
    """Return the reasons ``kept``; irreplaceable images kept because space suffices get their cause as reason."""
    replaced = {}
    for image_id, how in last.items():
        reason = kept.get(image_id)
        if reason is not None and reason.code in _NOT_NEEDED:
            replaced[image_id] = Reason(ReasonCode.IRREPLACEABLE_LATER, {"how": how})
    return {**kept, **replaced}


_NOT_NEEDED: Final = frozenset(
    {
        ReasonCode.ENOUGH_FREED,
        ReasonCode.BELOW_HIGH_THRESHOLD,
        ReasonCode.THRESHOLD_DISABLED,
        ReasonCode.COLLECTION_PENDING,
    }
)
