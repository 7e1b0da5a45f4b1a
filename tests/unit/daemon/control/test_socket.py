"""The control socket: creation, owner, replacement and removal."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest

from nodeagent.daemon.control import server as control_socket
from nodeagent.daemon.control.server import ControlUnavailableError, open_socket, socket_users
from nodeagent.record import replace

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.control_node import Node


def is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


async def test_socket_is_removed_when_it_is_disabled_and_created_again(node: Node) -> None:
    context = node.context
    on, off = (
        replace(context.settings, control=replace(context.settings.control, socket=each)) for each in (node.path, None)
    )
    assert (await node.ask("Status"))["agent"]["running"]
    context.settings = off
    context.renew.set()
    async with asyncio.timeout(20):
        while node.path.exists():  # noqa: ASYNC110 - a removed file sets no asyncio.Event
            await asyncio.sleep(0.01)
    context.settings = on
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(is_listening, node.path):  # noqa: ASYNC110 - a listening socket sets no asyncio.Event
            await asyncio.sleep(0.01)
    assert (await node.ask("Status"))["agent"]["running"]
    context.renew.clear()


def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with open_socket(path, "no-such-group"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert socket_users(path, "no-such-group").startswith("root only, not group no-such-group")


def test_socket_belongs_to_the_configured_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "group_number", lambda _: os.getgid())
    with open_socket(tmp_path / "s", "any"):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o660


def test_other_file_or_active_socket_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    with pytest.raises(ControlUnavailableError, match="not a socket"):
        open_socket(tmp_path / "s", "any")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "t"))
        other.listen()
        with pytest.raises(ControlUnavailableError, match="another agent is listening"):
            open_socket(tmp_path / "t", "any")
    with pytest.raises(ControlUnavailableError, match="no such directory"):
        open_socket(tmp_path / "none/s", "any")
