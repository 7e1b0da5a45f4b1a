"""Freed space is made visible before it is measured, since a measurement without it removes or evicts more."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.guarded_call import GuardedCall, HangingCallError
from nodeagent.host.btrfs import start_commits

if TYPE_CHECKING:
    from collections.abc import Iterable

_WITHIN_S: Final = 2.0
_COMMITS: Final = GuardedCall[None]()


async def make_visible(paths: Iterable[str]) -> None:
    """Start a commit on the Btrfs filesystems of these paths; wait 2 s at most for a filesystem to accept it.

    While a filesystem hangs, it occupies one thread, and no further commit is started.
    """
    with suppress(HangingCallError):
        await _COMMITS.run(partial(start_commits, tuple(paths)), within_s=_WITHIN_S)
