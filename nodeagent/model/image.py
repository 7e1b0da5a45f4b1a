"""Images as listed by the runtime, and their recorded use."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.model.clock_trust import TRUSTED, ClockTrust
from nodeagent.record import KeyedRecord, Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class Image(Record, gc=False):
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


class ImageUsage(KeyedRecord, gc=False):
    """Recorded use of an image; equal by the first two attributes.

    Attributes:
        first_detected: first detection on this node, or the detection of a later pull.
        last_used: last observation of a container that refers to it; ``None`` if there was none.
        pulled_at: creation of its newest name in the runtime; ``None`` if not reported. Only for the order of images
            with equal times: it may be by another clock.
        present_since: start of the minimum age, which is the first detection or an earlier pull that no other fact
            contradicts; ``None`` for the first detection.
    """

    first_detected: datetime
    last_used: datetime | None = None
    pulled_at: datetime | None = None
    present_since: datetime | None = None

    @property
    def equality_key(self) -> tuple[object, ...]:
        """The compared attributes."""
        return self.first_detected, self.last_used


class GapCause(StrEnum):
    """Cause of a gap in the observation of image use. The values are part of the JSON output."""

    AGENT_DOWN = "agent-down"
    REBOOT = "reboot"
    STATE_LOST = "state-lost"
    RUNTIME_UNAVAILABLE = "runtime-unavailable"
    NO_PASS = "no-pass"


class ObservationGap(Record):
    """A gap after which the observation of image use restarted.

    Attributes:
        started_at: last detection before the gap; ``None`` if it is not recorded.
        ended_at: first detection after it.
    """

    started_at: datetime | None
    ended_at: datetime
    cause: GapCause


class ImageUseRecord(Record):
    """Image use as recorded after one detection.

    Attributes:
        usage: one entry for each listed image, by image id.
        observed_since: begin of the observation of use without a gap, aware UTC by the wall clock of this detection;
            ``None`` without observation, such as with an unavailable state database.
        clock: trust in that clock.
    """

    usage: Mapping[str, ImageUsage]
    observed_since: datetime | None
    clock: ClockTrust = TRUSTED
