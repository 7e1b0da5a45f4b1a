"""File of holds: persistence, expiry, and errors instead of an empty list."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import StoreError
from nodeagent.gc.hold_file import HoldFile
from nodeagent.gc.plan.image_protection import held_images, holds_in_force
from nodeagent.gc.plan.image_users import ImageIndex
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.model.clock import TRUSTED
from nodeagent.model.node import ALL_IMAGES, Hold
from tests.unit.builders import NOW, ago, codes, filesystem, image, removed, snapshot, used

if TYPE_CHECKING:
    from pathlib import Path

T0 = datetime(2026, 1, 10, 12, tzinfo=UTC)


def hold(text: str = "r/a:1", *, placed: datetime = T0, hours: float = 1) -> Hold:
    return Hold("", text, "debugging", "ann", placed, placed + timedelta(hours=hours))


def test_added_hold_is_read_by_the_next_process(tmp_path: Path) -> None:
    assert HoldFile(tmp_path / "none").read() == ()
    assert not (tmp_path / "none").exists()
    first = HoldFile(tmp_path).add(hold(), TRUSTED)
    second = HoldFile(tmp_path).add(hold(ALL_IMAGES, hours=9), TRUSTED)
    assert (first.id, second.id) == ("1", "2")
    assert HoldFile(tmp_path).read() == (first, second)
    assert HoldFile(tmp_path).remove("1") == first
    assert HoldFile(tmp_path).remove("1") is None
    assert HoldFile(tmp_path).read() == (second,)


def test_hold_is_added_beside_one_with_text_that_is_not_utf_8(tmp_path: Path) -> None:
    file = HoldFile(tmp_path)
    file.add(hold(), TRUSTED)
    path = tmp_path / "holds.json"
    path.write_text(path.read_text().replace('"debugging"', '"\\udcff"'))
    second = file.add(hold(), TRUSTED)
    assert [each.id for each in file.read()] == ["1", second.id]


def test_hold_of_another_user_is_not_removed(tmp_path: Path) -> None:
    placed = HoldFile(tmp_path).add(hold(), TRUSTED)
    assert HoldFile(tmp_path).remove(placed.id, placed_by="another user") is None
    assert HoldFile(tmp_path).read() == (placed,)
    assert HoldFile(tmp_path).remove(placed.id, placed_by=placed.by) == placed


def test_expired_holds_are_dropped_with_the_next_hold(tmp_path: Path) -> None:
    file = HoldFile(tmp_path)
    file.add(hold(), TRUSTED)
    last = file.add(hold("r/b:1", placed=T0 + timedelta(hours=2)), TRUSTED)
    assert file.read() == (last,)
    assert last.id == "2"


def test_id_of_a_removed_or_expired_hold_is_not_used_again(tmp_path: Path) -> None:
    file = HoldFile(tmp_path)
    assert [file.add(hold(), TRUSTED).id, file.add(hold(), TRUSTED).id] == ["1", "2"]
    for each in ("2", "1"):
        file.remove(each)
    third = HoldFile(tmp_path).add(hold(), TRUSTED)
    assert (third.id, file.read()) == ("3", (third,))
    assert HoldFile(tmp_path).add(hold(placed=T0 + timedelta(hours=2)), TRUSTED).id == "4"
    assert file.read() == file.read()[-1:]


def test_ids_continue_after_the_highest_id_in_a_file_without_counter(tmp_path: Path) -> None:
    file = HoldFile(tmp_path)
    file.add(hold(), TRUSTED)
    document = json.loads((tmp_path / "holds.json").read_text())
    del document["last_id"]
    document["holds"][0]["id"] = "7"
    (tmp_path / "holds.json").write_text(json.dumps(document))
    assert file.add(hold(), TRUSTED).id == "8"


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": "nodeagent/holds/v1", "last_id": "1", "holds": []}',
        '{"schema": "nodeagent/holds/v1", "last_id": -1, "holds": []}',
        '{"schema": "nodeagent/holds/v1", "last_id": true, "holds": []}',
        '{"schema": "nodeagent/holds/v1", "holds": ' + "[" * 100_000,
        "",
        "{",
        "[]",
        '{"schema": "nodeagent/holds/v2", "holds": []}',
        '{"schema": "nodeagent/holds/v1"}',
        '{"schema": "nodeagent/holds/v1", "holds": [{"id": "1"}]}',
        (
            '{"schema": "nodeagent/holds/v1", "holds": [{"id": "1", "image": "a", "why": "", "by": "", '
            '"placed_at": "2026-01-10T12:00:00", "until": "2026-01-10T12:00:00"}]}'
        ),
    ],
    ids=[
        "last-id-text",
        "last-id-negative",
        "last-id-boolean",
        "nested",
        "empty",
        "cut",
        "list",
        "newer",
        "without",
        "lacking",
        "no zone",
    ],
)
def test_malformed_file_is_an_error_and_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "holds.json").write_text(text)
    with pytest.raises(StoreError, match="cannot read holds"):
        HoldFile(tmp_path).read()
    with pytest.raises(StoreError):
        HoldFile(tmp_path).add(hold(), TRUSTED)
    assert (tmp_path / "holds.json").read_text() == text


def test_hold_with_the_latest_expiry_is_the_reason() -> None:
    texts = ("r/*", "r/a", ALL_IMAGES, "*", "c")
    holds = [Hold(str(n), text, "why", "ann", ago(60), ago(-60 - n)) for n, text in enumerate(texts)]
    node = snapshot((image("a", "r/a:1"), used(100)), (image("c"), used(100)), holds=holds)
    reasons = held_images(node, ImageIndex(node.images))
    assert {image_id: reason.details["hold"] for image_id, reason in reasons.items()} == {"a": "3", "c": "4"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (ALL_IMAGES, "abc"),
        ("r/a:1", "a"),
        ("r/*", "ab"),
        ("sha256:" + "c" * 64, "c"),
        ("regex:b:1$", "b"),
        ("regex:^(?!r/b)", "abc"),  # look-ahead, accepted by version 0.1
        ("r/none*" * 50, "abc"),  # longer than a pattern, accepted by version 0.2
        ("sha256:" + "d" * 8, ""),
        ("r/none", ""),
    ],
)
def test_hold_keeps_matching_images_until_it_expires(text: str, kept: str) -> None:
    images = {"a": image("a", "r/a:1"), "b": image("b", "r/b:1"), "c": image("sha256:" + "c" * 64, "docker.io/x/c:1")}
    for until, matching in ((ago(-60), kept), (NOW, "")):
        held = Hold("7", text, "why", "ann", ago(60), until)
        node = snapshot(
            *((each, used(100)) for each in images.values()),
            image_filesystem=filesystem(99),
            holds=holds_in_force([held], TRUSTED, NOW),
        )
        plan = plan_image_gc(node, ImageGCPolicy(low_threshold_percent=0))
        assert set(removed(plan)) == {images[name].id for name in "abc" if name not in matching}
        assert {item_id for item_id, code in codes(plan).items() if code == "held"} == {
            images[name].id for name in matching
        }
