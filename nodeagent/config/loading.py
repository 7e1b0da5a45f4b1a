"""From a file and the command line to a checked configuration, or to every fault at once."""

from __future__ import annotations

import difflib
import json
import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ValidationError

from nodeagent.config.models import Config
from nodeagent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

DEFAULT_PATH: Final = Path("/etc/nodeagent/config.toml")
_COMMAND_LINE: Final = "command line"
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked configuration and the file it came from, if any."""

    config: Config
    source: Path | None


def load(path: Path | None = None, overrides: Mapping[str, str | int] | None = None) -> Loaded:
    """Return the configuration of ``path``, or of the default path if there is such a file.

    ``overrides`` are dotted keys from the command line, such as ``image_gc.high_threshold_percent``.

    Raises:
        ConfigError: one line per fault: file, key, value, what is wrong, what is allowed.
    """
    overrides = overrides or {}
    source, document = _read(path)
    for key, value in overrides.items():
        _put(document, key, value)
    try:
        return Loaded(Config.model_validate(document), source)
    except ValidationError as error:
        faults = [_fault(each, source, overrides) for each in error.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(faults))) from error


def _read(path: Path | None) -> tuple[Path | None, dict[str, object]]:
    chosen = path if path is not None else DEFAULT_PATH
    try:
        if not stat.S_ISREG(chosen.stat().st_mode):
            raise ConfigError(f"{chosen}: not a regular file")
        text = chosen.read_bytes().decode()
    except FileNotFoundError as error:
        if path is None:
            return None, {}
        raise ConfigError(f"{chosen}: there is no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{chosen}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{chosen}: cannot be read: {error.strerror or error}") from error
    try:
        return chosen, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{chosen}: not TOML: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{chosen}: not usable TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{chosen}: not usable TOML: nested too deeply") from error


def _put(document: dict[str, object], key: str, value: str | int) -> None:
    *sections, last = key.split(".")
    table = document
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            return  # the file's own fault will be reported
        table = inner
    table[last] = value


def _fault(error: ErrorDetails, source: Path | None, overrides: Mapping[str, str | int]) -> str:
    location = error["loc"]
    key = ".".join(_key(part) for part in location)
    given = any(override == key or override.startswith(f"{key}.") for override in overrides)
    where = _COMMAND_LINE if given else str(source) if source is not None else "defaults"
    if error["type"] == "extra_forbidden":
        return f"{where}: {key} = {_value(error['input'])}: unknown key{_nearest(location)}"
    what = _sentence(error)
    if not location or isinstance(error["input"], dict | BaseModel):
        return f"{where}: {key or 'configuration'}: {what}"
    return f"{where}: {key} = {_value(error['input'])}: {what}"


def _key(part: int | str) -> str:
    """Return a key as it can be shown on one line."""
    text = str(part)
    return text if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", text) else _value(text)


def _sentence(error: ErrorDetails) -> str:
    """Say what is wrong and what is allowed."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context.get("error", error["msg"]))
    if kind == "literal_error":
        return f"must be {context.get('expected')}"
    bounds = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}
    if kind in bounds:
        word, name = bounds[kind]
        return f"must be {word} {context.get(name)}"
    forms = {
        "int_type": "must be a whole number",
        "bool_type": "must be true or false",
        "string_type": "must be a text in quotes",
        "tuple_type": "must be a list",
        "model_type": "must be a table of settings",
    }
    return forms.get(kind, error["msg"])


def _value(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:
        text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _nearest(location: Sequence[int | str]) -> str:
    """Name the nearest known key, or the known ones."""
    model: type[BaseModel] = Config
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return ""
        model = field.annotation
    known = list(model.model_fields)
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}"
