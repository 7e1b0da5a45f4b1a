"""Checks of the installation prefix.

Uninstalling empties the prefix, so the prefix must contain only the agent. A directory that is part of the system, or
that contains other files, is refused before any change.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import InstallError, UsageError
from nodeagent.host.kubelet_files import KUBELET_ROOT

if TYPE_CHECKING:
    from collections.abc import Collection

DEFAULT_PREFIX: Final = Path("/opt/nodeagent")
_FORM: Final = re.compile(r"(/[A-Za-z0-9._+-]+)+", re.ASCII)
"""Form of a prefix, which is written into a unit, a shebang line and scripts: no spaces, quotes or specifiers."""
_LONGEST: Final = 100
"""Maximum length: kernels before 5.1 limit a shebang line to 127 bytes. Source: execve(2), interpreter scripts."""
_SYSTEM: Final = tuple(
    Path(name)
    for name in (
        *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys"),
        *("/usr", "/var/lib/nodeagent", "/var/lib/dpkg", str(KUBELET_ROOT), "/var/lib/containerd"),
    )
)
_LOCAL: Final = Path("/usr/local")
_SHARED_LOCAL: Final = frozenset(
    ("bin", "etc", "games", "include", "lib", "lib64", "libexec", "man", "sbin", "share", "src")
)


def check_form(prefix: Path) -> None:
    """Refuse a prefix that cannot be written into a unit or a shebang line.

    Raises:
        UsageError: the prefix is not an absolute path of at least two levels in plain characters.
    """
    text = str(prefix)
    if not _FORM.fullmatch(text) or ".." in prefix.parts or len(prefix.parts) < 3 or len(text) > _LONGEST:
        raise UsageError(
            f"--prefix {text!r}: must be an absolute path such as {DEFAULT_PREFIX}, two levels deep or more, of "
            f"letters, digits and ._+- only, at most {_LONGEST} characters"
        )


def check_place(prefix: Path, root: Path, *, homes: Collection[Path] | None = None) -> None:
    """Refuse a prefix that is part of the system, by its path as given and with symbolic links resolved.

    Args:
        prefix: path on the node.
        root: directory used as the node's root.
        homes: home directories; ``None`` for all in the user database.

    Raises:
        UsageError: the prefix is a system directory, a home directory, the agent's state, or contains an interpreter.
    """
    check_form(prefix)
    real = (root / prefix.relative_to("/")).parent.resolve() / prefix.name
    try:
        resolved = Path("/") / real.relative_to(root.resolve())
    except ValueError as error:
        raise UsageError(f"--prefix {prefix}: resolves outside {root}, to {real}") from error
    homes = _homes() if homes is None else homes
    for each in dict.fromkeys((prefix, resolved)):
        reason = _system_part(each) or _interpreter_inside(each)
        if each in homes:
            reason = "it is a home directory"
        if reason:
            resolution = "" if each == prefix else f" resolves to {each}"
            raise UsageError(
                f"--prefix {prefix}{resolution}: {reason}; use a directory of its own, such as {DEFAULT_PREFIX}"
            )


def check_owner(directory: Path) -> None:
    """Refuse, for root, a directory with content that other users can replace.

    Raises:
        InstallError: the directory or a parent is owned by another user, or writable by all users or by a group.
    """
    if os.geteuid() != 0:
        return
    for each in (directory, *directory.parents):
        try:
            found = each.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InstallError(f"cannot read {each}: {error.strerror or error}") from error
        writer = ""
        if found.st_uid != 0:
            writer = f"uid {found.st_uid}"
        elif found.st_mode & stat.S_ISVTX == 0:
            if found.st_mode & stat.S_IWOTH:
                writer = "all users"
            elif found.st_mode & stat.S_IWGRP and found.st_gid != 0:
                writer = f"group {found.st_gid}"
        if writer:
            raise InstallError(
                f"{each} is writable by {writer}, who could run programs as root: "
                "use another --prefix, or change its owner and mode; nothing was changed"
            )


def _system_part(path: Path) -> str:
    if len(path.parts) < 3:
        return "it is a top-level directory"
    if path.is_relative_to(_LOCAL) and path != _LOCAL:
        shared = path.relative_to(_LOCAL).parts[0] in _SHARED_LOCAL
        return f"{_LOCAL / path.relative_to(_LOCAL).parts[0]} is shared by all programs" if shared else ""
    for each in _SYSTEM:
        if path.is_relative_to(each) or each.is_relative_to(path):
            return f"{each} is part of the system"
    return ""


def _interpreter_inside(path: Path) -> str:
    for each in {sys.base_prefix, sys.base_exec_prefix}:
        if Path(each).is_relative_to(path) or Path(each).resolve().is_relative_to(path):
            return f"it contains the Python interpreter of {each}"
    return ""


def _homes() -> frozenset[Path]:
    return frozenset(Path(each.pw_dir) for each in pwd.getpwall())
