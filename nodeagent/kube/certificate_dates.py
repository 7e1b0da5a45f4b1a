"""Expiry of a client certificate; the API server refuses an expired certificate without stating the reason."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERAL_TIME = 0x30, 0xA0, 0x17, 0x18


def expiry(pem: bytes) -> datetime | None:
    """Return the end of validity of the first certificate in PEM form; ``None`` without a valid certificate.

    Source: RFC 5280, section 4.1: version, serial number, signature, issuer, validity.
    """
    found = _PEM.search(pem)
    if found is None:
        return None
    try:
        certificate = _der_content(base64.b64decode(found[1]), _SEQUENCE)
        fields = _der_content(certificate, _SEQUENCE)
        if fields[0] == _VERSION:
            fields = _skip(fields)
        for _ in range(3):
            fields = _skip(fields)
        return _time(_skip(_der_content(fields, _SEQUENCE)))
    except (ValueError, IndexError, binascii.Error):
        return None


def _der_content(data: bytes, tag: int) -> bytes:
    """Return the content of the first DER element.

    Raises:
        ValueError: the element has another tag, or exceeds the data.
    """
    start, end = _bounds(data)
    if data[0] != tag:
        raise ValueError(f"tag {data[0]:#x}, expected {tag:#x}")
    return data[start:end]


def _skip(data: bytes) -> bytes:
    """Return the data after the first DER element."""
    return data[_bounds(data)[1] :]


def _bounds(data: bytes) -> tuple[int, int]:
    """Return the start and end offsets of the content of the first DER element."""
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("element exceeds the data")
    return start, start + length


def _time(data: bytes) -> datetime:
    start, end = _bounds(data)
    text = data[start:end].decode("ascii")
    if data[0] == _UTC_TIME:
        text = f"{'19' if int(text[:2]) >= 50 else '20'}{text}"
    elif data[0] != _GENERAL_TIME:
        raise ValueError("not a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
