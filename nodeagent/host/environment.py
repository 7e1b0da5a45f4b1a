"""Virtual environment of an installation: checks of the prefix, creation, removal.

Only the standard library is imported, since ``make install`` runs this module before the agent's libraries are
installed.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeagent.errors import InstallError
from nodeagent.files import replace_file
from nodeagent.host import manifest as manifests
from nodeagent.host.directories import list_entries
from nodeagent.host.environment_files import (
    LAUNCHER,
    VENV,
    Packages,
    foreign_packages,
    is_directory,
    own_files,
    refusal_reason,
    remove_files,
)
from nodeagent.host.manifest import Manifest, read_manifest, write_manifest
from nodeagent.host.processes import python_command, run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def admit(prefix: Path) -> Manifest | None:
    """Check that a prefix is usable; return its manifest, ``None`` without a manifest.

    A prefix is usable if it is absent, empty, has a manifest, or is a virtual environment that contains only the agent,
    installed by an earlier version or by pip.

    Raises:
        InstallError: the directory contains other files, or is a link or file; nothing was changed.
    """
    if prefix.is_symlink():
        raise InstallError(f"{prefix} is a symbolic link to {prefix.readlink()}: give that directory as --prefix")
    if not os.path.lexists(prefix):
        return None
    if not prefix.is_dir():
        raise InstallError(f"{prefix} exists and is not a directory: use another --prefix, or move it away")
    found = read_manifest(prefix)
    if found is not None:
        return found
    if not list_entries(prefix):
        return None
    reason = refusal_reason(prefix)
    if reason:
        raise InstallError(f"{prefix} {reason}: use another --prefix, or move it away; nothing was changed")
    return None


def is_installation(prefix: Path) -> bool:
    """Return whether a directory is an installation of the agent, complete or not.

    Raises:
        InstallError: the manifest is unusable.
    """
    if prefix.is_symlink() or not prefix.is_dir():
        return False
    return read_manifest(prefix) is not None or not refusal_reason(prefix)


def begin(prefix: Path, files: Mapping[Path, str] | None = None, *, venv: bool = True) -> None:
    """Create the prefix and write an incomplete manifest into it.

    Args:
        prefix: a directory admitted by :func:`admit`.
        files: the files to be placed outside the prefix, with their new fingerprints.
        venv: whether a virtual environment will be created in the prefix.

    Raises:
        InstallError: the prefix cannot be created, or is not usable.
    """
    former = admit(prefix) or Manifest()
    environment = former.environment or (own_files(prefix) | ({VENV} if venv else frozenset()))
    expected = {path: frozenset(values) for path, values in former.files.items()}
    for path, value in (files or {}).items():
        expected[path] = expected.get(path, frozenset()) | {value}
    try:
        if not prefix.exists():
            prefix.mkdir(mode=0o755, parents=True)
            prefix.chmod(0o755)
    except OSError as error:
        raise InstallError(f"cannot create {prefix}: {error.strerror or error}") from error
    write_manifest(prefix, Manifest(complete=False, environment=environment, files=expected))


def finish(prefix: Path, files: Mapping[Path, str]) -> None:
    """Write the manifest of a complete installation.

    Existing files of the former manifest remain listed; these are files of a former dependency or command.

    Raises:
        InstallError: the manifest cannot be read or written.
    """
    former = read_manifest(prefix) or Manifest()
    environment = own_files(prefix) | {each for each in former.environment if os.path.lexists(prefix / each)}
    kept = {path: values for path, values in former.files.items() if path not in files}
    placed = {path: frozenset((value,)) for path, value in files.items()}
    write_manifest(prefix, Manifest(complete=True, environment=environment, files=kept | placed))


def make_venv(prefix: Path, *, pip: bool) -> None:
    """Create the virtual environment, or update its interpreter.

    Raises:
        InstallError: venv failed.
    """
    base = getattr(sys, "_base_executable", None) or sys.executable
    options = [] if pip else ["--without-pip"]
    _run_checked(*python_command("-m", "venv", *options, str(prefix), interpreter=base))


def has_pip(prefix: Path) -> bool:
    """Return whether the environment has pip and a working interpreter."""
    done = run(*python_command("-c", "import pip", interpreter=str(prefix / "bin/python")))
    return done is not None and done.returncode == 0


def install_checkout(prefix: Path, checkout: Path) -> None:
    """Install the agent from a checkout with the pip of this interpreter.

    Raises:
        InstallError: pip failed.
    """
    pip = python_command("-m", "pip", "--python", str(prefix / "bin/python"), "--disable-pip-version-check")
    _run_checked(*pip, "install", "--quiet", "--root-user-action=ignore", str(checkout))


def copy_packages(source: Path, prefix: Path) -> None:
    """Copy the agent and its libraries between environments; remove outdated files of its packages.

    Packages added by an operator are kept.

    Raises:
        InstallError: a file cannot be copied, or the source has no record of its files.
    """
    former, present = Packages(prefix), Packages(source)
    copied = {each for each in present.files(present.own) if _is_copied(each)}
    if not any(each.endswith("/nodeagent/__init__.py") for each in copied):
        raise InstallError(f"{source} has no record of the files of nodeagent: install it there with pip first")
    outdated = {each for each in former.files(former.own) if _is_copied(each)} - copied
    try:
        for each in sorted(copied):
            target = prefix / each
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Without nodeagent.files: modes and times are copied too, and syncing some thousand files takes minutes.
            temporary = target.with_name(f".{target.name}.fresh")
            temporary.unlink(missing_ok=True)
            shutil.copy2(source / each, temporary, follow_symlinks=False)
            temporary.replace(target)
    except OSError as error:
        raise InstallError(f"cannot copy {source / each} to {prefix}: {error.strerror or error}") from error
    remove_files(prefix, outdated)


def _is_copied(name: str) -> bool:
    return name.startswith(("lib/", "share/nodeagent/"))


def launcher(prefix: str) -> str:
    """Return the console script of an environment, isolated from the caller's directory and variables."""
    return f"#!{prefix}/bin/python -I\nimport sys\n\nfrom nodeagent.cli.start import main\n\nsys.exit(main())\n"


def write_launcher(prefix: Path) -> None:
    """Replace the console script made by pip with the isolated console script.

    Raises:
        InstallError: the script cannot be written.
    """
    path = prefix / LAUNCHER
    try:
        replace_file(path, launcher(str(prefix)), mode=0o755)
    except OSError as error:
        raise InstallError(f"cannot write {path}: {error.strerror or error}") from error


def remove_environment(prefix: Path) -> list[Path]:
    """Remove the environment of an installation, and the prefix unless other files remain.

    Returns:
        The kept files: foreign files, and files behind symbolic links. All files are kept if the directory has no
            manifest and is not recognised as an installation.

    Raises:
        InstallError: the manifest is unusable, or a file cannot be removed. The manifest is removed last, so that a
            failed removal can be repeated.
    """
    remove_files(prefix, _listed(prefix, read_manifest(prefix) or Manifest()) - {manifests.NAME})
    kept = [path for path in _walk(prefix) if path.name != manifests.NAME or path.parent != prefix]
    try:
        (prefix / manifests.NAME).unlink(missing_ok=True)
    except OSError as error:
        raise InstallError(f"cannot remove {prefix}: {error.strerror or error}") from error
    if not kept:
        with suppress(OSError):  # the prefix may be a mount point
            prefix.rmdir()
    return kept


def _listed(prefix: Path, found: Manifest) -> frozenset[str]:
    """Return the files in a manifest, and files that an incomplete manifest does not list yet."""
    if found.environment and found.complete:
        return found.environment
    if found.environment - {VENV}:  # an interrupted upgrade
        return found.environment | own_files(prefix)
    if found.environment:  # an interrupted first installation, unless other packages were installed since
        return frozenset() if foreign_packages(prefix) else own_files(prefix)
    # Installed with pip; a manifest written without an environment may exist.
    return frozenset() if refusal_reason(prefix) else own_files(prefix)


def _walk(directory: Path) -> list[Path]:
    """Return the files, links and empty directories below a directory, without following links."""
    found: list[Path] = []
    pending = list_entries(directory)[::-1]
    while pending:
        path = pending.pop()
        inner = list_entries(path) if is_directory(path) else []
        pending += inner[::-1]
        if not inner:
            found.append(path)
    return found


def _run_checked(*words: str) -> None:
    done = run(*words)
    if done is None or done.returncode:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines() if done is not None else ["not started"]
        raise InstallError(f"{' '.join(words)} failed: {''.join(output[-1:])}")
