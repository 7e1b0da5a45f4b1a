"""Values of the configuration file and its drop-ins, merged but not validated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.config.file_trust import open_trusted
from nodeagent.config.paths import CONFIG_FILE
from nodeagent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PATH: Final = Path(CONFIG_FILE)
ENVIRONMENT_PREFIX: Final = "NODEAGENT_"
FOREIGN_PREFIXES: Final = ("NODEAGENT_TEST_", "NODEAGENT_SERVICE_", "NODEAGENT_PORT")
"""Prefixes of other variables: those of the tests, and those that Kubernetes derives from a Service ``nodeagent``."""


def read_files(path: Path | None) -> tuple[Path | None, tuple[Path, ...], dict[str, object], dict[str, str]]:
    """Return the file, its drop-ins, the merged values and their sources.

    Raises:
        ConfigError: a file cannot be read, is not trusted or is not TOML; one line per file.
    """
    document: dict[str, object] = {}
    origins: dict[str, str] = {}
    errors: list[str] = []
    source = None
    dropins: tuple[Path, ...] = ()
    try:
        dropins = _dropins(path or DEFAULT_PATH)
    except ConfigError as error:
        errors.append(str(error))
    for each in (path, *dropins):
        try:
            file, values = _read(each)
        except ConfigError as error:
            errors.append(str(error))
            continue
        source = file if each is path else source
        _merge(document, values, str(file), origins)
    if errors:
        raise ConfigError("\n".join(errors))
    return source, dropins, document, origins


def _merge(document: dict[str, object], overlay: Mapping[str, object], source: str, origins: dict[str, str]) -> None:
    """Merge the values of a file over the values of earlier files, and record their source."""

    def into(table: dict[str, object], values: Mapping[str, object], prefix: str) -> None:
        for key, value in values.items():
            name = f"{prefix}{key}"
            if not isinstance(value, dict):
                table[key] = value
                origins[name] = source
                continue
            inner = table.setdefault(key, {})
            if not isinstance(inner, dict):
                inner = table[key] = {}
            into(inner, value, f"{name}.")

    into(document, overlay, "")


def _dropins(path: Path) -> tuple[Path, ...]:
    directory = path.with_name(f"{path.stem}.d")
    try:
        descriptor = open_trusted(directory, directory=True)
        try:
            names = os.listdir(descriptor)  # noqa: PTH208 - pathlib does not list a descriptor
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigError(f"{directory}: cannot read directory: {error.strerror or error}") from error
    # Hidden files are locks and backups of editors, or the ``..data`` links of a mounted ConfigMap.
    found = (directory / name for name in names if not name.startswith("."))
    return tuple(sorted(each for each in found if each.suffix == ".toml"))


def read_document(path: Path) -> Mapping[str, object]:
    """Return the values of one file, without validation and without its drop-ins.

    Raises:
        ConfigError: the file cannot be read, or is not TOML.
    """
    return _read(path)[1]


def _read(path: Path | None) -> tuple[Path | None, dict[str, object]]:
    chosen = path if path is not None else DEFAULT_PATH
    try:
        with open(open_trusted(chosen), "rb") as file:  # noqa: PTH123 - pathlib does not open a descriptor
            text = file.read().decode()
    except FileNotFoundError as error:
        if path is None:
            return None, {}
        raise ConfigError(f"{chosen}: no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{chosen}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{chosen}: cannot read file: {error.strerror or error}") from error
    import tomllib  # noqa: PLC0415 - needed only for an existing file

    try:
        return chosen, tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a value out of range such as a date
        raise ConfigError(f"{chosen}: invalid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{chosen}: invalid TOML: nested too deeply") from error
