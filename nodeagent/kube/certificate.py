"""X.509 certificates in PEM form: facts of a certificate, and the key and signing request of a client certificate."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from nodeagent.model.kubernetes import Certificate

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_MAX_BYTES: Final = 64 << 10
"""Maximum length of a certificate in base64; the time of parsing grows with the square of its length."""
_SEQUENCE, _SET, _VERSION, _UTC_TIME, _GENERAL_TIME = 0x30, 0x31, 0xA0, 0x17, 0x18
_ATTRIBUTES: Final = {bytes.fromhex("550403"): "CN", bytes.fromhex("55040a"): "O"}
"""Names of the attributes of a subject by object identifier. Source: RFC 5280, appendix A.1."""


def parse_certificate(pem: bytes) -> Certificate | None:
    """Return the facts of the first certificate in PEM form; ``None`` without a valid certificate of at most 64 KiB.

    The library for signing requests is not used: it takes 9 MiB of memory, for each daemon with a certificate.

    Source: RFC 5280, section 4.1: version, serial number, signature, issuer, validity, subject.
    """
    found = _PEM.search(pem)
    if found is None or len(found[1]) > _MAX_BYTES:
        return None
    try:
        certificate = _der_content(base64.b64decode(found[1]), _SEQUENCE)
        fields = _der_content(certificate, _SEQUENCE)
        if fields[0] == _VERSION:
            fields = _skip(fields)
        for _ in range(3):
            fields = _skip(fields)
        validity, subject = _der_content(fields, _SEQUENCE), _der_content(_skip(fields), _SEQUENCE)
        return Certificate(tuple(_attributes(subject)), _time(validity), _time(_skip(validity)))
    except (ValueError, IndexError, binascii.Error):
        return None


def expiry(pem: bytes) -> datetime | None:
    """Return the end of validity of the first certificate in PEM form; ``None`` without a valid certificate."""
    found = parse_certificate(pem)
    return None if found is None else found.not_after


def certificates_only(pem: bytes) -> bytes:
    """Return the certificates in PEM form without the text around them, in which RFC 7468 permits an explanation."""
    return b"".join(each[0] + b"\n" for each in _PEM.finditer(pem))


def _attributes(subject: bytes) -> Iterator[str]:
    """Yield the attributes of a subject; an unknown attribute has its object identifier in hexadecimal as name."""
    while subject:
        part, subject = _der_content(subject, _SET), _skip(subject)
        while part:
            pair, part = _der_content(part, _SEQUENCE), _skip(part)
            start, end = _bounds(pair)
            name, value = pair[start:end], pair[end:]
            start, end = _bounds(value)
            yield f"{_ATTRIBUTES.get(name, name.hex())}={value[start:end].decode(errors='replace')}"


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


def new_key() -> str:
    """Return a new ECDSA P-256 key in PEM form, not encrypted. Source: kubelet ``generateCSR``."""
    # imported here: 9 MiB of memory, only in a daemon that requests its certificate
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode("ascii")
    )


def signing_request(key: str, organization: str, common_name: str) -> bytes:
    """Return a signing request in PEM form, signed with a key in PEM form.

    Raises:
        ValueError: the key is malformed, or a name is longer than 64 characters, the limit of X.509.
    """
    from cryptography import x509  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    signer = serialization.load_pem_private_key(key.encode("ascii"), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("not an ECDSA key")  # noqa: TRY004 - a malformed value
    names = ((NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common_name))
    subject = x509.Name([x509.NameAttribute(kind, name) for kind, name in names])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(signer, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)
