"""``nodeagent install`` and ``uninstall``: check everything, then change, and report each file on a line.

Both decide before they change anything: from the manifest in the prefix, which lists the files of the installation,
and from what is there now. Whatever is not known to be the agent's own is kept and reported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.config.loading import DEFAULT_PATH, load
from nodeagent.config.models import Config
from nodeagent.config.toml_writer import to_toml
from nodeagent.errors import ConfigError, InstallError, UsageError
from nodeagent.host.environment import admit, begin, finish, is_installation, remove_environment
from nodeagent.host.installation import (
    BY_HAND,
    BY_PACKAGE,
    UNIT,
    Layout,
    check_foreign,
    check_sources,
    find_pages,
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
from nodeagent.host.processes import python_command, run
from nodeagent.host.purge import CONFIGURATION, RUNTIME, STATE, find_leftovers
from nodeagent.host.purge import purge as purge_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHELLS: Final = ("bash", "zsh", "fish")
_PACKAGE: Final = Path("/var/lib/dpkg/info/nodeagent.list")
_COMPLETE: Final = "from nodeagent.cli.main import app; app(prog_name='nodeagent')"
_UMASK: Final = 0o022
"""Members of the agent's group run the command, so its files are readable to all, whatever root's own umask."""
_SHOWN: Final = 20


def install(
    prefix: Path,
    manual: dict[str, str],
    *,
    enable: bool,
    root: Path | None,
    packaged: bool,
    systemd: int | None,
) -> None:
    """Put the agent, its unit and all that goes with it in place; configuration and state stay as they are.

    Args:
        prefix: directory of the virtual environment.
        manual: the manual pages by file name.
        enable: whether the unit is enabled and started.
        root: where the files go instead of ``/``; no environment is made then, and nothing is run.
        packaged: whether the files go where those of packages do, without a configuration and a manifest.
        systemd: the version of systemd the unit is made for; ``None`` for the one that is here.

    Raises:
        UsageError: not root, or the prefix is part of the system.
        InstallError: something of others is in the way, and nothing was changed; or something could not be done, and
            what was done stays.
    """
    if packaged and root is None:
        raise UsageError("--packaged needs --root")
    check_form(prefix)
    top = root or Path("/")
    if root is None:
        _need_root("install")
        _refuse_packaged()
        check_sources()
    former = Manifest() if packaged else _admitted(prefix, top)
    version = systemd_version() if systemd is None else systemd
    layout = BY_PACKAGE if packaged else BY_HAND
    made = list(_all_parts(layout, prefix, version, manual))
    check_foreign(layout, [part.path for part in made], prefix, top, former.files)
    check_parents(top, DEFAULT_PATH)
    os.umask(_UMASK)
    files = {part.path: part.fingerprint for part in made}
    if root is None:
        _say(make_environment(prefix, files), f"{prefix} (virtual environment)")
    elif not packaged:
        begin(below(top, prefix), files, venv=False)
    beside = _place_all(made, former, top)
    if not packaged:
        _say(_configure(top), f"{DEFAULT_PATH} (it removes nothing until dry_run = false)")
        finish(below(top, prefix), files | beside)
        _say(Change.REPLACED if former.files else Change.NEW, str(prefix / MANIFEST_NAME))
    if root is None:
        _settle(prefix, enable=enable)
    else:
        _tell(f"no command was run, and no virtual environment was made in {prefix} below {root}")


def _admitted(prefix: Path, top: Path) -> Manifest:
    """Return the manifest of a prefix that may be used; an empty one for a new prefix, or one of an earlier version."""
    check_place(prefix, top)
    place = below(top, prefix)
    if top == Path("/"):
        check_owner(place.parent.resolve() / place.name)
    return admit(place) or Manifest()


def _place_all(made: list[Part], former: Manifest, top: Path) -> dict[Path, str]:
    """Place the files and report each; return those that are beside an edited one, with their fingerprints."""
    steps = [
        (part, plan_placement(part, read_fingerprint(top, part.path), former.files.get(part.path, frozenset())))
        for part in made
    ]
    for part, step in steps:  # all of it before a word: standard output may be closed
        carry_out(part, step, top)
        _remove_resolved(part.path, step, former, top)
    for part, step in steps:
        _say(step.change, f"{part.path}{f' ({step.reason})' if step.reason else ''}")
    return {_beside(part.path): part.fingerprint for part, step in steps if step.beside}


def _beside(path: Path) -> Path:
    return path.with_name(path.name + NEW_SUFFIX)


def _remove_resolved(path: Path, step: Step, former: Manifest, top: Path) -> None:
    """Remove the version that an earlier installation placed beside an edited file, once it is not edited any more."""
    beside = _beside(path)
    if step.change is not Change.KEPT and read_fingerprint(top, beside) in former.files.get(beside, frozenset()):
        remove(beside, top)


def uninstall(prefix: Path, *, purge: bool, root: Path | None) -> None:
    """Stop the agent and remove what ``install`` put in place; with ``purge`` also configuration and state.

    Raises:
        UsageError: not root, or the prefix is part of the system.
        InstallError: the manifest cannot be used, or another installation is in place, and nothing was changed; or
            something could not be removed, and can be removed by repeating the command.
    """
    top = root or Path("/")
    check_place(prefix, top)
    place = below(top, prefix)
    if root is None:
        _need_root("uninstall")
        _refuse_packaged()
        check_owner(place.parent.resolve() / place.name)
    ours = is_installation(place)
    other = other_prefix(BY_HAND, prefix, top)
    if other is not None and not ours:
        raise InstallError(f"{prefix} is not installed; the installation is in {other}: --prefix {other}")
    steps = _removals(prefix, top, read_manifest(place) if ours else None, purge=purge)
    for each in (CONFIGURATION, STATE, RUNTIME):
        check_parents(top, each)
    booted = root is None and is_booted_with_systemd()
    unit = steps.get(BY_HAND.units / UNIT)
    if booted and (ours if unit is None else unit.change is Change.REMOVED):
        _try("systemctl", "disable", "--now", UNIT)
    report: list[tuple[Change, str]] = []
    try:  # report last: standard output may be closed, and half of an uninstalled agent would be left
        report += [_take_away(path, step, top) for path, step in steps.items()]
        report += _purged(top) if purge else _left(top)
        if root is None:
            _unsettle(booted=booted, purge=purge)
        report += _remove_environment(place, ours=ours)
    finally:  # nothing can be imported any more, if that was the environment of this very process
        for change, what in report:
            _say(change, what)
    if not purge and _left(top):
        _tell("configuration and state are kept; --purge removes them")


def _removals(prefix: Path, top: Path, manifest: Manifest | None, *, purge: bool) -> dict[Path, Step]:
    """Return what happens to each file outside the prefix that is there; only known places are ever considered."""
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
            steps[old] = Step(Change.REMOVED if purge else Change.KEPT, reason="saved when it was replaced")
    for path in sorted(recorded.keys() - steps.keys() - known.keys()):
        if not path.name.endswith(NEW_SUFFIX) and read_fingerprint(top, path) is not None:
            steps[path] = Step(Change.KEPT, reason="listed in the manifest, but no place of an installation")
    return steps


def _take_away(path: Path, step: Step, top: Path) -> tuple[Change, str]:
    what = str(path)
    if step.change is Change.REMOVED:
        if step.save:
            try:
                what = f"{path}, kept as {save_copy(below(top, path)).name}"
            except OSError as error:
                raise InstallError(f"cannot rename {path}: {error.strerror or error}") from error
        remove(path, top)
    return step.change, f"{what} ({step.reason})" if step.reason else what


def _left(top: Path) -> list[tuple[Change, str]]:
    """Return that configuration and state are kept."""
    directories = [each for each in (CONFIGURATION, STATE, RUNTIME) if os.path.lexists(below(top, each))]
    others = [each.path for each in find_leftovers(top) if not _is_within(each.path, directories)]
    return [(Change.KEPT, str(each)) for each in (*directories, *others)]


def _purged(top: Path) -> list[tuple[Change, str]]:
    """Remove the agent's own files of configuration and state; return what was removed and what is kept."""
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


def _unsettle(*, booted: bool, purge: bool) -> None:
    if purge and _has_group():
        _try("groupdel", "nodeagent")
    if booted:
        _try("systemctl", "daemon-reload")
    _try("journalctl", "--update-catalog")


def _remove_environment(environment: Path, *, ours: bool) -> list[tuple[Change, str]]:
    """Remove the environment, maybe that of this very process; return what was removed and what is kept."""
    if not ours:
        reason = "no virtual environment of the agent, or one that holds other packages"
        return [(Change.KEPT, f"{environment} ({reason})")] if os.path.lexists(environment) else []
    kept = remove_environment(environment)
    report = [(Change.KEPT, f"{path} (not installed by nodeagent)") for path in kept[:_SHOWN]]
    if len(kept) > _SHOWN:
        report.append((Change.KEPT, f"{environment}: {len(kept) - _SHOWN} more files (not installed by nodeagent)"))
    return report or [(Change.REMOVED, f"{environment} (virtual environment)")]


def _all_parts(layout: Layout, prefix: Path, systemd: int, manual: dict[str, str]) -> Iterator[Part]:
    yield from parts(
        layout, prefix, systemd=systemd, pages=manual, completions={each: _script(each) for each in _SHELLS}
    )


def _script(shell: str) -> str:
    """Return the completion script of a shell, as the command line makes it."""
    done = run(*python_command("-c", _COMPLETE), additions={"_NODEAGENT_COMPLETE": f"source_{shell}"})
    if done is None or "nodeagent" not in done.stdout:
        reason = "no answer" if done is None else done.stderr.strip()[-200:]
        raise InstallError(f"cannot generate the {shell} completion: {reason}")
    return done.stdout.lstrip()  # zsh looks at the first line


def _configure(top: Path) -> Change:
    path = below(top, DEFAULT_PATH)
    if os.path.lexists(path):
        return Change.KEPT
    part = Part(DEFAULT_PATH, to_toml(Config(dry_run=True), commented=True))
    carry_out(part, Step(Change.NEW), top)
    return Change.NEW


def _settle(prefix: Path, *, enable: bool) -> None:
    """Have the system take in what was placed, and the agent, if it runs, start over."""
    _try("systemd-sysusers", "nodeagent.conf")
    _try("systemd-tmpfiles", "--create", "nodeagent.conf")
    _try("journalctl", "--update-catalog")
    if not is_booted_with_systemd():
        if enable:
            _try("systemctl", "enable", UNIT)
        _tell(f"systemd does not run this machine; without it: {prefix}/bin/nodeagent run")
        return
    _try("systemctl", "daemon-reload")
    checked = run(str(prefix / "bin/nodeagent"), "config", "check")
    if checked is None or checked.returncode:
        said = checked.stderr.strip() if checked is not None else "no answer"
        raise InstallError(f"the configuration cannot be used, so the agent was not started again:\n{said}")
    if not enable:
        _try("systemctl", "try-restart", UNIT)
        if (state := run("systemctl", "is-active", UNIT)) is None or state.stdout.strip() != "active":
            _tell("start it with: systemctl enable --now nodeagent")
        return
    for words in (("enable", UNIT), ("restart", UNIT)):
        done = run("systemctl", *words)
        if done is None or done.returncode:
            raise InstallError(f"systemctl {' '.join(words)}: {done.stderr.strip() if done else 'no answer'}")
    _tell("it is enabled and runs: nodeagent doctor, journalctl -u nodeagent")


def _has_group() -> bool:
    done = run("getent", "group", "nodeagent")
    return done is not None and done.returncode == 0


def _need_root(what: str) -> None:
    if os.geteuid() != 0:
        raise UsageError(f"{what} needs root; with --root DIR the files can be placed elsewhere")


def _refuse_packaged() -> None:
    if _PACKAGE.exists():
        raise InstallError("the agent is installed as a Debian package: apt upgrades and removes it")


def _try(*words: str) -> None:
    """Run a command whose failure leaves something undone and nothing broken."""
    done = run(*words)
    if done is None:
        _tell(f"{words[0]} is not here or did not end: {' '.join(words)} is left undone")
    elif done.returncode:
        _tell(f"{' '.join(words)}: {done.stderr.strip() or f'exit code {done.returncode}'}")


def _say(change: Change, what: str) -> None:
    sys.stdout.write(f"{change.value:<10}  {_printable(what)}\n")


def _printable(text: str) -> str:
    """Return text with control characters and undecodable bytes escaped: names of files are not ours to choose."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _tell(sentence: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"nodeagent: {sentence}\n")
