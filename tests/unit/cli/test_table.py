"""Tables: one aligned line per row, truncated only to the width of the terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given, strategies as st

from nodeagent.cli.display import Display, Line, Mark, MarkKind, bar
from nodeagent.cli.table import Heading, Row, Table, fitted_lines, table_lines
from nodeagent.text import Cut, display_width, escape, fit

if TYPE_CHECKING:
    from collections.abc import Sequence

ANYTHING = st.text(st.characters(), max_size=40)
NAME = Heading("NAME", cut=Cut.MIDDLE, name=True, at_least=16)
REFERENCE = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/platform/payments-api:2026.02.20-1200-20ab34cd"


def shown(headings: list[Heading], rows: list[Row], columns: int | None, *, headers: bool = True) -> list[str]:
    return [line.text for line in table_lines(headings, rows, columns, headers=headers)]


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("web-0", 5),
        ("你好", 4),
        ("\uff57\uff45\uff42", 6),
        ("한국", 4),
        ("\u1112\u1161\u11ab", 2),
        ("e\u0301", 1),
        ("😀", 2),
        (escape("\u202e\x1b"), 10),
        ("", 0),
    ],
)
def test_width_is_that_of_a_terminal(text: str, width: int) -> None:
    assert display_width(text) == width


@pytest.mark.parametrize(
    ("text", "cells", "cut", "fitted"),
    [
        ("payments", 8, Cut.END, "payments"),
        ("payments", 5, Cut.END, "paym…"),
        ("payments", 5, Cut.MIDDLE, "pa…ts"),
        ("payments", 1, Cut.END, "…"),
        ("你好你好", 4, Cut.END, "你…"),
        ("你好你好", 4, Cut.MIDDLE, "…好"),
        ("ee\u0301e\u0301", 2, Cut.MIDDLE, "…e\u0301"),
        (REFERENCE, 46, Cut.PATH, "…/payments-api:2026.02.20-1200-20ab34cd"),
        (REFERENCE, 30, Cut.PATH, "payments-api:2…0-1200-20ab34cd"),
        ("registry.example/very-long-repository-name/a:1", 30, Cut.PATH, "…very-long-repository-name/a:1"),
    ],
)
def test_text_is_cut_as_documented(text: str, cells: int, cut: Cut, fitted: str) -> None:
    assert fit(text, cells, cut) == fitted


@given(ANYTHING.map(escape), st.integers(1, 30), st.sampled_from(Cut))
def test_fitted_text_is_never_wider_and_text_that_fits_is_unchanged(text: str, cells: int, cut: Cut) -> None:
    fitted = fit(text, cells, cut)
    assert display_width(fitted) <= cells
    assert (fitted == text) is (display_width(text) <= cells)


@given(st.lists(st.tuples(ANYTHING, ANYTHING, ANYTHING), max_size=5), st.one_of(st.none(), st.integers(20, 120)))
def test_any_text_has_one_line_per_row_without_control_characters(
    rows: list[tuple[str, str, str]], columns: int | None
) -> None:
    headings = [NAME, Heading("SIZE", right=True), Heading("REASON", cut=Cut.END)]
    lines = shown(headings, [Row(each) for each in rows], columns)
    assert len(lines) == 1 + len(rows)
    assert [escape(line) for line in lines] == lines
    assert columns is None or all(display_width(line) <= columns for line in lines)


@given(st.lists(st.text(st.characters(), min_size=1, max_size=40), min_size=1, max_size=5))
def test_last_column_begins_at_the_same_cell_in_every_row(names: list[str]) -> None:
    lines = shown([NAME, Heading("LAST")], [Row((name, "#last")) for name in names], None)
    start = display_width(lines[0].removesuffix("LAST"))
    assert {display_width(line.removesuffix("#last")) for line in lines[1:]} == {start}


def test_pipe_has_full_values_and_terminal_an_ellipsis_in_the_name_last() -> None:
    headings = [NAME, Heading("REASON", cut=Cut.END, at_least=10), Heading("STATE")]
    rows = [Row(("n" * 40, "r" * 30, "running"))]
    assert shown(headings, rows, None)[1] == f"{'n' * 40}  {'r' * 30}  running"
    assert shown(headings, rows, 70)[1] == f"{'n' * 40}  {'r' * 18}…  running"
    narrow = shown(headings, rows, 50)[1]
    assert (len(narrow), narrow[-19:]) == (50, "rrrrrrrrr…  running")
    assert narrow.count("n") == 28 + 3  # 28 in the name column, 3 in "running"


def test_line_is_cut_at_the_end_where_no_column_can_be_narrower() -> None:
    headings = [NAME, Heading("CODE"), Heading("STATE")]
    lines = shown(headings, [Row(("n" * 40, "c" * 20, "running"))], 40)
    assert [len(line) for line in lines] == [40, 40]
    assert lines[1].endswith("…")


def test_headings_can_be_omitted_and_empty_cells_are_dashes() -> None:
    table = Table("NAME", Heading("SIZE", right=True))
    table.add("web", "")
    assert [line.text for line in table.lines(None)] == ["NAME  SIZE", "web      -"]
    assert shown([NAME], [Row(("web",))], None, headers=False) == ["web"]
    assert shown([NAME], [], None) == ["NAME"]


@pytest.mark.parametrize(("share", "filled"), [(0.0, 0), (0.5, 5), (1.0, 10), (1.7, 10), (-1.0, 0)])
def test_bar_is_filled_from_the_left_by_the_used_share(share: float, filled: int) -> None:
    assert bar(share, 10) == "█" * filled + "░" * (10 - filled)


def mark(percent: float, kind: str) -> Mark:
    return Mark(percent / 100, MarkKind(kind))


@pytest.mark.parametrize(
    ("used", "marks", "shown"),
    [
        pytest.param(50, [mark(85, "]"), mark(60, "[")], "█████░[░]░", id="thresholds ahead"),
        pytest.param(90, [mark(60, "["), mark(85, "]")], "██████[█]░", id="met thresholds"),
        pytest.param(20, [mark(50, "!"), mark(70, "X")], "██░░░!░X░░", id="soft and hard"),
        pytest.param(20, [mark(70, "X"), mark(72, "!")], "██░░░░░X░░", id="the most severe of one cell"),
        pytest.param(20, [mark(81, "]"), mark(79, "[")], "██░░░░░░]░", id="image GC within one cell"),
        pytest.param(100, [mark(99.6, "X")], "█████████X", id="in the last cell"),
        pytest.param(0, [mark(0, "X")], "X░░░░░░░░░", id="in the first cell"),
        pytest.param(50, [mark(-10, "X"), mark(100.1, "!")], "█████░░░░░", id="outside of the bar"),
        pytest.param(50, [mark(100, "!")], "█████░░░░!", id="at the end"),
    ],
)
def test_thresholds_are_marks_in_their_cells(used: float, marks: list[Mark], shown: str) -> None:
    assert bar(used / 100, 10, marks) == shown
    assert Line().append_bar(used / 100, 10, marks=marks).text == shown


@pytest.mark.parametrize(("cells", "cell"), [(6, 5), (10, 8), (16, 14), (40, 34), (100, 85)])
def test_mark_is_in_the_first_cell_that_a_usage_at_the_threshold_does_not_fill(cells: int, cell: int) -> None:
    assert bar(0.0, cells, [mark(85, "]")]).index("]") == cell
    assert bar(0.85, cells) == "█" * cell + "░" * (cells - cell)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 100))
def test_bar_reaches_the_mark_of_a_met_threshold_and_does_not_exceed_another(
    used: float, limit: float, cells: int
) -> None:
    before, _, behind = bar(used, cells, [Mark(limit, MarkKind.HARD)]).partition("X")
    assert ("█" not in behind) if used < limit else ("░" not in before)


@given(ANYTHING, st.integers(20, 60))
@example("0000\x1f\U0003134b ", 20)
def test_wrapped_line_is_broken_between_words_only(text: str, columns: int) -> None:
    line = Line("warning: ").append(text, "red")
    parts = list(line.wrapped(columns))
    words = [word for part in parts for word in part.text.split(" ") if word]
    assert words == [word for word in line.text.split(" ") if word]
    longest = max(map(display_width, words))
    assert all(display_width(part.text) <= max(columns, longest + 2) for part in parts)


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (
            45,
            ["verdict        keep: in use by 1 container", "               shop/web-0/app, which is dead"],
        ),
        (44, ["verdict        keep: in use by 1 container", "  shop/web-0/app, which is dead"]),
        (80, ["verdict        keep: in use by 1 container shop/web-0/app, which is dead"]),
    ],
)
def test_text_beside_a_label_is_indented_by_it_unless_the_terminal_is_narrow(columns: int, parts: list[str]) -> None:
    line = Line("verdict        keep: in use by 1 container shop/web-0/app, which is dead", hang=15)
    assert [part.text for part in line.wrapped(columns)] == parts


def test_long_word_remains_beside_its_label() -> None:
    parts = [part.text for part in Line(f"name           {REFERENCE} (pinned)", hang=15).wrapped(80)]
    assert parts == [f"name           {REFERENCE}", "               (pinned)"]


def test_characters_that_the_encoding_lacks_are_replaced_by_ones_of_the_same_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr("sys.stdout", out)
    marks = [Mark(0.8, MarkKind.HARD)]
    Display().write([Line("…/app ").append_bar(0.5, 4, marks=marks), Line("umläut")])
    assert out.buffer.getvalue().decode() == "~/app ##.X\numl\\xe4ut\n"


WORDS: Final = [Heading("POD", cut=Cut.MIDDLE, name=True, at_least=16), Heading("VERDICT"), Heading("REASON")]


def fitted(rows: Sequence[tuple[str, ...]], columns: int, *, headers: bool = True) -> list[str]:
    return [each.text for each in fitted_lines(WORDS, [Row(cells) for cells in rows], columns, headers=headers)]


def test_constant_columns_are_omitted_before_a_name_is_cut_and_stated_below() -> None:
    rows = [("payments-api-7d9f8b6c5d-x2x9z", "keep", "running"), ("payments-api-7d9f8b6c5d-aaaaa", "keep", "pinned")]
    assert fitted(rows, 50)[-1].split() == ["payments-api-7d9f8b6c5d-aaaaa", "keep", "pinned"]
    assert fitted(rows, 40) == [
        "POD                            REASON",
        "payments-api-7d9f8b6c5d-x2x9z  running",
        "payments-api-7d9f8b6c5d-aaaaa  pinned",
        "all: VERDICT keep",
    ]
    assert fitted(rows, 40, headers=False) == [
        "payments-api-7d9f8b6c5d-x2x9z  running",
        "payments-api-7d9f8b6c5d-aaaaa  pinned",
    ]
    assert len(fitted(rows[:1], 40)) == 2, "every column of one row is constant"


def test_times_are_not_omitted_for_equal_values_since_the_next_output_has_others() -> None:
    headings = [Heading("NAME", cut=Cut.PATH, name=True), Heading("AGE", is_time=True), Heading("NOTE", optional=True)]
    rows = [Row(("n" * 20, "3s", "a" * 9)), Row(("m" * 20, "3s", "b" * 9))]
    assert fitted_lines(headings, rows, 30)[0].text == "NAME                  AGE"
    assert fitted_lines(headings, rows, 40)[0].text.split() == ["NAME", "AGE", "NOTE"]


def test_optional_columns_are_omitted_before_the_first_part_of_a_path_is_cut() -> None:
    pod = Heading("POD", cut=Cut.PATH, name=True, at_least=16)
    headings = [pod, *(Heading(title, optional=True) for title in ("ATTEMPT", "VERDICT")), Heading("AGE", is_time=True)]
    rows = [Row(("kube-system/kube-proxy-7xk2p", f"{n}", f"keep{n}", "3s")) for n in range(2)]
    shown = {
        columns: [line.text.split() for line in fitted_lines(headings, rows, columns)][:2] for columns in range(80)
    }
    name = "kube-system/kube-proxy-7xk2p"
    assert shown[51] == [["POD", "ATTEMPT", "VERDICT", "AGE"], [name, "0", "keep0", "3s"]]
    assert shown[50] == [["POD", "ATTEMPT", "AGE"], [name, "0", "3s"]]
    assert shown[41] == [["POD", "AGE"], [name, "3s"]]
    assert shown[33] == [["POD", "AGE"], [name, "3s"]]
    assert shown[32][1][0].endswith("kube-proxy-7xk2p")


def test_row_is_stacked_if_its_name_would_lose_half_of_its_width() -> None:
    rows = [("payments-api-7d9f8b6c5d-x2x9z", "keep", "running"), ("p\x1b[2J", "remove", "over-per-container-limit")]
    assert fitted(rows, 30) == [
        "payments-api-7d9f8b6c5d-x2x9z",
        "  VERDICT keep  REASON running",
        "p\\x1b[2J",
        "  VERDICT remove",
        "  REASON",
        "  over-per-container-limit",
    ]
    assert fitted(rows, 30, headers=False)[1] == "  keep  running"


@given(st.lists(st.tuples(ANYTHING, ANYTHING, ANYTHING), min_size=1, max_size=4), st.integers(20, 120))
def test_no_text_of_a_list_escapes_its_line(rows: list[tuple[str, str, str]], columns: int) -> None:
    lines = fitted(rows, columns)
    assert [escape(line) for line in lines] == lines
