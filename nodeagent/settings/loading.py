"""Loading and validation of the configuration from all its sources; all errors are reported together.

While the configuration is invalid, graceful shutdown continues with the last valid settings, else with the defaults:
the daemon only keeps logind's inhibitor lock and stops pods in order at a node shutdown. Garbage collection and
eviction wait for a valid configuration.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, get_origin

from nodeagent.config.files import read_files
from nodeagent.config.paths import ENVIRONMENT_PREFIX, FOREIGN_PREFIXES
from nodeagent.config.validation import Fault, InvalidDocumentError, convert, settings_of, value_of
from nodeagent.errors import ConfigError, StoreError
from nodeagent.files import read_file, replace_file
from nodeagent.record import Record, field, replace
from nodeagent.settings.reference import toml_value
from nodeagent.settings.settings import DEFAULT_SOURCE, Config, Origin, Settings
from nodeagent.text import shortened

_SERVICE_SUFFIX: Final = re.compile(
    r"(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Suffix of a variable that Kubernetes derives from a Service, after the Service name. Source: Kubernetes, Services."""
_COMMAND_LINE: Final = "command line"
_MAX_SHOWN_LENGTH: Final = 80


class Loaded(Record):
    """A valid configuration and its sources.

    Attributes:
        source: configuration file; ``None`` if no file exists.
        origins: source of each value that is not a default, by dotted key.
    """

    config: Config
    source: Path | None
    origins: Mapping[str, str] = field(default_factory=dict)


def load(
    path: Path | None = None,
    overrides: Mapping[str, str | int] | None = None,
    environment: Mapping[str, str] = os.environ,
    options: Mapping[str, str] | None = None,
) -> Loaded:
    """Load and validate the configuration from ``path``, or from the default path if the file exists.

    Later sources override earlier ones: the file, the ``*.toml`` files of the directory ``NAME.d`` beside it in the
    order of their names, the environment, the command line. Tables are merged, other values are replaced.

    Args:
        path: configuration file; ``None`` for the default file.
        overrides: dotted keys from the command line, such as ``image_gc.high_threshold_percent``.
        environment: variables such as ``NODEAGENT_IMAGE_GC__HIGH_THRESHOLD_PERCENT``.
        options: command-line option by dotted key, such as ``--high``, for error messages.

    Raises:
        ConfigError: the configuration is invalid or unreadable; the message has one line per error with source, key,
            value, cause and allowed form.
    """
    source, document, origins = read_files(path)
    errors = []
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(FOREIGN_PREFIXES):
            continue
        try:
            key = _key_of_variable(name)
            if not key:
                continue
            _put(document, key, _typed(key, text))
        except ValueError as error:
            errors.append(f"environment: {name} = {_value(text)}: {error}")
            continue
        origins[key] = f"environment: {name}"
    for key, value in (overrides or {}).items():
        _put(document, key, value)
        origins[key] = _COMMAND_LINE
    try:
        config = convert(Config, document)
    except InvalidDocumentError as error:
        given = {
            key: f"{options[key]} {value}" for key, value in (overrides or {}).items() if options and key in options
        }
        errors += [_error_line(each, source, origins, given, options or {}) for each in error.faults]
    if errors:
        raise ConfigError("\n".join(dict.fromkeys(errors)))
    return Loaded(config, source, origins)


def effective(loaded: Loaded) -> dict[str, tuple[object, str]]:
    """Return the value and the source of every setting, by dotted key."""
    return {
        each.key: (value_of(loaded.config, each), _origin(each.key, loaded.origins) or DEFAULT_SOURCE)
        for each in settings_of(Config)
    }


def checked(origin: Origin) -> Settings:
    """Load the configuration of an origin and return its settings.

    Raises:
        ConfigError: the configuration is invalid; one line per error.
    """
    loaded = load(origin.path, dict(origin.overrides))
    found = effective(loaded)
    sources = tuple((key, source) for key, (_, source) in found.items() if source != DEFAULT_SOURCE)
    return replace(_settings(loaded.config, origin, found), sources=sources)


def _settings(config: Config, origin: Origin, values: Mapping[str, tuple[object, str]]) -> Settings:
    """Return the settings of a configuration; ``values`` are those of its files by dotted key, with their sources."""
    own = config.settings()
    shown = tuple((key, toml_value(value)) for key, (value, _) in values.items())
    return replace(own, dry_run=own.dry_run or origin.dry_run, origin=origin, values=shown)


def _key_of_variable(name: str) -> str:
    """Return the dotted key of an environment variable; empty for a variable of a Kubernetes Service.

    Raises:
        ValueError: no setting has this variable.
    """
    known = {each.key.replace(".", "__").upper(): each.key for each in settings_of(Config)}
    suffix = name.removeprefix(ENVIRONMENT_PREFIX)
    if suffix in known:
        return known[suffix]
    _, underscore, end = suffix.partition("_")
    while underscore:
        if _SERVICE_SUFFIX.fullmatch(end):
            return ""
        _, underscore, end = end.partition("_")
    near = difflib.get_close_matches(suffix, known, n=1)
    hint = f"; did you mean {ENVIRONMENT_PREFIX}{near[0]}?" if near else ""
    raise ValueError(f"unknown variable: write {ENVIRONMENT_PREFIX}SECTION__KEY{hint}")


def _typed(key: str, text: str) -> object:
    """Return the text of a variable parsed as TOML, or unchanged for a text setting; the model validates the value."""
    kind = next(each.kind for each in settings_of(Config) if each.key == key)
    if kind is str or get_origin(kind) is Literal:
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text  # rejected by the model, with the allowed form
    return table["value"] if len(table) == 1 else text


def _put(document: dict[str, object], key: str, value: object) -> None:
    *sections, last = key.split(".")
    table = document
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            return  # a value in place of a table is reported by the model
        table = inner
    table[last] = value


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """Return the source of a key, of the table that contains it, or of the first key in it; empty for a default."""
    if key in origins:
        return origins[key]
    parts = key.split(".")
    above = next((origins[up] for end in range(len(parts) - 1, 0, -1) if (up := ".".join(parts[:end])) in origins), "")
    return above or next((where for each, where in origins.items() if each.startswith(f"{key}.")), "")


def _error_line(
    fault: Fault,
    source: Path | None,
    origins: Mapping[str, str],
    given: Mapping[str, str],
    options: Mapping[str, str],
) -> str:
    """Return an error on one line; ``given`` are the options of the command line with their values, by dotted key."""
    key = ".".join(map(_key, fault.location))
    where = _origin(key, origins) or (str(source) if source is not None else "defaults")
    cause = fault.cause
    if not key or (isinstance(fault.value, dict) and not fault.unknown):
        return f"{where}: {key or 'configuration'}: {cause}"
    setting = f"{key} = {_value(fault.value)}"
    other = next((each for each in options if _sibling(key, each) and f"{each.rpartition('.')[2]} = " in cause), "")
    if key in given:
        add = f" ({given[other]})" if other in given else f"; or add {options[other]}" if other else ""
        return f"{given[key]}: {cause}{add}"
    if other in given:
        add = f"; add {options[key]}" if key in options else ""
        return f"{given[other]}: contradicts {setting} ({where}), which {cause}{add}"
    return f"{where}: {setting}: {cause}"


def _sibling(key: str, other: str) -> bool:
    return key != other and key.rpartition(".")[0] == other.rpartition(".")[0]


def _key(part: int | str) -> str:
    """Return a key as printable text on one line, for error messages."""
    text = str(part)
    return text if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", text) else _value(text)


def _value(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:
        text = str(value)
    return shortened(text, _MAX_SHOWN_LENGTH)


STATE: Final = Path("/var/lib/nodeagent")
"""State directory used if the configuration is unreadable."""


def standby_settings(
    origin: Origin, problem: ConfigError, *, has_lock: bool, directory: Path = STATE
) -> Settings | None:
    """Return settings for graceful shutdown; ``None`` if neither last valid settings nor a lock exist.

    Args:
        origin: sources of the invalid configuration, which a reload reads again.
        problem: error of the invalid configuration.
        has_lock: whether an earlier run of the agent left its inhibitor lock.
        directory: state directory with the last valid settings.
    """
    path = directory / FILE_NAME
    try:
        loaded = load(path, {}, environment={}) if path.exists() else None
    except (ConfigError, OSError):  # file of another version, or damaged
        loaded = None
    if loaded is None and not has_lock:
        return None
    settings, source = _settings(Config(), origin, {}), "defaults"
    if loaded is not None:
        settings, source = _settings(loaded.config, origin, effective(loaded)), str(path)
    return replace(settings, invalid_because=str(problem), standby_source=source)


FILE_NAME: Final = "last-settings.toml"
_HEADING: Final = "# The last valid settings, for graceful shutdown while the configuration is invalid. Do not edit.\n"


def write_last_settings(settings: Settings) -> None:
    """Write all settings as TOML to the state directory, unless the file already contains these settings.

    Raises:
        StoreError: the file cannot be written; the previous file is kept.
    """
    path = settings.state_directory / FILE_NAME
    text = _HEADING + "".join(f"{key} = {value}\n" for key, value in settings.values)
    try:
        if path.exists() and read_file(path) == text:
            return
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        replace_file(path, text)
    except (OSError, UnicodeError) as error:
        raise StoreError(f"cannot write {path}: {error}") from error
