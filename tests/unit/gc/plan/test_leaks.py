"""Leaks: unreferenced blobs and snapshots above the minimum age, without kept children."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.gc.plan.consistency import plan_leaks
from nodeagent.model.runtime import PieceKind, ReferenceKind, StoredPiece, UnreferencedPiece
from tests.unit.builders import DAY_S, NOW, ago, codes, removed


def blob(
    key: str, age_s: float | None = 2 * DAY_S, *, rooted: bool = False, foreign: bool = False
) -> UnreferencedPiece:
    references = (ReferenceKind.OTHER_NAMESPACE,) if foreign else ()
    created_at = None if age_s is None else ago(age_s)
    return UnreferencedPiece(StoredPiece(key, PieceKind.BLOB, 100, 1, references), "", created_at, rooted)


def snapshot(key: str, age_s: float = 2 * DAY_S, *, parent: str = "", rooted: bool = False) -> UnreferencedPiece:
    return UnreferencedPiece(StoredPiece(key, PieceKind.SNAPSHOT, 1000, 5), "overlayfs", ago(age_s), rooted, parent)


@pytest.mark.parametrize(
    ("found", "rooted", "code"),
    [
        (blob("x"), False, "unreferenced"),
        (blob("x", DAY_S), False, "unreferenced"),
        (blob("x", DAY_S - 1), False, "created-recently"),
        (blob("x", -5), False, "created-recently"),
        (blob("x", None), False, "age-unknown"),
        (blob("x", rooted=True), False, "gc-root-label"),
        (blob("x", rooted=True), True, "unreferenced"),
        (blob("x", 5, rooted=True), True, "created-recently"),
    ],
)
def test_piece_has_the_reason_code_of_its_age_and_label(found: UnreferencedPiece, rooted: bool, code: str) -> None:
    plan = plan_leaks([found], NOW, minimum_age_s=DAY_S, rooted=rooted)
    assert codes(plan) == {"x": code}
    assert removed(plan) == (["x"] if code == "unreferenced" else [])


def test_snapshot_is_removed_after_its_children_and_kept_below_a_kept_child() -> None:
    found = [
        snapshot("bottom"),
        snapshot("middle", parent="bottom"),
        snapshot("top", parent="middle"),
        snapshot("kept"),
        snapshot("new", 60, parent="kept"),
        blob("b"),
    ]
    plan = plan_leaks(found, NOW, minimum_age_s=DAY_S, rooted=False)
    assert removed(plan) == ["top", "middle", "bottom", "b"]
    assert codes(plan)["kept"] == "snapshot-has-child"


def test_blob_in_another_namespace_frees_no_bytes() -> None:
    plan = plan_leaks([blob("x", foreign=True), blob("y")], NOW, minimum_age_s=0, rooted=False)
    assert {each.id: each.frees_bytes for each in plan.removals} == {"x": 0, "y": 100}


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 3 * DAY_S), st.booleans()), max_size=10), st.booleans())
def test_no_snapshot_is_removed_before_its_children(shape: list[tuple[int, float, bool]], rooted: bool) -> None:
    found = [
        snapshot(f"s{number}", age, parent=f"s{below}" if below < number else "", rooted=marked)
        for number, (below, age, marked) in enumerate(shape)
    ]
    plan = plan_leaks(found, NOW, minimum_age_s=DAY_S, rooted=rooted)
    assert sorted(each.id for each in plan.decisions) == sorted(each.piece.key for each in found)
    removed_keys: set[str] = set()
    for key in removed(plan):
        children = {each.piece.key for each in found if each.parent == key}
        assert children <= removed_keys
        removed_keys.add(key)
