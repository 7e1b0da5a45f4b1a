"""Certificate, key and client CA of a TLS listener, from files that only trusted users can write."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.config.files import open_trusted
from nodeagent.errors import ConfigError
from nodeagent.files import FileStamp, closing_descriptor, file_stamp

if TYPE_CHECKING:
    import ssl

    from nodeagent.model.kubernetes import TlsFiles

_MAX_FILE_BYTES: Final = 1 << 20
Stamp = tuple[FileStamp, ...]


def read_stamp(files: TlsFiles) -> Stamp:
    """Return the stamp of each file."""
    return tuple(file_stamp(each) for each in files.paths)


def read_certificate(files: TlsFiles) -> bytes:
    """Return the server's certificate in PEM form.

    Raises:
        ConfigError: the file is not trusted or cannot be read.
    """
    return _read(files.certificate)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a TLS context of at least version 1.2, which requires client certificates where a client CA is set.

    Sessions are not resumed: a resumed session would not verify the client again.

    Raises:
        ConfigError: a file is missing, malformed, writable by other users, or the key is readable by all users; or the
            key does not match the certificate.
    """
    import ssl  # noqa: PLC0415 - OpenSSL takes 4 MiB, saved on nodes without TLS

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    with (
        closing_descriptor(_open(files.certificate)) as certificate,
        closing_descriptor(_open(files.key, secret=True)) as key,
    ):
        try:
            context.load_cert_chain(f"/proc/self/fd/{certificate}", f"/proc/self/fd/{key}", password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{files.certificate} and {files.key}: {_cause(error)}") from None
    if files.client_ca:
        text = _read(files.client_ca)
        try:
            context.load_verify_locations(cadata=text.decode("ascii"))
        except (OSError, ValueError):
            raise ConfigError(f"{files.client_ca}: no CA certificate in PEM form") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _open(path: str, *, secret: bool = False) -> int:
    """Return a descriptor of a file that only trusted users can write; a ``secret`` file is not world-readable.

    Raises:
        ConfigError: the file is not trusted, too large or cannot be read.
    """
    try:
        descriptor = open_trusted(Path(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    status = os.fstat(descriptor)
    problem = ""
    if secret and status.st_mode & stat.S_IROTH:
        problem = f"the key is readable by all users; run: chmod o= {path}, and replace the key"
    elif status.st_size > _MAX_FILE_BYTES:
        problem = f"more than {_MAX_FILE_BYTES} bytes"
    if problem:
        os.close(descriptor)
        raise ConfigError(f"{path}: {problem}")
    return descriptor


def _read(path: str) -> bytes:
    with open(_open(path), "rb") as file:
        return file.read(_MAX_FILE_BYTES)


def _no_password() -> str:
    raise ValueError("the key is encrypted; a passphrase is not supported")


def _cause(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    if reason is None and isinstance(error, ValueError):
        return str(error)
    return "no certificate and key in PEM form"
