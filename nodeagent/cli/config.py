"""``nodeagent config``: check, show, reference."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent.cli.document import dumps
from nodeagent.config.loading import effective, load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodeagent.cli.document import Json


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


def default(*, dry_run: bool) -> None:
    """Print a commented configuration file."""
    from nodeagent.config.models import Config  # noqa: PLC0415
    from nodeagent.config.writing import to_toml  # noqa: PLC0415

    sys.stdout.write(to_toml(Config(dry_run=dry_run), commented=True))


def reference() -> None:
    """Print the reference of every setting, as Markdown."""
    from nodeagent.config.writing import reference as make_reference  # noqa: PLC0415

    sys.stdout.write(make_reference())
