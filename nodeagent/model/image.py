"""Images as listed by the runtime, and their recorded use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Image:
    """One image in the runtime's list.

    Attributes:
        id: the CRI image id, for containerd the digest of the image's config.
        repo_tags: references with a tag, such as ``registry.k8s.io/pause:3.9``.
        repo_digests: references with a digest, such as ``registry.k8s.io/pause@sha256:...``.
        size_bytes: the size reported by CRI: for containerd of the compressed content, with shared layers counted in
            every image; ``None`` if not reported.
        pinned: whether the runtime exempts it from garbage collection; false where not reported.

    Source: CRI ``Image``.
    """

    id: str
    repo_tags: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()
    size_bytes: int | None = None
    pinned: bool = False

    @property
    def references(self) -> tuple[str, ...]:
        """All references, tags first."""
        return self.repo_tags + self.repo_digests

    @property
    def name(self) -> str:
        """Display name: the first tag, else the first digest reference, else the id."""
        if self.repo_tags:
            return self.repo_tags[0]
        return self.repo_digests[0] if self.repo_digests else self.id


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """Recorded use of an image.

    Attributes:
        first_detected: first detection on this node, or the pull where reported.
        last_used: last observation of a container with a reference to it; ``None`` without one.
    """

    first_detected: datetime
    last_used: datetime | None = None


@dataclass(frozen=True, slots=True)
class ImageUseRecord:
    """Image use as recorded after one detection.

    Attributes:
        usage: one entry for each listed image, by image id.
        observed_since: begin of the observation of use without a gap, aware UTC by the wall clock of this detection;
            ``None`` without observation, such as with an unavailable state database.
    """

    usage: Mapping[str, ImageUsage]
    observed_since: datetime | None
