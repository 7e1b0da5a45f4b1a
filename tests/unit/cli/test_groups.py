"""Images of a repository as one row, in ``images --group`` and in plans on a terminal."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, strategies as st

from nodeagent.cli.display import Display
from nodeagent.cli.gc import plan_lines
from nodeagent.cli.groups import in_groups, repository
from nodeagent.cli.listing import IMAGES, ListOptions
from nodeagent.cli.lists import ListRequest
from nodeagent.errors import UsageError
from nodeagent.model.decision import Accounting, Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.text import escape
from tests.unit.builders import NOW
from tests.unit.cli.test_completion import words
from tests.unit.cli.test_listing import KEPT, REMOVED, image

if TYPE_CHECKING:
    from nodeagent.gc.documents.lists import ImageDocument

MIB = 1 << 20
UNUSED = Reason(ReasonCode.ALL_UNUSED)


def row(name: str, *, removed: bool, frees_mib: int | None = 1, used_h: int | None = None) -> ImageDocument:
    verdict, reason = (Verdict.REMOVE, REMOVED) if removed else (Verdict.KEEP, KEPT)
    return msgspec.structs.replace(
        image(name),
        verdict=verdict,
        reason=reason,
        frees_bytes=None if frees_mib is None else frees_mib * MIB,
        last_used=None if used_h is None else NOW - timedelta(hours=used_h),
    )


def table(rows: list[ImageDocument], **options: object) -> list[list[str]]:
    request = ListRequest.of(IMAGES, ListOptions(group=True)._replace(**options))  # type: ignore[arg-type]
    return [line.text.split() for line in request.table(request.selected(rows), NOW, Display())][1:]


def test_group_has_number_use_planned_bytes_and_common_verdict() -> None:
    rows = [
        row("r.example/a:1", removed=True, frees_mib=3, used_h=48),
        row("r.example/b:1", removed=False, frees_mib=9),
        row("r.example/a:2", removed=True, frees_mib=4, used_h=1),
    ]
    assert table(rows) == [
        ["r.example/a", "2", "1h-2d", "7.00MiB", "remove", "all-unused"],
        ["r.example/b", "1", "none", "seen", "0B", "keep", "pinned"],
    ]


def test_group_of_several_verdicts_counts_them_and_only_the_bytes_of_removals() -> None:
    rows = [row("r/a:1", removed=True, frees_mib=3), row("r/a:2", removed=False, frees_mib=50, used_h=1)]
    assert table(rows) == [["r/a", "2", "1h-none", "seen", "3.00MiB", "1", "remove,", "1", "keep", "-"]]


def test_bytes_of_a_group_with_a_removal_of_unknown_size_are_unknown() -> None:
    rows = [row("r/a:1", removed=True, frees_mib=None), row("r/a:2", removed=True)]
    assert table(rows)[0][4] == "?"


def test_filters_select_images_and_the_order_is_that_of_groups() -> None:
    rows = [row(f"r/{name}:{number}", removed=name != "c") for name in "abc" for number in range(ord(name) - 96)]
    assert [each[:2] for each in table(rows, filters=("verdict=remove",), sort_by="-images")] == [
        ["r/b", "2"],
        ["r/a", "1"],
    ]
    with pytest.raises(UsageError, match="unknown key; keys: repository, images"):
        table(rows, sort_by="size")
    with pytest.raises(UsageError, match="unknown key"):
        ListRequest.of(IMAGES, ListOptions(sort_by="images"))


@pytest.mark.parametrize("form", ["json", "yaml", "name", "jsonpath", "custom-columns"])
def test_groups_are_refused_in_other_formats_than_tables(form: str) -> None:
    with pytest.raises(UsageError, match="--group has the output formats table and wide"):
        ListRequest.of(IMAGES, ListOptions(form, expression="{.a}", group=True))


def test_order_of_groups_is_completed_after_the_option() -> None:
    assert words("images", "--group", "--sort-by", "im") == ["images"]
    assert words("images", "--sort-by", "im") == []


@pytest.mark.parametrize(
    ("name", "key"),
    [("r:5000/a:1", "r:5000/a"), ("r/a@sha256:0", "r/a"), ("sha256:" + "0" * 64, "sha256:" + "0" * 64)],
)
def test_repository_of_a_name_is_without_tag_and_digest(name: str, key: str) -> None:
    assert repository(name) == key


@given(st.lists(st.sampled_from("aabc"), max_size=30), st.integers(0, 5))
def test_rows_have_every_item_once_in_the_order_of_first_items(names: list[str], more_than: int) -> None:
    rows = [row(f"r/{name}:{number}", removed=True) for number, name in enumerate(names)]
    groups = in_groups(rows, lambda each: repository(each.repo_tags[0]), more_than=more_than)
    assert sorted(each.repo_tags[0] for group in groups for each in group.items) == sorted(
        each.repo_tags[0] for each in rows
    )
    assert [rows.index(group.items[0]) for group in groups] == sorted(rows.index(group.items[0]) for group in groups)
    assert all(len(group.items) == 1 or len(group.items) > more_than for group in groups)


def plan(*names: str, kind: ItemKind = ItemKind.IMAGE) -> Plan:
    decisions = tuple(
        Decision(kind, f"{number:03}", name, Verdict.REMOVE, UNUSED, MIB, last_used=NOW - timedelta(hours=number))
        for number, name in enumerate(names)
    )
    return Plan("images", NOW, decisions, accounting=Accounting.LAYERS)


MANY = tuple(f"r.example/a:{number}" for number in range(11))


def shown(of: Plan, columns: int | None = 120, *, wide: bool = False) -> list[str]:
    return [line.text for line in plan_lines(of, columns, show_kept=False, wide=wide)]


def test_many_removals_of_a_repository_are_one_row_of_a_plan_on_a_terminal() -> None:
    lines = shown(plan("r.example/b:1", *MANY))
    assert lines[0] == "Removes 12 of 12 images, frees 12.0 MiB: all-unused"
    assert [line.split() for line in lines[1:4]] == [
        ["NAME", "IMAGES", "LAST", "USED", "FREES"],
        ["r.example/b:1", "1", "0s", "1.00MiB"],
        ["r.example/a", "11", "1h-11h", "11.0MiB"],
    ]
    assert lines[4] == "more than 10 images of a repository are one row; -o wide lists each"


@pytest.mark.parametrize(
    ("names", "columns", "wide"),
    [(MANY, None, False), (MANY, 120, True), (MANY[1:], 120, False)],
    ids=["pipe", "wide", "few"],
)
def test_other_plans_list_each_removal(names: tuple[str, ...], columns: int | None, *, wide: bool) -> None:
    lines = shown(plan(*names), columns, wide=wide)
    assert all(sum(name in line.split() for line in lines) == 1 for name in names)
    assert not any("one row" in line for line in lines)


def test_containers_with_names_like_images_are_not_grouped() -> None:
    lines = shown(plan(*MANY, kind=ItemKind.CONTAINER))
    assert all(sum(name in line.split() for line in lines) == 1 for name in MANY)


@given(st.text(st.characters(), max_size=20))
def test_any_text_in_the_repository_of_a_group_is_escaped(text: str) -> None:
    lines = shown(plan(*(f"{text}/a:{number}" for number in range(11))))
    assert [escape(line) for line in lines] == lines
