"""``nodeagent install`` and ``uninstall``: check everything first, then change the files and report each one.

Both commands plan every change before the first one, from the existing files and from the manifest in the prefix, which
lists the installed files. Files that nodeagent did not install are kept and reported.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.cli.completion_scripts import SCRIPTS
from nodeagent.cli.withdrawal import withdraw_from_cluster
from nodeagent.config.files import DEFAULT_PATH
from nodeagent.config.loading import load
from nodeagent.config.models import Config
from nodeagent.config.toml_writer import to_toml
from nodeagent.errors import ConfigError, InhibitorError, InstallError, UsageError
from nodeagent.host.environment import admit, begin, finish, is_installation, remove_environment
from nodeagent.host.installation import (
    BY_HAND,
    BY_PACKAGE,
    UNIT,
    Layout,
    check_foreign,
    check_sources,
    find_pages,
    former_places,
    is_booted_with_systemd,
    is_page,
    is_recognised,
    known_places,
    make_environment,
    other_prefix,
    parts,
    systemd_version,
)
from nodeagent.host.manifest import NAME as MANIFEST_NAME
from nodeagent.host.manifest import Manifest, read_manifest
from nodeagent.host.placement import (
    NEW_SUFFIX,
    Change,
    Part,
    Step,
    below,
    carry_out,
    check_parents,
    plan_placement,
    plan_removal,
    read_fingerprint,
    remove,
    save_copy,
    saved_versions,
)
from nodeagent.host.prefix import check_form, check_owner, check_place
from nodeagent.host.processes import run
from nodeagent.host.purge import CONFIGURATION, RUNTIME, STATE, find_leftovers
from nodeagent.host.purge import purge as purge_leftovers
from nodeagent.host.systemd import PodSlices

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE: Final = Path("/var/lib/dpkg/info/nodeagent.list")
_UMASK: Final = 0o022
"""Umask of the installation: all users can read the files, since members of the agent's group run the command."""
_MAX_LISTED: Final = 20


def install(
    prefix: Path,
    manual: dict[str, str],
    *,
    enable: bool,
    root: Path | None,
    packaged: bool,
    systemd: int | None,
) -> None:
    """Install or upgrade the agent with its unit, manual pages and completions; keep configuration and state.

    Args:
        prefix: directory of the virtual environment.
        manual: the manual pages by file name.
        enable: enable and start the unit.
        root: root directory of the files instead of ``/``; if set, no virtual environment is created and no command
            is run.
        packaged: use the paths of a distribution package, without configuration and manifest.
        systemd: version of systemd that the unit must support; ``None`` for the installed version.

    Raises:
        UsageError: the user is not root, or the prefix is a system directory.
        InstallError: a file that nodeagent did not install exists at an installation path, and nothing was changed;
            or a step failed, and the preceding steps are not undone.
    """
    if packaged and root is None:
        raise UsageError("--packaged needs --root")
    check_form(prefix)
    top = root or Path("/")
    if root is None:
        _require_root("install")
        _refuse_packaged()
        check_sources()
    previous = Manifest() if packaged else _admitted(prefix, top)
    version = systemd_version() if systemd is None else systemd
    layout = BY_PACKAGE if packaged else BY_HAND
    new_parts = list(_all_parts(layout, prefix, version, manual))
    check_foreign(layout, [part.path for part in new_parts], prefix, top, previous.files)
    check_parents(top, DEFAULT_PATH)
    os.umask(_UMASK)
    files = {part.path: part.fingerprint for part in new_parts}
    if root is None:
        change = make_environment(prefix, files)
        if change is Change.SAME and not previous.complete:
            change = Change.NEW  # created by the preceding steps of ``make install``
        _report(change, f"{prefix} (virtual environment)")
    elif not packaged:
        begin(below(top, prefix), files, venv=False)
    beside = _place_all(new_parts, previous, top)
    _remove_former(layout, prefix, previous, top)
    if not packaged:
        _report(_configure(top), f"{DEFAULT_PATH} (dry_run = true: nothing is removed)")
        finish(below(top, prefix), files | beside)
        _report(Change.REPLACED if previous.files else Change.NEW, str(prefix / MANIFEST_NAME))
    if root is None:
        _update_system(prefix, enable=enable)
    else:
        _notice(f"--root {root}: no command was run, and no virtual environment was created in {prefix}")


def _admitted(prefix: Path, top: Path) -> Manifest:
    """Check a prefix and return its manifest; empty for a new prefix or an installation without a manifest."""
    check_place(prefix, top)
    place = below(top, prefix)
    if top == Path("/"):
        check_owner(place.parent.resolve() / place.name)
    return admit(place) or Manifest()


def _place_all(new_parts: list[Part], previous: Manifest, top: Path) -> dict[Path, str]:
    """Install the files and report each one; return fingerprints of files installed beside edited files, by path."""
    steps = [
        (part, plan_placement(part, read_fingerprint(top, part.path), previous.files.get(part.path, frozenset())))
        for part in new_parts
    ]
    for part, step in steps:  # all changes before any output: standard output may be closed
        carry_out(part, step, top)
        _remove_resolved(part.path, step, previous, top)
    for part, step in steps:
        _report(step.change, f"{part.path}{f' ({step.reason})' if step.reason else ''}")
    return {_beside(part.path): part.fingerprint for part, step in steps if step.beside}


def _remove_former(layout: Layout, prefix: Path, previous: Manifest, top: Path) -> None:
    """Remove the files of earlier versions that this version does not install; keep edited files and report them."""
    for path in former_places(layout):
        present, recorded = read_fingerprint(top, path), previous.files.get(path, frozenset())
        recognised = is_recognised(layout, path, prefix, top)
        if present is not None:
            _report(*_remove_file(path, plan_removal(path, present, recorded, recognised=recognised, purge=False), top))


def _beside(path: Path) -> Path:
    return path.with_name(path.name + NEW_SUFFIX)


def _remove_resolved(path: Path, step: Step, previous: Manifest, top: Path) -> None:
    """Remove the new version beside an edited file, once the edited file is replaced or restored."""
    beside = _beside(path)
    if step.change is not Change.KEPT and read_fingerprint(top, beside) in previous.files.get(beside, frozenset()):
        remove(beside, top)


def uninstall(prefix: Path, *, purge: bool, root: Path | None) -> None:
    """Stop the agent and remove the installed files; with ``purge`` also configuration and state.

    The agent's conditions, taints and cordon on the Node object are removed first, while the configuration with the
    credentials exists.

    Raises:
        UsageError: the user is not root, or the prefix is a system directory.
        InstallError: the manifest is invalid, or the installation has another prefix, and nothing was changed; or a
            removal failed, and the command can be repeated.
    """
    top = root or Path("/")
    check_place(prefix, top)
    place = below(top, prefix)
    if root is None:
        _require_root("uninstall")
        _refuse_packaged()
        check_owner(place.parent.resolve() / place.name)
    installed = is_installation(place)
    other = other_prefix(BY_HAND, prefix, top)
    if other is not None and not installed:
        raise InstallError(f"no installation in {prefix}; to uninstall the one in {other} add --prefix {other}")
    steps = _removals(prefix, top, read_manifest(place) if installed else None, purge=purge)
    for each in (CONFIGURATION, STATE, RUNTIME):
        check_parents(top, each)
    booted = root is None and is_booted_with_systemd()
    unit = steps.get(BY_HAND.units / UNIT)
    if booted and (installed if unit is None else unit.change is Change.REMOVED):
        _run_optional("systemctl", "disable", "--now", UNIT)
        with suppress(InhibitorError):  # a daemon that crashed has left its drop-ins
            PodSlices().restore()
    changes: list[tuple[Change, str]] = []
    try:  # reported last, since a closed standard output must not interrupt the removals
        if root is None:
            changes += withdraw_from_cluster(DEFAULT_PATH)
        changes += [_remove_file(path, step, top) for path, step in steps.items()]
        changes += _purge(top) if purge else _kept_data(top)
        if root is None:
            _update_system_after_removal(booted=booted, purge=purge)
        changes += _remove_environment(place, installed=installed)
    finally:  # no imports from here on, since this process may run in the removed environment
        for change, text in changes:
            _report(change, text)
    if not purge and _kept_data(top):
        _notice(f"configuration and state are kept, {_removal_of_data(top)}")


def _removal_of_data(top: Path) -> str:
    """Return how kept data is removed: after an uninstallation from the machine, no command of the agent is left."""
    kept = [str(each) for each in (CONFIGURATION, STATE) if os.path.lexists(below(top, each))]
    return f"remove them with: rm -r {' '.join(kept)}" if top == Path("/") and kept else "--purge removes them"


def _removals(prefix: Path, top: Path, manifest: Manifest | None, *, purge: bool) -> dict[Path, Step]:
    """Return the step for each existing file outside the prefix, by path; only installation paths are considered."""
    recorded = manifest.files if manifest is not None else {}
    by_content = manifest is None or not manifest.complete
    known = dict.fromkeys((*known_places(BY_HAND), *find_pages(BY_HAND, top)))
    known |= dict.fromkeys(path for path in recorded if is_page(BY_HAND, path))
    steps = {}
    for path in known:
        check_parents(top, path)
        recognised = by_content and is_recognised(BY_HAND, path, prefix, top)
        present = read_fingerprint(top, path)
        step = plan_removal(path, present, recorded.get(path, frozenset()), recognised=recognised, purge=purge)
        if present is not None:
            steps[path] = step
        beside = _beside(path)
        if read_fingerprint(top, beside) in recorded.get(beside, frozenset()):
            steps[beside] = Step(Change.REMOVED)
        for old in saved_versions(path, top):
            steps[old] = Step(Change.REMOVED if purge else Change.KEPT, reason="saved copy of a replaced file")
    for path in sorted(recorded.keys() - steps.keys() - known.keys()):
        if not path.name.endswith(NEW_SUFFIX) and read_fingerprint(top, path) is not None:
            steps[path] = Step(Change.KEPT, reason="listed in the manifest, but not a path of the installation")
    return steps


def _remove_file(path: Path, step: Step, top: Path) -> tuple[Change, str]:
    text = str(path)
    if step.change is Change.REMOVED:
        if step.save:
            try:
                text = f"{path}, kept as {save_copy(below(top, path)).name}"
            except OSError as error:
                raise InstallError(f"cannot rename {path}: {error.strerror or error}") from error
        remove(path, top)
    return step.change, f"{text} ({step.reason})" if step.reason else text


def _kept_data(top: Path) -> list[tuple[Change, str]]:
    """Return the existing paths of configuration and state, each reported as kept."""
    directories = [each for each in (CONFIGURATION, STATE, RUNTIME) if os.path.lexists(below(top, each))]
    others = [each.path for each in find_leftovers(top) if not _is_within(each.path, directories)]
    return [(Change.KEPT, str(each)) for each in (*directories, *others)]


def _purge(top: Path) -> list[tuple[Change, str]]:
    """Remove the agent's own configuration and state; return the removed and the kept paths."""
    directories = [each for each in (CONFIGURATION, STATE, RUNTIME) if os.path.lexists(below(top, each))]
    leftovers, elsewhere = find_leftovers(top), _state_elsewhere(top)
    purge_leftovers(top, leftovers)
    report = [(Change.REMOVED, str(each)) for each in directories if not os.path.lexists(below(top, each))]
    for each in leftovers:
        if not each.own:
            report.append((Change.KEPT, f"{each.path} ({each.reason})"))
        elif not _is_within(each.path, directories):
            report.append((Change.REMOVED, str(each.path)))
    if elsewhere is not None:
        report.append((Change.KEPT, f"{elsewhere} (set by state.directory)"))
    return report


def _is_within(path: Path, directories: list[Path]) -> bool:
    return any(path.is_relative_to(each) for each in directories)


def _state_elsewhere(top: Path) -> Path | None:
    try:
        state = Path(load(below(top, DEFAULT_PATH)).config.state.directory)
    except ConfigError:
        return None
    return state if state != STATE and state.is_dir() else None


def _update_system_after_removal(*, booted: bool, purge: bool) -> None:
    if purge and _has_group():
        _run_optional("groupdel", "nodeagent")
    if booted:
        _run_optional("systemctl", "daemon-reload")
    _run_optional("journalctl", "--update-catalog")


def _remove_environment(environment: Path, *, installed: bool) -> list[tuple[Change, str]]:
    """Remove the virtual environment, possibly that of this process; return the removed and the kept paths."""
    if not installed:
        reason = "no virtual environment of the agent, or one with other packages"
        return [(Change.KEPT, f"{environment} ({reason})")] if os.path.lexists(environment) else []
    kept = remove_environment(environment)
    report = [(Change.KEPT, f"{path} (not installed by nodeagent)") for path in kept[:_MAX_LISTED]]
    if len(kept) > _MAX_LISTED:
        report.append(
            (Change.KEPT, f"{environment}: {len(kept) - _MAX_LISTED} more files (not installed by nodeagent)")
        )
    return report or [(Change.REMOVED, f"{environment} (virtual environment)")]


def _all_parts(layout: Layout, prefix: Path, systemd: int, manual: dict[str, str]) -> Iterator[Part]:
    yield from parts(layout, prefix, systemd=systemd, pages=manual, completions={**SCRIPTS})


def _configure(top: Path) -> Change:
    path = below(top, DEFAULT_PATH)
    if os.path.lexists(path):
        return Change.KEPT
    part = Part(DEFAULT_PATH, to_toml(Config(dry_run=True), commented=True))
    carry_out(part, Step(Change.NEW), top)
    return Change.NEW


def _update_system(prefix: Path, *, enable: bool) -> None:
    """Create the group and directories, reload systemd, and restart a running agent or enable and start it."""
    _run_optional("systemd-sysusers", "nodeagent.conf")
    _run_optional("systemd-tmpfiles", "--create", "nodeagent.conf")
    _run_optional("journalctl", "--update-catalog")
    if not is_booted_with_systemd():
        if enable:
            _run_optional("systemctl", "enable", UNIT)
        _notice(f"systemd is not running; start the agent with: {prefix}/bin/nodeagent run")
        return
    _run_optional("systemctl", "daemon-reload")
    check = run(str(prefix / "bin/nodeagent"), "config", "check")
    if check is None or check.returncode:
        faults = check.stderr.strip() if check is not None else "no answer"
        raise InstallError(f"agent not restarted: configuration invalid:\n{faults}")
    if not enable:
        _run_optional("systemctl", "try-restart", UNIT)
        if (state := run("systemctl", "is-active", UNIT)) is None or state.stdout.strip() != "active":
            _notice("agent not running; start it with: systemctl enable --now nodeagent")
        return
    for words in (("enable", UNIT), ("restart", UNIT)):
        completed = run("systemctl", *words)
        if completed is None or completed.returncode:
            raise InstallError(f"systemctl {' '.join(words)}: {completed.stderr.strip() if completed else 'no answer'}")
    _notice("agent enabled and running; check it with: nodeagent doctor, journalctl -u nodeagent")


def _has_group() -> bool:
    completed = run("getent", "group", "nodeagent")
    return completed is not None and completed.returncode == 0


def _require_root(command: str) -> None:
    if os.geteuid() != 0:
        raise UsageError(f"{command} needs root; without it add --root DIR")


def _refuse_packaged() -> None:
    if _PACKAGE.exists():
        raise InstallError("the agent is installed as a Debian package; upgrade or remove it with apt")


def _run_optional(*words: str) -> None:
    """Run a command; print a failure on standard error and continue."""
    completed = run(*words)
    if completed is None:
        _notice(f"skipped {' '.join(words)}: {words[0]} not found, or no answer")
    elif completed.returncode:
        _notice(f"{' '.join(words)}: {completed.stderr.strip() or f'exit code {completed.returncode}'}")


def _report(change: Change, text: str) -> None:
    sys.stdout.write(f"{change.value:<10}  {_printable(text)}\n")


def _printable(text: str) -> str:
    """Return text with escaped control characters and undecodable bytes: other users can choose file names."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _notice(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"nodeagent: {text}\n")
