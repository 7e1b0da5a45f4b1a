"""``nodeagent config``: check, show, reference."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent.cli.document import dumps
from nodeagent.config.loading import load

if TYPE_CHECKING:
    from pathlib import Path


def check(path: Path | None) -> None:
    """Say that the configuration is good, or raise what is wrong with it.

    Raises:
        ConfigError: file, key, value and the allowed form, one line per fault.
    """
    loaded = load(path)
    where = str(loaded.source) if loaded.source is not None else "no file; every setting has its default"
    sys.stdout.write(f"configuration is good ({where})\n")


def show(path: Path | None, form: str) -> None:
    """Print the configuration in force; ``table`` stands for TOML, its own form."""
    from nodeagent.config.writing import to_toml  # noqa: PLC0415

    loaded = load(path)
    if form == "table":
        sys.stdout.write(to_toml(loaded.config, commented=False))
    else:
        sys.stdout.write(dumps(loaded.config.model_dump(mode="json"), form))


def default(*, dry_run: bool) -> None:
    """Print a commented configuration file."""
    from nodeagent.config.models import Config  # noqa: PLC0415
    from nodeagent.config.writing import to_toml  # noqa: PLC0415

    sys.stdout.write(to_toml(Config(dry_run=dry_run), commented=True))


def reference() -> None:
    """Print the reference of every setting, as Markdown."""
    from nodeagent.config.writing import reference as make_reference  # noqa: PLC0415

    sys.stdout.write(make_reference())
