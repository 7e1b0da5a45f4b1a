"""Facts of X.509 certificates in PEM form, read from hostile text."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest

from nodeagent.kube.certificate import certificates_only, parse_certificate


def element(tag: int, content: bytes) -> bytes:
    return bytes((tag, 0x83)) + len(content).to_bytes(3, "big") + content


def certificate(subject: bytes) -> bytes:
    """Return an unsigned certificate in PEM form with this subject."""
    validity = element(0x30, element(0x17, b"260101000000Z") + element(0x17, b"270101000000Z"))
    fields = element(2, b"\x01") + element(0x30, b"") * 2 + validity + element(0x30, subject)
    text = base64.encodebytes(element(0x30, element(0x30, fields)))
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


def test_validity_and_subject_are_read() -> None:
    name = element(0x31, element(0x30, element(6, bytes.fromhex("550403")) + element(0x0C, "Gerät".encode())))
    found = parse_certificate(certificate(name))
    assert found is not None
    assert found.subject == ("CN=Gerät",)
    assert (found.not_before, found.not_after) == (datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(("sets", "is_read"), [(20_000, True), (30_000, False)], ids=["46-kib", "79-kib"])
def test_certificate_above_64_kib_is_refused(sets: int, *, is_read: bool) -> None:
    assert (parse_certificate(certificate(b"\x31\x00" * sets)) is not None) is is_read


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"-----BEGIN CERTIFICATE-----" * 50_000,
        b"-----BEGIN CERTIFICATE-----\n" + "Gerät".encode() + b"\n-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----\nAAAA",
    ],
)
def test_text_without_a_certificate_has_none(text: bytes) -> None:
    assert parse_certificate(text) is None
    assert certificates_only(text) == b""


def test_text_around_certificates_is_dropped() -> None:
    one, two = certificate(b""), certificate(b"\x31\x00")
    assert certificates_only("Gerät\n".encode() + one + b"issuer\n" + two + b"end") == one + two
