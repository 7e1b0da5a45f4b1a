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

from nodeagent.files import read_file
from nodeagent.host.installation import below, clear
from nodeagent.host.logind_config import is_own_drop_in

CONFIGURATION: Final = Path("/etc/nodeagent")
STATE: Final = Path("/var/lib/nodeagent")
RUNTIME: Final = Path("/run/nodeagent")
_LOGIND: Final = Path("/etc/systemd/logind.conf.d")
_DOCUMENTS: Final = r"(api-pods|boot|evictions|holds|mode|pause|shutdown)\.json|last-settings\.toml"
_OWN: Final = {
    CONFIGURATION: re.compile(r"config\.toml|config\.d/[^./][^/]*\.toml"),
    STATE: re.compile(
        r"(nodeagent|history)\.db(\.corrupt-[0-9]{8}T[0-9]{6})?(-wal|-shm|-journal)?"
        rf"|{_DOCUMENTS}|\.({_DOCUMENTS})-[a-z0-9_]{{8}}"
        r"|(daemon|holds|pass|shutdown)\.lock|plan\.key|\.plan\.key-[a-z0-9_]{8}"
    ),
    RUNTIME: re.compile(r"shutdown\.(json|lock)|\.shutdown\.json-[a-z0-9_]{8}"),
    _LOGIND: re.compile(r"(?!)"),
}
"""Names of the agent's files relative to the directory. Sockets below the runtime directory may have any name."""


def purge(top: Path) -> list[tuple[Path, str]]:
    """Remove the agent's own files, sockets and logind drop-ins, and emptied directories.

    Returns:
        The kept paths with the reason.

    Raises:
        OSError: a file cannot be removed.
    """
    kept = []
    for directory, own in _OWN.items():

        def is_own(path: Path, name: str, own: re.Pattern[str] = own, at: Path = directory) -> bool:
            drop_in = at == _LOGIND and _is_own_drop_in(path)
            return drop_in or bool(own.fullmatch(name)) or (at == RUNTIME and stat.S_ISSOCK(path.lstat().st_mode))

        for each in clear(below(top, directory), is_own):
            link = f"a symbolic link to {each.readlink()}, not followed" if each.is_symlink() else ""
            reason = "not written by nodeagent" if directory == _LOGIND else link or "not a file of nodeagent"
            if directory != _LOGIND or each.name.endswith("nodeagent.conf"):
                kept.append((Path("/") / each.relative_to(top), reason))
    return kept


def _is_own_drop_in(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.name.endswith("nodeagent.conf") and not path.is_symlink() and is_own_drop_in(read_file(path))
    return False
