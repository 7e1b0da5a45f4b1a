"""Virtual environment of an installation: creation, list of its own files, removal of exactly these.

The list is derived from the creators of the files: the fixed files of ``venv``, and the ``RECORD`` of the agent's
package, of its dependencies, and of pip. A listing of the directory would include an operator's files. Only the
standard library is imported, since ``make install`` runs this before the agent's libraries are installed.

Source: Python packaging, recording installed projects (``RECORD``); venv.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections import defaultdict
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import InstallError
from nodeagent.files import replace_file
from nodeagent.host import manifest as manifests
from nodeagent.host.directories import list_entries
from nodeagent.host.manifest import Manifest, is_inside, read_manifest, write_manifest
from nodeagent.host.processes import python_command, run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

PACKAGE: Final = "nodeagent"
LAUNCHER: Final = "bin/nodeagent"
_VENV: Final = "pyvenv.cfg"
"""Marks a directory as a virtual environment; a new installation lists it in the manifest before creating it."""
_TOOLS: Final = frozenset(("pip", "setuptools", "wheel"))
_SKELETON: Final = re.compile(
    r"pyvenv\.cfg|lib64|\.gitignore"
    r"|bin/(python[0-9.]*|\N{MATHEMATICAL ITALIC SMALL PI}thon|activate(\.[a-z]+)?|Activate\.ps1)"
)
_EMPTY_DIRECTORIES: Final = ("bin", "include", "include/python*", "include/site", "include/site/python*")
_SITES: Final = "lib/python3*/site-packages"
_BYTECODE: Final = re.compile(r"(?P<module>[^.]+)\.[a-z]+-[0-9]+(\.opt-[12])?\.pyc")
_REQUIREMENT: Final = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
_SHOWN: Final = 5


class _Packages:
    """The packages installed in an environment."""

    def __init__(self, prefix: Path) -> None:
        self._prefix = Path(os.path.abspath(prefix))  # noqa: PTH100 - lexical, links are not resolved
        self._found: dict[str, list[metadata.Distribution]] = defaultdict(list)
        for site in sorted(prefix.glob(_SITES)):
            for each in metadata.distributions(path=[str(site)]):
                name = each.metadata["Name"]
                self._found[_normal(name) if name else ""].append(each)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._found)

    @property
    def own(self) -> frozenset[str]:
        """The agent's package and its dependencies, without those of extras."""
        found: set[str] = set()
        pending = [PACKAGE]
        while pending:
            name = pending.pop()
            if name in found or name not in self._found:
                continue
            found.add(name)
            pending += [required for each in self._found[name] for required in _required(each)]
        return frozenset(found)

    def files(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the existing files in the records of packages, relative to the prefix and inside it."""
        for each in (one for name in names for one in self._found.get(name, ())):
            for file in each.files or ():
                path = os.path.relpath(os.path.normpath(str(each.locate_file(file))), self._prefix)
                if is_inside(path) and os.path.lexists(self._prefix / path):
                    yield path


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _required(package: metadata.Distribution) -> Iterator[str]:
    for each in package.requires or ():
        requirement, _, marker = each.partition(";")
        found = _REQUIREMENT.match(requirement)
        if found is not None and not re.search(r"\bextra\b", marker):
            yield _normal(found["name"])


def own_files(prefix: Path) -> frozenset[str]:
    """Return the files and links made by venv, pip and the agent, relative to the prefix."""
    packages = _Packages(prefix)
    found = {*packages.files(packages.own | (packages.names & _TOOLS))}
    for path in (*list_entries(prefix), *list_entries(prefix / "bin")):
        name = str(path.relative_to(prefix))
        if _SKELETON.fullmatch(name) and (name != "lib64" or path.is_symlink()) and not _is_directory(path):
            found.add(name)
    if PACKAGE in packages.names and (prefix / LAUNCHER).is_file():
        found.add(LAUNCHER)
    return frozenset(found)


# ---- before and after an installation


def admit(prefix: Path) -> Manifest | None:
    """Check that a prefix is usable; return its manifest, ``None`` without one.

    Usable are absent and empty directories, directories with a manifest, and virtual environments that contain only
    the agent: installations by an earlier version or by pip.

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
    reason = _not_ours(prefix)
    if reason:
        raise InstallError(f"{prefix} {reason}: use another --prefix, or move it away; nothing was changed")
    return None


def _not_ours(prefix: Path) -> str:
    """Return why a directory without a manifest is not an installation of the agent; empty if it is one."""
    if not (prefix / _VENV).is_file():
        return "is not empty and not an installation of nodeagent"
    if PACKAGE not in _Packages(prefix).names:
        return "is a virtual environment without nodeagent in it"
    foreign = _foreign_packages(prefix)
    if foreign:
        shown = ", ".join(foreign[:_SHOWN]) + (" and others" if len(foreign) > _SHOWN else "")
        return f"is a virtual environment that also contains other packages ({shown})"
    return ""


def _foreign_packages(prefix: Path) -> list[str]:
    packages = _Packages(prefix)
    return sorted(packages.names - packages.own - _TOOLS)


def is_installation(prefix: Path) -> bool:
    """Return whether a directory is an installation of the agent, complete or not.

    Raises:
        InstallError: the manifest is unusable.
    """
    if prefix.is_symlink() or not prefix.is_dir():
        return False
    return read_manifest(prefix) is not None or not _not_ours(prefix)


def begin(prefix: Path, files: Mapping[Path, str] | None = None, *, venv: bool = True) -> None:
    """Create the prefix and write an incomplete manifest into it.

    Args:
        prefix: a directory admitted by :func:`admit`.
        files: the files to be placed outside the prefix, with their new fingerprints.
        venv: whether a virtual environment will be created in the prefix.

    Raises:
        InstallError: it cannot be created, or is not usable.
    """
    former = admit(prefix) or Manifest()
    environment = former.environment or (own_files(prefix) | ({_VENV} if venv else frozenset()))
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

    Existing files of the former manifest remain listed; they belong to a former dependency or command.

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
    former, present = _Packages(prefix), _Packages(source)
    copied = {each for each in present.files(present.own) if _is_copied(each)}
    if not any(each.endswith("/nodeagent/__init__.py") for each in copied):
        raise InstallError(f"{source} has no record of the files of nodeagent: install it there with pip first")
    outdated = {each for each in former.files(former.own) if _is_copied(each)} - copied
    try:
        for each in sorted(copied):
            target = prefix / each
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Not nodeagent.files: modes and times are copied too, and syncing some thousand files takes minutes.
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
    """Write the isolated console script over the one made by pip.

    Raises:
        InstallError: it cannot be written.
    """
    path = prefix / LAUNCHER
    try:
        replace_file(path, launcher(str(prefix)), mode=0o755)
    except OSError as error:
        raise InstallError(f"cannot write {path}: {error.strerror or error}") from error


# ---- removing


def remove_environment(prefix: Path) -> list[Path]:
    """Remove the environment of an installation, and the prefix unless other files remain.

    Returns:
        The kept files: those of others, and those behind symbolic links. All files, if there is no manifest and the
        directory is not recognised as an installation.

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
        with suppress(OSError):  # a mount point
            prefix.rmdir()
    return kept


def _listed(prefix: Path, found: Manifest) -> frozenset[str]:
    """Return the files in a manifest, and those that an incomplete manifest does not list yet."""
    if found.environment and found.complete:
        return found.environment
    if found.environment - {_VENV}:  # an interrupted upgrade
        return found.environment | own_files(prefix)
    if found.environment:  # an interrupted first installation, unless others have used the directory since
        return frozenset() if _foreign_packages(prefix) else own_files(prefix)
    # Installed with pip; a manifest written without an environment may exist.
    return frozenset() if _not_ours(prefix) else own_files(prefix)


def remove_files(directory: Path, names: Collection[str]) -> None:
    """Remove files below a directory with the bytecode of modules, and directories that become empty.

    Names of directories, names outside the directory, and files behind a symbolic link are skipped.

    Raises:
        InstallError: a file cannot be removed.
    """
    parents: set[str] = set()
    path = directory
    try:
        for name in sorted(names):
            if not is_inside(name) or _is_behind_link(directory, name):
                continue
            path = directory / name
            parents |= {str(each) for each in Path(name).parents}
            if _is_directory(path):
                continue
            path.unlink(missing_ok=True)
            if name.endswith(".py"):
                parents.add(str(Path(name).parent / "__pycache__"))
                _remove_bytecode(path)
    except OSError as error:
        raise InstallError(f"cannot remove {path}: {error.strerror or error}") from error
    if _VENV in names:  # made by venv without content
        parents |= {str(each.relative_to(directory)) for form in _EMPTY_DIRECTORIES for each in directory.glob(form)}
    for name in sorted(parents - {"."}, key=lambda each: (-each.count("/"), each)):
        if not _is_behind_link(directory, name) and not (directory / name).is_symlink():
            with suppress(OSError):  # not empty, or already removed
                (directory / name).rmdir()


def _remove_bytecode(module: Path) -> None:
    cache = module.with_name("__pycache__")
    if cache.is_symlink():
        return
    for each in list_entries(cache):
        found = _BYTECODE.fullmatch(each.name)
        if found is not None and found["module"] == module.stem:
            each.unlink(missing_ok=True)


def _is_behind_link(directory: Path, name: str) -> bool:
    return any((directory / each).is_symlink() for each in Path(name).parents)


def _walk(directory: Path) -> list[Path]:
    """Return the files, links and empty directories below a directory, without following links."""
    found: list[Path] = []
    pending = list_entries(directory)[::-1]
    while pending:
        path = pending.pop()
        inner = list_entries(path) if _is_directory(path) else []
        pending += inner[::-1]
        if not inner:
            found.append(path)
    return found


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _run_checked(*words: str) -> None:
    done = run(*words)
    if done is None or done.returncode:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines() if done is not None else ["not started"]
        raise InstallError(f"{' '.join(words)} failed: {''.join(output[-1:])}")
