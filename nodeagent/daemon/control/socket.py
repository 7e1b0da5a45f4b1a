"""The control socket: its file, owner and group."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

from nodeagent.errors import NodeAgentError
from nodeagent.host.peer import group_number, is_stale_socket

if TYPE_CHECKING:
    from pathlib import Path


class ControlUnavailableError(NodeAgentError):
    """The control socket cannot be created, or another agent is listening on it."""


def open_socket(path: Path, group: str) -> socket.socket:
    """Return the control socket, bound to a path with access for root and a group.

    Only root can connect if the group does not exist or the group of the socket cannot be changed.

    Raises:
        ControlUnavailableError: the directory does not exist, or the path is another agent's socket or not a socket.
        OSError: the socket cannot be created.
    """
    if not path.parent.is_dir():
        raise ControlUnavailableError(f"{path.parent}: no such directory; run systemd-tmpfiles --create")
    _remove_stale_socket(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        os.fchmod(made.fileno(), 0o600)  # bind derives the file mode from this mode, so that access is never wider
        made.bind(str(path))
        number = group_number(group)
        if number is not None and _set_group(path, number):
            path.chmod(0o660)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def refuse_second_agent(path: Path | None) -> None:
    """Raise an error if another agent is listening on the control socket; two agents would both remove and evict.

    A socket without a listener, such as that of a killed agent, is replaced by :func:`open_socket`, which also reports
    a socket that this user cannot access.

    Raises:
        ControlUnavailableError: another agent is running.
    """
    if path is None:
        return
    try:
        if is_stale_socket(str(path)):
            return
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except OSError:  # a listener exists, but accepts no connection
        pass
    raise ControlUnavailableError(
        f"another agent is running: it is listening on control socket {path}; stop it (systemctl stop nodeagent), or "
        "set another control.socket and state.directory"
    )


def socket_users(path: Path, group: str) -> str:
    """Return the users with access to a socket, as text."""
    if os.stat(path).st_mode & stat.S_IWGRP:  # noqa: PTH116 - a file on tmpfs does not block
        return f"root and group {group}"
    why = "cannot change its group" if group_number(group) is not None else "no such group"
    return f"root only, not group {group}: {why}"


def _set_group(path: Path, group: int) -> bool:
    if os.lstat(path).st_gid == group:
        return True
    try:
        os.chown(path, -1, group)
    except OSError:
        return False
    return True


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of a killed agent; any other file is an error."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ControlUnavailableError(f"{path}: not a socket; remove the file or set control.socket")
    try:
        stale = is_stale_socket(str(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ControlUnavailableError(f"{path}: cannot connect to the agent that owns it: {error}") from error
    if not stale:
        raise ControlUnavailableError(f"{path}: another agent is listening")
    path.unlink(missing_ok=True)
