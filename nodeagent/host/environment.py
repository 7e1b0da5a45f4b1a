"""The virtual environment of an installation: making it, listing the files that are its own, removing exactly those.

What belongs to the environment is derived from what made it: the fixed files of ``venv``, and the ``RECORD`` of the
agent's package, of the packages it depends on, and of pip. A listing of the directory would take in what an operator
put there. Only the standard library is used, since ``make install`` runs this before the agent's libraries exist.

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
"""The file that makes a directory a virtual environment; listed before it exists by an installation that makes it."""
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
        """The agent's package and all that it depends on, without those of extras."""
        found: set[str] = set()
        pending = [PACKAGE]
        while pending:
            name = pending.pop()
            if name in found or name not in self._found:
                continue
            found.add(name)
            pending += [wanted for each in self._found[name] for wanted in _required(each)]
        return frozenset(found)

    def files(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the existing files that packages have recorded, relative to the prefix and inside it."""
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
    """Return the files and links of an environment that venv, pip and the agent made, relative to the prefix."""
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
    """Return the manifest of a prefix that may be used for an installation; ``None`` if it has none yet.

    Absent or empty directories are free; a manifest makes one the agent's own; without one, a virtual environment with
    the agent and nothing else in it is an installation by an earlier version or by pip.

    Raises:
        InstallError: something else is there; nothing was changed.
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
    """Return why a directory without a manifest is no installation of the agent; empty if it is one."""
    if not (prefix / _VENV).is_file():
        return "is not empty and not an installation of nodeagent"
    if PACKAGE not in _Packages(prefix).names:
        return "is a virtual environment without nodeagent in it"
    foreign = _foreign_packages(prefix)
    if foreign:
        shown = ", ".join(foreign[:_SHOWN]) + (" and others" if len(foreign) > _SHOWN else "")
        return f"is a virtual environment that also holds other packages ({shown})"
    return ""


def _foreign_packages(prefix: Path) -> list[str]:
    packages = _Packages(prefix)
    return sorted(packages.names - packages.own - _TOOLS)


def is_installation(prefix: Path) -> bool:
    """Return whether a directory is an installation of the agent, complete or not.

    Raises:
        InstallError: there is a manifest, and it cannot be used.
    """
    if prefix.is_symlink() or not prefix.is_dir():
        return False
    return read_manifest(prefix) is not None or not _not_ours(prefix)


def begin(prefix: Path, files: Mapping[Path, str] | None = None, *, venv: bool = True) -> None:
    """Make the prefix and record in it that an installation is under way.

    Args:
        prefix: a directory that :func:`admit` has admitted.
        files: the files that are going to be placed outside, with their new fingerprints.
        venv: whether a virtual environment is going to be made there.

    Raises:
        InstallError: it cannot be made, or something else is there.
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
        raise InstallError(f"cannot make {prefix}: {error.strerror or error}") from error
    write_manifest(prefix, Manifest(complete=False, environment=environment, files=expected))


def finish(prefix: Path, files: Mapping[Path, str]) -> None:
    """Record a complete installation: the environment's own files, and the files placed outside.

    Files that a former manifest lists and that still exist stay listed; they are of a former dependency or command.

    Raises:
        InstallError: the manifest cannot be read or written.
    """
    former = read_manifest(prefix) or Manifest()
    environment = own_files(prefix) | {each for each in former.environment if os.path.lexists(prefix / each)}
    kept = {path: values for path, values in former.files.items() if path not in files}
    placed = {path: frozenset((value,)) for path, value in files.items()}
    write_manifest(prefix, Manifest(complete=True, environment=environment, files=kept | placed))


def make_venv(prefix: Path, *, pip: bool) -> None:
    """Make the virtual environment, or renew its interpreter.

    Raises:
        InstallError: it cannot be made.
    """
    base = getattr(sys, "_base_executable", None) or sys.executable
    options = [] if pip else ["--without-pip"]
    _must(*python_command("-m", "venv", *options, str(prefix), interpreter=base))


def has_pip(prefix: Path) -> bool:
    """Return whether the environment has an interpreter that works and pip."""
    done = run(*python_command("-c", "import pip", interpreter=str(prefix / "bin/python")))
    return done is not None and done.returncode == 0


def install_checkout(prefix: Path, checkout: Path) -> None:
    """Install the agent from its sources, with this interpreter's pip.

    Raises:
        InstallError: pip failed.
    """
    pip = python_command("-m", "pip", "--python", str(prefix / "bin/python"), "--disable-pip-version-check")
    _must(*pip, "install", "--quiet", "--root-user-action=ignore", str(checkout))


def copy_packages(source: Path, prefix: Path) -> None:
    """Copy the agent and its libraries from one environment to another one, and remove what they replace.

    Packages that an operator added to the prefix are left alone.

    Raises:
        InstallError: a file cannot be copied, or the source lacks the record of its files.
    """
    former, present = _Packages(prefix), _Packages(source)
    wanted = {each for each in present.files(present.own) if _is_copied(each)}
    if not any(each.endswith("/nodeagent/__init__.py") for each in wanted):
        raise InstallError(f"{source} does not record the files of nodeagent: install it there with pip first")
    outdated = {each for each in former.files(former.own) if _is_copied(each)} - wanted
    try:
        for each in sorted(wanted):
            target = prefix / each
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fresh = target.with_name(f".{target.name}.fresh")
            fresh.unlink(missing_ok=True)
            shutil.copy2(source / each, fresh, follow_symlinks=False)
            fresh.replace(target)
    except OSError as error:
        raise InstallError(f"cannot copy {source / each} to {prefix}: {error.strerror or error}") from error
    remove_files(prefix, outdated)


def _is_copied(name: str) -> bool:
    return name.startswith(("lib/", "share/nodeagent/"))


def launcher(prefix: str) -> str:
    """Return the console script of an environment, which runs isolated from the caller's directory and variables."""
    return f"#!{prefix}/bin/python -I\nimport sys\n\nfrom nodeagent.cli.start import main\n\nsys.exit(main())\n"


def write_launcher(prefix: Path) -> None:
    """Put the isolated console script in place of the one that pip makes.

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
    """Remove the environment of an installation, and the prefix if nothing else is in it.

    Returns:
        What was kept: files that are not the agent's own, and what lies behind symbolic links. All of it, where
        there is no manifest and the directory is not known to be an installation.

    Raises:
        InstallError: the manifest cannot be used, or a file cannot be removed; the manifest remains until the end, so
            that it can be repeated.
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
    """Return the files that a manifest lists, and those that an incomplete one has not listed yet."""
    if found.environment and found.complete:
        return found.environment
    if found.environment - {_VENV}:  # an interrupted upgrade
        return found.environment | own_files(prefix)
    if found.environment:  # an interrupted first installation, unless others have used the directory since
        return frozenset() if _foreign_packages(prefix) else own_files(prefix)
    # Made with pip; there may be a manifest that was written without an environment.
    return frozenset() if _not_ours(prefix) else own_files(prefix)


def remove_files(directory: Path, names: Collection[str]) -> None:
    """Remove files below a directory, the bytecode of modules among them, and directories this leaves empty.

    Directories named as files, names that lead out of the directory, and what lies behind a symbolic link are left
    alone.

    Raises:
        InstallError: a file cannot be removed.
    """
    parents: set[str] = set()
    path = directory
    try:
        for name in sorted(names):
            if not is_inside(name) or _behind_a_link(directory, name):
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
    if _VENV in names:  # venv makes these, and nothing is in them
        parents |= {str(each.relative_to(directory)) for form in _EMPTY_DIRECTORIES for each in directory.glob(form)}
    for name in sorted(parents - {"."}, key=lambda each: (-each.count("/"), each)):
        if not _behind_a_link(directory, name) and not (directory / name).is_symlink():
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


def _behind_a_link(directory: Path, name: str) -> bool:
    return any((directory / each).is_symlink() for each in Path(name).parents)


def _walk(directory: Path) -> list[Path]:
    """Return everything below a directory but directories with something in them, without following links."""
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


def _must(*words: str) -> None:
    done = run(*words)
    if done is None or done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] if done is not None else ["no answer"]
        raise InstallError(f"{' '.join(words)} failed: {''.join(said)}")
