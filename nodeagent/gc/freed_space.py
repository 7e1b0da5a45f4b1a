"""Commit of freed space on Btrfs before a measurement, which would otherwise cause further removals or evictions."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.guarded_call import GuardedCall, HangingCallError
from nodeagent.host.filesystems import start_commits

if TYPE_CHECKING:
    from collections.abc import Iterable

_WITHIN_S: Final = 2.0
_COMMITS: Final = GuardedCall[None]()


async def make_visible(paths: Iterable[str]) -> None:
    """Start a commit on the Btrfs filesystems of these paths; wait at most 2 s for the call to return.

    A hanging filesystem occupies one thread; no further commit is started until that call returns.
    """
    with suppress(HangingCallError):
        await _COMMITS.run(partial(start_commits, tuple(paths)), within_s=_WITHIN_S)
