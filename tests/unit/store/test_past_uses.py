"""Past uses of images: the pauses between two uses, also over a removal and a restart."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.model.runtime import ImageUsage
from nodeagent.store.clock_record import ClockReading
from nodeagent.store.database import FILE_NAME, Store
from nodeagent.store.observation import GapLimits
from nodeagent.store.past_uses import KEPT_IMAGES, KEPT_PAUSES, PastUse, note_uses

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

T0 = datetime(2026, 1, 10, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOUR_S = 3600.0
TICK = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("past", "known", "in_use", "expected"),
    [
        pytest.param(None, ImageUsage(T0 - 9 * HOUR, T0 - 3 * HOUR), True, (3 * HOUR_S,), id="used again"),
        pytest.param(None, ImageUsage(T0 - 9 * HOUR, T0 - HOUR), True, (), id="in use at the previous detection"),
        pytest.param(None, ImageUsage(T0 - 9 * HOUR), True, (), id="first use"),
        pytest.param(None, ImageUsage(T0 - 9 * HOUR, T0 - 3 * HOUR), False, (), id="still unused"),
        pytest.param(PastUse(T0 - 5 * HOUR, (7.0,)), None, True, (5 * HOUR_S, 7.0), id="used again after its removal"),
        pytest.param(
            PastUse(T0 - 9 * HOUR, (7.0,)), ImageUsage(T0, T0 - 2 * HOUR), True, (2 * HOUR_S, 7.0), id="second pause"
        ),
        pytest.param(
            PastUse(T0 - 5 * HOUR, (7.0,)), ImageUsage(T0 - HOUR), True, (5 * HOUR_S, 7.0), id="pulled before its use"
        ),
    ],
)
def test_pause_ends_with_the_next_use(
    past: PastUse | None, known: ImageUsage | None, in_use: bool, expected: tuple[float, ...]
) -> None:
    before = {} if known is None else {"a": known}
    unused = None if known is None else known.last_used
    after = {"a": ImageUsage(T0 - 9 * HOUR, T0 if in_use else unused)}
    used = {"a"} if in_use else set[str]()
    found = note_uses({} if past is None else {"a": past}, before, after, used, T0 - HOUR)
    assert (found["a"].pauses_s if "a" in found else ()) == expected
    assert note_uses({}, before, after, used, None) == {}, "use was not observed during the pause"


def test_short_pauses_and_old_pauses_are_dropped() -> None:
    used = {"a": ImageUsage(T0 - 9 * HOUR, T0)}
    known = {"a": ImageUsage(T0 - 9 * HOUR, T0 - timedelta(minutes=9))}
    assert note_uses({}, known, used, {"a"}, T0 - timedelta(minutes=5)) == {}
    past = {"a": PastUse(T0 - HOUR, (1.0,) * KEPT_PAUSES)}
    known = {"a": ImageUsage(T0 - 9 * HOUR, T0 - HOUR)}
    assert note_uses(past, known, used, {"a"}, T0 - TICK)["a"].pauses_s == (HOUR_S, *(1.0,) * (KEPT_PAUSES - 1))


def test_last_use_of_removed_images_is_kept_for_the_latest() -> None:
    known = {f"i{each:05}": ImageUsage(T0 - 9 * HOUR, T0 - each * TICK) for each in range(KEPT_IMAGES + 5)}
    known["never"] = ImageUsage(T0)
    found = note_uses({"i00000": PastUse(T0 - HOUR, (7.0,))}, known, {}, (), None)
    assert found.keys() == {f"i{each:05}" for each in range(KEPT_IMAGES)}
    assert found["i00000"] == PastUse(T0, (7.0,))


def observe(store: Store, images: Collection[str], in_use: Collection[str], hours: int) -> dict[str, tuple[float, ...]]:
    """Return the pauses of the images after a detection this many hours after the first."""
    at = ClockReading("boot", 1000 + hours * HOUR_S, T0 + hours * HOUR)
    found = store.observe(dict.fromkeys(images), in_use, at).usage
    return {image_id: each.pauses_s for image_id, each in found.items()}


def test_pauses_survive_the_removal_of_an_image_and_restarts(tmp_path: Path) -> None:
    gaps = GapLimits(2 * HOUR_S, 2 * HOUR_S)
    store = Store(tmp_path, gaps=gaps)
    observe(store, {"a", "b"}, {"a"}, 0)
    for hours in range(1, 6):
        observe(store, {"a", "b"}, (), hours)
    assert observe(store, {"a", "b"}, {"a"}, 6) == {"a": (5 * HOUR_S + 1e-6,), "b": ()}
    observe(store, {"a", "b"}, (), 7)
    observe(store, {"b"}, (), 8)
    store = Store(tmp_path, gaps=gaps)
    for hours in range(9, 12):
        observe(store, {"b"}, (), hours)
    assert observe(store, {"a", "b"}, {"a"}, 12) == {"a": (5 * HOUR_S + 1e-6, 5 * HOUR_S + 1e-6), "b": ()}
    assert observe(Store(tmp_path, gaps=gaps), {"a"}, {"a"}, 12)["a"] == (5 * HOUR_S + 1e-6, 5 * HOUR_S + 1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"a": 1}',
        '{"a": [1, ["x"]]}',
        '{"a": [1, [Infinity]]}',
        '{"a": [1e400, []]}',
        '{"a": [1e30, []]}',
        "x",
        1,
    ],
)
def test_malformed_past_uses_are_dropped_and_the_other_rows_are_kept(tmp_path: Path, text: str | int) -> None:
    observe(Store(tmp_path), {"a"}, {"a"}, 0)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as file, file:
        file.execute("INSERT OR REPLACE INTO meta VALUES ('past_image_uses', ?)", (text,))
    store = Store(tmp_path)
    (notice,) = store.take_notices()
    assert "malformed past uses" in notice
    assert store.usage()["a"].last_used == T0
    assert observe(store, {"a"}, {"a"}, 1) == {"a": ()}
    assert Store(tmp_path).take_notices() == ()


def test_past_uses_are_removed_from_a_file_that_is_written_completely(tmp_path: Path) -> None:
    observe(Store(tmp_path), {"a"}, {"a"}, 0)
    other = Store(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as file, file:
        file.execute("INSERT OR REPLACE INTO meta VALUES ('past_image_uses', '{\"a\": [1, [7200.0]]}')")
        file.execute("UPDATE meta SET value = 'x' WHERE key = 'last_write'")
    observe(other, {"a"}, {"a"}, 1)
    assert observe(Store(tmp_path), {"a"}, {"a"}, 1) == {"a": ()}
