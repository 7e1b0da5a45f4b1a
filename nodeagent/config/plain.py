"""Fast loading of plain configurations without pydantic, which takes a third of a command's run time.

The models in ``nodeagent.config.models`` define the validity of values. This module accepts a configuration only if
each value has a plain form: text, number, switch, choice, duration, size, path. Every other configuration is left to
the models, which validate its values and report its errors.

``plain.json`` lists the form, the limits and the default of each setting, derived from the models. ``make docs`` writes
the file; ``make check`` verifies that it is up to date.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from nodeagent.config import value_forms
from nodeagent.config.files import ENVIRONMENT_PREFIX, FOREIGN_PREFIXES, read_files
from nodeagent.config.kubernetes import KubernetesSettings
from nodeagent.config.policies import settings
from nodeagent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from nodeagent.config.models import Config
    from nodeagent.config.settings import Settings

TABLE: Final = f"{__file__.rpartition('/')[0]}/plain.json"
_MAX_DIGITS: Final = 15


class _NotPlainError(Exception):
    """A value has no plain form; the models must validate the configuration."""


def read_settings(path: Path | None, environment: Mapping[str, str] = os.environ) -> Settings | None:
    """Return the settings of a plain and valid configuration; ``None`` if the models must validate it.

    Args:
        path: configuration file; ``None`` for the default file.
        environment: variables such as ``NODEAGENT_IMAGE_GC__HIGH_THRESHOLD_PERCENT``.
    """
    with open(TABLE, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
        table: dict[str, dict[str, Any]] = json.load(file)
    try:
        given = dict(_given(table, path, environment))
        if given.keys() - table.keys():
            return None  # unknown keys
        values = {key: each["default"] for key, each in table.items()}
        values |= {key: _checked(table[key], value) for key, value in given.items()}
        value_forms.check_thresholds(
            values["image_gc.low_threshold_percent"], values["image_gc.high_threshold_percent"]
        )
        value_forms.check_unused_age(values["image_gc.maximum_unused_age"], values["image_gc.minimum_age"])
        return settings(_config(values), kubernetes=KubernetesSettings())
    except (_NotPlainError, ConfigError, ValueError):
        return None


def _given(
    table: Mapping[str, Mapping[str, Any]], path: Path | None, environment: Mapping[str, str]
) -> Iterator[tuple[str, object]]:
    """Yield each configured value with its dotted key; a later value overrides an earlier value of the same key."""
    sections = {key.partition(".")[0] for key in table if "." in key}
    _, _, document, _ = read_files(path)
    for name, value in document.items():
        if name in sections and isinstance(value, dict):
            yield from ((f"{name}.{key}", each) for key, each in value.items())
        else:
            yield name, value
    for name, text in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(FOREIGN_PREFIXES):
            continue
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".", 1)
        if name != name.upper() or "." in name or key not in table:
            raise _NotPlainError
        yield key, _of_variable(table[key]["kind"], text)


def _of_variable(kind: str | None, text: str) -> object:
    """Return the value of an environment variable, parsed as by the models; ``None`` if it has no plain form."""
    if kind == "switch":
        return {"true": True, "false": False}.get(text)
    if kind == "int":
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
        return int(text) if is_number and str(int(text)) == text else None
    return None if kind == "list" else text


def _checked(setting: Mapping[str, Any], value: object) -> object:
    """Return a valid value in the form in which the models store it.

    Raises:
        ValueError: the value is invalid.
        _NotPlainError: the value has no plain form.
    """
    kind = setting["kind"]
    if kind == "list" and isinstance(value, list):
        return tuple([_checked(setting["item"], each) for each in value])
    if kind == "switch" and isinstance(value, bool):
        return value
    if kind == "int" and type(value) is int:
        least, most = setting["min"], setting["max"]
        if (least is None or value >= least) and (most is None or value <= most) and abs(value) < 10**_MAX_DIGITS:
            return value
    if kind in ("choice", "text") and isinstance(value, str) and value.isprintable():
        if kind == "choice" and value not in setting["choices"]:
            raise _NotPlainError
        for name in setting.get("forms", ()):
            value = getattr(value_forms, name)(value)
        return value
    raise _NotPlainError


def _config(values: Mapping[str, Any]) -> Config:
    """Return the values as nested objects with the attributes of the model ``Config``."""
    sections: dict[str, dict[str, Any]] = {"": {}}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = tuple(value) if isinstance(value, list) else value
    top = sections.pop("")
    return cast("Config", SimpleNamespace(**top, **{name: SimpleNamespace(**each) for name, each in sections.items()}))
