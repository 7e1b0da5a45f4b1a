"""Creation of the lease of an image transaction, before any deletion; without the lease, the images are kept."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.act.gc.image_transaction import WINDOW, ImageTransaction, OpenedLease
from nodeagent.errors import (
    NodeAgentError,
    RuntimeRequestError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    RuntimeUnsupportedError,
)
from nodeagent.runtime.image_leases import is_disk_full

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.act.gc.image_transaction import Candidate, TransactionServices
    from nodeagent.model import ClockTrust

_LONG_WINDOW: Final = timedelta(days=36_500)
RETRY_AFTER_S: Final = (0.1, 0.5)
"""Seconds to wait before each further attempt to create a refused lease."""


class LeaseRefusedError(NodeAgentError):
    """containerd refused the lease of a transaction; nothing was deleted."""


async def begin(
    services: TransactionServices, candidates: Sequence[Candidate], clock: ClockTrust
) -> ImageTransaction | None:
    """Lease the content of images and return the transaction.

    The result is ``None`` if images can only be removed without a transaction: the runtime has no leases, or the disk
    is too full for the record of a lease (container creations then fail too).

    Args:
        services: services of the remover.
        candidates: the images to remove.
        clock: trust in the wall clock at the plan. With an untrusted clock the lease has a very long lifetime, so that
            a clock correction does not end the lease early.

    Raises:
        RuntimeUnavailableError: the runtime is unavailable.
        LeaseRefusedError: containerd refused the lease several times; the images are kept.
        NodeAgentError: containerd is slow; the images are kept rather than removed without a transaction.
    """
    extents = services.records.extents({each.image.id: each.stored for each in candidates})
    further = dict.fromkeys(piece for each in extents.values() for piece in each.further)
    names = [name for each in candidates for name in each.names]
    window = WINDOW if not clock.problem and clock.untrusted_until is None else _LONG_WINDOW
    refused: RuntimeRequestError | None = None
    for wait_s in (0.0, *RETRY_AFTER_S):
        await asyncio.sleep(wait_s)
        opened_s = services.clock.monotonic_s()
        try:
            lease_id = await services.records.leases.open(names, further, window=window)
        except (RuntimeUnavailableError, RuntimeTimeoutError):
            raise
        except RuntimeUnsupportedError:
            return None
        except RuntimeRequestError as error:
            if is_disk_full(error):
                return None
            refused = error
        else:
            return ImageTransaction(services, OpenedLease(lease_id, opened_s), candidates, extents)
    raise LeaseRefusedError(
        f"kept: containerd refused the lease that keeps images restorable during their removal: {refused}; "
        'image_gc.removal = "cri" removes images without it'
    )
