"""Server, CA and credentials of the Kubernetes API, from a kubeconfig or from files, read again when a file changes.

Secrets are kept out of every error, log line and ``repr``.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeagent.config.files import open_trusted
from nodeagent.errors import ApiServerUnavailableError, ConfigError
from nodeagent.files import FileStamp, file_stamp
from nodeagent.guarded_call import GuardedCall
from nodeagent.model.kubernetes import ApiAccess, check_server_url
from nodeagent.parsing import parse_yaml

_MAX_FILE_BYTES: Final = 1 << 20
_REFUSED: Final = {
    "exec": "a credential plug-in runs a program as root",
    "auth-provider": "removed from Kubernetes",
    "username": "basic authentication was removed from Kubernetes",
    "password": "basic authentication was removed from Kubernetes",
    "as": "impersonation hides the identity of the agent",
    "as-groups": "impersonation hides the identity of the agent",
    "as-uid": "impersonation hides the identity of the agent",
}
"""Refused fields of a kubeconfig user, each with the reason of the refusal."""
_HOW: Final = "use client-certificate, client-key, tokenFile or token"


@dataclass(frozen=True, slots=True)
class ApiIdentity:
    """API server address, CA and credentials, as last read.

    Attributes:
        url: ``https://HOST:PORT[/PATH]``.
        server_name: expected name in the server certificate; empty for the host of ``url``.
        ca: CA certificates in PEM form; empty for the system's CA certificates.
        token: bearer token; empty if not configured.
        certificate: client certificates in PEM form, optionally with the key; empty if not configured.
        key: key of the client certificate in PEM form; empty if ``certificate`` contains the key.
    """

    url: str
    server_name: str = ""
    ca: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)


class ApiCredentials:
    """Reader of the API server identity; files are read again after any of the files has changed."""

    def __init__(self, access: ApiAccess) -> None:
        """Create a reader; no file is read yet."""
        self._access = access
        self._identity: ApiIdentity | None = None
        self._stamps: dict[Path, FileStamp] = {}
        self._guard = GuardedCall[ApiIdentity]()

    async def current(self) -> ApiIdentity:
        """Return the current identity. Blocked reads, such as on a dead mount, occupy at most one thread.

        Raises:
            ApiServerUnavailableError: a file is unreadable, not trusted or malformed.
        """
        return await self._guard.run(self.read)

    def read(self) -> ApiIdentity:
        """Return the current identity, after reading changed files. Blocks.

        Raises:
            ApiServerUnavailableError: a file is unreadable, not trusted or malformed.
        """
        if self._identity is not None and all(file_stamp(path) == stamp for path, stamp in self._stamps.items()):
            return self._identity
        files = _Files()
        access = self._access
        if access.bootstrap_token_file and access.certificate_file and not access.certificate_file.exists():
            raise ApiServerUnavailableError(
                "no client certificate yet; nodeagent doctor (kubernetes-certificate) states the cause"
            )
        try:
            if access.kubeconfig is not None:
                self._identity = _from_kubeconfig(access.kubeconfig, files)
            else:
                self._identity = ApiIdentity(
                    url=access.url,
                    ca="" if access.ca_file is None else files.text(access.ca_file),
                    token="" if access.token_file is None else _token(files.text(access.token_file), access.token_file),
                    certificate=b"" if access.certificate_file is None else files.read(access.certificate_file),
                    key=b"" if access.key_file is None else files.read(access.key_file),
                )
        except ConfigError as error:
            self._identity = None
            raise ApiServerUnavailableError(str(error)) from error
        self._stamps = files.stamps
        return self._identity

    def discard(self) -> None:
        """Discard the cached identity after a refusal of the credentials, so that the next call reads all files."""
        self._identity = None


class _Files:
    """Reader of trusted files, which records the stamp of each file before reading the content."""

    def __init__(self) -> None:
        self.stamps: dict[Path, FileStamp] = {}

    def read(self, path: Path) -> bytes:
        """Return the content of a file.

        Raises:
            ConfigError: the file cannot be read, is not trusted, or is larger than 1 MiB.
        """
        self.stamps[path] = file_stamp(path)
        try:
            with open(open_trusted(path), "rb") as file:  # noqa: PTH123 - opens a descriptor, not a path
                content = file.read(_MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
        if len(content) > _MAX_FILE_BYTES:
            raise ConfigError(f"{path}: more than {_MAX_FILE_BYTES} bytes")
        return content

    def text(self, path: Path) -> str:
        """Return the text of a file.

        Raises:
            ConfigError: as :meth:`read`, or the file is not ASCII text.
        """
        try:
            return self.read(path).decode("ascii")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not ASCII text (byte {error.start})") from None


def _token(text: str, path: Path | str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{path}: contains no token")
    return token


def _from_kubeconfig(path: Path, files: _Files) -> ApiIdentity:
    """Return the identity of the kubeconfig's current context. Source: client-go, ``clientcmd`` v1 ``Config``."""
    try:
        document = next(iter(parse_yaml(files.read(path))), None)
    except ValueError:  # the parser's error is not repeated, since that text may quote a key
        raise ConfigError(f"{path}: not a kubeconfig: invalid YAML") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not a kubeconfig")
    chosen = _entry(document, "context", document.get("current-context"), path)
    cluster = _entry(document, "cluster", chosen.get("cluster"), path)
    user = _entry(document, "user", chosen.get("user"), path)
    if cluster.get("insecure-skip-tls-verify"):
        raise ConfigError(f"{path}: insecure-skip-tls-verify is refused: set certificate-authority")
    if cluster.get("proxy-url"):
        raise ConfigError(f"{path}: proxy-url is not supported")
    for name, reason in _REFUSED.items():
        if user.get(name):
            raise ConfigError(f"{path}: {name} is refused: {reason}; {_HOW}")
    url = _string(cluster, "server", path)
    check_server_url(url)
    token_file = _string(user, "tokenFile", path)
    where = path.parent / token_file if token_file else path
    token = files.text(where) if token_file else _string(user, "token", path)
    certificate = _content(user, "client-certificate", path, files)
    if not token and not certificate:
        raise ConfigError(f"{path}: no credentials: {_HOW}")
    try:
        authority = _content(cluster, "certificate-authority", path, files).decode("ascii")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: certificate-authority is not in PEM form") from None
    return ApiIdentity(
        url=url,
        server_name=_string(cluster, "tls-server-name", path),
        ca=authority,
        token=_token(token, where) if token else "",
        certificate=certificate,
        key=_content(user, "client-key", path, files),
    )


def _entry(document: dict[Any, Any], kind: str, name: object, path: Path) -> dict[Any, Any]:
    """Return the context, cluster or user with this name from a kubeconfig."""
    entries = document.get(f"{kind}s")
    if not isinstance(name, str) or not isinstance(entries, list):
        raise ConfigError(f"{path}: no {kind} in use: set current-context to a context with cluster and user")
    for each in entries:
        if isinstance(each, dict) and each.get("name") == name and isinstance(each.get(kind), dict):
            found: dict[Any, Any] = each[kind]
            return found
    raise ConfigError(f"{path}: {kind} {name[:80]!r} is not in {kind}s")


def _string(table: dict[Any, Any], name: str, path: Path) -> str:
    value = table.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"{path}: {name} is not a string")
    return value


def _content(table: dict[Any, Any], name: str, path: Path, files: _Files) -> bytes:
    """Return the decoded field ``NAME-data``, else the content of the file in field ``NAME``; empty without both.

    A relative file path starts at the directory of the kubeconfig.
    """
    data = _string(table, f"{name}-data", path)
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"{path}: {name}-data is not base64") from None
    file = _string(table, name, path)
    return files.read(path.parent / file) if file else b""
