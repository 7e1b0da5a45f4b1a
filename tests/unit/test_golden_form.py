"""Removal of run-dependent text from stored outputs."""

from __future__ import annotations

import pytest

from nodeagent import __version__
from tests.support.golden import joined, normalised, stored_form


def test_tables_of_different_readings_are_equal_and_in_columns() -> None:
    short = "LOOP    LAST RUN  RUNS  FAILED\nimages  1s ago       7       0\nx       never        0       0\n"
    long = "LOOP    LAST RUN   RUNS  FAILED\nimages  1m21s ago  1234       0\nx       never         0       0\n"
    expected = "LOOP    LAST RUN  RUNS  FAILED\nimages  9s ago       9       0\nx       never        9       0\n"
    assert normalised(short) == normalised(long) == expected


def test_ages_beside_the_rest_of_a_cut_column_are_equal() -> None:
    tables = (f"IMAGE  LAST USED  DETECT…\na      none seen  {age}…\n" for age in ("now   ", "3s    "))
    assert {normalised(each) for each in tables} == {"IMAGE  LAST USED  DETECT…\na      none seen  9s    …\n"}


def test_bars_of_different_shares_are_equal() -> None:
    low = "SIGNAL  USED         STATE\nnodefs  ░░░░░░   1%  ok\n"
    high = "SIGNAL  USED         STATE\nnodefs  ██████ 100%  ok\n"
    assert normalised(low) == normalised(high)
    assert normalised(low).splitlines()[1].startswith("nodefs  ▒▒▒▒▒▒")


@pytest.mark.parametrize(
    "row", ["images 1s ago       7       0", "images    1s ago    7       0", "images  1s ago  7  0  extra"]
)
def test_row_out_of_its_columns_is_visible(row: str) -> None:
    aligned = "LOOP    LAST RUN  RUNS  FAILED\nimages  1s ago       7       0\n"
    assert normalised(f"{aligned}{row}\n") != normalised(aligned + aligned.splitlines()[1] + "\n")


def test_columns_without_readings_keep_their_widths() -> None:
    text = "NAME       SIZE  REASON\na/b:1   12.0MiB  held\n\nNAME  REASON\na     1s\n"
    assert normalised(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("running (pid 4126, up 1m38s)", "running (pid 99, up 9s)"),
        (f"nodeagent {__version__}", "nodeagent 9.9.9"),
        ("containerd 1.6.20~ds1 (CRI v1)", "containerd 9.9.9 (CRI v1)"),
        ("20261122T155240Z-706fc3", "20260304T120000Z-0a1b2c"),
        ("a@sha256:" + "7a" * 32, "a@sha256:" + "0123456789abcdef" * 4),
        ("attempt 0 c2531451f39a (exited)", "attempt 0 0123456789ab (exited)"),
        ("123456789012.dkr.ecr.example/a:2025.11.30-0400-0c9d1e7f", None),
        ("frees 46.1 MiB (target 42.1 MiB)", "frees 46.1 MiB (target ##.# MiB)"),
        ("io.psi.some ███  18% stalled\nno pressure", "no pressure"),
        ("keep: running", None),
        ("  AGE 3d4h  LAST USED 12s  STATE Running", "  AGE 9s  LAST USED 9s  STATE Running"),
        ("2026-11-28 22:48:42 UTC  pass", "2026-03-04 12:00:00 UTC  pass"),
    ],
)
def test_text_that_differs_between_runs_is_replaced(text: str, expected: str | None) -> None:
    assert normalised(text) == (expected or text)


def test_equal_outputs_are_stored_once_below_their_circumstances() -> None:
    assert stored_form({"80": "a\n", "120": "b\n", "200": "b\n"}) == "==== 80\na\n\n==== 120; 200\nb\n"


def test_standard_error_and_exit_code_are_marked() -> None:
    assert joined("out\n", "bad\nworse\n", 2) == "out\nstderr: bad\nstderr: worse\nexit code 2\n"
    assert joined("out\n", "", 0) == "out\n"
