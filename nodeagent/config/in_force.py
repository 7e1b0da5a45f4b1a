"""Value of ``dry_run`` in an imported configuration, derived from the replaced configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from nodeagent.config.files import read_document
from nodeagent.config.loading import load
from nodeagent.errors import ConfigError
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_KEY: Final = "dry_run"


class KeptDryRun(Record):
    """A value of ``dry_run`` and its reason, one printable line."""

    value: bool
    reason: str


def dry_run_to_keep(paths: Iterable[Path], environment: Mapping[str, str] = os.environ) -> KeptDryRun:
    """Return the ``dry_run`` of the existing configuration files among ``paths``; ``True`` in doubt.

    ``False`` requires that every one of these files sets ``dry_run = false`` itself, is valid, and has no drop-in or
    variable that overrides it. A default does not count: a shell truncates the target of
    ``nodeagent config import FILE > TARGET`` before this process starts, and an empty file means ``false``.
    """
    reason, missing = "", ""
    for path in dict.fromkeys(paths):
        try:
            path.lstat()
        except FileNotFoundError:
            missing = missing or f"no configuration file at {path}"
            continue
        except OSError:
            pass  # reported by load()
        kept = _of_file(path, environment)
        if kept.value:
            return kept
        reason = reason or kept.reason
    return KeptDryRun(value=False, reason=reason) if reason else KeptDryRun(value=True, reason=_line(missing))


def _of_file(path: Path, environment: Mapping[str, str]) -> KeptDryRun:
    try:
        own = read_document(path).get(_KEY)
        loaded = load(path, environment=environment)
    except ConfigError as error:
        return KeptDryRun(value=True, reason=_line(f"existing configuration is invalid: {error}"))
    if own is None:
        return KeptDryRun(value=True, reason=_line(f"{path} does not set dry_run"))
    if own is True:
        return KeptDryRun(value=True, reason=_line(f"{path} sets dry_run = true"))
    if loaded.config.dry_run:
        return KeptDryRun(value=True, reason=_line(f"{loaded.origins[_KEY]} sets dry_run = true"))
    return KeptDryRun(value=False, reason=_line(f"{path} sets dry_run = false"))


def _line(text: str) -> str:
    """Return the first line of a text with unprintable characters replaced, for use in a TOML comment."""
    return "".join(each if each.isprintable() else "?" for each in text.partition("\n")[0])
