"""Label of the leases of image removals; see :mod:`nodeagent.runtime.image_leases`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nodeagent.runtime.containerd_records import Lease

KIND_LABEL: Final = "nodeagent/image-removal"

REMOVED: Final = "removed"
"""Value of ``KIND_LABEL`` after the decision to remove: the names can be restored until the lease expires."""


def is_undo(lease: Lease) -> bool:
    """Return whether a lease keeps the content of removed images until their undo window ends."""
    return lease.labels.get(KIND_LABEL) == REMOVED
