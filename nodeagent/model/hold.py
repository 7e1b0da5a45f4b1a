"""An operator's word that images are to stay for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

ALL_IMAGES = ""
LONGEST_HOLD_S = 365 * 86_400.0
"""A hold that is to last longer belongs into the configuration."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold; it ends by itself.

    Attributes:
        id: what to call it when it is to be taken back.
        image: an image's id, reference, digest or a pattern, as protection rules are written; ``ALL_IMAGES`` for
            every image.
        why: the operator's reason.
        by: who placed it.
        placed_at: when, aware UTC.
        until: from when on it holds nothing, aware UTC.
    """

    id: str
    image: str
    why: str
    by: str
    placed_at: datetime
    until: datetime
