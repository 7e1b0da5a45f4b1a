"""End of undo windows, including windows across corrections of the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nodeagent.runtime.leases import UndoableRemoval

REMOVED_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = timedelta(minutes=10)


@pytest.mark.parametrize(
    ("elapsed", "over"),
    [
        (timedelta(), False),
        (WINDOW - timedelta(seconds=1), False),
        (WINDOW, True),
        (timedelta(days=400), True),
        (-timedelta(minutes=9), False),
        (-WINDOW, False),
        (-timedelta(minutes=11), True),
        (-timedelta(days=4000), True),
    ],
    ids=[
        "new",
        "open",
        "ended",
        "set-forward",
        "set-back",
        "set-back-by-window",
        "set-back-further",
        "from-the-future",
    ],
)
def test_undo_window_ends_by_the_clock_and_after_the_clock_was_set_back_by_more_than_it(
    elapsed: timedelta, *, over: bool
) -> None:
    removal = UndoableRemoval("l", "pass", (), REMOVED_AT, REMOVED_AT + WINDOW, None, 1)
    assert removal.is_over(REMOVED_AT + elapsed) is over


def test_window_without_readable_end_is_over_and_one_without_start_ends_by_its_end() -> None:
    assert UndoableRemoval("l", "pass", (), REMOVED_AT, None, None, 1).is_over(REMOVED_AT)
    undated = UndoableRemoval("l", "pass", (), None, REMOVED_AT + WINDOW, None, 1)
    assert not undated.is_over(REMOVED_AT - timedelta(days=400))
    assert undated.is_over(REMOVED_AT + WINDOW)
