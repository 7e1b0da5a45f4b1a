"""Configurations read without pydantic: equal settings to those of the models, or a fallback to the models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from nodeagent.config import plain_table
from nodeagent.config.loading import load
from nodeagent.config.models import Config
from nodeagent.config.plain import TABLE, read_settings
from nodeagent.config.policies import settings as settings_of
from nodeagent.config.toml_writer import toml_value
from nodeagent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.config.settings import Settings

FORMS: Final[dict[str, dict[str, Any]]] = json.loads(Path(TABLE).read_text())
MODELS_ONLY: Final = {
    "eviction.io_stall",
    "eviction.memory_stall",
    "eviction.stall_window",
    "kubelet.url",
    "shutdown.by_priority",
    "shutdown.phases",
}
RULES: Final = {
    "ImageGCSection": {"_below_high", "_beyond_minimum"},
    "EvictionSection": {"_psi_window", "_consistent"},
    "KubeletSection": {"_consistent"},
    "MetricsSection": {"_consistent"},
    "ShutdownSection": {"_consistent"},
}
"""Validators of the models that compare several settings; ``plain`` implements them or uses the models."""
TEXTS: Final = (
    "",
    "auto",
    "on",
    "off",
    "cri",
    "never",
    "standalone",
    "debug",
    "mem-available",
    "0",
    "0s",
    "1ns",
    "300ms",
    "1s",
    "2m",
    " 5m ",
    "10m",
    "1h30m",
    "30d",
    "200y",
    "-1s",
    "5",
    "1Gi",
    "16Mi",
    "9Ei",
    "1.5",
    "/",
    "/var/lib",
    "var",
    "/a\x00b",
    "unix:///run/a.sock",
    "tcp://a:1",
    "127.0.0.1:1",
    "localhost:80",
    "/" + "a" * 120,
    "a/b",
    "a b",
    "�",
    "memory.available<100Mi",
    "memory.available<200%",
    "memory.available=1m",
    "docker.io/*",
    "re:(",
    "\x1b",
    "\u202e",
)
VALUES: Final[st.SearchStrategy[object]] = st.one_of(
    st.sampled_from(TEXTS),
    st.sampled_from((-2, -1, 0, 1, 79, 80, 85, 100, 101, 2**63, True, False, 0.0, 80.0)),
    st.lists(st.sampled_from((*TEXTS, 1)), max_size=2),
    st.just({}),
)
OF_MODELS: Final = "kubernetes."
"""Prefix of settings that only the models parse."""
KEYS: Final = (*FORMS, "image_gc", "image_gc.high", "metrics.listen.port", "verbose")


def by_models(path: Path, environment: Mapping[str, str]) -> Settings | None:
    try:
        return settings_of(load(path, environment=environment).config)
    except ConfigError:
        return None


def write(path: Path, values: Mapping[str, object]) -> bool:
    """Write a TOML file of dotted keys; return whether the file can encode the values."""
    lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if value != {}]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except UnicodeEncodeError:
        return False
    return True


def test_table_is_that_of_the_models() -> None:
    assert Path(TABLE).read_text() == plain_table.rendered()
    left = {key for key, each in FORMS.items() if each["kind"] is None}
    assert left == MODELS_ONLY | {key for key in FORMS if key.startswith(OF_MODELS)}


def test_every_rule_of_the_models_is_known() -> None:
    found = {}
    sections = [kind.annotation for name, kind in Config.model_fields.items() if f"{name}." != OF_MODELS]
    for each in (Config, *sections):
        if isinstance(each, type) and issubclass(each, BaseModel):
            decorators = each.__pydantic_decorators__
            rules = {*decorators.field_validators, *decorators.model_validators, *decorators.root_validators}
            found[each.__name__] = rules | {*decorators.validators}
    assert {name: rules for name, rules in found.items() if rules} == RULES


def test_defaults_are_those_of_the_models(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.touch()
    assert read_settings(path, {}) == by_models(path, {})


@settings(max_examples=100, deadline=None)
@given(values=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_settings_of_a_file_are_those_of_the_models_or_left_to_them(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("config") / "config.toml"
    if write(path, values):
        found = read_settings(path, {})
        assert found is None or found == by_models(path, {})


@settings(max_examples=100, deadline=None)
@given(
    values=st.dictionaries(st.sampled_from(KEYS), st.sampled_from((*TEXTS, "true", "80", "-1", "01", "[]")), max_size=4)
)
def test_settings_of_variables_are_those_of_the_models_or_left_to_them(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.touch()
    environment = {f"NODEAGENT_{key.replace('.', '__').upper()}": text for key, text in values.items()}
    found = read_settings(path, environment)
    assert found is None or found == by_models(path, environment)


@pytest.mark.parametrize("key", sorted(key for key, each in FORMS.items() if each["kind"] is not None))
def test_each_plain_setting_is_read_without_the_models(tmp_path: Path, key: str) -> None:
    path = tmp_path / "config.toml"
    form = FORMS[key]
    value = form["choices"][-1] if form["kind"] == "choice" else form["default"]
    write(path, {key: not value if form["kind"] == "switch" else value})
    found = read_settings(path, {})
    assert found is not None
    assert found == by_models(path, {})


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("image_gc = 1", {}),
        ("image_gc.high_threshold_percent = 70", {}),
        ('image_gc.maximum_unused_age = "1m"', {}),
        ('image_gc.high = "70"', {}),
        ('eviction.hard = "memory<1"', {}),
        ("role", {}),
        ("", {"NODEAGENT_IMAGE_GC.ENABLED": "true"}),
        ("", {"NODEAGENT_dry_run": "true"}),
        ("", {"NODEAGENT_PROTECT__IMAGES": "[]"}),
        ("", {"NODEAGENT_DRY_RUN": "1"}),
        ("", {"NODEAGENT_IMAGE_GC__LOW_THRESHOLD_PERCENT": "01"}),
        ("", {"NODEAGENT_UNKNOWN": "1"}),
    ],
)
def test_other_configuration_is_left_to_the_models(tmp_path: Path, text: str, environment: dict[str, str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert read_settings(path, environment) is None


def test_missing_file_is_left_to_the_models(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "none.toml", {}) is None


def test_drop_in_and_variable_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("dry_run = true\n[image_gc]\nhigh_threshold_percent = 90\n")
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d/a.toml").write_text("[image_gc]\nhigh_threshold_percent = 95\nlow_threshold_percent = 60\n")
    environment = {"NODEAGENT_IMAGE_GC__LOW_THRESHOLD_PERCENT": "50"}
    found = read_settings(path, environment)
    assert found is not None
    assert found == by_models(path, environment)
    assert (found.policy.images.high_threshold_percent, found.policy.images.low_threshold_percent) == (95, 50)
