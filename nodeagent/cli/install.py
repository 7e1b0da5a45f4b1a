"""``nodeagent install`` and ``uninstall``: check everything first, then change the files and report each one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nodeagent.cli.completion_values import script
from nodeagent.cli.reading import run_async
from nodeagent.config.files import DEFAULT_PATH
from nodeagent.errors import ConfigError, InhibitorError, InstallError, NodeAgentError, UsageError
from nodeagent.files import create_file, replace_file
from nodeagent.host import installation
from nodeagent.host.commands import run
from nodeagent.host.installation import UNIT, below
from nodeagent.host.systemd import PodSlices
from nodeagent.model.node import Role
from nodeagent.settings.loading import load
from nodeagent.text import escape, escape_lines

_BOOTED: Final = Path("/run/systemd/system")
"""Directory that exists if systemd runs the machine. Source: sd_booted(3)."""
_DATA: Final = ("/etc/nodeagent", "/var/lib/nodeagent", "/run/nodeagent")


@contextmanager
def _os_errors(step: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InstallError(f"cannot {step}: {error.filename}: {error.strerror}; the command can be repeated") from error


@_os_errors("install")
def install(prefix: Path, *, enable: bool, root: Path | None, systemd: int | None) -> None:
    """Install or upgrade the files outside the virtual environment; keep configuration, state and edited files.

    Args:
        prefix: directory of the virtual environment.
        enable: enable and start the unit.
        root: root directory of the files instead of ``/``; if set, no command is run.
        systemd: version of systemd that the unit must support; ``None`` for the installed version.

    Raises:
        UsageError: the user is not root, or the prefix is a system directory.
        InstallError: a file that nodeagent did not install exists at an installation path, or the unit hides the
            environment, and nothing was changed; or a step failed, and the preceding steps are not undone.
    """
    top = _check("install", prefix, root)
    if root is None:
        if prefix.resolve() != Path(sys.prefix).resolve():
            raise InstallError(f"use {prefix}/bin/nodeagent; without it, run make install, or pip in a new environment")
        installation.check_visible(prefix, Path(sys.base_prefix))
    completions = {
        "bash-completion/completions/nodeagent": script("bash"),
        "zsh/site-functions/_nodeagent": script("zsh"),
        "fish/vendor_completions.d/nodeagent.fish": script("fish"),
    }
    new = installation.parts(prefix, systemd or installation.systemd_version(), completions)
    directory, configuration = below(top, prefix), below(top, DEFAULT_PATH)
    former = installation.admit(directory)
    installation.check_foreign(new, former, top)
    os.umask(0o022)  # members of the agent's group run the command
    installation.record(directory, new, former, top)
    if root is None:
        replace_file(prefix / "bin/nodeagent", installation.launcher(prefix), mode=0o755)
    changes = list(installation.change(new, former.files, top))
    configuration.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    is_new = create_file(configuration, installation.source("config.toml"), mode=0o644)
    changes.append(
        ("new", f"{DEFAULT_PATH} (dry_run = true: nothing is removed)") if is_new else ("kept", str(DEFAULT_PATH))
    )
    changes.append(("replaced" if former.files else "new", f"{prefix / installation.MANIFEST}"))
    _report(changes)
    if root is None:
        _update_system(prefix, enable=enable)
    else:
        _notice(f"--root {root}: no command was run, and no virtual environment was created in {prefix}")


@_os_errors("uninstall")
def uninstall(prefix: Path, *, purge: bool, root: Path | None) -> None:
    """Stop the agent and remove the installed files; with ``purge`` also configuration and state.

    The agent's conditions, taints and cordon on the Node object are removed first, while the configuration with the
    credentials exists.

    Raises:
        UsageError: the user is not root, or the prefix is a system directory.
        InstallError: the agent is not installed in the prefix, or its manifest is invalid, and nothing was changed; or
            a removal failed, and the command can be repeated.
    """
    top = _check("uninstall", prefix, root)
    directory = below(top, prefix)
    manifest = installation.installed(directory)
    for path in (*manifest.files, *_DATA):
        below(top, path)  # an error before the first change
    booted = root is None and _BOOTED.is_dir()
    if booted:
        _run("systemctl", "disable", "--now", UNIT)
        with suppress(InhibitorError):  # a daemon that crashed has left its drop-ins
            PodSlices().restore()
    changes = withdraw_from_cluster(DEFAULT_PATH) if root is None else []
    changes += installation.change({}, manifest.files, top, purge=purge)
    kept = [str(each) for each in (below(top, path) for path in _DATA) if os.path.lexists(each)]
    changes += _purge(root) if purge else [("kept", path) for path in kept]
    if booted:
        _run("systemctl", "daemon-reload")
    if root is None:
        _run("journalctl", "--update-catalog")
    changes += installation.remove_environment(directory, manifest)
    # Reported last, since a closed standard output must not interrupt the removals. No imports from here on: this
    # process may run in the removed environment.
    _report(changes)
    if kept and not purge:
        _notice(f"configuration and state are kept, remove them with: rm -r {' '.join(kept)}")


def _purge(root: Path | None) -> list[tuple[str, str]]:
    """Remove the agent's own files from the directories of its data, by the script of the packages."""
    done = run(
        "sh", "-euc", f'{installation.source("purge.sh")}\npurge "$1"', "sh", str(root.resolve() if root else "")
    )
    if done is None or done.returncode:
        raise InstallError(f"cannot purge: {done.stderr.strip() if done else 'no shell'}; the command can be repeated")
    return [(line[:12].rstrip(), line[12:]) for line in done.stdout.splitlines()]


def _check(command: str, prefix: Path, root: Path | None) -> Path:
    """Check user and prefix; return the root of the files."""
    top = root or Path("/")
    installation.check_prefix(prefix, top)
    if root is None and os.geteuid() != 0:
        raise UsageError(f"{command} needs root; without it add --root DIR")
    return top


def _update_system(prefix: Path, *, enable: bool) -> None:
    """Create the group and directories, reload systemd, and restart a running agent or enable and start it."""
    _run("systemd-sysusers", "nodeagent.conf")
    _run("systemd-tmpfiles", "--create", "nodeagent.conf")
    _run("journalctl", "--update-catalog")
    if enable:
        _run("systemctl", "enable", UNIT)
    if _BOOTED.is_dir():
        _run("systemctl", "daemon-reload")
        _run(str(prefix / "bin/nodeagent"), "config", "check", required="agent not restarted")
        _run("systemctl", "restart" if enable else "try-restart", UNIT, required="agent not started")
    _notice("start the agent with: systemctl enable --now nodeagent; check it with: nodeagent doctor")


def _run(*words: str, required: str = "") -> None:
    """Run a command; a failure is an error with the text ``required``, otherwise a notice."""
    done = run(*words)
    if done is None or done.returncode:
        reason = "not found, or no answer" if done is None else done.stderr.strip() or f"exit code {done.returncode}"
        if required:
            raise InstallError(f"{required}: {' '.join(words)}: {reason}")
        _notice(f"{' '.join(words)}: {reason}")


def _report(changes: list[tuple[str, str]]) -> None:
    sys.stdout.writelines(f"{change:<10}  {escape(text)}\n" for change, text in changes)


def _notice(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"nodeagent: {escape_lines(text)}\n")


def withdraw_from_cluster(configuration: Path) -> list[tuple[str, str]]:
    """Remove the agent's own conditions, taints and annotations from its Node object; return removed and kept parts.

    Without a configured API server no request is sent. A failure does not stop the uninstallation.
    """
    try:
        settings = load(configuration).config.settings() if configuration.exists() else None
    except ConfigError:
        return [("kept", "conditions on the Node object, if any (the configuration is invalid)")]
    if settings is None or settings.kubernetes.access is None:
        return []
    # These imports load OpenSSL and the API objects, which an uninstallation without a cluster does not need.
    from nodeagent.cluster.own_parts import withdraw  # noqa: PLC0415
    from nodeagent.host.node import node_name  # noqa: PLC0415
    from nodeagent.pods.role import read_role  # noqa: PLC0415

    try:
        has_kubelet = read_role(settings.role).role is Role.BESIDE_KUBELET
        name = node_name(settings.kubelet.node_name)
        found = run_async(withdraw(settings.kubernetes.access, name, has_kubelet=has_kubelet))
    except NodeAgentError as error:
        return [("kept", f"own parts of the Node object, if any ({escape(str(error))})")]
    return [
        *(("removed", f"{each} of Node object {name}") for each in found.removed),
        *(("kept", each) for each in found.kept),
    ]
