"""Leases that keep the content of removed images until their undo window ends.

The lease of a removal cannot be kept for this: its deletion is the decision to remove, and containerd has no call that
changes a label of a lease. So before that deletion, a second lease is created on the same content. It records the
names, and is found by its label. After a crash between the two calls both exist: the removal was not decided, and the
second lease is deleted with the first (see :mod:`nodeagent.act.gc.removal_recovery`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.record import Record
from nodeagent.runtime.bounded_calls import run_bounded
from nodeagent.runtime.containerd_records import LeasedResource
from nodeagent.runtime.image_leases import decode_lease, referenced_blobs
from nodeagent.runtime.metadata_graph import CONTENT
from nodeagent.runtime.removal_label import KIND_LABEL, REMOVED, is_undo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime, timedelta

    from nodeagent.runtime.containerd import ContainerdClient
    from nodeagent.runtime.containerd_records import Lease
    from nodeagent.runtime.image_leases import ImageLeases, ImageName

_PASS_LABEL: Final = "nodeagent/pass"
_SIZE_LABEL: Final = "nodeagent/frees-bytes"
_COUNT_LABEL: Final = "nodeagent/resources"


class UndoableRemoval(Record):
    """Images removed by one transaction of a pass, whose content is kept.

    Attributes:
        pass_id: the pass; empty if its label is missing.
        names: the deleted names.
        removed_at: time of the removal; ``None`` if unknown.
        expires_at: end of the undo window; ``None`` if the label is missing or malformed.
        size_bytes: bytes that the end of the window frees, as predicted by the plan; ``None`` if unknown.
        resources: number of resources of a complete lease.
    """

    lease_id: str
    pass_id: str
    names: tuple[ImageName, ...]
    removed_at: datetime | None
    expires_at: datetime | None
    size_bytes: int | None
    resources: int

    @property
    def image_ids(self) -> tuple[str, ...]:
        """The ids of the removed images, each once."""
        return tuple(dict.fromkeys(each.image_id for each in self.names))

    def is_over(self, now: datetime) -> bool:
        """Return whether the undo window has ended; containerd can delete the content from then on.

        After the wall clock was set back by more than the window, the removal is that much in the future: its window
        has ended too, or the content would be kept until then.
        """
        if self.expires_at is None or self.expires_at <= now:
            return True
        return self.removed_at is not None and self.removed_at - now > self.expires_at - self.removed_at


class UndoLeases:
    """Creates, lists and releases leases of undoable removals. Every method raises the errors of ``unary``."""

    def __init__(self, client: ContainerdClient, leases: ImageLeases) -> None:
        """Use containerd in the namespace of the client; ``leases`` creates and deletes leases."""
        self._client = client
        self._leases = leases

    async def keep(  # noqa: PLR0913 - the content and the labels of the lease
        self,
        names: Sequence[ImageName],
        further: Iterable[LeasedResource],
        *,
        pass_id: str,
        window: timedelta,
        size_bytes: int,
        holder: LeasedResource | None = None,
    ) -> str:
        """Create the lease of an undoable removal before the removal is decided; return its id.

        ``holder`` is an existing blob that references the targets of these names and no others.

        Raises:
            NodeAgentError: the lease could not be created.
        """
        others = tuple(further)
        count = 1 + len(others)  # the blob that references the targets
        labels = {
            KIND_LABEL: REMOVED,
            _PASS_LABEL: pass_id,
            _SIZE_LABEL: str(size_bytes),
            _COUNT_LABEL: str(count),
        }
        return await self._leases.open(names, others, window=window, labels=labels, holder=holder)

    async def list_all(self) -> tuple[UndoableRemoval, ...]:
        """Return the undoable removals, newest first; also those whose window has ended."""
        leases = await self._client.list_leases()
        found = [_decode(each) for each in leases if is_undo(each)]
        dated = [each for each in found if each.removed_at is not None]
        undated = [each for each in found if each.removed_at is None]
        return (*sorted(dated, key=lambda each: (each.removed_at, each.lease_id), reverse=True), *undated)

    async def reopen(self, removal: UndoableRemoval, *, window: timedelta) -> str:
        """Create the lease of a removal without decision, with the names and the content of an undoable one.

        From then on, its names are restored after any interruption. Returns its id.

        Raises:
            ObservationError: the lease does not keep all of the content, or is deleted by now.
        """
        held = await self._client.list_lease_resources(removal.lease_id)
        blobs = await run_bounded(self._client.get_blob, [each.id for each in held if each.type == CONTENT])
        targets = {each.stored.target for each in removal.names}
        holder = next((each.digest for each in blobs if each is not None and targets <= referenced_blobs(each)), "")
        if len(held) < max(1, removal.resources) or not holder:
            raise ObservationError(f"lease {removal.lease_id} does not keep the content of its images")
        others = [each for each in held if each.id != holder]
        return await self._leases.open(removal.names, others, window=window, holder=LeasedResource(holder, CONTENT))

    async def release(self, removals: Iterable[UndoableRemoval], *, collect: bool) -> None:
        """Delete the leases of removals; with ``collect``, return after the garbage collection that frees the space."""
        pending = list(removals)
        for position, each in enumerate(pending, start=1):
            await self._leases.release(each.lease_id, sync=collect and position == len(pending))


def _decode(lease: Lease) -> UndoableRemoval:
    removal = decode_lease(lease)
    return UndoableRemoval(
        removal.lease_id,
        lease.labels.get(_PASS_LABEL, ""),
        removal.names,
        removal.opened_at,
        removal.expires_at,
        _number(lease.labels.get(_SIZE_LABEL, "")),
        _number(lease.labels.get(_COUNT_LABEL, "")) or 0,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
