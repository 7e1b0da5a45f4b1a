"""``nodeagent config``: check, show, import, reference."""

from __future__ import annotations

import stat
import sys
from typing import TYPE_CHECKING, Final

from nodeagent.api.codec import encode
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import say, warn
from nodeagent.config.loading import DEFAULT_PATH, effective, load
from nodeagent.errors import ConfigError, UsageError
from nodeagent.model.schemas import SchemaId

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

_MODE: Final = 0o644
"""Of a new file, as at installation."""


def check(path: Path | None) -> None:
    """Print that the configuration is valid, and on standard error what of it has no effect.

    Raises:
        ConfigError: file, key, value and the allowed form, one line per fault.
    """
    loaded = load(path)
    where = str(loaded.source) if loaded.source is not None else "no file; every setting has its default"
    say(f"configuration is good ({where})")
    sys.stdout.flush()
    if loaded.config.role == "beside-kubelet":
        for name, section in (("eviction", loaded.config.eviction), ("shutdown", loaded.config.shutdown)):
            if section.enabled == "on":
                warn(
                    f'nodeagent: warning: {name}.enabled = "on" has no effect with role = "beside-kubelet": '
                    "the kubelet restarts stopped pods"
                )


def show(path: Path | None, form: str, *, sources: bool) -> None:
    """Print the configuration in force, with ``sources`` where each value is set; ``table`` alone stands for TOML."""
    from nodeagent.config.toml_writer import sourced_toml, to_toml, toml_value  # noqa: PLC0415

    loaded = load(path)
    if sources:
        if form == "toml":
            sys.stdout.write(sourced_toml(effective(loaded)))
            return
        values = {key: (toml_value(value), source) for key, (value, source) in effective(loaded).items()}
        if form == "table":
            _print_sources(values)
            return
        settings = {key: {"value": value, "source": source} for key, (value, source) in values.items()}
        sys.stdout.write(encode({"schema": SchemaId.CONFIG.value, "settings": settings}, form))
        return
    if form in ("table", "toml"):
        sys.stdout.write(to_toml(loaded.config, commented=False))
    else:
        sys.stdout.write(encode(loaded.config.model_dump(mode="json"), form))


def _print_sources(values: Mapping[str, tuple[str, str]]) -> None:
    from nodeagent.cli import render  # noqa: PLC0415 - tables are only for people

    table = render.table("setting", "value", "set by", wrap=("value",))
    for key, (value, source) in values.items():
        table.add_row(key, value, source, style="dim" if source == "default" else "")
    render.make_console().print(table)


def import_kubelet(file: Path, *, config: Path | None = None, out: Path | None = None, force: bool = False) -> None:
    """Convert a kubelet's configuration into one of the agent's; report on standard error the fields left out.

    The result states ``dry_run``, see ``dry_run_to_keep``. Exits with 3 if a value that has a counterpart could not
    be used.

    Args:
        file: the kubelet's configuration; ``-`` for standard input.
        config: the configuration in force; ``None`` for the default path.
        out: the file to write, whole or not at all; ``None`` for standard output.
        force: whether an existing ``out`` may be replaced.

    Raises:
        UsageError: ``out`` exists, or cannot be written.
        ConfigError: there is no kubelet's configuration in the file.
    """
    from nodeagent.config.in_force import dry_run_to_keep  # noqa: PLC0415
    from nodeagent.config.kubelet_import import import_kubelet as convert  # noqa: PLC0415
    from nodeagent.config.kubelet_import import read_kubelet  # noqa: PLC0415

    where = "standard input" if str(file) == "-" else str(file)
    replaced = _status_to_replace(out, force=force) if out is not None else None
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        imported = convert(read_kubelet(raw.decode()))
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 text (byte {error.start})") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    kept = dry_run_to_keep([config or DEFAULT_PATH, *([out] if out is not None else [])])
    text = imported.to_toml(dry_run=kept.value, because=kept.reason)
    if out is not None:
        _write(out, text, replaced)
        warn(f"nodeagent: {out} written")
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
    for left in imported.left:
        warn(f"nodeagent: not taken over: {left.field}: {left.reason}")
    for note in imported.notes:
        warn(f"nodeagent: {note}")
    effect = "nothing is removed until it is false" if kept.value else "the daemon removes items"
    warn(f"nodeagent: dry_run = {str(kept.value).lower()} ({kept.reason}): {effect}")
    if any(left.faulty for left in imported.left):
        sys.exit(ExitCode.PARTIAL)


def _status_to_replace(path: Path, *, force: bool) -> os.stat_result | None:
    """Return the status of the file that is to be replaced; ``None`` if there is none.

    Raises:
        UsageError: it may not be replaced, or is not a regular file.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path}: not a regular file")
    if not force:
        raise UsageError(f"{path} exists; add --force to replace it")
    return found


def _write(path: Path, text: str, like: os.stat_result | None) -> None:
    from nodeagent.files import replace_file  # noqa: PLC0415 - only with --out

    try:
        replace_file(path.resolve(), text, like=like, mode=_MODE)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"{path}: cannot be written: {reason or error}") from error


def default(*, dry_run: bool) -> None:
    """Print a commented configuration file."""
    from nodeagent.config.models import Config  # noqa: PLC0415
    from nodeagent.config.toml_writer import to_toml  # noqa: PLC0415

    sys.stdout.write(to_toml(Config(dry_run=dry_run), commented=True))


def reference() -> None:
    """Print the reference of every setting, as Markdown."""
    from nodeagent.config.toml_writer import reference as make_reference  # noqa: PLC0415

    sys.stdout.write(make_reference())
