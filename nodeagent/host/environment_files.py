"""Files of the agent in its virtual environment: list and removal.

The list is derived from the creators of the files: the fixed files of ``venv``, and the ``RECORD`` of the agent's
package, of its dependencies, and of pip. A listing of the directory would include an operator's files. Only the
standard library is imported, since ``make install`` runs this module before the agent's libraries are installed.

Source: Python packaging, recording installed projects (``RECORD``); venv.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import InstallError
from nodeagent.host.directories import list_entries
from nodeagent.host.manifest import is_inside

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

PACKAGE: Final = "nodeagent"
LAUNCHER: Final = "bin/nodeagent"
VENV: Final = "pyvenv.cfg"
"""File that marks a virtual environment; a new installation lists the file in the manifest before its creation."""
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


class Packages:
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
        """The normalised names of all packages; an empty string for a package without a name."""
        return frozenset(self._found)

    @property
    def own(self) -> frozenset[str]:
        """The agent's package and its dependencies, without dependencies of extras."""
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
    packages = Packages(prefix)
    found = {*packages.files(packages.own | (packages.names & _TOOLS))}
    for path in (*list_entries(prefix), *list_entries(prefix / "bin")):
        name = str(path.relative_to(prefix))
        if _SKELETON.fullmatch(name) and (name != "lib64" or path.is_symlink()) and not is_directory(path):
            found.add(name)
    if PACKAGE in packages.names and (prefix / LAUNCHER).is_file():
        found.add(LAUNCHER)
    return frozenset(found)


def refusal_reason(prefix: Path) -> str:
    """Return the reason that a directory without a manifest is no installation; empty for an installation."""
    if not (prefix / VENV).is_file():
        return "is not empty and not an installation of nodeagent"
    if PACKAGE not in Packages(prefix).names:
        return "is a virtual environment without nodeagent in it"
    foreign = foreign_packages(prefix)
    if foreign:
        shown = ", ".join(foreign[:_SHOWN]) + (" and others" if len(foreign) > _SHOWN else "")
        return f"is a virtual environment that also contains other packages ({shown})"
    return ""


def foreign_packages(prefix: Path) -> list[str]:
    """Return the names of packages that are neither the agent, its dependencies, nor tools of venv."""
    packages = Packages(prefix)
    return sorted(packages.names - packages.own - _TOOLS)


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
            if is_directory(path):
                continue
            path.unlink(missing_ok=True)
            if name.endswith(".py"):
                parents.add(str(Path(name).parent / "__pycache__"))
                _remove_bytecode(path)
    except OSError as error:
        raise InstallError(f"cannot remove {path}: {error.strerror or error}") from error
    if VENV in names:  # created empty by venv
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


def is_directory(path: Path) -> bool:
    """Return whether a path is a directory, without following a link."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False
