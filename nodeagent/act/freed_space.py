"""Freed space is made visible before it is measured, since a measurement without it removes or evicts more."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.host.btrfs import start_commits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WITHIN_S: Final = 2.0
_IN_PROGRESS: Final = threading.Lock()


async def make_visible(paths: Iterable[str]) -> None:
    """Start a commit on the Btrfs filesystems of these paths; wait 2 s at most for a filesystem to accept it.

    While a filesystem hangs, it occupies one thread, and no further commit is started.
    """
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(_start_commits, tuple(paths)), _WITHIN_S)


def _start_commits(paths: Sequence[str]) -> None:
    if _IN_PROGRESS.acquire(blocking=False):
        try:
            start_commits(paths)
        finally:
            _IN_PROGRESS.release()
