"""``nodeagent install`` and ``uninstall``: what is put where, told line by line."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.config.loading import DEFAULT_PATH, load
from nodeagent.config.models import Config
from nodeagent.config.writing import to_toml
from nodeagent.errors import ConfigError, InstallError, UsageError
from nodeagent.host.installation import (
    BY_HAND,
    BY_PACKAGE,
    Change,
    Layout,
    Part,
    below,
    is_booted_with_systemd,
    is_our_environment,
    make_environment,
    parts,
    place,
    systemd_version,
    take_away,
)
from nodeagent.host.processes import python_command, run

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT: Final = "nodeagent.service"
_SHELLS: Final = ("bash", "zsh", "fish")
_STATE: Final = Path("/var/lib/nodeagent")
_RUN: Final = Path("/run/nodeagent")
_LOGIND: Final = Path("/etc/systemd/logind.conf.d")
_PACKAGE: Final = Path("/var/lib/dpkg/info/nodeagent.list")
_COMPLETE: Final = "from nodeagent.cli.main import app; app(prog_name='nodeagent')"


def install(prefix: Path, *, enable: bool, root: Path | None, packaged: bool, systemd: int | None) -> None:
    """Put the agent, its unit and all that goes with it in place; configuration and state stay as they are.

    Args:
        prefix: where the virtual environment is made.
        enable: whether the unit is enabled and started.
        root: where the files go instead of ``/``; no environment is made then, and nothing is run.
        packaged: whether the files go where those of packages do, without a configuration.
        systemd: the version of systemd the unit is made for; ``None`` for the one that is here.

    Raises:
        UsageError: not root, or the prefix is none.
        InstallError: something could not be done; what was done stays.
    """
    prefix = _checked_prefix(prefix)
    top = root or Path("/")
    if root is None:
        _need_root("install")
        _refuse_packaged()
        _say(make_environment(prefix), f"{prefix} (virtual environment)")
    version = systemd_version() if systemd is None else systemd
    made = list(_all_parts(BY_PACKAGE if packaged else BY_HAND, prefix, version))
    changes = [(place(part, top), part.path) for part in made]  # all of it before a word: nobody may be listening
    for change, path in changes:
        _say(change, str(path))
    if not packaged:
        _say(_configure(top), f"{DEFAULT_PATH} (it removes nothing until dry_run = false)")
    if root is None:
        _settle(prefix, enable=enable)
    else:
        _tell(f"nothing was run, and {prefix} was not made below {root}")


def uninstall(prefix: Path, *, purge: bool, root: Path | None) -> None:
    """Stop the agent and take away what ``install`` put in place; with ``purge`` also configuration and state.

    Raises:
        UsageError: not root, or the prefix is none.
        InstallError: something could not be removed; what was removed is gone.
    """
    prefix = _checked_prefix(prefix)
    top = root or Path("/")
    booted = root is None and is_booted_with_systemd()
    if root is None:
        _need_root("uninstall")
        _refuse_packaged()
    if booted:
        _try("systemctl", "disable", "--now", UNIT)
    for part in (*_all_parts(BY_HAND, prefix, 0), *_old_pages(top)):
        change = take_away(part, top)
        if change is not None:
            _say(change, str(part.path))
    left = [each for each in _own(top) if os.path.lexists(below(top, each))]
    for each in left:
        if purge:
            _delete(below(top, each))
        _say(Change.REMOVED if purge else Change.KEPT, str(each))
    if root is None:
        _unsettle(booted=booted, purge=purge)
    if left and not purge:
        _tell("with --purge what was kept goes as well")
    sys.stdout.flush()
    _remove_environment(below(top, prefix))


def _unsettle(*, booted: bool, purge: bool) -> None:
    if purge and _has_group():
        _try("groupdel", "nodeagent")
    if booted:
        _try("systemctl", "daemon-reload")
    _try("journalctl", "--update-catalog")


def _remove_environment(environment: Path) -> None:
    """Remove the environment, maybe that of this very process: nothing can be imported after it."""
    if is_our_environment(environment):
        _delete(environment)
        _say(Change.REMOVED, f"{environment} (virtual environment)")
    elif environment.exists():
        _tell(f"{environment} stays: it is no virtual environment of the agent")


def _all_parts(layout: Layout, prefix: Path, systemd: int) -> Iterator[Part]:
    from nodeagent.cli.manual import pages  # noqa: PLC0415 - it imports the command line, which imports this

    yield from parts(
        layout, prefix, systemd=systemd, pages=pages(), completions={each: _script(each) for each in _SHELLS}
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
    if path.exists():
        return Change.KEPT
    return place(Part(DEFAULT_PATH, to_toml(Config(dry_run=True), commented=True)), top)


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


def _own(top: Path) -> Iterator[Path]:
    """Yield what the agent or its operator made: the configuration, the state, the drop-ins for logind."""
    yield DEFAULT_PATH.parent
    yield _STATE
    yield _RUN
    directory = below(top, _LOGIND)
    for path in sorted(directory.glob("*nodeagent.conf")) if directory.is_dir() else ():
        yield _LOGIND / path.name
    try:
        state = Path(load(below(top, DEFAULT_PATH)).config.state.directory)
    except ConfigError:
        return
    if state != _STATE and state.is_dir():
        _tell(f"the state in {state} stays: it is not where state usually is")


def _old_pages(top: Path) -> Iterator[Part]:
    """Yield manual pages of commands that an earlier version had."""
    for section in ("man1", "man5"):
        directory = below(top, BY_HAND.manual / section)
        for path in sorted(directory.glob("nodeagent*.[15]")):
            yield Part(BY_HAND.manual / section / path.name)


def _delete(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise InstallError(f"{path} cannot be removed: {error.strerror or error}") from error


def _has_group() -> bool:
    done = run("getent", "group", "nodeagent")
    return done is not None and done.returncode == 0


def _checked_prefix(prefix: Path) -> Path:
    if not prefix.is_absolute() or ".." in prefix.parts or len(prefix.parts) < 3:
        raise UsageError(f"--prefix {prefix}: must be an absolute path such as /opt/nodeagent, two levels deep or more")
    return prefix


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
    sys.stdout.write(f"{change.value:<10}  {what}\n")


def _tell(sentence: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"nodeagent: {sentence}\n")
