"""``nodeagent config``: check, show, import and document the configuration."""

from __future__ import annotations

import difflib
import stat
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nodeagent.api.common import encode, to_builtins
from nodeagent.cli.display import Line, say, standard_output, warn
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.options import Source
from nodeagent.cli.reading import ask
from nodeagent.cli.table import Heading, Table
from nodeagent.config.files import DEFAULT_PATH
from nodeagent.config.validation import convert as validated, settings_of
from nodeagent.daemon.control_documents import EffectiveConfig
from nodeagent.doctor.plan.node import OPEN_FIX, OPEN_LISTENER
from nodeagent.errors import ConfigError, UsageError
from nodeagent.eviction.plan.thresholds import MEANINGS
from nodeagent.model.node import Certainty
from nodeagent.settings.loading import effective, load
from nodeagent.settings.reference import reference as make_reference, sourced_toml, to_toml, toml_value
from nodeagent.settings.settings import DEFAULT_SOURCE, Config
from nodeagent.text import Cut, escape

if TYPE_CHECKING:
    import os

    from nodeagent.model.kubernetes import KubeletAccess

_MODE: Final = 0o644
"""Mode of a new configuration file, the same as in ``nodeagent install``."""


def check(path: Path | None) -> None:
    """Print that the configuration is valid; warn on standard error of settings without effect.

    Raises:
        ConfigError: the configuration is invalid; the message has one line per fault with file, key, value and allowed
            form.
    """
    loaded = load(path)
    source = str(loaded.source) if loaded.source is not None else "no file: all settings have their defaults"
    say(f"configuration is valid ({source})")
    sys.stdout.flush()
    if loaded.config.metrics.settings().is_open:
        warn(f'nodeagent: warning: metrics.listen = "{loaded.config.metrics.listen}" {OPEN_LISTENER}: {OPEN_FIX}')
    for each in loaded.config.eviction.thresholds():
        if MEANINGS[each.signal].resource is None:
            warn(f"nodeagent: warning: no pod is evicted for {each.text}: the stalled pods need not cause the stall")
    if loaded.config.role == "beside-kubelet":
        for name, section in (("eviction", loaded.config.eviction), ("shutdown", loaded.config.shutdown)):
            if section.enabled == "on":
                warn(
                    f'nodeagent: warning: {name}.enabled = "on" has no effect with role = "beside-kubelet": '
                    "the kubelet restarts stopped pods"
                )


def show(path: Path | None, form: str, *, sources: bool, key: str = "", direct: bool = False) -> None:
    """Print the configuration in force; with ``sources`` also the source of each value.

    The configuration is requested from the running daemon. It is read from the files if no daemon is running, or if
    ``direct`` or ``path`` is set. Without ``sources`` the form ``table`` prints TOML. With ``key`` only the value of
    one setting is printed.

    Raises:
        UsageError: no setting has this key.
    """
    found = ask("Config", EffectiveConfig, {}, Source(path, {}, direct)) or _of_files(path)
    if key:
        _print_setting(found, key, form, source=sources)
    elif sources and form == "table":
        _print_sources(found)
    elif sources and form != "toml":
        sys.stdout.write(encode(found, form))
    else:
        _print_values(found, form, sources=sources)


def _of_files(path: Path | None) -> EffectiveConfig:
    """Return the configuration read from a file, its drop-ins and the environment variables."""
    pairs = effective(load(path)).items()
    values = [(key, toml_value(value)) for key, (value, _) in pairs]
    return EffectiveConfig.of(values, {key: source for key, (_, source) in pairs})


def _print_setting(config: EffectiveConfig, key: str, form: str, *, source: bool) -> None:
    if key not in config.settings:
        raise UsageError(_unknown_key(key, config.settings))
    setting = config.settings[key]
    if form in ("json", "yaml"):
        sys.stdout.write(encode(EffectiveConfig(settings={key: setting}), form))
    else:
        line = Line(f"{key} = {setting.value}{f'  # {setting.source}' if source else ''}")
        standard_output().write_fitted([line])


def _print_values(config: EffectiveConfig, form: str, *, sources: bool) -> None:
    """Print a configuration as TOML, JSON or YAML; with ``sources`` as TOML, each source in a comment."""
    values = {key: _parsed(each.value) for key, each in config.settings.items()}
    if sources:
        sys.stdout.write(sourced_toml({key: (values[key], each.source) for key, each in config.settings.items()}))
        return
    model = validated(Config, _nested(values))
    if form in ("table", "toml"):
        sys.stdout.write(to_toml(model, commented=False))
    else:
        sys.stdout.write(encode(to_builtins(model), form))


def _parsed(value: str) -> object:
    """Return the Python value of a TOML value."""
    return tomllib.loads(f"value = {value}")["value"]


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    """Return values by dotted key, such as ``gc.interval``, as nested tables."""
    document: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (document.setdefault(section, {}) if section else document)[name] = value
    return document


def _print_sources(config: EffectiveConfig) -> None:
    table = Table(Heading("SETTING", name=True), Heading("VALUE", cut=Cut.END), "SET BY")
    for key, each in config.settings.items():
        table.add(key, each.value, each.source, style="dim" if each.source == DEFAULT_SOURCE else "")
    display = standard_output()
    display.write_fitted(table.lines(display.columns))


def import_kubelet(file: Path | None, *, config: Path | None, out: Path | None, force: bool) -> None:
    """Convert a KubeletConfiguration; report the fields that are not imported on standard error.

    The result sets ``dry_run``, see ``dry_run_to_keep``. The exit code is 3 if a field has an invalid value or
    a misspelt name.

    Args:
        file: the KubeletConfiguration; ``-`` for standard input, ``None`` for the configuration in force on this node.
        config: the configuration in force; ``None`` for the default path.
        out: the file to write atomically; ``None`` for standard output.
        force: whether an existing ``out`` may be replaced.

    Raises:
        UsageError: ``out`` exists, or cannot be written.
        ConfigError: the file has no KubeletConfiguration or several; or this node has no kubelet configuration.
    """
    from nodeagent.settings.kubelet_import import (  # noqa: PLC0415
        dry_run_to_keep,
        import_kubelet as convert,
        import_report,
    )

    replaced = _status_to_replace(out, force=force) if out is not None else None
    imported = convert(fields_of_node(access=_access(config)) if file is None else _fields_of_file(file))
    kept = dry_run_to_keep([config or DEFAULT_PATH, *([out] if out is not None else [])])
    text = imported.to_toml(dry_run=kept.value, because=kept.reason)
    if out is not None:
        _write(out, text, replaced)
        warn(f"nodeagent: {out} written")
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
    for line in import_report(imported):
        warn(f"nodeagent: {line}")
    effect = "nothing is removed until it is false" if kept.value else "removals are enabled"
    warn(f"nodeagent: dry_run = {str(kept.value).lower()} ({kept.reason}): {effect}")
    if any(field.faulty for field in imported.left):
        sys.exit(ExitCode.PARTIAL)


def _fields_of_file(file: Path) -> Mapping[str, object]:
    """Return the fields of the KubeletConfiguration in a file.

    Raises:
        ConfigError: the file cannot be read, or has no KubeletConfiguration or several.
    """
    from nodeagent.settings.kubelet_import import read_kubelet  # noqa: PLC0415

    source = "standard input" if str(file) == "-" else str(file)
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return read_kubelet(raw.decode())
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8 text (byte {error.start})") from error
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def _access(config: Path | None) -> KubeletAccess | None:
    """Return the access to the kubelet API of an existing configuration; ``None`` without a valid configuration."""
    try:
        return load(config).config.kubelet.settings().access
    except ConfigError:
        return None


def fields_of_node(root: Path | None = None, access: KubeletAccess | None = None) -> Mapping[str, object]:
    """Return the fields of the configuration of this node's kubelet; print its sources on standard error.

    Args:
        root: root directory of all paths; ``None`` for the root of the host.
        access: access to the kubelet API; ``None`` without.

    Raises:
        ConfigError: no kubelet configuration is found, or one of its sources is not known.
    """
    from nodeagent.host.kubelet_traces import HOST_ROOT, read_kubelet_traces  # noqa: PLC0415
    from nodeagent.settings.kubelet_config import ask_kubelet, read_kubelet_config  # noqa: PLC0415
    from nodeagent.units import SystemClock  # noqa: PLC0415

    root = HOST_ROOT if root is None else root
    pids = [each.pid for each in read_kubelet_traces(SystemClock(), root).processes]
    found = ask_kubelet(read_kubelet_config(root, pids), access)
    if not found.sources:
        reasons = "".join(f"; {each}" for each in found.missing)
        raise ConfigError(f"no kubelet configuration found on this node{reasons}: add its file as the argument FILE")
    if found.missing:
        for certainty in Certainty:
            names = ", ".join(escape(each) for each in found.fields if found.certainty(each) is certainty)
            warn(f"nodeagent: {certainty}: {names or 'no field'}")
        raise ConfigError(
            f"kubelet configuration not known completely: {'; '.join(found.missing)}: correct the source, run as root, "
            "or add a file with the configuration in force as the argument FILE"
        )
    warn(f"nodeagent: read {', '.join(found.sources)}")
    return found.fields


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
    from nodeagent.files import replace_file  # noqa: PLC0415 - needed only with --out

    try:
        replace_file(path.resolve(), text, like=like, mode=_MODE)
    except (OSError, RuntimeError) as error:  # RuntimeError: resolve() met a loop of symbolic links
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"cannot write {path}: {reason or error}") from error


def default(*, dry_run: bool) -> None:
    """Print a configuration file with every setting explained and commented out."""
    sys.stdout.write(to_toml(Config(dry_run=dry_run), commented=True))


def reference(key: str = "") -> None:
    """Print the reference of all settings as Markdown; with ``key`` the description of one setting.

    Raises:
        UsageError: no setting has this key.
    """
    if not key:
        sys.stdout.write(make_reference())
        return
    known = {each.key: each for each in settings_of(Config)}
    if key not in known:
        raise UsageError(_unknown_key(key, known))
    found = known[key]
    for line in (key, f"  {found.description}", f"  form     {found.form}", f"  default  {toml_value(found.default)}"):
        say(line)


def _unknown_key(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, [*known], n=1)
    hint = f"did you mean {near[0]}?" if near else "'nodeagent config reference' lists all"
    return f"no setting {key}; {hint}"
