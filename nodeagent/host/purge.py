"""Removal of the agent's own files from its configuration, state and runtime directories.

An operator's files in these directories (keys, notes, backups) are kept and reported, and so are the targets of
symbolic links.
"""

from __future__ import annotations

import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeagent.errors import InstallError
from nodeagent.host.directories import list_entries
from nodeagent.host.logind_config import is_own_drop_in
from nodeagent.host.placement import below
from nodeagent.record import Record

CONFIGURATION: Final = Path("/etc/nodeagent")
STATE: Final = Path("/var/lib/nodeagent")
RUNTIME: Final = Path("/run/nodeagent")
_LOGIND: Final = Path("/etc/systemd/logind.conf.d")
_LARGEST_DROP_IN_BYTES: Final = 1 << 16

_DOCUMENTS: Final = r"(api-pods|boot|evictions|holds|mode|pause|shutdown)\.json|last-settings\.toml"
_OWN: Final = {
    CONFIGURATION: re.compile(r"config\.toml|config\.d/[^./][^/]*\.toml"),
    STATE: re.compile(
        r"(nodeagent|history)\.db(\.corrupt-[0-9]{8}T[0-9]{6})?(-wal|-shm|-journal)?"
        rf"|{_DOCUMENTS}|\.({_DOCUMENTS})-[a-z0-9_]{{8}}"
        r"|(daemon|holds|pass|shutdown)\.lock|plan\.key|\.plan\.key-[a-z0-9_]{8}"
    ),
    RUNTIME: re.compile(r"shutdown\.(json|lock)|\.shutdown\.json-[a-z0-9_]{8}"),
}
"""Names of the agent's files relative to the directory. Sockets below the runtime directory may have any name."""
_SOCKET_DIRECTORY: Final = re.compile(r"\.[^/]+\.d")
"""Directories beside the control socket."""


class Leftover(Record):
    """A file that remains after uninstalling.

    Attributes:
        path: path on the node.
        own: whether the file is recognised as a file of the agent.
        reason: reason for which a purge keeps the file; empty for a file of the agent.
    """

    path: Path
    own: bool
    reason: str = ""


def find_leftovers(root: Path) -> list[Leftover]:
    """Return the remaining configuration, state, sockets and logind drop-ins.

    Raises:
        InstallError: a directory cannot be read.
    """
    found: list[Leftover] = []
    for directory in (CONFIGURATION, STATE, RUNTIME):
        found += _inside(directory, directory, root)
    drop_ins = below(root, _LOGIND)
    for path in list_entries(drop_ins) if not drop_ins.is_symlink() else ():
        if path.name.endswith("nodeagent.conf"):
            own = _is_own_drop_in(path)
            found.append(Leftover(_LOGIND / path.name, own, "" if own else "not written by nodeagent"))
    return found


def purge(root: Path, leftovers: list[Leftover]) -> None:
    """Remove the agent's own files, and the directories that become empty.

    Raises:
        InstallError: a file cannot be removed.
    """
    for each in leftovers:
        if each.own:
            try:
                below(root, each.path).unlink(missing_ok=True)
            except OSError as error:
                raise InstallError(f"cannot remove {each.path}: {error.strerror or error}") from error
    for directory in (CONFIGURATION, STATE, RUNTIME):
        place = below(root, directory)
        inner = [place / "config.d"] if directory == CONFIGURATION else []
        inner += [
            path for path in list_entries(place) if directory == RUNTIME and _SOCKET_DIRECTORY.fullmatch(path.name)
        ]
        for path in (*inner, place):
            if not path.is_symlink():
                with suppress(OSError):  # not empty, or already removed
                    path.rmdir()


def _inside(top: Path, directory: Path, root: Path) -> list[Leftover]:
    """Return the entries of a directory and of the agent's own subdirectories, without following links."""
    place = below(root, directory)
    if place.is_symlink():
        return [Leftover(directory, own=False, reason=f"a symbolic link to {place.readlink()}, not followed")]
    found: list[Leftover] = []
    for entry in list_entries(place):
        path = directory / entry.name
        name = str(path.relative_to(top))
        mode = entry.lstat().st_mode
        if stat.S_ISDIR(mode):
            enter = directory == top and _is_own_directory(top, entry.name)
            inner = _inside(top, path, root) if enter else []
            found += inner or ([] if enter else [Leftover(path, own=False, reason="not a file of nodeagent")])
            continue
        own = bool(_OWN[top].fullmatch(name)) or (top == RUNTIME and stat.S_ISSOCK(mode))
        found.append(Leftover(path, own, "" if own else "not a file of nodeagent"))
    return found


def _is_own_directory(top: Path, name: str) -> bool:
    return (top == CONFIGURATION and name == "config.d") or (top == RUNTIME and bool(_SOCKET_DIRECTORY.fullmatch(name)))


def _is_own_drop_in(path: Path) -> bool:
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_DROP_IN_BYTES:
            return False
        return is_own_drop_in(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
