"""Address and credentials of the Kubernetes API server, as configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from nodeagent.errors import ConfigError
from nodeagent.record import Record

if TYPE_CHECKING:
    from pathlib import Path

_FORM: Final = "expected https://HOST[:PORT][/PATH]"


class ApiAccess(Record):
    """Address and credentials, either in a kubeconfig or by file. TLS is always verified.

    Attributes:
        kubeconfig: file with server, CA and credentials of its current context; ``None`` for the other fields.
        url: ``https://HOST:PORT``.
        ca_file: CA certificates of the server; ``None`` for those of the system.
        token_file: bearer token, such as that of a service account; read again when it changes.
        certificate_file: client certificate in PEM form, with or without its key.
        key_file: key of the client certificate; ``None`` if the certificate file contains it.
        timeout_s: deadline of a complete answer.
        max_bytes: limit of an answer.
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
            ConfigError: a kubeconfig together with other fields, a URL of another form, or no credentials.
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
        ConfigError: it is not an https URL of a host, with at most a port and a path.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme == "https" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known or parts.query or parts.fragment or parts.username is not None or not url.isprintable() or " " in url:
        shown = "(with credentials)" if "@" in url else repr(url)
        raise ConfigError(f"server = {shown}: {_FORM}")
