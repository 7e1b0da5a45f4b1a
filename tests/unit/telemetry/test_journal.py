"""Entries in the native protocol of journald, over a socket."""

from __future__ import annotations

import array
import os
import socket
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.telemetry.logging import Journal, encode, field_name, is_connected_to_stderr

if TYPE_CHECKING:
    from pathlib import Path


def decode(raw: bytes) -> dict[str, str]:
    """Return the fields of an entry, decoded as by journald."""
    found = {}
    while raw:
        line, _, raw = raw.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack("<Q", raw[:8])
            value, raw = raw[8 : 8 + length], raw[9 + length :]
        found[name.decode()] = value.decode()
    return found


@pytest.fixture
def receiver(tmp_path: Path) -> socket.socket:
    receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiving.bind(str(tmp_path / "journal"))
    receiving.settimeout(30)
    return receiving


def test_entry_is_received_with_its_fields(tmp_path: Path, receiver: socket.socket) -> None:
    journal = Journal(str(tmp_path / "journal"))
    fields = {"MESSAGE": "two\nlines", "PRIORITY": "6", "REASON": "a=b"}
    assert journal.send(fields)
    assert decode(receiver.recv(65536)) == fields
    journal.close()
    receiver.close()


def test_large_entry_is_sent_as_a_sealed_file(tmp_path: Path, receiver: socket.socket) -> None:
    journal = Journal(str(tmp_path / "journal"))
    fields = {"MESSAGE": "x" * 2_000_000}
    assert journal.send(fields)
    _, ancillary, _, _ = receiver.recvmsg(1, socket.CMSG_SPACE(4))
    numbers = array.array("i")
    numbers.frombytes(ancillary[0][2][:4])
    with os.fdopen(numbers[0], "rb") as memory_file:
        memory_file.seek(0)
        assert decode(memory_file.read()) == fields
    journal.close()
    receiver.close()


def test_entry_without_a_receiver_is_not_sent(tmp_path: Path, receiver: socket.socket) -> None:
    journal = Journal(str(tmp_path / "missing"))
    assert not journal.send({"MESSAGE": "x"})
    full = Journal(str(tmp_path / "journal"))
    sent = 0
    while full.send({"MESSAGE": "x" * 1000}):  # a send to a full socket must fail instead of blocking
        sent += 1
    assert sent > 0

    journal.close()
    full.close()
    receiver.close()


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True), st.text(st.characters(codec="utf-8"))))
def test_encoded_entry_decodes_to_its_fields(fields: dict[str, str]) -> None:
    assert decode(encode(fields)) == fields


@given(st.text())
def test_every_key_becomes_a_valid_field_name(key: str) -> None:
    name = field_name(key)
    assert 1 <= len(name) <= 64
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
    assert name[0].isalpha()


def test_standard_error_is_compared_by_device_and_inode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        status = os.fstat(stream.fileno())
        assert is_connected_to_stderr({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        assert not is_connected_to_stderr({"JOURNAL_STREAM": "1:2"})
        assert not is_connected_to_stderr({})


def test_value_that_is_not_utf_8_is_escaped() -> None:
    assert decode(encode({"NAME": "a\udcff\x1b"})) == {"NAME": "a\\xff\x1b"}
