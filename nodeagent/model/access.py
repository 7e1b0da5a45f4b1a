"""Address and credentials of the kubelet and of the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from nodeagent.errors import ConfigError
from nodeagent.record import Record

if TYPE_CHECKING:
    from pathlib import Path

_FORM: Final = "expected https://HOST[:PORT][/PATH]"


class ApiAccess(Record):
    """Address and credentials of the API server, from a kubeconfig or from separate files. TLS is always verified.

    Attributes:
        kubeconfig: kubeconfig file, whose current context is used; ``None`` to use the other fields.
        url: ``https://HOST:PORT``.
        ca_file: CA certificates of the server; ``None`` for the system's CA certificates.
        token_file: file with the bearer token, such as a service account token; read again when the file changes.
        certificate_file: client certificate in PEM form, with or without its key.
        key_file: key of the client certificate; ``None`` if the certificate file contains the key.
        timeout_s: seconds within which the complete answer must arrive.
        max_bytes: maximum size of an answer's body.
    """

    kubeconfig: Path | None = None
    url: str = ""
    ca_file: Path | None = None
    token_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    timeout_s: float = 10.0
    max_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        """Check the fields against each other.

        Raises:
            ConfigError: a kubeconfig is set together with other fields, the URL is invalid, credentials are missing, or
                ``key_file`` is set without ``certificate_file``.
        """
        files = (self.ca_file, self.token_file, self.certificate_file, self.key_file)
        if self.kubeconfig is not None:
            if self.url or any(files):
                raise ConfigError("kubeconfig excludes server, ca_file, token_file, certificate_file and key_file")
            return
        check_server_url(self.url)
        if self.token_file is None and self.certificate_file is None:
            raise ConfigError("server is set without credentials: set token_file or certificate_file")
        if self.key_file is not None and self.certificate_file is None:
            raise ConfigError("key_file is set without certificate_file")


def check_server_url(url: str) -> None:
    """Check the URL of an API server.

    Raises:
        ConfigError: the URL is not an https URL of a host, with at most a port and a path.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme == "https" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known or parts.query or parts.fragment or parts.username is not None or not url.isprintable() or " " in url:
        shown = "(with credentials)" if "@" in url else repr(url)
        raise ConfigError(f"server = {shown}: {_FORM}")


class KubeletAccess(Record):
    """Address and credentials of the kubelet API.

    Attributes:
        url: ``https://HOST:10250``, or ``http://HOST:10255`` for the read-only port, to which no credentials are sent.
        token_file: file with the bearer token; read for each request, because tokens are rotated.
        certificate_file: client certificate in PEM form, with or without its key.
        key_file: key of the client certificate; ``None`` if the certificate file contains the key.
        ca_file: CA of the serving certificate; ``None`` for the system's CAs.
        server_name: name in the serving certificate, if the name differs from the URL's host.
        insecure: whether to skip TLS verification; rejected with a token, which any server at the address would
            receive.
        timeout_s: seconds within which the complete response must arrive.
        max_bytes: maximum size of the response body.
    """

    url: str = "https://127.0.0.1:10250"
    token_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    server_name: str = ""
    insecure: bool = False
    timeout_s: float = 5.0
    max_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        """Check the fields against each other.

        Raises:
            ConfigError: the URL is invalid, credentials would be sent over plain HTTP, a token would be sent to a
                server that is not verified, or ``key_file`` is set without ``certificate_file``.
        """
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            known = False
        if not known or parts.path not in ("", "/") or parts.query or parts.username:
            raise ConfigError(f"kubelet url = {self.url!r}: expected https://HOST:10250 or http://HOST:10255")
        if parts.scheme == "http" and (self.token_file or self.certificate_file):
            raise ConfigError(f"kubelet url = {self.url!r}: credentials are not sent over plain http; use https")
        if self.insecure and self.token_file:
            raise ConfigError(
                "kubelet token_file is set with insecure = true: a token is not sent to a server that is not verified; "
                "set ca_file (and server_name if the name differs) instead of insecure"
            )
        if self.key_file and not self.certificate_file:
            raise ConfigError("kubelet key_file is set without certificate_file")

    @property
    def is_verified(self) -> bool:
        """Whether the serving certificate is verified, so that only the kubelet can answer."""
        return urlsplit(self.url).scheme == "https" and not self.insecure


class TlsFiles(Record):
    """Files of a TLS listener, as absolute paths.

    Attributes:
        certificate: certificate of the server and its intermediate CAs, PEM.
        key: key of the certificate, PEM, not encrypted.
        client_ca: CA certificates of the clients, PEM; empty to accept clients without a certificate.
    """

    certificate: str
    key: str
    client_ca: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all configured TLS files."""
        return (self.certificate, self.key, *((self.client_ca,) if self.client_ca else ()))
