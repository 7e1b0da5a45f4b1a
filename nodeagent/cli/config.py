"""``nodeagent config``: check, show, import and document the configuration."""

from __future__ import annotations

import difflib
import stat
import sys
from typing import TYPE_CHECKING, Final

from nodeagent.api.codec import encode
from nodeagent.api.config import EffectiveConfig, Setting
from nodeagent.cli.display import standard_output
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import say, warn
from nodeagent.cli.table import Heading, Table
from nodeagent.config.loading import DEFAULT_PATH, effective, load
from nodeagent.errors import ConfigError, UsageError
from nodeagent.text import Cut

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_MODE: Final = 0o644
"""Mode of a new file, equal to that of an installation."""


def check(path: Path | None) -> None:
    """Print that the configuration is valid; warn on standard error of settings without effect.

    Raises:
        ConfigError: file, key, value and the allowed form, one line per fault.
    """
    loaded = load(path)
    source = str(loaded.source) if loaded.source is not None else "no file: all settings have their defaults"
    say(f"configuration is valid ({source})")
    sys.stdout.flush()
    if loaded.config.role == "beside-kubelet":
        for name, section in (("eviction", loaded.config.eviction), ("shutdown", loaded.config.shutdown)):
            if section.enabled == "on":
                warn(
                    f'nodeagent: warning: {name}.enabled = "on" has no effect with role = "beside-kubelet": '
                    "the kubelet restarts stopped pods"
                )


def show(path: Path | None, form: str, *, sources: bool, key: str = "") -> None:
    """Print the configuration in force; with ``sources`` also the source of each value.

    Without ``sources`` the form ``table`` prints TOML. With ``key`` only the value of one setting is printed.

    Raises:
        UsageError: no setting has this key.
    """
    from nodeagent.config.toml_writer import sourced_toml, to_toml, toml_value  # noqa: PLC0415

    loaded = load(path)
    if key:
        found = effective(loaded)
        if key not in found:
            raise UsageError(_unknown_key(key, found))
        value, source = found[key]
        if form in ("json", "yaml"):
            settings = {key: Setting(value=toml_value(value), source=source)}
            sys.stdout.write(encode(EffectiveConfig(settings=settings), form))
        else:
            say(f"{key} = {toml_value(value)}{f'  # {source}' if sources else ''}")
        return
    if sources:
        if form == "toml":
            sys.stdout.write(sourced_toml(effective(loaded)))
            return
        values = {key: (toml_value(value), source) for key, (value, source) in effective(loaded).items()}
        if form == "table":
            _print_sources(values)
            return
        settings = {key: Setting(value=value, source=source) for key, (value, source) in values.items()}
        sys.stdout.write(encode(EffectiveConfig(settings=settings), form))
        return
    if form in ("table", "toml"):
        sys.stdout.write(to_toml(loaded.config, commented=False))
    else:
        sys.stdout.write(encode(loaded.config.model_dump(mode="json"), form))


def _print_sources(values: Mapping[str, tuple[str, str]]) -> None:
    display = standard_output()
    table = Table(Heading("SETTING", name=True), Heading("VALUE", cut=Cut.END), "SET BY")
    for key, (value, source) in values.items():
        table.add(key, value, source, style="dim" if source == "default" else "")
    display.write_fitted(table.lines(display.columns))


def import_kubelet(file: Path, *, config: Path | None = None, out: Path | None = None, force: bool = False) -> None:
    """Convert a KubeletConfiguration; report the fields that are not imported on standard error.

    The result sets ``dry_run``, see ``dry_run_to_keep``. The exit code is 3 if a field that has a counterpart has an
    invalid value.

    Args:
        file: the KubeletConfiguration; ``-`` for standard input.
        config: the configuration in force; ``None`` for the default path.
        out: the file to write, whole or not at all; ``None`` for standard output.
        force: whether an existing ``out`` may be replaced.

    Raises:
        UsageError: ``out`` exists, or cannot be written.
        ConfigError: the file has no KubeletConfiguration, or more than one.
    """
    from nodeagent.config.in_force import dry_run_to_keep  # noqa: PLC0415
    from nodeagent.config.kubelet_import import import_kubelet as convert  # noqa: PLC0415
    from nodeagent.config.kubelet_import import read_kubelet  # noqa: PLC0415

    source = "standard input" if str(file) == "-" else str(file)
    replaced = _status_to_replace(out, force=force) if out is not None else None
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        imported = convert(read_kubelet(raw.decode()))
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8 text (byte {error.start})") from error
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    kept = dry_run_to_keep([config or DEFAULT_PATH, *([out] if out is not None else [])])
    text = imported.to_toml(dry_run=kept.value, because=kept.reason)
    if out is not None:
        _write(out, text, replaced)
        warn(f"nodeagent: {out} written")
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
    for field in imported.left:
        warn(f"nodeagent: not imported: {field.field}: {field.reason}")
    for note in imported.notes:
        warn(f"nodeagent: {note}")
    effect = "nothing is removed until it is false" if kept.value else "removals are enabled"
    warn(f"nodeagent: dry_run = {str(kept.value).lower()} ({kept.reason}): {effect}")
    if any(field.faulty for field in imported.left):
        sys.exit(ExitCode.PARTIAL)


def _status_to_replace(path: Path, *, force: bool) -> os.stat_result | None:
    """Return the status of the file to replace; ``None`` if it does not exist.

    Raises:
        UsageError: the file exists without ``force``, or is not a regular file.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"cannot write {path}: not a regular file")
    if not force:
        raise UsageError(f"{path} exists; add --force to replace it")
    return found


def _write(path: Path, text: str, like: os.stat_result | None) -> None:
    from nodeagent.files import replace_file  # noqa: PLC0415 - only with --out

    try:
        replace_file(path.resolve(), text, like=like, mode=_MODE)
    except (OSError, RuntimeError) as error:  # RuntimeError: resolve() met a loop of symbolic links
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"cannot write {path}: {reason or error}") from error


def default(*, dry_run: bool) -> None:
    """Print a configuration file with every setting explained and commented out."""
    from nodeagent.config.models import Config  # noqa: PLC0415
    from nodeagent.config.toml_writer import to_toml  # noqa: PLC0415

    sys.stdout.write(to_toml(Config(dry_run=dry_run), commented=True))


def reference(key: str = "") -> None:
    """Print the reference of all settings as Markdown; with ``key`` the description of one setting.

    Raises:
        UsageError: no setting has this key.
    """
    from nodeagent.config.models import Config  # noqa: PLC0415
    from nodeagent.config.toml_writer import reference as make_reference  # noqa: PLC0415
    from nodeagent.config.toml_writer import settings_of  # noqa: PLC0415

    if not key:
        sys.stdout.write(make_reference())
        return
    known = {f"{each.section}.{each.name}" if each.section else each.name: each for each in settings_of(Config())}
    if key not in known:
        raise UsageError(_unknown_key(key, known))
    found = known[key]
    for line in (key, f"  {found.description}", f"  form     {found.form}", f"  default  {found.value}"):
        say(line)


def _unknown_key(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, [*known], n=1)
    hint = f"did you mean {near[0]}?" if near else "'nodeagent config reference' lists all"
    return f"no setting {key}; {hint}"
