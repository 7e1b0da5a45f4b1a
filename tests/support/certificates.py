"""Private CA with certificates for a server on loopback and for clients, created by openssl."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """Private CA in a directory, with ``NAME.crt`` and ``NAME.key`` for each certificate."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        usage = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        self._run("req", "-x509", *_KEY, "-days", "2", "-subj", "/CN=test-ca", *usage, *self._out("ca", "ca.crt"))

    @property
    def ca_file(self) -> Path:
        return self.directory / "ca.crt"

    def issue(self, name: str, subject: str = "/CN=localhost", *, days: int = 2, names: str = "") -> Path:
        """Issue a certificate for loopback or other names; a certificate with negative ``days`` is expired."""
        (self.directory / "names").write_text(f"subjectAltName={names or 'DNS:localhost,IP:127.0.0.1'}\n")
        self._run("req", *_KEY, "-subj", subject, *self._out(name, f"{name}.csr"))
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", str(days))
        self._run("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")
        return self.directory / f"{name}.crt"

    def server_context(self, name: str, *, clients: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        if clients:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(self.ca_file)
        return context

    @staticmethod
    def _out(key: str, out: str) -> tuple[str, ...]:
        return ("-keyout", f"{key}.key", "-out", out)

    def _run(self, *words: str) -> None:
        subprocess.run(("openssl", *words), cwd=self.directory, check=True, capture_output=True)
