"""Precedence of configuration layers: file, drop-ins, environment, command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.errors import ConfigError
from nodeagent.settings.loading import effective, load
from nodeagent.settings.reference import sourced_toml

if TYPE_CHECKING:
    from pathlib import Path

EMPTY: dict[str, str] = {}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("dry_run = true\n[image_gc]\nhigh_threshold_percent = 90\nlow_threshold_percent = 70\n")
    (tmp_path / "config.d").mkdir()
    return path


def test_later_layers_override_earlier_ones_and_are_named_as_sources(file: Path) -> None:
    first, second = (file.parent / "config.d" / name for name in ("10-first.toml", "20-second.toml"))
    second.write_text('[image_gc]\nhigh_threshold_percent = 80\n[protect]\nimages = ["a/*"]\n')
    first.write_text("[image_gc]\nhigh_threshold_percent = 75\nlow_threshold_percent = 60\n")
    (file.parent / "config.d" / "README").write_text("not read")
    environment = {"NODEAGENT_LOG__LEVEL": "debug", "NODEAGENT_DRY_RUN": "false", "HOME": "/root"}
    loaded = load(file, {"runtime.endpoint": "unix:///run/x.sock"}, environment)
    values = effective(loaded)
    assert values["image_gc.high_threshold_percent"] == (80, str(second))
    assert values["image_gc.low_threshold_percent"] == (60, str(first))
    assert values["protect.images"] == (("a/*",), str(second))
    assert values["log.level"] == ("debug", "environment: NODEAGENT_LOG__LEVEL")
    assert values["dry_run"] == (False, "environment: NODEAGENT_DRY_RUN")
    assert values["runtime.endpoint"] == ("unix:///run/x.sock", "command line")
    assert values["image_gc.interval"] == ("5m", "default")
    assert {str(first), str(second)} <= set(loaded.origins.values())


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("NODEAGENT_IMAGE_GC__HIGH_TRESHOLD_PERCENT", "70", "did you mean NODEAGENT_IMAGE_GC__HIGH_THRESHOLD_PERCENT?"),
        (
            "NODEAGENT_IMAGE_GC__HIGH_THRESHOLD_PERCENT",
            "lots",
            "environment: NODEAGENT_IMAGE_GC__HIGH_THRESHOLD_PERCENT",
        ),
        ("NODEAGENT_DRY_RUN", "maybe", "must be true or false"),
        ("NODEAGENT_IMAGE_GC__INTERVAL", "5", "a duration"),
        ("NODEAGENT_DRY_RUN", "true\nrole = 1", "must be true or false"),
        ("NODEAGENT_PROTECT__IMAGES", "[" * 100_000, "must be a list"),
        ("NODEAGENT_IMAGE_GC__SERVICE_PORTS", "1", "unknown variable"),
    ],
)
def test_invalid_variable_is_named(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(None, {}, {name: text})
    assert words in str(raised.value)
    assert name in str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        "NODEAGENT_TEST_CONTAINERD",
        "NODEAGENT_SERVICE_HOST",
        "NODEAGENT_PORT_80_TCP",
        "NODEAGENT_METRICS_SERVICE_HOST",
        "NODEAGENT_METRICS_SERVICE_PORT_HTTP",
        "NODEAGENT_METRICS_PORT",
        "NODEAGENT_HEALTH_CHECK_PORT_9100_TCP_ADDR",
    ],
)
def test_foreign_variables_are_ignored(name: str) -> None:
    load(None, {}, {name: "x"})


def test_editor_files_are_ignored(file: Path) -> None:
    before = load(file, {}, EMPTY)
    (file.parent / "config.d" / ".#10-first.toml").symlink_to("somebody@host.1")
    (file.parent / "config.d" / "10-first.toml~").write_text("dry_run = 3")
    assert load(file, {}, EMPTY) == before


def test_error_in_a_drop_in_names_the_drop_in(file: Path) -> None:
    wrong = file.parent / "config.d" / "wrong.toml"
    wrong.write_text("[image_gc]\nhigh_threshold_percent = 120\n")
    with pytest.raises(ConfigError, match=f"{wrong}: image_gc.high_threshold_percent = 120"):
        load(file, {}, EMPTY)


def test_errors_of_all_layers_are_reported_at_once(file: Path) -> None:
    file.write_text('[image_gc]\nhigh_threshold_percent = 120\n[log]\nlevel = "loud"\n')
    with pytest.raises(ConfigError) as raised:
        load(file, {}, {"NODEAGENT_UNKNOWN": "1"})
    assert len(str(raised.value).splitlines()) == 3


def test_every_unreadable_file_is_named(file: Path) -> None:
    first, second = (file.parent / "config.d" / name for name in ("1.toml", "2.toml"))
    first.write_bytes(b"\xff")
    second.mkdir()
    file.write_text("dry_run")
    with pytest.raises(ConfigError) as raised:
        load(file, {}, EMPTY)
    lines = str(raised.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(file), str(first), str(second)]


def test_sourced_toml_loads_to_the_same_configuration(file: Path) -> None:
    (file.parent / "config.d" / "a\nb.toml").write_text('[protect]\nimages = ["a/*", "sha256:x # y"]\n')
    (file.parent / "config.d" / "c.toml").write_text("[shutdown]\nby_priority = [{min_priority = 1, seconds = 2.5}]\n")
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        load(file, {}, EMPTY)
    (file.parent / "config.d" / "a\nb.toml").write_text('[protect]\nimages = ["a/*", "b # c"]\n')
    loaded = load(file, {}, EMPTY)
    text = sourced_toml(effective(loaded))
    assert f"high_threshold_percent = 90  # {file}\n" in text
    again = file.with_name("again.toml")
    again.write_text(text)
    assert load(again, {}, EMPTY).config == loaded.config


def error_of(path: Path | None, overrides: dict[str, str | int]) -> str | None:
    """Return the error text of a configuration; ``None`` for a valid configuration."""
    try:
        load(path, overrides, EMPTY)
    except ConfigError as error:
        return str(error)
    return None


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(["role", "dry_run", "image_gc", "eviction", "shutdown", "kubelet", "log", "x"]) | st.text(
    max_size=9
)


@given(st.dictionaries(_KEYS, _VALUES | st.dictionaries(st.text(max_size=20), _VALUES, max_size=4), max_size=5))
def test_any_document_loads_or_raises_config_error(document: dict[str, object]) -> None:
    overrides = {str(key): value for key, value in document.items() if isinstance(value, str | int)}
    assert error_of(None, overrides) != ""


@given(st.binary(max_size=200))
def test_any_bytes_load_or_raise_config_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(raw)
    assert str(path) in (error_of(path, {}) or str(path))
