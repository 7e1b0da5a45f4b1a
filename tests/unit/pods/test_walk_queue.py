"""Scheduling of directory walks: fairness, hanging walks, errors."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from nodeagent.pods.usage import MOST_HANGING, QueuedWalk, WalkQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 20.0


@dataclass
class Steps:
    """A fake walk with a number of steps; each step appends ``name`` to ``record``."""

    name: str
    turns: int
    record: list[str]
    closed: bool = False

    def advance(self, until_s: float) -> bool:  # noqa: ARG002 - one step per call
        self.record.append(self.name)
        self.turns -= 1
        return self.turns <= 0

    def close(self) -> None:
        self.closed = True


class Failing(Steps):
    def advance(self, until_s: float) -> bool:
        super().advance(until_s)
        raise RuntimeError("broken")


@dataclass
class Hanging:
    """A fake walk with one step that hangs until ``released`` is set."""

    entered: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def advance(self, until_s: float) -> bool:  # noqa: ARG002 - hangs regardless of the time
        self.entered.set()
        assert self.released.wait(WAIT_S)
        return True

    def close(self) -> None:
        pass


@pytest.fixture
def hanging() -> Iterator[list[Hanging]]:
    made = [Hanging() for _ in range(MOST_HANGING + 3)]
    yield made
    for each in made:
        each.released.set()


def add(walks: WalkQueue, *new: Steps | Hanging) -> tuple[list[QueuedWalk], queue.Queue[None]]:
    ends: queue.Queue[None] = queue.Queue()
    return walks.add(new, lambda: ends.put(None)), ends


def wait_for_ends(ends: queue.Queue[None], number: int) -> None:
    for _ in range(number):
        ends.get(timeout=WAIT_S)


def test_large_walk_does_not_delay_the_others() -> None:
    record: list[str] = []
    large, *small = (Steps("large", 50, record), *(Steps(f"small {number}", 2, record) for number in range(3)))
    queued, ends = add(WalkQueue(), large, *small)
    wait_for_ends(ends, 4)
    assert all(each.ended and each.error is None for each in queued)
    assert record[:8] == ["large", "small 0", "small 1", "small 2"] * 2
    assert record[8:] == ["large"] * 48
    assert large.closed


def test_failed_walk_does_not_end_the_others() -> None:
    record: list[str] = []
    queued, ends = add(WalkQueue(), Failing("bad", 1, record), Steps("good", 3, record))
    wait_for_ends(ends, 2)
    assert [str(each.error) for each in queued] == ["broken", "None"]


def test_cancelled_walk_ends_without_another_turn(hanging: list[Hanging]) -> None:
    record: list[str] = []
    first, *_ = hanging
    queued, ends = add(WalkQueue(), first, Steps("cancelled", 9, record), Steps("other", 1, record))
    assert first.entered.wait(WAIT_S)
    queued[1].cancelled = True
    first.released.set()
    wait_for_ends(ends, 3)
    assert record == ["other"]


def test_hanging_walk_does_not_stop_the_others(hanging: list[Hanging], monkeypatch: pytest.MonkeyPatch) -> None:
    walks, record = WalkQueue(), list[str]()
    queued, ends = add(walks, hanging[0], Steps("other", 2, record))
    assert hanging[0].entered.wait(WAIT_S)
    walks.replace_hanging_workers()
    assert record == [], "the first walk does not count as hanging before HANGS_S"
    monkeypatch.setattr("nodeagent.pods.usage.HANGS_S", 0.0)
    walks.replace_hanging_workers()
    wait_for_ends(ends, 1)
    assert record == ["other", "other"]
    assert queued[0].hangs
    hanging[0].released.set()
    wait_for_ends(ends, 1)
    assert not queued[0].hangs


def test_number_of_hanging_workers_is_bounded(hanging: list[Hanging], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.pods.usage.HANGS_S", 0.0)
    walks = WalkQueue()
    queued, ends = add(walks, *hanging)
    for each in hanging[: MOST_HANGING + 1]:
        assert each.entered.wait(WAIT_S)
        walks.replace_hanging_workers()
    walks.replace_hanging_workers()
    assert [each.entered.is_set() for each in hanging] == [True] * (MOST_HANGING + 1) + [False] * 2
    for each in hanging:
        each.released.set()
    walks.replace_hanging_workers()
    wait_for_ends(ends, len(hanging))
    assert all(each.ended for each in queued)


def test_walks_added_after_the_end_of_the_others_are_served() -> None:
    walks = WalkQueue()
    for number in range(20):
        queued, ends = add(walks, Steps(str(number), 2, []))
        wait_for_ends(ends, 1)
        assert queued[0].ended
