"""``nodeagent config``: check, show, import, reference."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent.cli.exit_codes import ExitCode
from nodeagent.config.loading import effective, load
from nodeagent.daemon.document import dumps
from nodeagent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodeagent.daemon.document import Json


def check(path: Path | None) -> None:
    """Say that the configuration is good, or raise what is wrong with it.

    Raises:
        ConfigError: file, key, value and the allowed form, one line per fault.
    """
    loaded = load(path)
    where = str(loaded.source) if loaded.source is not None else "no file; every setting has its default"
    sys.stdout.write(f"configuration is good ({where})\n")


def show(path: Path | None, form: str, *, sources: bool) -> None:
    """Print the configuration in force, with ``sources`` where each value is set; ``table`` alone stands for TOML."""
    from nodeagent.config.writing import sourced_toml, to_toml, toml_value  # noqa: PLC0415

    loaded = load(path)
    if sources:
        if form == "toml":
            sys.stdout.write(sourced_toml(effective(loaded)))
            return
        values = {key: (toml_value(value), source) for key, (value, source) in effective(loaded).items()}
        if form == "table":
            _print_sources(values)
            return
        told: dict[str, Json] = {key: {"value": value, "source": source} for key, (value, source) in values.items()}
        sys.stdout.write(dumps({"schema": "nodeagent/config/v1", "settings": told}, form))
        return
    if form in ("table", "toml"):
        sys.stdout.write(to_toml(loaded.config, commented=False))
    else:
        sys.stdout.write(dumps(loaded.config.model_dump(mode="json"), form))


def _print_sources(values: Mapping[str, tuple[str, str]]) -> None:
    from nodeagent.cli import render  # noqa: PLC0415 - tables are only for people

    table = render.table("setting", "value", "set by", wrap=("value",))
    for key, (value, source) in values.items():
        table.add_row(key, value, source, style="dim" if source == "default" else "")
    render.make_console().print(table)


def import_kubelet(file: Path) -> None:
    """Print a kubelet's configuration as one of ours, and on standard error what of it was not taken over.

    Exits with 3 if a value that has a counterpart could not be used.

    Raises:
        ConfigError: there is no kubelet's configuration in the file.
    """
    from nodeagent.config.importing import import_kubelet as convert  # noqa: PLC0415
    from nodeagent.config.importing import read_kubelet  # noqa: PLC0415

    where = "standard input" if str(file) == "-" else str(file)
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        imported = convert(read_kubelet(raw.decode()))
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 text (byte {error.start})") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    sys.stdout.write(imported.to_toml())
    sys.stdout.flush()
    for left in imported.left:
        sys.stderr.write(f"nodeagent: not taken over: {left.field}: {left.reason}\n")
    for note in imported.notes:
        sys.stderr.write(f"nodeagent: {note}\n")
    if any(left.faulty for left in imported.left):
        sys.exit(ExitCode.PARTIAL)


def default(*, dry_run: bool) -> None:
    """Print a commented configuration file."""
    from nodeagent.config.models import Config  # noqa: PLC0415
    from nodeagent.config.writing import to_toml  # noqa: PLC0415

    sys.stdout.write(to_toml(Config(dry_run=dry_run), commented=True))


def reference() -> None:
    """Print the reference of every setting, as Markdown."""
    from nodeagent.config.writing import reference as make_reference  # noqa: PLC0415

    sys.stdout.write(make_reference())
