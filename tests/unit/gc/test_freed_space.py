"""Commits that make freed space visible, on hanging and responsive filesystems."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeagent.gc import pass_state
from nodeagent.gc.pass_state import make_visible
from nodeagent.guarded_call import GuardedCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


async def test_hanging_filesystem_occupies_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    committed: list[Sequence[str]] = []
    started, released = threading.Event(), threading.Event()

    def hang(paths: Sequence[str]) -> None:
        committed.append(paths)
        started.set()
        released.wait(20)

    monkeypatch.setattr(pass_state, "start_commits", hang)
    monkeypatch.setattr(pass_state, "_COMMIT_WITHIN_S", 0.01)
    monkeypatch.setattr(pass_state, "_COMMITS", GuardedCall())
    await make_visible(["/dead"])
    await asyncio.to_thread(started.wait, 20)
    await make_visible(["/var"])
    assert committed == [("/dead",)]
    released.set()


async def test_commit_is_started_again_after_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    committed: list[Sequence[str]] = []

    def fail(paths: Sequence[str]) -> None:
        committed.append(paths)
        raise PermissionError

    monkeypatch.setattr(pass_state, "start_commits", fail)
    for path in ("/a", "/b"):
        with suppress(PermissionError):
            await make_visible([path])
    assert committed == [("/a",), ("/b",)]
