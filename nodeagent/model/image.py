"""Images as the runtime lists them, and what is remembered of their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Image:
    """One image of the runtime's list.

    Attributes:
        id: the CRI image id, for containerd the digest of the image's config.
        repo_tags: references with a tag, such as ``registry.k8s.io/pause:3.9``.
        repo_digests: references with a digest, such as ``registry.k8s.io/pause@sha256:...``.
        size_bytes: the size CRI reports, which for containerd is compressed content with shared layers
            counted in every image; ``None`` where the runtime gave none.
        pinned: whether the runtime asks that it never be collected; ``False`` on runtimes that cannot say.

    Source: CRI ``Image``.
    """

    id: str
    repo_tags: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()
    size_bytes: int | None = None
    pinned: bool = False

    @property
    def references(self) -> tuple[str, ...]:
        """Every name the image answers to, tags first."""
        return self.repo_tags + self.repo_digests

    @property
    def name(self) -> str:
        """The name to show a person: the first tag, else the first digest reference, else the id."""
        if self.repo_tags:
            return self.repo_tags[0]
        return self.repo_digests[0] if self.repo_digests else self.id


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """What is remembered about an image between passes.

    Attributes:
        first_detected: when it was first seen on this node, or pulled where the runtime tells.
        last_used: when a container was last seen to refer to it; ``None`` if that was never seen.
    """

    first_detected: datetime
    last_used: datetime | None = None


@dataclass(frozen=True, slots=True)
class ImageUseRecord:
    """Image use as recorded after one detection.

    Attributes:
        usage: one entry for each listed image, by image id.
        observed_since: since when use has been observed without a gap, aware UTC by the wall clock of this detection;
            ``None`` while it is not, as with an unavailable state database.
    """

    usage: Mapping[str, ImageUsage]
    observed_since: datetime | None
