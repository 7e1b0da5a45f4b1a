"""``nodeagent install`` and ``uninstall``: check everything first, then change the files and report each one."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.cli.completion_scripts import SCRIPTS
from nodeagent.cli.withdrawal import withdraw_from_cluster
from nodeagent.config.files import DEFAULT_PATH
from nodeagent.config.models import Config
from nodeagent.config.toml_writer import to_toml
from nodeagent.errors import InhibitorError, InstallError, UsageError
from nodeagent.files import create_file, replace_file
from nodeagent.host import installation
from nodeagent.host.installation import MANIFEST, UNIT, Manifest, Part, below
from nodeagent.host.processes import run
from nodeagent.host.purge import CONFIGURATION, RUNTIME, STATE
from nodeagent.host.purge import purge as purge_data
from nodeagent.host.systemd import PodSlices

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOOTED: Final = Path("/run/systemd/system")
"""Directory that exists if systemd runs the machine. Source: sd_booted(3)."""
_MAX_LISTED: Final = 20


@contextmanager
def _os_errors(step: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InstallError(f"cannot {step}: {error.filename}: {error.strerror}; the command can be repeated") from error


@_os_errors("install")
def install(
    prefix: Path, manual: dict[str, str], *, enable: bool, root: Path | None, packaged: bool, systemd: int | None
) -> None:
    """Install or upgrade the files outside the virtual environment; keep configuration, state and edited files.

    Args:
        prefix: directory of the virtual environment.
        manual: the manual pages by file name.
        enable: enable and start the unit.
        root: root directory of the files instead of ``/``; if set, no command is run.
        packaged: use the paths of a distribution package, without configuration and manifest.
        systemd: version of systemd that the unit must support; ``None`` for the installed version.

    Raises:
        UsageError: the user is not root, or the prefix is a system directory.
        InstallError: a file that nodeagent did not install exists at an installation path, and nothing was changed;
            or a step failed, and the preceding steps are not undone.
    """
    if packaged and root is None:
        raise UsageError("--packaged needs --root")
    top = _check("install", prefix, root, packaged=packaged)
    if root is None and prefix.resolve() != Path(sys.prefix).resolve():
        raise InstallError(f"use {prefix}/bin/nodeagent; without it, run make install, or pip in a new environment")
    former = Manifest() if packaged else installation.admit(below(top, prefix))
    version = installation.systemd_version() if systemd is None else systemd
    new = installation.parts(prefix, version, manual, SCRIPTS, packaged=packaged)
    installation.check_foreign(new, former, prefix, top)
    installation.check_parents(DEFAULT_PATH, top)
    os.umask(0o022)  # members of the agent's group run the command
    _report(_place(new, former, None if packaged else prefix, top))
    if root is None:
        _update_system(prefix, enable=enable)
    else:
        _notice(f"--root {root}: no command was run, and no virtual environment was created in {prefix}")


def _place(new: list[Part], former: Manifest, prefix: Path | None, top: Path) -> list[tuple[str, str]]:
    """Place the files, and with a prefix the launcher, configuration and manifest; return the changes."""
    if prefix is not None:
        expected = {each.path: former.files.get(each.path, frozenset()) | {each.fingerprint} for each in new}
        installation.write_manifest(below(top, prefix), former._replace(files={**former.files, **expected}))
    changes: list[tuple[str, str]] = []
    placed: dict[Path, frozenset[str]] = {}
    if prefix is not None and top == Path("/"):
        replace_file(prefix / "bin/nodeagent", installation.launcher(str(prefix)), mode=0o755)
        changes.append(("new" if former.foreign is not None else "unchanged", f"{prefix} (virtual environment)"))
    for part in new:
        change, reason, actual = installation.place(part, former.files.get(part.path, frozenset()), top)
        changes.append((change, f"{part.path} ({reason})" if reason else str(part.path)))
        placed |= {each.path: frozenset({each.fingerprint}) for each in (part, actual)}
    changes += installation.withdraw({path: former.files[path] for path in former.files if path not in placed}, top)
    if prefix is not None:
        configuration = below(top, DEFAULT_PATH)
        configuration.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        text = to_toml(Config(dry_run=True), commented=True)
        is_new = not os.path.lexists(configuration) and create_file(configuration, text, mode=0o644)
        changes.append(("new" if is_new else "kept", f"{DEFAULT_PATH} (dry_run = true: nothing is removed)"))
        own = installation.own_files(below(top, prefix), former)
        installation.write_manifest(below(top, prefix), Manifest(own, placed))
        changes.append(("replaced" if former.files else "new", f"{prefix / MANIFEST}"))
    return changes


@_os_errors("uninstall")
def uninstall(prefix: Path, *, purge: bool, root: Path | None) -> None:
    """Stop the agent and remove the installed files; with ``purge`` also configuration and state.

    The agent's conditions, taints and cordon on the Node object are removed first, while the configuration with the
    credentials exists.

    Raises:
        UsageError: the user is not root, or the prefix is a system directory.
        InstallError: the manifest is invalid, or the installation has another prefix, and nothing was changed; or a
            removal failed, and the command can be repeated.
    """
    top = _check("uninstall", prefix, root)
    directory = below(top, prefix)
    found = None if directory.is_symlink() else installation.read_manifest(directory)
    other = installation.other_prefix(prefix, top)
    if other is not None and found is None:
        raise InstallError(f"no installation in {prefix}; to uninstall the one in {other} add --prefix {other}")
    manifest = found or Manifest()
    static = [each.path for each in installation.parts(prefix, 0, {}, SCRIPTS)]
    for path in (*static, *manifest.files, CONFIGURATION, STATE, RUNTIME):
        installation.check_parents(path, top)
    booted = root is None and _BOOTED.is_dir()
    if booted and UNIT in manifest.files:
        _run_optional("systemctl", "disable", "--now", UNIT.name)
        with suppress(InhibitorError):  # a daemon that crashed has left its drop-ins
            PodSlices().restore()
    changes: list[tuple[str, str]] = []
    try:  # reported last, since a closed standard output must not interrupt the removals
        if root is None:
            changes += withdraw_from_cluster(DEFAULT_PATH)
        foreign = [path for path in static if path not in manifest.files and installation.fingerprint(path, top)]
        changes += [("kept", f"{path} (not installed by nodeagent)") for path in foreign]
        changes += installation.withdraw(manifest.files, top, purge=purge)
        changes += _remove_data(top, purge=purge)
        if root is None:
            _update_system_after_removal(booted=booted, purge=purge)
        changes += _remove_environment(directory, found)
    finally:  # no imports from here on, since this process may run in the removed environment
        _report(changes)
    kept = [str(each) for each in (CONFIGURATION, STATE) if os.path.lexists(below(top, each))]
    if not purge and kept:
        how = "--purge removes them" if root is not None else f"remove them with: rm -r {' '.join(kept)}"
        _notice(f"configuration and state are kept, {how}")


def _check(command: str, prefix: Path, root: Path | None, *, packaged: bool = False) -> Path:
    """Check user and prefix; return the root of the files. A package has its environment in a system directory."""
    top = root or Path("/")
    if not packaged:
        installation.check_prefix(prefix, top)
    if root is None and os.geteuid() != 0:
        raise UsageError(f"{command} needs root; without it add --root DIR")
    if root is None and Path("/var/lib/dpkg/info/nodeagent.list").exists():
        raise InstallError("the agent is installed as a Debian package; upgrade or remove it with apt")
    return top


def _remove_data(top: Path, *, purge: bool) -> list[tuple[str, str]]:
    """With a purge, remove configuration, state and runtime files; return the removed and the kept paths."""
    present = [each for each in (CONFIGURATION, STATE, RUNTIME) if os.path.lexists(below(top, each))]
    if not purge:
        return [("kept", str(each)) for each in present]
    kept = [("kept", f"{path} ({reason})") for path, reason in purge_data(top)]
    return [("removed", str(each)) for each in present if not os.path.lexists(below(top, each))] + kept


def _remove_environment(directory: Path, manifest: Manifest | None) -> list[tuple[str, str]]:
    if manifest is None:
        reason = "no virtual environment of the agent, or one with other packages"
        return [("kept", f"{directory} ({reason})")] if os.path.lexists(directory) else []
    kept = installation.remove_environment(directory, manifest)
    report = [("kept", f"{path} (not installed by nodeagent)") for path in kept[:_MAX_LISTED]]
    if len(kept) > _MAX_LISTED:
        report.append(("kept", f"{directory}: {len(kept) - _MAX_LISTED} more files (not installed by nodeagent)"))
    return report or [("removed", f"{directory} (virtual environment)")]


def _update_system(prefix: Path, *, enable: bool) -> None:
    """Create the group and directories, reload systemd, and restart a running agent or enable and start it."""
    _run_optional("systemd-sysusers", "nodeagent.conf")
    _run_optional("systemd-tmpfiles", "--create", "nodeagent.conf")
    _run_optional("journalctl", "--update-catalog")
    if enable:
        _run_optional("systemctl", "enable", UNIT.name)
    if not _BOOTED.is_dir():
        _notice(f"systemd is not running; start the agent with: {prefix}/bin/nodeagent run")
        return
    _run_optional("systemctl", "daemon-reload")
    check = run(str(prefix / "bin/nodeagent"), "config", "check")
    if check is None or check.returncode:
        faults = check.stderr.strip() if check is not None else "no answer"
        raise InstallError(f"agent not restarted: configuration invalid:\n{faults}")
    done = run("systemctl", "restart" if enable else "try-restart", UNIT.name)
    if enable and (done is None or done.returncode):
        raise InstallError(f"systemctl restart {UNIT.name}: {done.stderr.strip() if done else 'no answer'}")
    active = run("systemctl", "is-active", UNIT.name)
    if active is None or active.stdout.strip() != "active":
        _notice("agent not running; start it with: systemctl enable --now nodeagent")
    elif enable:
        _notice("agent enabled and running; check it with: nodeagent doctor, journalctl -u nodeagent")


def _update_system_after_removal(*, booted: bool, purge: bool) -> None:
    if purge and (group := run("getent", "group", "nodeagent")) is not None and group.returncode == 0:
        _run_optional("groupdel", "nodeagent")
    if booted:
        _run_optional("systemctl", "daemon-reload")
    _run_optional("journalctl", "--update-catalog")


def _run_optional(*words: str) -> None:
    """Run a command; print a failure on standard error and continue."""
    done = run(*words)
    if done is None:
        _notice(f"skipped {' '.join(words)}: {words[0]} not found, or no answer")
    elif done.returncode:
        _notice(f"{' '.join(words)}: {done.stderr.strip() or f'exit code {done.returncode}'}")


def _report(changes: list[tuple[str, str]]) -> None:
    """Print changes, with escaped control characters and undecodable bytes: other users can choose file names."""
    for change, text in changes:
        printable = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
        sys.stdout.write(f"{change:<10}  {printable}\n")


def _notice(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"nodeagent: {text}\n")
