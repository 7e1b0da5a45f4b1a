"""Leases that keep the content of removed images until their undo window ends.

The lease of a removal cannot be used for the undo window: its deletion is the decision to remove, and containerd has no
call that changes a label of a lease. Before that deletion, a second lease is therefore created on the same content. The
second lease records the names, and is identified by its label. After a crash between the two calls both leases exist:
the removal was not decided, and both leases are deleted (see :mod:`nodeagent.act.gc.removal_recovery`).
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
    """Images that one transaction of a pass has removed, and whose content is kept during the undo window.

    Attributes:
        pass_id: id of the pass; empty if the label is missing.
        names: the deleted names.
        removed_at: time of the removal; ``None`` if unknown.
        expires_at: end of the undo window; ``None`` if the label is missing or malformed.
        size_bytes: bytes freed at the end of the undo window, as predicted by the plan; ``None`` if unknown.
        resources: number of resources at the creation of the lease; 0 if unknown.
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
        """Ids of the removed images, without duplicates."""
        return tuple(dict.fromkeys(each.image_id for each in self.names))

    def is_over(self, now: datetime) -> bool:
        """Return whether the undo window has ended; containerd can delete the content from then on.

        If the time of the removal is in the future by more than the window, the wall clock was set back. The window
        then counts as ended, since the content would otherwise be kept too long.
        """
        if self.expires_at is None or self.expires_at <= now:
            return True
        return self.removed_at is not None and self.removed_at - now > self.expires_at - self.removed_at


class UndoLeases:
    """Operations on the leases of undoable removals: create, list, reopen and release.

    Every method raises the errors of ``RuntimeConnection.unary``.
    """

    def __init__(self, client: ContainerdClient, leases: ImageLeases) -> None:
        """Create the operations for the client's namespace; ``leases`` creates and deletes leases."""
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

        ``holder`` is an existing blob that references exactly the targets of these names.

        Raises:
            NodeAgentError: the lease could not be created.
        """
        others = tuple(further)
        count = 1 + len(others)  # 1 is the blob that references the targets
        labels = {
            KIND_LABEL: REMOVED,
            _PASS_LABEL: pass_id,
            _SIZE_LABEL: str(size_bytes),
            _COUNT_LABEL: str(count),
        }
        return await self._leases.open(names, others, window=window, labels=labels, holder=holder)

    async def list_all(self) -> tuple[UndoableRemoval, ...]:
        """Return the undoable removals, newest first, including removals with an ended undo window."""
        leases = await self._client.list_leases()
        found = [_decode(each) for each in leases if is_undo(each)]
        dated = [each for each in found if each.removed_at is not None]
        undated = [each for each in found if each.removed_at is None]
        return (*sorted(dated, key=lambda each: (each.removed_at, each.lease_id), reverse=True), *undated)

    async def reopen(self, removal: UndoableRemoval, *, window: timedelta) -> str:
        """Create the lease of an undecided removal, with the names and the content of ``removal``; return its id.

        After this call, any interruption of the undo causes the names to be restored.

        Raises:
            ObservationError: the lease of ``removal`` was deleted, or does not keep all of the content.
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
