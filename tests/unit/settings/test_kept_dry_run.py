"""``dry_run`` of an imported configuration: ``true``, unless the existing configuration sets ``false``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from nodeagent.settings.kubelet_import import dry_run_to_keep

if TYPE_CHECKING:
    from pathlib import Path

ACTIVE, DRY, SILENT = "dry_run = false\n", "dry_run = true\n", '[log]\nlevel = "info"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def drop_in(file: Path, text: str) -> None:
    directory = file.with_name(f"{file.stem}.d")
    directory.mkdir(exist_ok=True)
    (directory / "50-more.toml").write_text(text)


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        (ACTIVE, False, "sets dry_run = false"),
        (ACTIVE + SILENT, False, "sets dry_run = false"),
        (DRY, True, "sets dry_run = true"),
        (SILENT, True, "does not set dry_run"),
        ("", True, "does not set dry_run"),
        ("# comment\n", True, "does not set dry_run"),
        ("dry_run = 0\n", True, "existing configuration is invalid"),
        ("dry_run = false\nodd = 1\n", True, "existing configuration is invalid"),
        ("dry_run = false\n[image_gc]\nhigh_threshold_percent = 900\n", True, "existing configuration is invalid"),
        ("dry_run = false\ndry_run = false\n", True, "existing configuration is invalid"),
        ("dry_run = false\n\x00", True, "existing configuration is invalid"),
    ],
    ids=["active", "with-more", "dry", "silent", "truncated", "comment", "type", "key", "value", "twice", "binary"],
)
def test_only_a_valid_file_with_dry_run_false_is_active(file: Path, text: str, value: bool, reason: str) -> None:
    file.write_text(text)
    kept = dry_run_to_keep([file], {})
    assert kept.value is value
    assert reason in kept.reason
    assert str(file) in kept.reason


def test_missing_file_results_in_dry_run(file: Path) -> None:
    kept = dry_run_to_keep([file], {})
    assert (kept.value, kept.reason) == (True, f"no configuration file at {file}")


def test_empty_list_of_paths_results_in_dry_run() -> None:
    assert dry_run_to_keep([], {}).value is True


def test_directory_or_dangling_link_results_in_dry_run(file: Path) -> None:
    file.mkdir()
    assert dry_run_to_keep([file], {}).value is True
    file.rmdir()
    file.symlink_to("nowhere")
    assert dry_run_to_keep([file], {}).value is True


@pytest.mark.parametrize(
    ("text", "more", "value"),
    [
        (ACTIVE, DRY, True),
        (ACTIVE, ACTIVE, False),
        (DRY, ACTIVE, True),
        (SILENT, ACTIVE, True),
        (ACTIVE, SILENT, False),
    ],
)
def test_conflicting_file_and_drop_in_result_in_dry_run(file: Path, text: str, more: str, value: bool) -> None:
    file.write_text(text)
    drop_in(file, more)
    assert dry_run_to_keep([file], {}).value is value


@pytest.mark.parametrize(
    ("text", "variable", "value"),
    [(ACTIVE, "true", True), (ACTIVE, "false", False), (DRY, "false", True), (SILENT, "false", True)],
)
def test_variable_enables_but_never_disables_dry_run(file: Path, text: str, variable: str, value: bool) -> None:
    file.write_text(text)
    kept = dry_run_to_keep([file], {"NODEAGENT_DRY_RUN": variable})
    assert kept.value is value


def test_dry_run_is_disabled_only_if_every_existing_file_disables_it(tmp_path: Path) -> None:
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text(ACTIVE)
    assert dry_run_to_keep([one, other], {}).value is False
    other.write_text(SILENT)
    assert dry_run_to_keep([one, other], {}).value is True
    assert dry_run_to_keep([other, one], {}).value is True
    other.write_text(ACTIVE)
    assert dry_run_to_keep([one, other], {}).value is False


def test_reason_is_one_printable_line(tmp_path: Path) -> None:
    odd = tmp_path / "a\n\x1b[31mb.toml"
    for write in (lambda: None, lambda: odd.write_text(DRY)):
        write()
        assert dry_run_to_keep([odd], {}).reason.isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60) | st.lists(st.sampled_from([ACTIVE, DRY, SILENT, "#", "\n"]), max_size=4).map("".join))
def test_content_without_an_explicit_false_results_in_dry_run(file: Path, text: str) -> None:
    file.write_bytes(text.encode(errors="surrogatepass"))
    kept = dry_run_to_keep([file], {})
    assert kept.value or "dry_run = false" in text
