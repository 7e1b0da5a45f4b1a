"""Leaks: unreferenced blobs and snapshots above the minimum age, without kept children."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.gc.plan import consistency
from nodeagent.gc.plan.consistency import ALL_LEASES
from nodeagent.gc.plan.image_protection import ProtectionPolicy, kept_names, parse_rule
from nodeagent.model.node import Hold
from nodeagent.model.runtime import (
    HeldContent,
    PieceKind,
    ReferenceKind,
    StoredPiece,
    UnlistedContent,
    UnreferencedPiece,
)
from nodeagent.record import replace
from tests.unit.builders import DAY_S, NOW, ago, codes, container, removed, snapshot as node_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from nodeagent.model.decision import Plan


def plan_leaks(found: Sequence[UnreferencedPiece], now: datetime, *, minimum_age_s: float, rooted: bool) -> Plan:
    content = UnlistedContent(unreferenced=tuple(found))
    return consistency.plan_leaks(content, now, minimum_age_s=minimum_age_s, rooted=rooted)


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


def lease(name: str, age_s: float | None = 2 * DAY_S, *, is_stuck: bool = True) -> HeldContent:
    created_at = None if age_s is None else ago(age_s)
    return HeldContent(ReferenceKind.LEASE, name, 300, created_at, "no expiry", is_stuck, 3)


def image_name(name: str, age_s: float = 2 * DAY_S, *, is_stuck: bool = True) -> HeldContent:
    detail = "1 of 3 blobs missing"
    return HeldContent(
        ReferenceKind.UNLISTED_IMAGE, name, 400, ago(age_s), detail, is_stuck, 4, (name,), "sha256:target"
    )


@pytest.mark.parametrize(
    ("held", "include", "code"),
    [
        pytest.param(lease("old"), (), "foreign-lease", id="lease of another program"),
        pytest.param(lease("old"), ("other",), "foreign-lease", id="another lease included"),
        pytest.param(lease("old"), ("old",), "lease-without-expiry", id="lease included"),
        pytest.param(lease("old"), (ALL_LEASES,), "lease-without-expiry", id="all leases included"),
        pytest.param(lease("old", 60), ("old",), "created-recently", id="new lease"),
        pytest.param(lease("old", None), ("old",), "age-unknown", id="lease of unknown age"),
        pytest.param(lease("old", is_stuck=False), ("old",), None, id="lease with expiry"),
        pytest.param(image_name("r/x:1"), (), "image-incomplete", id="image with missing blobs"),
        pytest.param(image_name("r/x:1", 60), (), "created-recently", id="new image name"),
        pytest.param(image_name("r/x:1", is_stuck=False), (), None, id="image that is only not listed"),
    ],
)
def test_holder_has_the_reason_code_of_its_kind_and_age(
    held: HeldContent, include: tuple[str, ...], code: str | None
) -> None:
    plan = consistency.plan_leaks(UnlistedContent((held,)), NOW, minimum_age_s=DAY_S, rooted=False, include=include)
    assert codes(plan) == ({} if code is None else {held.name: code})
    is_removed = code in {"lease-without-expiry", "image-incomplete"}
    assert [(each.id, each.frees_bytes, each.frees_inodes) for each in plan.removals] == (
        [(held.name, held.size_bytes, held.inodes)] if is_removed else []
    )


def test_reason_of_a_kept_lease_names_the_option_that_deletes_it() -> None:
    (kept,) = consistency.plan_leaks(UnlistedContent((lease("a b"),)), NOW, minimum_age_s=0, rooted=False).decisions
    assert kept.reason.sentence == "lease of another program, without expiry; deleted only with --include a b"


BROKEN = replace(image_name("r/x:1"), names=("r/x:1", "r/x@sha256:d", "sha256:id"))
PROTECTED = ProtectionPolicy(rules=(parse_rule("r/*"),))


@pytest.mark.parametrize(
    ("protection", "fields", "code"),
    [
        pytest.param(ProtectionPolicy(), {}, None, id="no rule"),
        pytest.param(PROTECTED, {}, "protected", id="protected"),
        pytest.param(ProtectionPolicy(rules=(parse_rule("label:a"),)), {}, "labels-unknown", id="rule on a label"),
        pytest.param(
            ProtectionPolicy(),
            {"containers": (container("c", image_ref="sha256:id"),)},
            "in-use-by-container",
            id="used",
        ),
        pytest.param(
            ProtectionPolicy(),
            {"holds": (Hold("1", "r/x:1", "test", "root", NOW, NOW + timedelta(hours=1)),)},
            "held",
            id="held",
        ),
        pytest.param(ProtectionPolicy(), {"holds_error": "unreadable"}, "use-unknown", id="holds unreadable"),
    ],
)
def test_keep_rules_apply_to_the_names_of_broken_images(
    protection: ProtectionPolicy, fields: dict[str, Any], code: str | None
) -> None:
    kept = kept_names(node_snapshot(**fields), protection, [BROKEN])
    assert {name: reason.code.value for name, reason in kept.items()} == ({} if code is None else {"r/x:1": code})
    plan = consistency.plan_leaks(UnlistedContent((BROKEN,)), NOW, minimum_age_s=0, rooted=False, kept=kept)
    assert bool(plan.removals) is (code is None)
