"""Sections ``control`` and ``metrics``: the endpoints of the daemon, and the metrics file."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Final

from nodeagent.config.paths import CONTROL_SOCKET
from nodeagent.config.validation import Check, OptionalPath, Period, Section, SocketPath, Switch, about, form
from nodeagent.model.kubernetes import TlsFiles
from nodeagent.record import Record
from nodeagent.units import parse_duration_s

LISTEN_FORM: Final = '"ADDRESS:PORT" such as "127.0.0.1:20310" or "[::1]:20310", "unix:///PATH", or "off"'
OFF: Final = "off"
TEXTFILE_ENDING: Final = ".prom"
TEXTFILE_FORM: Final = "an absolute path of a .prom file, or empty"
_MAX_PATH_BYTES: Final = 107
"""Maximum length of a socket path, without the final zero byte. Source: unix(7), ``sun_path``."""
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<four>[^\[\]:]+)):(?P<port>\d{1,5})", re.ASCII)


class Listen(Record):
    """Listen address of the metrics endpoint: TCP or unix socket.

    Attributes:
        host: IP address, never a name; empty for a unix socket.
        port: 1 to 65535; 0 for a unix socket.
        path: absolute path of a unix socket; empty otherwise.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine reach the address over TCP."""
        return self.host == "::1" or self.host.startswith("127.")

    @property
    def is_remote(self) -> bool:
        """Whether other machines can reach the address."""
        return not self.path and not self.is_loopback

    @property
    def text(self) -> str:
        """The listen address in the form of the configuration file."""
        if self.path:
            return f"unix://{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT_LISTEN: Final = Listen("127.0.0.1", 20310)


class MetricsSettings(Record):
    """Validated settings of the metrics and health endpoint.

    Attributes:
        listen: listen address; ``None`` disables the endpoint.
        textfile: file of all metrics for the textfile collector of node_exporter; empty disables the file.
        textfile_interval_s: time between two writes of ``textfile``.
        tls: files of the TLS listener; ``None`` disables encryption and client authentication.
    """

    listen: Listen | None = DEFAULT_LISTEN
    textfile: str = ""
    textfile_interval_s: float = 30.0
    tls: TlsFiles | None = None

    @property
    def endpoint(self) -> tuple[Listen | None, TlsFiles | None]:
        """Listen address and TLS files: a change of either requires a new listener."""
        return self.listen, self.tls

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach the endpoint without encryption."""
        return self.listen is not None and self.listen.is_remote and self.tls is None


def parse_listen(text: str) -> Listen | None:
    """Return the parsed listen address; ``None`` for ``off``.

    Raises:
        ValueError: the address is invalid; the message has the allowed form.
    """
    if text == OFF:
        return None
    if text.startswith("unix:"):
        return Listen(path=_socket_path(text))
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError(f"must be {LISTEN_FORM}")
    host, port = found["six"] or found["four"], int(found["port"])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{host!r} is not an IP address (names are not resolved): write {LISTEN_FORM}") from None
    if (address.version == 6) is (found["six"] is None):
        raise ValueError(f"brackets are required for IPv6 and not allowed for IPv4: write {LISTEN_FORM}")
    if not 1 <= port <= 65535:
        raise ValueError("the port must be from 1 to 65535")
    return Listen(str(address), port)


def parse_textfile(text: str) -> str:
    """Check and return the path of the metrics file; empty disables the file.

    The name must end in ``.prom``: node_exporter ignores other files, and a wrong path replaces no unrelated file.

    Raises:
        ValueError: the path is invalid; the message has the allowed form.
    """
    if not text:
        return ""
    name = text.rpartition("/")[2]
    if not text.startswith("/") or not text.isprintable() or text != os.path.normpath(text) or "//" in text:
        raise ValueError(f"must be {TEXTFILE_FORM}")
    if not name.endswith(TEXTFILE_ENDING) or name.startswith("."):
        raise ValueError(f"the name must end in {TEXTFILE_ENDING} and not start with a dot: write {TEXTFILE_FORM}")
    return text


def _socket_path(text: str) -> str:
    path = text.removeprefix("unix:").removeprefix("//")
    if not path.startswith("/") or "\0" in path or path != os.path.normpath(path) or path == "/":
        raise ValueError("must be an absolute path after unix:, such as unix:///run/nodeagent/metrics.sock")
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise ValueError(f"longer than the maximum of a socket path ({_MAX_PATH_BYTES} bytes)")
    return path


class MetricsSection(Section):
    """Endpoint of metrics and health checks."""

    listen: Annotated[
        str,
        Check(parse_listen),
        form(LISTEN_FORM),
        about(
            "Listen address of /metrics, /healthz and /readyz. Without certificate_file, requests are neither "
            "encrypted nor authenticated. An address reachable from other machines exposes the names of thresholds "
            "and namespaces, and must be allowed in the unit (IPAddressAllow). A unix socket is accessible to owner "
            "and group; below /run/nodeagent, to the group nodeagent."
        ),
    ] = DEFAULT_LISTEN.text
    textfile: Annotated[
        str,
        Check(parse_textfile),
        form(TEXTFILE_FORM),
        about(
            "File of all metrics, for the textfile collector of node_exporter, such as "
            "/var/lib/node_exporter/textfile/nodeagent.prom. Its directory must exist, be owned by root, be "
            "writable by root only, and be allowed in the unit (ReadWritePaths). Removed when the daemon stops."
        ),
    ] = ""
    textfile_interval: Annotated[Period, about("Time between two writes of the metrics file.")] = "30s"
    certificate_file: Annotated[
        OptionalPath,
        about(
            "File with the server certificate and its intermediate CAs, PEM, for TLS 1.2 and later. Requires "
            "key_file and a TCP address. The three files are read again when one of them changes."
        ),
    ] = ""
    key_file: Annotated[
        OptionalPath,
        about("File with the key of the server certificate, PEM, without a passphrase, not readable by all users."),
    ] = ""
    client_ca_file: Annotated[
        OptionalPath,
        about(
            "File with CA certificates, PEM. Every client requires a certificate of one of these CAs. Empty: "
            "clients are not authenticated."
        ),
    ] = ""

    def __post_init__(self) -> None:
        self._tls_files()

    def settings(self) -> MetricsSettings:
        """Return the settings of a valid section."""
        listen = parse_listen(self.listen)
        interval_s = parse_duration_s(self.textfile_interval)
        return MetricsSettings(listen, self.textfile, interval_s, self._tls_files())

    def _tls_files(self) -> TlsFiles | None:
        """Return the files of the TLS listener; ``None`` if no file is configured.

        Raises:
            ValueError: certificate or key is missing, or the listen address is a unix socket.
        """
        certificate, key, client_ca = self.certificate_file, self.key_file, self.client_ca_file
        if not certificate and not key and not client_ca:
            return None
        if not certificate or not key:
            given = "certificate_file" if certificate else "key_file" if key else "client_ca_file"
            raise ValueError(f"{given} requires certificate_file and key_file")
        if self.listen.startswith("unix:"):
            raise ValueError("certificate_file requires a TCP address: access to a unix socket is by owner and group")
        return TlsFiles(certificate, key, client_ca)


DEFAULT_SOCKET: Final = Path(CONTROL_SOCKET)


class ControlSettings(Record):
    """Validated settings of the control API.

    Attributes:
        socket: path of the control socket; ``None`` disables the control API.
        group: group with read access.
        group_may_act: whether the group also has write access.
    """

    socket: Path | None = DEFAULT_SOCKET
    group: str = "nodeagent"
    group_may_act: bool = False


class ControlSection(Section):
    """Control API of the daemon."""

    socket: Annotated[
        SocketPath, about("Path of the control socket, at most 107 bytes; its directory must exist. Empty disables.")
    ] = CONTROL_SOCKET
    group: Annotated[
        str,
        about(
            "Group with read access: status, plans, history, events. Root has full access. The socket's directory "
            "must be owned by this group and have the set-group-ID bit."
        ),
    ] = "nodeagent"
    group_may_act: Annotated[
        Switch,
        about(
            "Whether the group also has write access: gc, gc undo, trigger, hold, pause and reload, limited to the "
            "removals that this configuration permits. Only root can remove holds of other users, end their pauses, "
            "or run a disabled GC."
        ),
    ] = False

    def settings(self) -> ControlSettings:
        """Return the settings of a valid section."""
        return ControlSettings(Path(self.socket) if self.socket else None, self.group, self.group_may_act)
