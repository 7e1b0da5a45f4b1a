"""Signer of client certificates, and approver and signer of certificate requests at the fake API server."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.api_server import CSRS

if TYPE_CHECKING:
    from tests.support.api_server import ApiServer
    from tests.support.certificates import Authority


def issue(
    authority: Authority,
    csr: x509.CertificateSigningRequest,
    *,
    node: str,
    before_s: float,
    after_s: float,
    key: ec.EllipticCurvePublicKey | None = None,
) -> bytes:
    """Return a client certificate of a node in PEM form, for the key of a request or for another key."""
    ca = x509.load_pem_x509_certificate(authority.ca_file.read_bytes())
    ca_key = serialization.load_pem_private_key((authority.directory / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    public, now = key or csr.public_key(), datetime.now(UTC)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    names = ((NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{node}"))
    issued = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(kind, name) for kind, name in names]))
        .issuer_name(ca.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(seconds=before_s))
        .not_valid_after(now + timedelta(seconds=after_s))
        .sign(ca_key, hashes.SHA256())
    )
    return issued.public_bytes(serialization.Encoding.PEM)


@dataclass
class Signer:
    """Signer with the key of a CA; the validity of a certificate starts before now, as TLS uses the real time."""

    server: ApiServer
    authority: Authority

    @property
    def waiting(self) -> dict[str, Any]:
        """The only request at the API server."""
        (found,) = self.server.objects[CSRS].values()
        return found

    def csr(self) -> x509.CertificateSigningRequest:
        return x509.load_pem_x509_csr(base64.b64decode(self.waiting["spec"]["request"]))

    def sign(
        self,
        *,
        node: str = "node-1",
        before_s: float = 600,
        after_s: float = 600,
        key: ec.EllipticCurvePublicKey | None = None,
        text: str = "",
    ) -> None:
        """Approve the waiting request and issue a certificate, by default the requested one, after explanatory text."""
        pem = text.encode() + issue(self.authority, self.csr(), node=node, before_s=before_s, after_s=after_s, key=key)
        self.answer({"type": "Approved", "status": "True"}, certificate=base64.b64encode(pem).decode())

    def answer(self, *conditions: dict[str, str], certificate: str = "") -> None:
        """Write the status of the waiting request."""
        status: dict[str, Any] = {
            "conditions": list(conditions),
            **({"certificate": certificate} if certificate else {}),
        }
        found = self.waiting
        self.server.put(CSRS, found["metadata"]["name"], {**found, "status": status})

    def delete(self) -> None:
        """Delete the waiting request, as an operator or the control plane does."""
        self.server.objects[CSRS].clear()
