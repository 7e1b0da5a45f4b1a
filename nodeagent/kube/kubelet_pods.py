"""The kubelet's own list of pods, over its HTTP interface."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from nodeagent.errors import ObservationError
from nodeagent.kube.podspec import parse_pod

if TYPE_CHECKING:
    import http.client
    import ssl
    from pathlib import Path

    from nodeagent.model.kubelet_access import KubeletAccess
    from nodeagent.model.pods import PodSpec

_PATH: Final = "/pods"
_CHUNK_BYTES: Final = 1 << 18
_TOKEN_BYTES: Final = 64 << 10
_MARGIN_S: Final = 1.0
_HINTS: Final = {
    401: "it does not know the credentials; set a token or client certificate it accepts",
    403: "the credentials may not read nodes/proxy (or nodes/pods); grant them that",
    404: "is this the kubelet's address?",
}


class KubeletPods:
    """Asks one kubelet for its pods."""

    def __init__(self, access: KubeletAccess) -> None:
        self._access = access

    async def read(self) -> tuple[PodSpec, ...]:
        """Return all pods the kubelet knows, static ones too.

        Raises:
            ObservationError: it did not answer in time, refused, or its answer is malformed; the text says which.

        Source: kubelet ``/pods``.
        """
        access = self._access
        try:
            return await asyncio.wait_for(asyncio.to_thread(_read, access), access.timeout_s + _MARGIN_S)
        except TimeoutError as error:
            raise ObservationError(f"{_about(access)}: no answer in {access.timeout_s:g} s") from error


def parse_pod_list(document: object, where: str) -> tuple[PodSpec, ...]:
    """Return the pods of a ``PodList`` document.

    Raises:
        ObservationError: it is none, or one of its pods is malformed.
    """
    if not isinstance(document, dict) or document.get("kind") not in ("PodList", "List"):
        raise ObservationError(f"{where}: the answer is no list of pods")
    items = document.get("items")
    if items is None:
        return ()
    if not isinstance(items, list):
        raise ObservationError(f"{where}: items is no list")
    return tuple(parse_pod(each, f"{where}: pod {number}") for number, each in enumerate(items))


def _read(access: KubeletAccess) -> tuple[PodSpec, ...]:
    about = _about(access)
    body = _fetch(access, about)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ObservationError(f"{about}: the answer is no JSON: {str(error)[:100]}") from error
    return parse_pod_list(document, about)


def _fetch(access: KubeletAccess, about: str) -> bytes:
    """Return the answer's body, all of it within the deadline: a timer cuts the connection."""
    import http.client  # noqa: PLC0415 - a node without a kubelet need not hold it in memory

    parts = urlsplit(access.url)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (10250 if secure else 10255)
    headers = {"Accept": "application/json", "Connection": "close"}
    if access.token_file is not None:
        headers["Authorization"] = f"Bearer {_token(access.token_file)}"
    context = _context(access) if secure else None
    ends_s = time.monotonic() + access.timeout_s
    with ExitStack() as closing:
        opened: list[socket.socket] = []
        cut = threading.Timer(access.timeout_s, _cut, (opened,))
        cut.daemon = True
        cut.start()
        closing.callback(cut.cancel)
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
            connection = http.client.HTTPConnection(host, port)
            connection.sock = sock
            connection.request("GET", _PATH, headers=headers)
            body = _body(closing.enter_context(connection.getresponse()), access)
            if time.monotonic() < ends_s:  # else it ended because it was cut
                return body
        except (OSError, ValueError, http.client.HTTPException, ObservationError) as error:
            if time.monotonic() < ends_s:
                raise ObservationError(f"{about}: {_why(error)}") from error
    raise ObservationError(f"{about}: no answer in {access.timeout_s:g} s")


def _cut(opened: list[socket.socket]) -> None:
    """End whatever a connection waits for; the socket's own timeout starts anew with each byte that drips in."""
    for each in opened:
        try:
            socket.socket.shutdown(each, socket.SHUT_RDWR)  # not the encrypted one's own, which is for one thread
        except OSError:
            continue


def _body(answer: http.client.HTTPResponse, access: KubeletAccess) -> bytes:
    if answer.status != 200:
        hint = _HINTS.get(answer.status, "")
        raise ObservationError(f"HTTP {answer.status} {answer.reason}" + (f"; {hint}" if hint else ""))
    if (answer.length or 0) > access.max_bytes:
        raise ObservationError(f"the answer has {answer.length} bytes, more than {access.max_bytes}")
    chunks, size_bytes = [], 0
    while chunk := answer.read(_CHUNK_BYTES):
        chunks.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > access.max_bytes:
            raise ObservationError(f"the answer has more than {access.max_bytes} bytes")
    if answer.length:
        raise ObservationError(f"the answer broke off after {size_bytes} bytes")
    return b"".join(chunks)


def _context(access: KubeletAccess) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415 - with OpenSSL, 4 MiB that a daemon without a kubelet to ask does not need

    try:
        context = ssl.create_default_context(cafile=None if access.ca_file is None else str(access.ca_file))
    except (OSError, ValueError) as error:
        raise ObservationError(f"kubelet ca_file {access.ca_file} cannot be used: {error}") from error
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.certificate_file is not None:
        try:
            context.load_cert_chain(access.certificate_file, access.key_file)
        except (OSError, ValueError) as error:
            raise ObservationError(f"kubelet client certificate {access.certificate_file}: {error}") from error
    return context


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ObservationError(f"kubelet token_file {path} cannot be read: {error}") from error
    if not token or not token.isprintable():
        raise ObservationError(f"kubelet token_file {path} holds no token")
    return token


def _why(error: Exception) -> str:
    import ssl  # noqa: PLC0415 - likewise

    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {error.verify_message}; set ca_file (and server_name if the name "
            "differs), or insecure"
        )
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there; is the kubelet running, and the port right?"
    return str(error) or type(error).__name__


def _about(access: KubeletAccess) -> str:
    return f"kubelet {access.url.rstrip('/')}{_PATH}"
