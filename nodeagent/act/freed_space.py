"""Freed space is made visible before it is measured, since a measurement without it removes or evicts more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.host.btrfs import start_commits

if TYPE_CHECKING:
    from collections.abc import Iterable

_WITHIN_S: Final = 2.0


async def make_visible(paths: Iterable[str]) -> None:
    """Start a commit on the Btrfs filesystems of these paths; wait 2 s at most for a filesystem to accept it."""
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(start_commits, tuple(paths)), _WITHIN_S)
