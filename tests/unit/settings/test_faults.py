"""Errors of invalid configurations: file, key, value and allowed form, with all errors in one report."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nodeagent.config.validation import convert, fields_of, settings_of
from nodeagent.errors import ConfigError
from nodeagent.settings.loading import load
from nodeagent.settings.reference import reference, to_toml
from nodeagent.settings.settings import Config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[image_gc]\nhigh_threshold = 5",
            "image_gc.high_threshold = 5: unknown key; did you mean high_threshold_percent?",
        ),
        ("[image_gc]\nminimum_age = 5", "image_gc.minimum_age = 5: a duration needs a unit"),
        (
            '[image_gc]\nminimum_age = "5 parsecs"',
            "image_gc.minimum_age = \"5 parsecs\": '5 parsecs' is not a duration",
        ),
        ('[image_gc]\nminimum_age = "-5m"', "image_gc.minimum_age = \"-5m\": '-5m' is negative"),
        ("[image_gc]\nlow_threshold_percent = 85", "image_gc.low_threshold_percent = 85: must be below"),
        ("[image_gc]\nhigh_threshold_percent = 101", "image_gc.high_threshold_percent = 101: must be at most 100"),
        (
            '[image_gc]\nmaximum_unused_age = "1m"',
            'image_gc.maximum_unused_age = "1m": must be longer than minimum_age',
        ),
        ('[image_gc]\ncollect_ahead = "29m"', 'image_gc.collect_ahead = "29m": must be from 30m to 24h, or 0'),
        ('[image_gc]\ncollect_ahead = "25h"', 'image_gc.collect_ahead = "25h": must be from 30m to 24h, or 0'),
        (
            '[image_gc]\nmax_bytes_per_pass = "1 pound"',
            "image_gc.max_bytes_per_pass = \"1 pound\": '1 pound' is not a size",
        ),
        (
            '[protect]\nimages = ["regex:("]',
            "protect.images.0 = \"regex:(\": '(' is not a regular expression: missing )",
        ),
        ('role = "master"', "role = \"master\": must be 'auto', 'beside-kubelet' or 'standalone'"),
        ('dry_run = "yes"', 'dry_run = "yes": must be true or false'),
        ("[container_gc]\nmax_containers = -2", "container_gc.max_containers = -2: must be at least -1"),
        ('[container_gc]\npod_log_root = "logs"', 'container_gc.pod_log_root = "logs": must be an absolute path'),
        ("[image_gc\n", "invalid TOML: "),
        (
            '[shutdown]\ngrace_period = "30s"\ngrace_period_critical = "40s"',
            "shutdown: grace_period_critical (40s) is part of grace_period (30s) and must not exceed grace_period",
        ),
        ('[shutdown]\ngrace_period = "-5s"', "shutdown.grace_period = \"-5s\": '-5s' is negative"),
        (
            "[shutdown]\nby_priority = [{min_priority = 5, seconds = 1}, {min_priority = 3, seconds = 1}]",
            "by_priority: shutdown phases must ascend: 'priority-3' with min_priority 3 follows 'priority-5'",
        ),
        (
            "[shutdown]\nby_priority = [{min_priority = 5, seconds = 1}, {min_priority = 5, seconds = 1}]",
            "both have min_priority 5; write",
        ),
        (
            "[shutdown]\nby_priority = [{min_priority = 5, seconds = -1}]",
            "shutdown.by_priority.0.seconds = -1: must be at least 0",
        ),
        ('[shutdown]\nphases = [{name = "x", seconds = 1}]', "phases: shutdown phase 'x' selects no pods"),
        (
            '[shutdown]\nphases = [{name = "x", seconds = 1, min_priority = 0, select = [{}]}]',
            "a selector of shutdown phase 'x' is empty and would match every pod",
        ),
        (
            "[shutdown]\nby_priority = [{min_priority = 5, seconds = 1}]\nphases = [{name = 'x', seconds = 1}]",
            "by_priority and phases exclude each other: set one of them",
        ),
        (
            '[metrics]\nlisten = "localhost:1"',
            "metrics.listen = \"localhost:1\": 'localhost' is not an IP address (names are not",
        ),
        ("[metrics]\nlisten = 9100", "metrics.listen = 9100: must be a quoted string"),
        (
            "[shutdown]\nby_priority = [{min_prioritie = 5, seconds = 1}]",
            "shutdown.by_priority.0.min_prioritie = 5: unknown key; did you mean min_priority?",
        ),
        ("[shutdown]\nphases = [{seconds = 1}]", "shutdown.phases.0.name: required key is missing"),
        (
            "[shutdown]\nphases = [{name = 'x', seconds = '2'}]",
            'shutdown.phases.0.seconds = "2": must be a number',
        ),
        (
            "[shutdown]\nphases = [{name = 'x', seconds = nan}]",
            "shutdown.phases.0.seconds = NaN: must be a finite number",
        ),
        (
            "[shutdown]\nphases = [{name = 'x', seconds = inf}]",
            "shutdown.phases.0.seconds = Infinity: must be a finite number",
        ),
        ("[shutdown]\nphases = [1]", "shutdown.phases.0 = 1: must be a table of settings"),
        (
            "[shutdown]\nphases = [{name = 'x', seconds = 1, select = [{labels = {a = 1}}]}]",
            "shutdown.phases.0.select.0.labels.a = 1: must be a quoted string",
        ),
        ("log = 1", "log = 1: must be a table of settings"),
        ("[shutdown]\nenabled = true", "shutdown.enabled = true: must be 'auto', 'on' or 'off'"),
    ],
)
def test_error_names_file_key_value_and_form(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('x = 1\n[image_gc]\ninterval = "soon"\nlow_threshold_percent = 99\n')
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 3


def test_rule_of_two_settings_is_skipped_if_the_other_setting_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[image_gc]\nhigh_threshold_percent = 101\nlow_threshold_percent = 99\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: image_gc.high_threshold_percent = 101: must be at most 100"


def test_variable_that_is_not_utf_8_is_reported_with_the_allowed_form() -> None:
    with pytest.raises(ConfigError, match=r"log\.level = .*: must be 'debug', 'info', 'warning' or 'error'"):
        load(None, environment={"NODEAGENT_LOG__LEVEL": "\udc80"})


def test_every_default_is_valid_and_stored_unchanged() -> None:
    assert convert(Config, {}) == Config()


def test_command_line_is_the_source_of_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"^command line: image_gc\.high_threshold_percent = 300"):
        load(path, {"image_gc.high_threshold_percent": 300})


def test_missing_or_irregular_explicit_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="not a regular file"):
        load(tmp_path)


def test_commented_default_file_loads_to_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for commented in (True, False):
        path.write_text(to_toml(Config(), commented=commented))
        assert load(path).config == Config()


def test_reference_lists_every_key() -> None:
    text = reference()
    assert all(each.description for each in (*fields_of(Config), *settings_of(Config)))
    assert [each.key for each in settings_of(Config) if f"| `{each.name}` |" not in text] == []


@pytest.mark.parametrize(
    ("value", "seconds"), [('"0s"', 0), ("0", 0), ('"30m"', 1800), ('"2h"', 7200), ('"1d"', 86400)]
)
def test_time_ahead_is_off_or_from_half_an_hour_to_a_day(tmp_path: Path, value: str, seconds: float) -> None:
    path = tmp_path / "config.toml"
    assert load(None).config.settings().policy.images.collect_ahead_s == 0
    path.write_text(f"[image_gc]\ncollect_ahead = {value}\n")
    assert load(path).config.settings().policy.images.collect_ahead_s == seconds


def test_settings_of_the_file_are_in_the_policies(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[image_gc]\nhigh_threshold_percent = 70\nlow_threshold_percent = 60\nminimum_age = "1h"\n'
        'minimum_gain = "1Mi"\n'
        '[container_gc]\nmax_containers = 7\nsandbox_minimum_age = "3s"\nlog_minimum_age = "4s"\n'
        '[protect]\nimages = ["*/pause"]\nkeep_last_n_tags_per_repository = 3\n'
    )
    gc = load(path).config.settings().policy
    images = gc.images
    assert (images.high_threshold_percent, images.low_threshold_percent, images.minimum_age_s) == (70, 60, 3600)
    assert (images.minimum_gain_bytes, images.protection.keep_last_n_tags_per_repository) == (1 << 20, 3)
    assert (gc.containers.max_containers, gc.sandboxes.minimum_age_s, gc.logs.minimum_age_s) == (7, 3, 4)


@given(
    st.text(max_size=200)
    | st.sampled_from(["[image_gc]\n", "[protect]\nimages="]).flatmap(
        lambda head: st.text(max_size=60).map(lambda tail: head + tail)
    )
)
def test_any_text_loads_or_raises_config_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "fuzz.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        load(path)
    except ConfigError:
        return


OPTIONS = {"image_gc.high_threshold_percent": "--high", "image_gc.low_threshold_percent": "--low"}


@pytest.mark.parametrize(
    ("high", "low", "text"),
    [
        (
            70,
            None,
            (
                "--high 70: contradicts image_gc.low_threshold_percent = 80 (defaults), which must be below "
                "high_threshold_percent = 70; add --low"
            ),
        ),
        (None, 90, "--low 90: must be below high_threshold_percent = 85; or add --high"),
        (70, 75, "--low 75: must be below high_threshold_percent = 70 (--high 70)"),
        (700, None, "--high 700: must be at most 100"),
    ],
    ids=["high-alone", "low-alone", "both", "out-of-range"],
)
def test_contradiction_of_options_is_reported_with_their_names(high: int | None, low: int | None, text: str) -> None:
    given = {"image_gc.high_threshold_percent": high, "image_gc.low_threshold_percent": low}
    overrides = {key: value for key, value in given.items() if value is not None}
    with pytest.raises(ConfigError) as raised:
        load(None, overrides, {}, OPTIONS)
    assert str(raised.value) == text


def test_high_option_above_the_configured_low_threshold_keeps_it() -> None:
    loaded = load(None, {"image_gc.high_threshold_percent": 82}, {}, OPTIONS)
    assert loaded.config.image_gc.low_threshold_percent == 80
