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
        size_bytes: size reported by CRI, on containerd the size of the compressed content, with shared layers counted
            in every image; ``None`` if not reported.
        pinned: whether the runtime exempts the image from garbage collection; false if not reported.

    Source: CRI ``Image``.
    """

    id: str
    repo_tags: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()
    size_bytes: int | None = None
    pinned: bool = False

    @property
    def references(self) -> tuple[str, ...]:
        """All references of the image, tags first."""
        return self.repo_tags + self.repo_digests

    @property
    def name(self) -> str:
        """Display name: the first tag, else the first digest reference, else the id."""
        if self.repo_tags:
            return self.repo_tags[0]
        return self.repo_digests[0] if self.repo_digests else self.id


class ImageUsage(KeyedRecord, gc=False):
    """Recorded use of an image; comparisons use only the first two attributes.

    Attributes:
        first_detected: time of the first detection on this node, or of the detection of a later pull.
        last_used: time of the last observation of a container with this image; ``None`` if never observed.
        pulled_at: creation time of the newest name of the image in the runtime; ``None`` if not reported. Used only to
            order images with equal times, because the time may be by another clock.
        present_since: start of the minimum age: the time of an earlier pull that no other fact contradicts; ``None``
            if the minimum age starts at ``first_detected``.
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
    """A gap in the observation of image use.

    Attributes:
        started_at: time of the last detection before the gap; ``None`` if not recorded.
        ended_at: time of the first detection after the gap.
    """

    started_at: datetime | None
    ended_at: datetime
    cause: GapCause


class ImageUseRecord(Record):
    """Image use as recorded after one detection.

    Attributes:
        usage: one entry for each listed image, by image id.
        observed_since: start of the observation without a gap, aware UTC, by the wall clock of this detection; ``None``
            without observation, such as while the state database is unavailable.
        clock: trust in the wall clock of this detection.
    """

    usage: Mapping[str, ImageUsage]
    observed_since: datetime | None
    clock: ClockTrust = TRUSTED
