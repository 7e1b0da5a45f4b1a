"""From a file and the command line to a checked configuration, or to every fault at once."""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_origin

from pydantic import BaseModel, ValidationError

from nodeagent.config.models import Config
from nodeagent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

DEFAULT_PATH: Final = Path("/etc/nodeagent/config.toml")
ENVIRONMENT_PREFIX: Final = "NODEAGENT_"
_NOT_SETTINGS: Final = ("NODEAGENT_TEST_", "NODEAGENT_SERVICE_", "NODEAGENT_PORT")
"""Tests have variables of their own, and Kubernetes makes some after the name of a Service."""
_OF_A_SERVICE: Final = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
"""What follows the name of a Service, such as NODEAGENT_METRICS. Source: Kubernetes, environment of containers."""
_COMMAND_LINE: Final = "command line"
_DEFAULT: Final = "default"
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked configuration and where it came from.

    Attributes:
        source: the file, if any.
        dropins: the files beside it that were read after it, in order.
        origins: dotted key of each value that is not a default, to where it was set.
    """

    config: Config
    source: Path | None
    dropins: tuple[Path, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


def load(
    path: Path | None = None,
    overrides: Mapping[str, str | int] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Loaded:
    """Return the configuration of ``path``, or of the default path if there is such a file.

    Later ones go before earlier ones: the file, the ``*.toml`` files of the directory ``NAME.d`` beside it in the
    order of their names, the environment, the command line. Tables are merged, all else is replaced.

    Args:
        path: the file; ``None`` for the default one.
        overrides: dotted keys from the command line, such as ``image_gc.high_threshold_percent``.
        environment: variables such as ``NODEAGENT_IMAGE_GC__HIGH_THRESHOLD_PERCENT``.

    Raises:
        ConfigError: one line per fault: where, key, value, what is wrong, what is allowed.
    """
    source, dropins, document, origins = _files(path)
    faults = []
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(_NOT_SETTINGS):
            continue
        try:
            key = _key_of_variable(name)
            if not key:
                continue
            _put(document, key, _typed(key, text))
        except ValueError as error:
            faults.append(f"environment: {name} = {_value(text)}: {error}")
            continue
        origins[key] = f"environment: {name}"
    for key, value in (overrides or {}).items():
        _put(document, key, value)
        origins[key] = _COMMAND_LINE
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        faults += [_fault(each, source, origins) for each in error.errors(include_url=False)]
    if faults:
        raise ConfigError("\n".join(dict.fromkeys(faults)))
    return Loaded(config, source, dropins, origins)


def effective(loaded: Loaded) -> dict[str, tuple[object, str]]:
    """Return every value in force by its dotted key, with where it was set."""
    found: dict[str, tuple[object, str]] = {}
    for name in Config.model_fields:
        value = getattr(loaded.config, name)
        if isinstance(value, BaseModel):
            for inner in type(value).model_fields:
                key = f"{name}.{inner}"
                found[key] = getattr(value, inner), _origin(key, loaded.origins) or _DEFAULT
        else:
            found[name] = value, _origin(name, loaded.origins) or _DEFAULT
    return found


def read_document(path: Path) -> Mapping[str, object]:
    """Return the values that one file sets, unchecked, without its drop-ins.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    return _read(path)[1]


def _files(path: Path | None) -> tuple[Path | None, tuple[Path, ...], dict[str, object], dict[str, str]]:
    """Return the file, its drop-ins, what they say together, and which says what.

    Raises:
        ConfigError: one line per file that cannot be read; the rest is not judged without them.
    """
    document: dict[str, object] = {}
    origins: dict[str, str] = {}
    faults: list[str] = []
    source = None
    dropins = _dropins(path or DEFAULT_PATH)
    for each in (path, *dropins):
        try:
            found, values = _read(each)
        except ConfigError as error:
            faults.append(str(error))
            continue
        source = found if each is path else source
        _merge(document, values, str(found), origins)
    if faults:
        raise ConfigError("\n".join(faults))
    return source, dropins, document, origins


def _merge(document: dict[str, object], more: Mapping[str, object], where: str, origins: dict[str, str]) -> None:
    """Put a file's values over those before it, noting where each comes from."""

    def into(table: dict[str, object], values: Mapping[str, object], prefix: str) -> None:
        for key, value in values.items():
            name = f"{prefix}{key}"
            if not isinstance(value, dict):
                table[key] = value
                origins[name] = where
                continue
            inner = table.setdefault(key, {})
            if not isinstance(inner, dict):
                inner = table[key] = {}
            into(inner, value, f"{name}.")

    into(document, more, "")


def _dropins(path: Path) -> tuple[Path, ...]:
    directory = path.with_name(f"{path.stem}.d")
    try:
        # Hidden ones are an editor's, or a ConfigMap's own.
        return tuple(
            sorted(each for each in directory.iterdir() if each.suffix == ".toml" and not each.name.startswith("."))
        )
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read: {error.strerror or error}") from error


def _variables() -> dict[str, str]:
    """Return the key that each variable stands for, by its name without the prefix."""
    found: dict[str, str] = {}
    for name, described in Config.model_fields.items():
        section = described.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            found |= {f"{name}__{key}".upper(): f"{name}.{key}" for key in section.model_fields}
        else:
            found[name.upper()] = name
    return found


def _key_of_variable(name: str) -> str:
    """Return the key that a variable stands for; empty if it is none of ours."""
    known = _variables()
    asked = name.removeprefix(ENVIRONMENT_PREFIX)
    if asked in known:
        return known[asked]
    _, underscore, end = asked.partition("_")
    while underscore:
        if _OF_A_SERVICE.fullmatch(end):
            return ""
        _, underscore, end = end.partition("_")
    near = difflib.get_close_matches(asked, known, n=1)
    hint = f"; did you mean {ENVIRONMENT_PREFIX}{near[0]}?" if near else ""
    raise ValueError(f"no setting has that variable: write {ENVIRONMENT_PREFIX}SECTION__KEY{hint}")


def _typed(key: str, text: str) -> object:
    """Return a variable's text as the value that its setting takes; the model judges it like one of a file."""
    model: type[BaseModel] = Config
    *sections, last = key.split(".")
    for section in sections:
        inner = model.model_fields[section].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    kind = model.model_fields[last].annotation
    if kind is str or get_origin(kind) is Literal:
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text  # the model says what it should be
    return table["value"] if len(table) == 1 else text


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


def _put(document: dict[str, object], key: str, value: object) -> None:
    *sections, last = key.split(".")
    table = document
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            return  # the file's own fault will be reported
        table = inner
    table[last] = value


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """Return where a key, or the first of what is in it, was set."""
    if key in origins:
        return origins[key]
    parts = key.split(".")
    above = next((origins[up] for end in range(len(parts) - 1, 0, -1) if (up := ".".join(parts[:end])) in origins), "")
    return above or next((where for each, where in origins.items() if each.startswith(f"{key}.")), "")


def _fault(error: ErrorDetails, source: Path | None, origins: Mapping[str, str]) -> str:
    location = error["loc"]
    key = ".".join(_key(part) for part in location)
    where = _origin(key, origins) or (str(source) if source is not None else "defaults")
    if error["type"] == "extra_forbidden":
        return f"{where}: {key} = {_value(error['input'])}: unknown key{_nearest(location)}"
    what = sentence_of(error)
    if not location or isinstance(error["input"], dict | BaseModel):
        return f"{where}: {key or 'configuration'}: {what}"
    return f"{where}: {key} = {_value(error['input'])}: {what}"


def _key(part: int | str) -> str:
    """Return a key as it can be shown on one line."""
    text = str(part)
    return text if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", text) else _value(text)


def sentence_of(error: ErrorDetails) -> str:
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
