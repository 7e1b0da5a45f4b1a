"""Pods and configuration of the kubelet from its HTTP API, and the static pods in its manifest directory."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import stat
import threading
import time
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from nodeagent.errors import ObservationError
from nodeagent.http_exchange import HttpExchange, HttpProtocolError, SocketResponse, TruncatedResponseError
from nodeagent.parsing import parse_json, parse_yaml
from nodeagent.record import Record, replace
from nodeagent.text import escape, shortened

if TYPE_CHECKING:
    import ssl

    from nodeagent.model.kubernetes import KubeletAccess
    from nodeagent.model.pods import PodSpec
    from nodeagent.units import Clock

_PATH: Final = "/pods"
_CONFIG_PATH: Final = "/configz"
_TOKEN_BYTES: Final = 64 << 10
_ERROR_BYTES: Final = 1 << 10
_MAX_SHOWN: Final = 300
_MARGIN_S: Final = 1.0
_HINTS: Final = {
    401: "credentials unknown; set a token or client certificate of the cluster",
    403: "credentials lack access; grant get on nodes/pods (kubelets before 1.33 require nodes/proxy, which also "
    "grants exec in every pod)",
    404: "not a kubelet API; check the address",
}


class FindOwners(Protocol):
    """Finder of the users whose processes serve a TCP port of this node. Blocks."""

    def __call__(self, port: int, client_port: int, /) -> frozenset[int]:
        """Return the UIDs of the listeners on ``port`` and of the server's socket of a connection from ``client_port``.

        Raises:
            OSError: the kernel's socket list cannot be read.
            ValueError: the kernel's answer is malformed.
        """


class KubeletPods:
    """Reader of the pod list of one kubelet."""

    def __init__(self, access: KubeletAccess, find_owners: FindOwners) -> None:
        """Create a reader from the kubelet's address and credentials, and the finder of port owners."""
        self._access = access
        self._find_owners = find_owners

    async def read(self) -> tuple[PodSpec, ...]:
        """Return all pods of the kubelet, including static pods.

        Raises:
            ObservationError: no answer in time, a refusal, or a malformed answer; the text has the cause.

        Source: kubelet ``/pods``.
        """
        access = self._access
        pods = parse_pod_list(await self._get(_PATH), pods_address(access))
        return pods if access.is_verified else tuple(replace(each, is_verified=False) for each in pods)

    async def read_config(self) -> dict[str, object]:
        """Return the fields of the KubeletConfiguration in force, with all defaults.

        Raises:
            ObservationError: no answer in time, a refusal, a malformed answer, or a server that is not verified.

        Source: kubelet ``/configz``, permitted by ``get`` on ``nodes/configz``, before Kubernetes 1.33 on
        ``nodes/proxy``.
        """
        endpoint = _address(self._access, _CONFIG_PATH)
        if not self._access.is_verified:
            raise ObservationError(f"{endpoint}: server is not verified")
        document = await self._get(_CONFIG_PATH)
        fields = document.get("kubeletconfig") if isinstance(document, dict) else None
        if not isinstance(fields, dict):
            raise ObservationError(f"{endpoint}: not a configuration")
        return fields

    async def _get(self, path: str) -> object:
        access = self._access
        try:
            async with asyncio.timeout(access.timeout_s + _MARGIN_S):
                return await asyncio.to_thread(_read, access, path, self._find_owners)
        except TimeoutError as error:
            raise ObservationError(f"{_address(access, path)}: no answer in {access.timeout_s:g} s") from error


def parse_pod_list(document: object, where: str) -> tuple[PodSpec, ...]:
    """Return the pods of a ``PodList`` document, including malformed pods with their error.

    Raises:
        ObservationError: the document is not a ``PodList``.
    """
    if not isinstance(document, dict) or document.get("kind") not in ("PodList", "List"):
        raise ObservationError(f"{where}: not a list of pods")
    items = document.get("items")
    if items is None:
        return ()
    if not isinstance(items, list):
        raise ObservationError(f"{where}: items is not a list")
    from nodeagent.kube.podspec import parse_listed_pod  # noqa: PLC0415 - loaded only for a pod list

    return tuple(parse_listed_pod(each, f"{where}: pod {number}") for number, each in enumerate(items))


def pods_address(access: KubeletAccess) -> str:
    """Return the address of the pod list, for display."""
    return _address(access, _PATH)


def _address(access: KubeletAccess, path: str) -> str:
    return f"kubelet {access.url.rstrip('/')}{path}"


def _read(access: KubeletAccess, path: str, find_owners: FindOwners) -> object:
    endpoint = _address(access, path)
    body = _fetch(access, path, find_owners)
    try:
        return parse_json(body)
    except ValueError as error:
        raise ObservationError(f"{endpoint}: answer is not JSON: {str(error)[:100]}") from error


def _fetch(access: KubeletAccess, path: str, find_owners: FindOwners) -> bytes:
    """Return the complete body of the answer; at the deadline a timer shuts the connection down."""
    endpoint, parts = _address(access, path), urlsplit(access.url)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (10250 if secure else 10255)
    headers = [("Host", parts.netloc), ("Accept", "application/json"), ("Connection", "close")]
    if access.token_file is not None:
        headers.append(("Authorization", f"Bearer {_token(access.token_file)}"))
    context = _context(access) if secure else None
    ends_s = time.monotonic() + access.timeout_s
    with ExitStack() as closing:
        opened: list[socket.socket] = []
        timer = threading.Timer(access.timeout_s, _shut_down, (opened,))
        timer.daemon = True
        timer.start()
        closing.callback(timer.cancel)
        try:
            sock = closing.enter_context(socket.create_connection((host, port), timeout=access.timeout_s))
            secured: ssl.SSLSocket | None = None
            if context is not None:
                name = access.server_name or host
                secured = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
                sock = closing.enter_context(secured)
            opened.append(sock)
            if secured is not None:
                secured.do_handshake()
            _check_owner(sock, find_owners)
            exchange = HttpExchange()
            sock.sendall(exchange.encode("GET", path, headers))
            body = _body(SocketResponse(sock, exchange), access)
            if time.monotonic() < ends_s:  # the timer may have truncated the body at the deadline
                return body
        except (OSError, ValueError, HttpProtocolError, TruncatedResponseError, ObservationError) as error:
            if time.monotonic() < ends_s:
                raise ObservationError(f"{endpoint}: {_cause(error)}") from error
    raise ObservationError(f"{endpoint}: no answer in {access.timeout_s:g} s")


def _check_owner(connected: socket.socket, find_owners: FindOwners) -> None:
    """Reject a server on this node that runs neither as root nor as the agent's user, before sending a request.

    Any user can listen on the kubelet's port while the kubelet is down. After the TLS handshake the server has
    accepted the connection, so the kernel reports the owner of the server's socket.

    Raises:
        ObservationError: the server runs as another user, or its user is unknown.
    """
    own, server = connected.getsockname(), connected.getpeername()
    if own[0] != server[0] and not ipaddress.ip_address(server[0].partition("%")[0]).is_loopback:
        return  # the kernel cannot report the owner of a server on another node
    owners = find_owners(server[1], own[1])
    others = sorted(owners - {0, os.geteuid()})
    if others or not owners:
        by = f"run by user {others[0]}, not by root" if others else "of an unknown user"
        raise ObservationError(f"server {by}: no credentials sent, and its pod list not read")


def _shut_down(opened: list[socket.socket]) -> None:
    """Shut down the connection to abort blocking calls; the socket's own timeout restarts with each received byte."""
    for each in opened:
        try:
            socket.socket.shutdown(each, socket.SHUT_RDWR)  # SSLSocket.shutdown is not thread-safe
        except OSError:
            continue


def _body(response: SocketResponse, access: KubeletAccess) -> bytes:
    if response.status != 200:
        status = f"HTTP {response.status} {_shown(response.reason)}"
        parts = status, _error_text(response), _HINTS.get(response.status, "")
        raise ObservationError("; ".join(each for each in parts if each))
    body = bytearray()
    try:
        for data in response.parts():
            body += data
            if len(body) > access.max_bytes:
                raise ObservationError(f"answer has more than {access.max_bytes} bytes")
    except TruncatedResponseError as error:
        raise ObservationError(f"answer truncated after {len(body)} bytes") from error
    return bytes(body)


def _error_text(response: SocketResponse) -> str:
    """Return the beginning of a refusal's body on one line; empty if the body only repeats the HTTP reason phrase.

    The kubelet states the reason of a refusal in plain text, such as the user and the missing verb.
    """
    text = " ".join(next(response.parts(), b"")[:_ERROR_BYTES].decode(errors="replace").split())
    return "" if text == response.reason else _shown(text)


def _shown(text: str) -> str:
    """Return the escaped beginning of a text from the server; h11 errors quote malformed lines in full."""
    return shortened(escape(text), _MAX_SHOWN)


def _context(access: KubeletAccess) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415 - saves 4 MiB of OpenSSL on nodes without a kubelet

    try:
        context = ssl.create_default_context(cafile=None if access.ca_file is None else str(access.ca_file))
    except (OSError, ValueError) as error:
        raise ObservationError(f"cannot load kubelet ca_file {access.ca_file}: {error}") from error
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.certificate_file is not None:
        try:
            context.load_cert_chain(access.certificate_file, access.key_file)
        except (OSError, ValueError) as error:
            raise ObservationError(
                f"cannot load kubelet client certificate {access.certificate_file}: {error}"
            ) from error
    return context


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ObservationError(f"cannot read kubelet token_file {path}: {error}") from error
    if not token or not token.isprintable():
        raise ObservationError(f"kubelet token_file {path} contains no token")
    return token


def _cause(error: Exception) -> str:
    import ssl  # noqa: PLC0415 - saves memory on nodes without a kubelet

    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"certificate not trusted: {error.verify_message}; set ca_file (and server_name if the name "
            "differs), or insecure"
        )
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; check that the kubelet is running and the port is correct"
    return _shown(str(error)) or type(error).__name__


_REREAD_S: Final = 1.0
_WAIT_S: Final = 0.25


class PodLister(Protocol):
    """Source of the kubelet's pod list."""

    async def read(self) -> tuple[PodSpec, ...]:
        """Return all pods of the kubelet.

        Raises:
            ObservationError: the list cannot be read.
        """


class KubeletListing:
    """Cached pod list of the kubelet.

    Only the first request waits until the kubelet answers. Later requests wait at most 0.25 s: the pass then uses the
    cached list, and the next pass uses the answer.

    Attributes:
        configured: whether a kubelet is configured.
        pods: pods of the latest list; ``None`` before the first successful request.
    """

    def __init__(self, source: PodLister | None, clock: Clock, max_age_s: float) -> None:
        self._source = source
        self._clock = clock
        self._max_age_s = max_age_s
        self._requested_s: float | None = None
        self._request: asyncio.Task[None] | None = None
        self._uids: frozenset[str] = frozenset()
        self._error = ""
        self.configured = source is not None
        self.pods: tuple[PodSpec, ...] | None = None

    @property
    def complete(self) -> bool:
        """Whether the latest request succeeded. A running pod that the list lacks is then a contradiction, and kept."""
        return self.pods is not None and not self._error and (self._request is None or self._request.done())

    async def read_if_due(self) -> None:
        """Request the list if the latest request is older than the maximum age."""
        if self._requested_s is None or self._clock.monotonic_s() - self._requested_s >= self._max_age_s:
            await self._read()

    async def read_for(self, uids: set[str]) -> None:
        """Request the list if the cached list lacks one of the pods, at most once per second."""
        if self._requested_s is None or uids <= self._uids or self._clock.monotonic_s() - self._requested_s < _REREAD_S:
            return
        await self._read()

    def warn(self, warnings: list[str]) -> None:
        """Add a warning if the latest request failed, and a warning if the list has malformed pods."""
        if self._error:
            warnings.append(f"cannot list the kubelet's pods: {self._error}; pods missing from its last list are kept")
        malformed = [each.malformed for each in self.pods or () if each.malformed]
        if malformed:
            more = f" and {len(malformed) - 1} more" if len(malformed) > 1 else ""
            warnings.append(f"malformed pod in the kubelet's list, kept: {malformed[0]}{more}")

    async def close(self) -> None:
        """Cancel a pending request."""
        if self._request is not None:
            self._request.cancel()
            await asyncio.wait([self._request])
            self._request = None

    async def _read(self) -> None:
        if self._source is None:
            return
        wait_s = None if self._requested_s is None else _WAIT_S
        if self._request is None or self._request.done():
            self._requested_s = self._clock.monotonic_s()
            self._request = asyncio.create_task(self._update(self._source))
        await asyncio.wait([self._request], timeout=wait_s)
        if self._request.done():
            self._request.result()

    async def _update(self, source: PodLister) -> None:
        try:
            self.pods = await source.read()
        except ObservationError as error:
            # The cached list is kept: apart from in-place resizes, the spec of a pod is immutable.
            self._error = str(error)
        else:
            self._error = ""
            self._uids = frozenset(each.uid for each in self.pods)


MANIFESTS: Final = Path("/etc/kubernetes/manifests")
_MAX_BYTES: Final = 256 << 10
_MAX_FILES: Final = 500


class Manifests(Record):
    """Static pods of the manifest directory.

    Attributes:
        pods: pods of the usable files, in the order of the file names.
        warnings: one warning for each unusable file and each malformed pod.
        previous: pods of the last usable version of each file that is now unusable, such as during a write.
        error: cause of a failure to read the existing directory; empty without a failure.
    """

    pods: tuple[PodSpec, ...] = ()
    warnings: tuple[str, ...] = ()
    previous: tuple[PodSpec, ...] = ()
    error: str = ""


class ManifestReader:
    """Reader of one manifest directory, which caches unchanged files."""

    def __init__(self, directory: Path = MANIFESTS) -> None:
        self._directory = directory
        self._cached: dict[str, tuple[tuple[int, int, int, int], tuple[PodSpec, ...] | str]] = {}
        self._usable: dict[str, tuple[PodSpec, ...]] = {}

    def read(self) -> Manifests:
        """Return the static pods; none if the directory does not exist. Blocks.

        Directories and names that start with a dot are skipped. Malformed files and links that resolve outside the
        directory are skipped with a warning. A malformed pod yields a warning, and is returned with its error if its
        name is readable.

        Source: kubelet ``extractFromDir``.
        """
        try:
            root = self._directory.resolve(strict=True)
            names = sorted(name for name in os.listdir(root) if not name.startswith("."))  # noqa: PTH208 - names only
        except FileNotFoundError:
            self._cached.clear()
            self._usable.clear()
            return Manifests()
        except (OSError, RuntimeError) as error:  # RuntimeError: symbolic link loop
            text = f"static manifests: cannot read {self._directory}: {getattr(error, 'strerror', '') or error}"
            return Manifests(warnings=(text,), previous=tuple(chain.from_iterable(self._usable.values())), error=text)
        pods: list[PodSpec] = []
        previous: list[PodSpec] = []
        warnings = []
        if len(names) > _MAX_FILES:
            warnings.append(f"static manifests: {root} has {len(names)} files, only the first {_MAX_FILES} are read")
            names = names[:_MAX_FILES]
        for removed in (self._cached.keys() | self._usable.keys()) - set(names):
            self._cached.pop(removed, None)
            self._usable.pop(removed, None)
        for name in names:
            found = self._file(root, name)
            if isinstance(found, str):
                warnings.append(f"static manifests: {found}")
                previous += self._usable.get(name, ())
            else:
                self._usable[name] = found
                pods += [each for each in found if each.name]
                warnings += [f"static manifests: malformed pod: {each.malformed}" for each in found if each.malformed]
        return Manifests(tuple(pods), tuple(warnings), tuple(previous))

    def _file(self, root: Path, name: str) -> tuple[PodSpec, ...] | str:
        """Return the pods of a file, or a warning if the file is unusable."""
        path = root / name
        try:
            target = path.resolve(strict=True)
            if not target.is_relative_to(root):
                return f"{path} skipped: link resolves outside the directory"
            descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return ()
        except (OSError, RuntimeError) as error:
            return f"cannot read {path}: {error}"
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return ()
            version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            cached = self._cached.get(name)
            if cached is None or cached[0] != version:
                cached = self._cached[name] = version, self._parsed(descriptor, status.st_size, path)
            return cached[1]
        except OSError as error:
            return f"cannot read {path}: {error}"
        finally:
            os.close(descriptor)

    def _parsed(self, descriptor: int, size_bytes: int, path: Path) -> tuple[PodSpec, ...] | str:
        if size_bytes > _MAX_BYTES:
            return f"{path} skipped: {size_bytes} bytes, more than {_MAX_BYTES}"
        from nodeagent.kube.podspec import parse_listed_pod, shown  # noqa: PLC0415 - loaded only for static pods

        with os.fdopen(os.dup(descriptor), "rb") as file:
            text = file.read(_MAX_BYTES)
        try:
            document = _document(text)
            if document is None:
                return ()
            kind = document.get("kind") if isinstance(document, dict) else None
            if kind == "Pod":
                return (parse_listed_pod(document, str(path)),)
            if kind in ("PodList", "List"):
                return parse_pod_list(document, str(path))
        except (ObservationError, ValueError) as error:
            return f"{path} skipped: {str(error).removeprefix(f'{path}: ')}"
        return f"{path} skipped: kind {shown(kind)}, not Pod"


def _document(text: bytes) -> object:
    """Return the first document of a text in JSON or YAML.

    Raises:
        ValueError: the text is neither JSON nor YAML.
    """
    try:
        return next(parse_yaml(text), None)
    except ValueError as error:
        raise ValueError(f"neither JSON nor YAML: {error}") from error
