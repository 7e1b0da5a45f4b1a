"""File descriptor store of systemd: lookup of passed descriptors, and messages in the documented format."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.systemd import LOCK_NAME, DescriptorStore, stored_descriptor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def passed(count: str, names: str, pid: int | None = None) -> dict[str, str]:
    return {"LISTEN_PID": str(os.getpid() if pid is None else pid), "LISTEN_FDS": count, "LISTEN_FDNAMES": names}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        (passed("1", LOCK_NAME), 3),
        (passed("2", f"web.socket:{LOCK_NAME}"), 4),
        (passed("1", LOCK_NAME, pid=1), None),
        (passed("1", "web.socket"), None),
        (passed("x", LOCK_NAME), None),
        (passed("0", ""), None),
        (passed("2", LOCK_NAME), 3),
    ],
    ids=["none", "one", "second", "other-process", "other-name", "no-number", "zero", "fewer-names"],
)
def test_passed_descriptor_is_found_by_name(environment: dict[str, str], found: int | None) -> None:
    assert stored_descriptor(environment=environment) == found


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@nodeagent-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        listener.settimeout(30)
        yield listener, address


def test_copy_replaces_the_stored_descriptor(manager: tuple[socket.socket, str]) -> None:
    listener, address = manager
    store = DescriptorStore(environment={"NOTIFY_SOCKET": address})
    reader, writer = os.pipe()
    assert store.keep(writer)
    os.close(writer)
    assert listener.recv(4096) == b"FDSTOREREMOVE=1\nFDNAME=shutdown-lock"
    text, descriptors, _, _ = socket.recv_fds(listener, 4096, 1)
    assert text == b"FDSTORE=1\nFDNAME=shutdown-lock"
    os.write(descriptors[0], b"x")
    assert os.read(reader, 1) == b"x"
    os.close(descriptors[0])
    os.close(reader)


@pytest.mark.parametrize("address", ["", "vsock:2:1", "/nowhere/at/all"])
def test_without_a_service_manager_calls_have_no_effect(address: str) -> None:
    store = DescriptorStore(environment={"NOTIFY_SOCKET": address})
    assert not store.keep(0)
    assert not store.forget()
