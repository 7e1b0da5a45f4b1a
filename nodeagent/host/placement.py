"""Placing the files of an installation outside its prefix, and removing them: each whole or not at all.

A file is overwritten or removed only where its content is known to be the agent's: by the fingerprint in the manifest,
or, for an installation without a manifest, by what every version of that file contains. A file that was edited since
is treated as dpkg treats a conffile: the edited one stays in force, a new version is placed beside it.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import InstallError
from nodeagent.files import replace_file, replace_link
from nodeagent.host.directories import list_entries
from nodeagent.host.manifest import content_fingerprint, fingerprint, link_fingerprint

if TYPE_CHECKING:
    from collections.abc import Collection

NEW_SUFFIX: Final = ".nodeagent-dist"
"""A new version, beside a file that was edited."""
OLD_SUFFIX: Final = ".nodeagent-old"
"""A file that was replaced or put out of force although it may have been edited."""
_CONFIGURATION: Final = Path("/etc")
_SHARED_DIRECTORIES: Final = frozenset(
    Path(name)
    for name in (
        *("/etc/systemd/system", "/etc/sysusers.d", "/etc/tmpfiles.d", "/usr/local/bin", "/usr/local/share"),
        *("/usr/local/share/man", "/usr/lib/systemd/catalog", "/etc", "/"),
    )
)
"""Directories that are kept when they are empty."""


class Change(StrEnum):
    """What happened to a file."""

    NEW = "new"
    REPLACED = "replaced"
    SAME = "as it was"
    KEPT = "kept"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Part:
    """A file to be placed; ``link`` is the target of a symbolic link, empty for a file with ``text``."""

    path: Path
    text: str = ""
    link: str = ""

    @property
    def fingerprint(self) -> str:
        """What identifies its content."""
        return link_fingerprint(self.link) if self.link else content_fingerprint(self.text.encode())


@dataclass(frozen=True, slots=True)
class Step:
    """What is done with one file.

    Attributes:
        change: what happens at the file's own path.
        save: whether the present file is first renamed to a name with ``OLD_SUFFIX``.
        beside: whether the new version is placed beside the present one, with ``NEW_SUFFIX``.
        reason: for a report, empty where the change says all.
    """

    change: Change
    save: bool = False
    beside: bool = False
    reason: str = ""


def plan_placement(part: Part, present: str | None, recorded: Collection[str]) -> Step:
    """Choose what is done to place a file.

    Args:
        part: the file as it is to be.
        present: the fingerprint of what is there, which is the agent's own or was; ``None`` for nothing.
        recorded: fingerprints that the manifest lists for the path; empty for an installation without a manifest.
    """
    if present is None:
        return Step(Change.NEW)
    if present == part.fingerprint:
        return Step(Change.SAME)
    if present in recorded:
        return Step(Change.REPLACED)
    if not recorded:
        save = part.path.is_relative_to(_CONFIGURATION)
        return Step(Change.REPLACED, save=save, reason="the former one may have been edited" if save else "")
    if part.fingerprint in recorded or part.link:
        return Step(Change.KEPT, reason="edited since it was installed")
    return Step(Change.KEPT, beside=True, reason="edited since it was installed; the new version is beside it")


def plan_removal(path: Path, present: str | None, recorded: Collection[str], *, recognised: bool, purge: bool) -> Step:
    """Choose what is done with a file when the agent is uninstalled.

    Args:
        path: on the node.
        present: the fingerprint of what is there; ``None`` for nothing.
        recorded: fingerprints that the manifest lists for the path; empty where it lists none.
        recognised: whether its content is that of some version of this file; counts only without a record.
        purge: whether edited files of the configuration are removed, too.
    """
    if present is None:
        return Step(Change.SAME)
    if present in recorded or (recognised and not recorded):
        return Step(Change.REMOVED)
    if not recorded:
        return Step(Change.KEPT, reason="not installed by nodeagent")
    if not path.is_relative_to(_CONFIGURATION):
        return Step(Change.KEPT, reason="edited since it was installed")
    if purge:
        return Step(Change.REMOVED, reason="edited since it was installed")
    return Step(Change.REMOVED, save=True, reason="edited since it was installed")


def below(root: Path, path: Path) -> Path:
    """Return where a path of the node is below another root."""
    return root / path.relative_to("/")


def check_parents(root: Path, path: Path) -> None:
    """Refuse a path whose directories lead out of a root by symbolic links.

    Raises:
        InstallError: they do.
    """
    parent = below(root, path).parent.resolve()
    if not parent.is_relative_to(root.resolve()):
        raise InstallError(f"{path}: symbolic links lead out of {root}, to {parent}; nothing was changed")


def read_fingerprint(root: Path, path: Path) -> str | None:
    """Return the fingerprint of a file of the node; ``None`` if nothing is there.

    Raises:
        InstallError: it cannot be read.
    """
    try:
        return fingerprint(below(root, path))
    except OSError as error:
        raise InstallError(f"cannot read {path}: {error.strerror or error}") from error


def carry_out(part: Part, step: Step, root: Path) -> None:
    """Place a file as planned.

    Raises:
        InstallError: it cannot be written; the file that was there is unchanged.
    """
    path = below(root, part.path)
    try:
        if step.save:
            save_aside(path)
        if step.beside:
            _write(path.with_name(path.name + NEW_SUFFIX), part)
        elif step.change in {Change.NEW, Change.REPLACED}:
            _write(path, part)
    except OSError as error:
        raise InstallError(f"{path} cannot be written: {error.strerror or error}") from error


def save_aside(path: Path) -> Path:
    """Keep what is at a path under another name, which no earlier file has; return that name.

    Raises:
        OSError: it cannot be linked.
    """
    number = 1
    while True:
        aside = path.with_name(f"{path.name}{OLD_SUFFIX}{'' if number == 1 else f'.{number}'}")
        try:
            os.link(path, aside, follow_symlinks=False)  # never over an earlier one
        except FileExistsError:
            number += 1
        else:
            return aside


def saved_versions(path: Path, root: Path) -> list[Path]:
    """Return the versions of a file that :func:`save_aside` has kept.

    Raises:
        InstallError: the directory cannot be read.
    """
    form = re.compile(rf"{re.escape(path.name + OLD_SUFFIX)}(\.[0-9]+)?")
    return [path.with_name(each.name) for each in list_entries(below(root, path.parent)) if form.fullmatch(each.name)]


def _write(path: Path, part: Part) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if part.link:
        replace_link(path, part.link)
    else:
        replace_file(path, part.text, mode=0o644)


def remove(path: Path, root: Path) -> None:
    """Remove a file, and directories that are left empty and were made for it.

    Raises:
        InstallError: it cannot be removed.
    """
    try:
        below(root, path).unlink(missing_ok=True)
    except OSError as error:
        raise InstallError(f"{path} cannot be removed: {error.strerror or error}") from error
    with suppress(OSError):  # others have files there
        for above in path.parents:
            if above in _SHARED_DIRECTORIES:
                break
            below(root, above).rmdir()
