"""Effective settings in containerd's configuration files, and lines that look effective and are not.

Rules of the releases 1.6, 1.7 and 2.0 to 2.2:

- 1.6 and 1.7: a file replaces the whole table of a plugin in earlier files. The last file with a version decides the
  names of all plugins: ``cri`` without a version or with ``version = 1``, else ``io.containerd.grpc.v1.cri``.
- 2.x: tables are merged. Images are configured in the table of ``io.containerd.cri.v1.images``. The old table is
  converted if the last file with ``version = 2`` or higher has ``version = 2``: the sandbox image always, the other
  settings only if there is a table ``containerd.runtimes``. With ``version = 1`` alone it is not converted.

Source: containerd ``LoadConfig``, ``mergeConfig``, ``v1Migrate`` and, for images, ``configMigration``; the integration
tests compare the settings with ``containerd config dump``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from nodeagent.doctor.plan.node import Finding
from nodeagent.record import Record
from nodeagent.text import shortened

if TYPE_CHECKING:
    from nodeagent.model.node import ContainerdConfig, ContainerdLine

    File = Sequence[ContainerdLine]
    Release = tuple[int, int, int]

_CHECK, _FILES_CHECK = "containerd-config", "containerd-files"
_PLUGINS, _DISABLED = "plugins", "disabled_plugins"
_SHORT, _OLD, _IMAGES = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images"
_CRI: Final = frozenset({_SHORT, _OLD, _IMAGES, "io.containerd.cri.v1.runtime"})
_HANDLERS: Final = frozenset({"runtimes", "runtime_platforms", "default_runtime", "untrusted_workload_runtime"})
"""Tables of runtime handlers, which have a snapshotter of their own."""
_TOP: Final = ("version", "imports", _DISABLED, _PLUGINS)
_LAST_VERSIONS: Final[Mapping[tuple[int, int], int | None]] = {
    (1, 6): None,
    (1, 7): 2,
    (2, 0): 3,
    (2, 1): 3,
    (2, 2): 3,
}
"""The known releases, with the highest version of a file; 1.6 accepts any version."""
_RELEASE: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})")
_SIMILARITY: Final = 0.85
_MAX_LENGTH: Final = 60
_RESTART: Final = "and restart containerd"


class _Setting(Record):
    """A setting that the agent depends on, with its keys in the old and in the new table of the plugin."""

    name: str
    kind: type
    old: tuple[str, ...]
    new: tuple[str, ...]


SANDBOX_IMAGE: Final = _Setting("sandbox image", str, ("sandbox_image",), ("pinned_images", "sandbox"))
SNAPSHOTTER: Final = _Setting("snapshotter", str, ("containerd", "snapshotter"), ("snapshotter",))
DISCARD_LAYERS: Final = _Setting(
    "discard_unpacked_layers", bool, ("containerd", "discard_unpacked_layers"), ("discard_unpacked_layers",)
)
_SETTINGS: Final = (SANDBOX_IMAGE, SNAPSHOTTER, DISCARD_LAYERS)
_NAMES: Final = tuple(each.old[-1] for each in _SETTINGS)


class Ineffective(Record):
    """A line without effect, with the reason and the fix."""

    line: ContainerdLine
    reason: str
    fix: str


class Merged(Record):
    """The settings after the merge of all files.

    Attributes:
        deciding: line that sets a setting; ``None`` for the default.
        overridden: lines that set the setting in earlier files.
        ineffective: lines without effect for another reason.
    """

    deciding: Mapping[_Setting, ContainerdLine | None]
    overridden: Mapping[_Setting, Sequence[ContainerdLine]]
    ineffective: tuple[Ineffective, ...]


def parse_release(version: str) -> Release | None:
    """Return a version of containerd, such as ``v1.7.24`` or ``1.6.20~ds1``, as numbers; ``None`` if malformed."""
    found = _RELEASE.match(version)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def patterns_in_directory(release: Release | None) -> bool:
    """Return whether relative patterns of imports are relative to containerd's working directory, not to the file."""
    return release is not None and (release < (1, 6, 29) or (1, 7, 0) <= release < (1, 7, 16))


def find_disabled_cri(config: ContainerdConfig) -> str:
    """Return the file and line that disables the CRI plugin; empty if none is found.

    Source: containerd-config.toml(5), ``disabled_plugins`` and ``imports``: the lists of all imported files are joined.
    """
    lines = (line for file in config.files for line in file if line.keys == (_DISABLED,))
    return next((line.place for line in lines if _CRI.intersection(_texts(line.value))), "")


def check_containerd_config(
    config: ContainerdConfig | None, version: str, *, sandbox_image: str | None, snapshotter: str | None
) -> Iterator[Finding]:
    """Yield the finding on the settings in containerd's files, and a warning for each line without effect.

    Args:
        config: the files; ``None`` if they are unknown.
        version: version that containerd reports.
        sandbox_image: sandbox image that the running containerd reports; ``None`` if it does not.
        snapshotter: snapshotter that the running containerd reports; ``None`` if it does not.
    """
    if config is None:
        yield Finding.skipped(_CHECK, "files of containerd not found: no access to its process")
        return
    release = parse_release(version)
    faults = [*config.faults, *(find_faults(config, release) if release else ())]
    for fault in faults:
        yield Finding.warning(_CHECK, fault, "repair the file: containerd does not start again with it")
    if config.unknown:
        yield Finding.skipped(_CHECK, f"settings not known: {'; '.join(config.unknown)}")
    if faults or config.unknown:
        return
    merged = merge(config, release) if release else None
    if merged is None:
        yield Finding.skipped(_CHECK, f"rules of the configuration of containerd {version} not known")
        return
    reported: dict[_Setting, str | None] = {SANDBOX_IMAGE: sandbox_image, SNAPSHOTTER: snapshotter}
    yield _settings_finding(merged, reported, config.changed)
    used = {each: getattr(line, "value", reported.get(each)) for each, line in merged.deciding.items()}
    used[DISCARD_LAYERS] = used[DISCARD_LAYERS] or False  # the default of all releases
    for each in sorted(merged.ineffective, key=lambda each: (str(each.line.path), each.line.number)):
        same = (_is_of(each.line, setting) and value == each.line.value for setting, value in used.items())
        if not config.changed and any(same):
            continue  # the value is used for another reason, such as a default that a complete file states
        text = f"{each.line.keys[-1]} = {_written(each.line)}"
        yield Finding.warning(_FILES_CHECK, f"{each.line.place}: {text} has no effect: {each.reason}", each.fix)


def merge(config: ContainerdConfig, release: Release) -> Merged | None:
    """Return the settings in files without faults; ``None`` if the rules of the release are not known."""
    if release[:2] not in _LAST_VERSIONS or (release[0] == 2 and any(map(_is_ambiguous, config.files))):
        return None
    merged = _merge_tables(config.files) if release[0] == 1 else _merge_values(config.files)
    return Merged(
        merged.deciding,
        merged.overridden,
        (*merged.ineffective, *(each for file in config.files for each in _misplaced(file)), *_unread(config)),
    )


def find_faults(config: ContainerdConfig, release: Release) -> Iterator[str]:
    """Yield the reasons, besides unreadable files, why this release does not start with the files."""
    versions = [_version(file) for file in config.files]
    last = next((each for each in reversed(versions) if each and each.value), None)
    last_number = last.value if last and isinstance(last.value, int) else 1
    highest = _LAST_VERSIONS.get(release[:2])
    if last and highest is not None and last_number > highest:
        yield f"{last.place}: containerd {release[0]}.{release[1]} does not support version = {last_number}"
    for version, file in zip(versions, config.files, strict=True):
        if version and (not isinstance(version.value, int) or isinstance(version.value, bool)):
            yield f"{version.place}: version is no whole number"
            continue
        own = version.value if version and isinstance(version.value, int) else 1
        is_long = (own if release[0] == 2 else last_number) > 1  # names of plugins are long
        for line in file if is_long else ():
            if line.keys == (_DISABLED,):
                yield from (
                    f"{line.place}: {_DISABLED} has {shortened(each, _MAX_LENGTH)}; with this version, containerd "
                    f"accepts only names such as {_OLD}"
                    for each in _texts(line.value)
                    if "." not in each
                )
        short = next((line for line in file if line.keys[:2] == (_PLUGINS, _SHORT)), None)
        if release[0] == 1 and is_long and short:
            yield f"{short.place}: containerd 1 with version = {last_number} does not accept [plugins.{_SHORT}]"
    merged = merge(config, release)
    for setting, deciding in merged.deciding.items() if merged else ():
        if deciding is not None and not isinstance(deciding.value, setting.kind):
            yield f"{deciding.place}: {deciding.keys[-1]} = {_written(deciding)} has the wrong type"


def _merge_tables(files: Sequence[File]) -> Merged:
    """Merge the files by the rules of 1.6 and 1.7."""
    versions = [version.value for version in map(_version, files) if version and version.value]
    last = versions[-1] if versions and isinstance(versions[-1], int) else 1
    plugin = _OLD if last > 1 else _SHORT
    tables = [file for file in files if any(line.keys[:2] == (_PLUGINS, plugin) for line in file)]
    found: dict[_Setting, ContainerdLine | None] = {}
    overridden: dict[_Setting, Sequence[ContainerdLine]] = {}
    ineffective: list[Ineffective] = []
    for setting in _SETTINGS:
        keys = (_PLUGINS, plugin, *setting.old)
        found[setting] = next((line for line in (tables[-1] if tables else ()) if line.keys == keys), None)
        overridden[setting] = [line for file in tables[:-1] for line in file if line.keys == keys]
        if found[setting] is None and overridden[setting]:
            first = next(line for line in tables[-1] if line.keys[:2] == (_PLUGINS, plugin))
            reason = f"{first.place}, read later, replaces the whole table {_table(plugin)}"
            fix = f"repeat the line below {_table(plugin, setting.old)} in {first.path} {_RESTART}"
            ineffective += (Ineffective(line, reason, fix) for line in overridden[setting])
            overridden[setting] = ()
        ineffective += (
            Ineffective(
                line,
                f"containerd 1 with version = {last} reads only {_table(plugin)}",
                f"write {setting.old[-1]} below {_table(plugin, setting.old)} {_RESTART}",
            )
            for file in files
            for line in file
            if _is_of(line, setting) and line.keys[1] != plugin
        )
    return Merged(found, overridden, tuple(ineffective))


def _merge_values(files: Sequence[File]) -> Merged:
    """Merge the files by the rules of 2.x."""
    versions = [version for version in map(_version, files) if version and version.value not in (0, 1)]
    last = versions[-1] if versions else None
    converts = last is not None and last.value == 2
    runtimes = any(line.keys[2:4] == ("containerd", "runtimes") for file in files for line in _old_lines(file))
    found: dict[_Setting, ContainerdLine | None] = {}
    overridden: dict[_Setting, Sequence[ContainerdLine]] = {}
    ineffective: list[Ineffective] = []
    for setting in _SETTINGS:
        new = [line for file in files for line in file if line.keys == (_PLUGINS, _IMAGES, *setting.new)]
        old = [line for file in files for line in _old_lines(file) if line.keys[2:] == setting.old]
        unread = [line for file in files for line in file if _is_of(line, setting) and line not in (*new, *old)]
        fix = f"set {setting.new[-1]} below {_table(_IMAGES, setting.new)} {_RESTART}"
        ineffective += (Ineffective(line, f"unknown plugin {line.keys[1]}", fix) for line in unread)
        if not (converts and (runtimes or setting is SANDBOX_IMAGE)):
            if converts:
                reason = f"containerd 2 converts it only with a table {_table(_OLD, ('containerd', 'runtimes', ''))}"
            elif last is None:
                reason = "containerd 2 does not convert a configuration without version = 2"
            else:
                reason = f"with version = {last.value} ({last.place}), containerd reads only {_table(_IMAGES)}"
            ineffective += (Ineffective(line, reason, fix) for line in old)
            old = []
        lines = [*new, *old]  # the old table is converted after the merge, and overrides the new one
        found[setting] = lines[-1] if lines else None
        overridden[setting] = lines[:-1]
    return Merged(found, overridden, tuple(ineffective))


def _settings_finding(merged: Merged, reported: Mapping[_Setting, str | None], newer: Sequence[str]) -> Finding:
    parts: list[str] = []
    changed = [f"{each} was changed after the start of containerd, which can use other values" for each in newer]
    for setting, line in merged.deciding.items():
        value = reported.get(setting)
        if line is None:
            parts.append(f"{setting.name} {value} (set by no file)" if value else f"{setting.name}: default")
        elif value is not None and value != line.value:
            changed.append(f"{line.place} sets {setting.name} {_written(line)}, but containerd uses {value}")
        else:
            overridden = "".join(f", overrides {each.place}" for each in merged.overridden[setting])
            parts.append(f"{setting.name} {_written(line)} ({line.place}{overridden})")
    if changed:
        evidence = "; ".join([*changed, *([f"in the files: {', '.join(parts)}"] if parts else [])])
        return Finding.warning(_CHECK, evidence, "restart containerd: it reads its files at its start")
    return Finding.ok(_CHECK, ", ".join(parts))


def _misplaced(file: File) -> Iterator[Ineffective]:
    """Yield the lines with a misspelt key, or with a key in the wrong table."""
    for line in file:
        key = line.keys[-1] if line.keys else ""
        if len(line.keys) > 1 and key in _TOP[:3]:
            yield Ineffective(
                line,
                f"in the table [{'.'.join(map(_quoted, line.keys[:-1]))}], not at the top of the file",
                f"move it above the first table {_RESTART}",
            )
        elif len(line.keys) == 1 and key not in _TOP and get_close_matches(key.lower(), _TOP, cutoff=_SIMILARITY):
            (name,) = get_close_matches(key.lower(), _TOP, n=1, cutoff=_SIMILARITY)
            yield Ineffective(line, "unknown key", f"write {name} {_RESTART}")
        elif _is_cri(line) and not any(_is_of(line, each) for each in _SETTINGS) and not _HANDLERS & {*line.keys[2:]}:
            for name in get_close_matches(key.lower(), _NAMES, n=1, cutoff=_SIMILARITY):
                setting = _SETTINGS[_NAMES.index(name)]
                plugin = _IMAGES if line.keys[1] not in (_SHORT, _OLD) else line.keys[1]
                keys = setting.new if plugin == _IMAGES else setting.old
                reason = "wrong table" if key in (name, keys[-1]) and keys[-1] == name else "unknown key"
                yield Ineffective(line, reason, f"write {keys[-1]} below {_table(plugin, keys)} {_RESTART}")


def _unread(config: ContainerdConfig) -> Iterator[Ineffective]:
    """Yield the settings in files that no import names."""
    main = next((line.path for file in config.files for line in file), None)
    for file in config.unread:
        for line in file:
            if line.keys == (_DISABLED,) or any(_is_of(line, each) for each in _SETTINGS):
                yield Ineffective(
                    line,
                    "no import names the file",
                    f'add "{line.path}" to imports at the top of {main or "the main file"} {_RESTART}',
                )


def _version(file: File) -> ContainerdLine | None:
    return next((line for line in file if line.keys == ("version",)), None)


def _old_lines(file: File) -> Iterator[ContainerdLine]:
    """Yield the lines in the old table of CRI, which has a short name in a file without a version above 1."""
    version = _version(file)
    names = (_SHORT, _OLD) if version is None or version.value in (0, 1) else (_OLD,)
    return (line for line in file if line.keys[:1] == (_PLUGINS,) and line.keys[1:2] and line.keys[1] in names)


def _is_cri(line: ContainerdLine) -> bool:
    return len(line.keys) > 2 and line.keys[0] == _PLUGINS and line.keys[1] in _CRI


def _is_of(line: ContainerdLine, setting: _Setting) -> bool:
    """Return whether a line has the keys of a setting in the old or in the new table."""
    return _is_cri(line) and line.keys[2:] == (setting.old if line.keys[1] in (_SHORT, _OLD) else setting.new)


def _is_ambiguous(file: File) -> bool:
    """Return whether containerd 2 can read other settings in a file than its lines state.

    It accepts some keys in another case. With two names of one plugin in a file with version 1, either table is lost.
    """
    names = {(each,) for each in _TOP} | {(_PLUGINS, _IMAGES, each.new[0]) for each in _SETTINGS[1:]}
    other_case = any(
        each.keys not in names and (*each.keys[:-1], each.keys[-1].lower()) in names for each in file if each.keys
    ) or any(each.keys[0] not in _TOP and each.keys[0].lower() in _TOP for each in file if each.keys)
    return other_case or len({line.keys[1] for line in _old_lines(file)}) > 1


def _table(plugin: str, keys: Sequence[str] = ("",)) -> str:
    """Return the header of the table that contains keys of a plugin."""
    return f"[{'.'.join((_PLUGINS, *map(_quoted, (plugin, *keys[:-1]))))}]"


def _quoted(key: str) -> str:
    return f'"{key}"' if "." in key else key


def _written(line: ContainerdLine) -> str:
    """Return the value of a line, with boolean values as in TOML."""
    value = str(line.value).lower() if isinstance(line.value, bool) else str(line.value)
    return shortened(value, _MAX_LENGTH)


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
