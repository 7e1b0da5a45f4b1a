"""Host header values accepted by a listener on a loopback address."""

from __future__ import annotations

import os

import pytest

from nodeagent.daemon.http.connection import is_own_host
from nodeagent.settings.settings import Listen

LOOPBACK = Listen("127.0.0.1", 20310)
NODE = os.uname().nodename


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:20310",
        "10.1.2.3:20310",
        "[::1]:20310",
        "[::1]",
        "localhost",
        "LocalHost:20310",
        "localhost.:20310",
        NODE,
        f"{NODE.partition('.')[0]}:20310",
    ],
)
def test_own_host_is_accepted(host: str) -> None:
    assert is_own_host(host, LOOPBACK)
    assert is_own_host(host, Listen("::1", 20310))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:20310",
        "127.0.0.1.evil.example",
        "localhost.evil.example:20310",
        "xlocalhost",
        "1",
        "0x7f000001",
        "::1",
        "[evil.example]",
        "[127.0.0.1]",
        "localhost:20310:x",
        "localhost:x",
        "\0",
        "",
        ":20310",
    ],
)
def test_foreign_host_is_rejected_at_a_loopback_address_only(host: str) -> None:
    assert not is_own_host(host, LOOPBACK)
    assert is_own_host(host, Listen("10.1.2.3", 20310))
    assert is_own_host(host, Listen(path="/run/metrics.sock"))
