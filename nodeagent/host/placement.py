"""Placement and removal of an installation's files outside its prefix, each file atomically.

A file is overwritten or removed only if the agent installed it, which is determined by the fingerprint in the manifest
or, without a manifest, by the content common to all its versions. An edited file is treated like a dpkg conffile: the
edited file is kept, and the new version is placed beside it.
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
"""Suffix of a new version beside an edited file."""
OLD_SUFFIX: Final = ".nodeagent-old"
"""Suffix of a saved file that was replaced or removed although it may have been edited."""
_CONFIGURATION: Final = Path("/etc")
_SHARED_DIRECTORIES: Final = frozenset(
    Path(name)
    for name in (
        *("/etc/systemd/system", "/etc/sysusers.d", "/etc/tmpfiles.d", "/usr/local/bin", "/usr/local/share"),
        *("/usr/local/share/man", "/usr/lib/systemd/catalog", "/etc", "/"),
    )
)
"""Directories that are never removed."""


class Change(StrEnum):
    """Result of the placement or removal of one file."""

    NEW = "new"
    REPLACED = "replaced"
    SAME = "unchanged"
    KEPT = "kept"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)  # not a Record: installation imports only the standard library
class Part:
    """A file to be placed: a symbolic link to ``link``, or a regular file with ``text`` if ``link`` is empty."""

    path: Path
    text: str = ""
    link: str = ""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the content or the link."""
        return link_fingerprint(self.link) if self.link else content_fingerprint(self.text.encode())


@dataclass(frozen=True, slots=True)  # not a Record: installation imports only the standard library
class Step:
    """The planned change of one file.

    Attributes:
        change: the change at the file's own path.
        save: whether the present file is first saved with ``OLD_SUFFIX``.
        beside: whether the new version is placed beside the present one, with ``NEW_SUFFIX``.
        reason: reason shown in a report; empty if the change needs no reason.
    """

    change: Change
    save: bool = False
    beside: bool = False
    reason: str = ""


def plan_placement(part: Part, present: str | None, recorded: Collection[str]) -> Step:
    """Plan the placement of a file.

    Args:
        part: the new file.
        present: fingerprint of the present file, which was placed by the agent; ``None`` if the path does not exist.
        recorded: fingerprints of the path in the manifest; empty without a manifest.
    """
    if present is None:
        return Step(Change.NEW)
    if present == part.fingerprint:
        return Step(Change.SAME)
    if present in recorded:
        return Step(Change.REPLACED)
    if not recorded:
        save = part.path.is_relative_to(_CONFIGURATION)
        return Step(Change.REPLACED, save=save, reason="the former version may have been edited" if save else "")
    if part.fingerprint in recorded or part.link:
        return Step(Change.KEPT, reason="edited since it was installed")
    return Step(Change.KEPT, beside=True, reason="edited since it was installed; the new version is beside it")


def plan_removal(path: Path, present: str | None, recorded: Collection[str], *, recognised: bool, purge: bool) -> Step:
    """Plan the removal of a file when the agent is uninstalled.

    Args:
        path: path on the node.
        present: fingerprint of the present file; ``None`` if the path does not exist.
        recorded: fingerprints of the path in the manifest; empty if it is not listed.
        recognised: whether the content is a version of this file; used only if the manifest does not list the path.
        purge: whether edited configuration files are removed as well.
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
    """Return a path of the node below another root."""
    return root / path.relative_to("/")


def check_parents(root: Path, path: Path) -> None:
    """Refuse a path below a symbolic link that resolves outside the root.

    Raises:
        InstallError: the parent directory resolves outside the root.
    """
    parent = below(root, path).parent.resolve()
    if not parent.is_relative_to(root.resolve()):
        raise InstallError(f"{path}: resolves outside {root}, to {parent}; nothing was changed")


def read_fingerprint(root: Path, path: Path) -> str | None:
    """Return the fingerprint of a file of the node; ``None`` if the path does not exist.

    Raises:
        InstallError: the file cannot be read.
    """
    try:
        return fingerprint(below(root, path))
    except OSError as error:
        raise InstallError(f"cannot read {path}: {error.strerror or error}") from error


def carry_out(part: Part, step: Step, root: Path) -> None:
    """Place a file as planned.

    Raises:
        InstallError: the file cannot be written; the present file is unchanged.
    """
    path = below(root, part.path)
    try:
        if step.save:
            save_copy(path)
        if step.beside:
            _write(path.with_name(path.name + NEW_SUFFIX), part)
        elif step.change in {Change.NEW, Change.REPLACED}:
            _write(path, part)
    except OSError as error:
        raise InstallError(f"cannot write {path}: {error.strerror or error}") from error


def save_copy(path: Path) -> Path:
    """Create a hard link to a file with ``OLD_SUFFIX``; return the new path.

    Raises:
        OSError: the file cannot be linked.
    """
    number = 1
    while True:
        saved = path.with_name(f"{path.name}{OLD_SUFFIX}{'' if number == 1 else f'.{number}'}")
        try:
            os.link(path, saved, follow_symlinks=False)  # link fails on an existing name, unlike rename
        except FileExistsError:
            number += 1
        else:
            return saved


def saved_versions(path: Path, root: Path) -> list[Path]:
    """Return the versions of a file saved by :func:`save_copy`.

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
    """Remove a file, and its parent directories that become empty.

    Raises:
        InstallError: the file cannot be removed.
    """
    try:
        below(root, path).unlink(missing_ok=True)
    except OSError as error:
        raise InstallError(f"cannot remove {path}: {error.strerror or error}") from error
    with suppress(OSError):  # not empty
        for above in path.parents:
            if above in _SHARED_DIRECTORIES:
                break
            below(root, above).rmdir()
