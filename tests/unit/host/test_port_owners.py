"""Owners of a TCP port, from real sockets of this machine and from tables of the kernel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.sockets import port_owners

if TYPE_CHECKING:
    from pathlib import Path

SERVER = (
    "import os, socket; os.setgid(65534); os.setuid(65534);"
    "server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1], flush=True);"
    "accepted, _ = server.accept(); accepted.sendall(b'x'); server.close(); accepted.recv(1)"
)
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(local: str, remote: str, state: str, user: int) -> str:
    return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {user:5d}        0 5 1 ffff 100\n"


def test_own_listener_is_owned_by_this_user_over_both_families() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert os.geteuid() in port_owners(port, client.getsockname()[1])
    assert port_owners(port, 1) == frozenset()


@pytest.mark.skipif(os.geteuid() != 0, reason="changing to another user requires root")
def test_connection_accepted_by_another_user_is_owned_by_that_user_after_its_listener_closed() -> None:
    words = [sys.executable, "-I", "-S", "-c", SERVER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert port_owners(port, 1) == {65534}
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.recv(1)
            assert port_owners(port, client.getsockname()[1]) == {65534}


def test_only_rows_of_the_port_count(tmp_path: Path) -> None:
    directory = tmp_path / "proc/self/net"
    directory.mkdir(parents=True)
    rows = (
        row("0100007F:280A", "00000000:0000", "0A", 7),
        row("0100007F:280B", "00000000:0000", "0A", 8),
        row("0100007F:280A", "0100007F:8001", "01", 9),
        row("0100007F:280A", "0100007F:8002", "01", 10),
        row("0100007F:8001", "0100007F:280A", "01", 11),
        row("0100007F:280A", "0100007F:8001", "06", 12),
    )
    (directory / "tcp").write_text(HEADER + "".join(rows))
    assert port_owners(10250, 0x8001, tmp_path) == {7, 9}


@pytest.mark.parametrize("table", [None, "", "<html>"])
def test_missing_or_malformed_table_is_an_error(tmp_path: Path, table: str | None) -> None:
    directory = tmp_path / "proc/self/net"
    directory.mkdir(parents=True)
    if table is not None:
        (directory / "tcp").write_text(table)
    with pytest.raises((OSError, ValueError), match="tcp"):
        port_owners(10250, 1, tmp_path)
