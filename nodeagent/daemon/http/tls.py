"""TLS of the metrics address: certificate and key of the server, and the CA of its clients, from files.

A client without a certificate of that CA is refused in the handshake. Changed files are loaded without a restart; while
they cannot be used, the last usable ones remain in force.
"""

from __future__ import annotations

import os
import ssl
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from nodeagent.config.file_trust import open_trusted
from nodeagent.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.config.metrics import TlsFiles

_MAX_FILE_BYTES: Final = 1 << 20
Stamps = tuple[tuple[int, int, int], ...]


class CertificateError(OSError):
    """Files from which no TLS context can be made."""


class ServerCertificates:
    """The TLS context of the newest usable files.

    Attributes:
        context: for the next connection; ``None`` before the first usable files.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Load nothing yet."""
        self._files = files
        self._stamps: Stamps = ()
        self.context: ssl.SSLContext | None = None

    def load(self) -> bool:
        """Load the files if they have changed since the last attempt; return whether they were loaded. Blocks.

        Raises:
            CertificateError: the changed files cannot be used; ``context`` is unchanged.
        """
        stamps = tuple(_stamp(each) for each in self._files.paths)
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self.context = make_context(self._files)
        return True


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context that requires a certificate of every client; blocking.

    Raises:
        CertificateError: a file cannot be read, is not trusted, or has no certificate or key of the required kind.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    with ExitStack() as stack:
        paths = []
        for each in (files.certificate, files.key):
            descriptor = _open(each)
            stack.callback(os.close, descriptor)
            paths.append(f"/proc/self/fd/{descriptor}")  # the file that was checked, also if its path is replaced
        try:
            context.load_cert_chain(paths[0], paths[1], _no_password)
        except (OSError, ValueError) as error:
            cause = f"cannot load {files.certificate} with the key in {files.key}: {_reason(error)}"
            raise CertificateError(cause) from error
    try:
        context.load_verify_locations(cadata=_text(files.client_ca))
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(f"cannot load the CA of clients in {files.client_ca}: {_reason(error)}") from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _open(path: Path) -> int:
    try:
        return open_trusted(path)
    except ConfigError as error:
        raise CertificateError(str(error)) from error
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror or error}") from error


def _text(path: Path) -> str:
    try:
        with open(_open(path), "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise CertificateError(f"{path}: more than {_MAX_FILE_BYTES} bytes")
        return content.decode("ascii")
    except UnicodeDecodeError:
        raise CertificateError(f"{path}: not in PEM form") from None


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return inode, size and time of change; links are followed, as a renewed Secret replaces its link."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _no_password() -> str:
    """Refuse an encrypted key; OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    """Return the reason of an error of OpenSSL, without its source lines."""
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error) or type(error).__name__
