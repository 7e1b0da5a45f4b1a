"""Eviction records in the history: written before the first action, and interrupted evictions."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.eviction.composition import AgentEvictionHistory
from nodeagent.gc.pass_history import HistoryWriter
from nodeagent.store.history import History, Retention
from nodeagent.units import SystemClock
from tests.unit.eviction.eviction_node import LOW, Node, run_pass
from tests.unit.eviction.plan.cases import pod

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.eviction.actions import EvictionRecord
    from nodeagent.store.history import PastPass

KEEP = Retention(timedelta(days=3650), 16 << 20)


@pytest.fixture
async def records() -> tuple[EvictionRecord, EvictionRecord]:
    """Run an eviction; return its records at the start and at the end."""
    node = Node(pods=(pod(),), readings=lambda: (LOW,))
    await run_pass(node)
    return node.begun[0], node.records[0]


def evictions(directory: Path, *, record: bool = True) -> tuple[AgentEvictionHistory, HistoryWriter]:
    writer = HistoryWriter(History(directory), KEEP, SystemClock())
    return AgentEvictionHistory(writer if record else None), writer


def read(directory: Path, *, running: bool = True) -> tuple[str, str, bool]:
    (found,) = History(directory, is_running=lambda _: running).read()
    return found.result, found.actions[0].outcome, bool(found.eviction)


async def test_eviction_is_on_disk_before_it_starts_and_interrupted_if_the_process_ends(
    tmp_path: Path, records: tuple[EvictionRecord, EvictionRecord]
) -> None:
    history, writer = evictions(tmp_path)
    await history.begin(records[0])
    await writer.extend("no such pass", [])  # after the queued write, which may take longer than an eviction waits
    assert read(tmp_path) == ("running", "planned", True)
    assert read(tmp_path, running=False) == ("interrupted", "unknown", True)
    (past,) = History(tmp_path).read(image=records[0].eviction.pod.uid)
    assert past.actions[0].name == f"{records[0].eviction.pod.namespace}/{records[0].eviction.pod.name}"
    await history.finish(records[1])
    await writer.extend("no such pass", [])  # after the queued write
    assert read(tmp_path, running=False) == ("complete", "done", True)


async def test_abandoned_eviction_is_interrupted(
    tmp_path: Path, records: tuple[EvictionRecord, EvictionRecord]
) -> None:
    history, writer = evictions(tmp_path)
    await history.begin(records[0])
    history.abandon(records[0], "cancelled")
    await writer.extend("no such pass", [])  # after the queued write
    assert read(tmp_path) == ("interrupted", "unknown", True)


async def test_eviction_is_not_recorded_by_an_agent_that_records_nothing(
    tmp_path: Path, records: tuple[EvictionRecord, EvictionRecord]
) -> None:
    history, _ = evictions(tmp_path / "state", record=False)
    await history.begin(records[0])
    await history.finish(records[1])
    history.abandon(records[0], "cancelled")
    assert not (tmp_path / "state").exists()


async def test_next_eviction_does_not_wait_for_the_record_of_the_last_one(
    tmp_path: Path, records: tuple[EvictionRecord, EvictionRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    released, add = threading.Event(), History.add

    def add_late(history: History, past: PastPass, retention: Retention, *, clock_trusted: bool = True) -> None:
        released.wait(30)
        add(history, past, retention, clock_trusted=clock_trusted)

    monkeypatch.setattr(History, "add", add_late)
    history, writer = evictions(tmp_path)
    await history.begin(records[0])
    await writer.extend("no such pass", [])  # after the queued write
    await asyncio.wait_for(history.finish(records[1]), 3.0)
    assert read(tmp_path) == ("running", "planned", True)
    released.set()
    await writer.extend("no such pass", [])  # after the queued write
    assert read(tmp_path) == ("complete", "done", True)
