"""The pods of one node at the API server: lists in pages, and a watch of their changes.

Of each object only the facts of :class:`PodSpec` are kept; an object can have more than a megabyte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec

from nodeagent.errors import ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.kube.api_client import ApiStream
from nodeagent.kube.api_connection import ApiRequest, ApiStatus
from nodeagent.kube.podspec import parse_listed_pod
from nodeagent.model.pods import PodSpec
from nodeagent.plan.kubernetes.pod_watch import MAX_PODS, EventKind, PodEvent, compact
from nodeagent.record import replace
from nodeagent.text import escape

if TYPE_CHECKING:
    from nodeagent.kube.api_client import ApiClient
    from nodeagent.kube.api_credentials import ApiCredentials
    from nodeagent.model.api_access import ApiAccess

PODS: Final = "/api/v1/pods"
PAGE_SIZE: Final = 50
MAX_LINE_BYTES: Final = 4 << 20
"""More than an object can have. Source: etcd, request size limit of 1.5 MiB by default."""
IDLE_S: Final = 150.0
"""Time without a change or a bookmark after which the watch is connected again; the server sends one every minute."""
_MAX_MESSAGE: Final = 300
_ERROR: Final = "ERROR"
_EXPIRED: Final = 410
_KINDS: Final = {each.value: each for each in EventKind}


class _ListMeta(msgspec.Struct, frozen=True):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    next_page: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    kind: str = ""
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _ErrorStatus(ApiStatus, frozen=True):
    code: int = 0


class _Event(msgspec.Struct, frozen=True):
    kind: str = msgspec.field(name="type")
    document: msgspec.Raw = msgspec.field(name="object")


class _Meta(msgspec.Struct, frozen=True):
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class PodApi:
    """Requests about the pods bound to one node."""

    def __init__(self, client: ApiClient, node: str) -> None:
        """Take the client for lists, and the name of the node."""
        self._client = client
        self._selector = f"spec.nodeName={node}"

    async def list(self) -> tuple[tuple[PodSpec, ...], str]:
        """Return all pods and the version of the list, which is consistent with every earlier write.

        Raises:
            ApiServerError: as :meth:`ApiClient.send`, also for an expired page (410); or there are too many pods.

        Source: Kubernetes API concepts, retrieving large results in chunks.
        """
        pods: list[PodSpec] = []
        next_page = ""
        while True:
            query = {"fieldSelector": self._selector, "limit": str(PAGE_SIZE)}
            if next_page:
                query["continue"] = next_page
            page = await self._client.send(ApiRequest("GET", f"{PODS}?{urlencode(query)}"), _List)
            if page.kind != "PodList" or not page.metadata.resource_version:
                raise ApiServerUnavailableError(f"API server: GET {PODS}: answer is not a list of pods")
            pods += (_pod(each, f"pod {len(pods) + number}") for number, each in enumerate(page.items or ()))
            if len(pods) > MAX_PODS:
                raise ApiServerUnavailableError(f"API server: GET {PODS}: more than {MAX_PODS} pods of one node")
            if not page.metadata.next_page:
                return tuple(pods), page.metadata.resource_version
            if next_page == page.metadata.next_page:
                raise ApiServerUnavailableError(f"API server: GET {PODS}: the same page again")
            next_page = page.metadata.next_page


class PodWatch:
    """One watch, from a version on."""

    def __init__(self, access: ApiAccess, credentials: ApiCredentials, node: str) -> None:
        """Prepare a watch of the pods of a node."""
        self._stream = ApiStream(access, credentials, idle_s=IDLE_S, max_line_bytes=MAX_LINE_BYTES)
        self._selector = f"spec.nodeName={node}"

    async def open(self, resource_version: str, timeout_s: int) -> None:
        """Start the watch; the server ends it after ``timeout_s``.

        Raises:
            ApiServerError: as :meth:`ApiStream.open`; with status 410 if the version has expired.
        """
        query = {
            "fieldSelector": self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        await self._stream.open(ApiRequest("GET", f"{PODS}?{urlencode(query)}"))

    async def next_event(self) -> PodEvent | None:
        """Return the next change; ``None`` at the end of the watch.

        Raises:
            ApiServerRefusedError: the server reported an error, with status 410 if the version has expired.
            ApiServerUnavailableError: as :meth:`ApiStream.next_line`.
        """
        line = await self._stream.next_line()
        return None if line is None else parse_event(line)

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()


def parse_event(line: bytes) -> PodEvent:
    """Return the change in a line of a watch; one that cannot be read has no kind or no pod.

    Raises:
        ApiServerRefusedError: it is an error of the server, which ends the watch.
    """
    try:
        found = msgspec.json.decode(line, type=_Event)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return PodEvent(None)
    if found.kind == _ERROR:
        raise _watch_error(found.document)
    try:
        version = msgspec.json.decode(found.document, type=_Object).metadata.resource_version
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        version = ""
    kind = _KINDS.get(found.kind)
    if kind is None or kind is EventKind.BOOKMARK:
        return PodEvent(kind if version else None, resource_version=version)
    return PodEvent(kind, _pod(found.document, "watched pod"), version)


def _pod(document: msgspec.Raw, where: str) -> PodSpec:
    """Return the facts of a pod; a malformed one has its readable name and UID, and the error."""
    try:
        found: Any = msgspec.json.decode(document)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return PodSpec("", "", "", malformed=f"{where}: not JSON")
    try:
        version = msgspec.json.decode(document, type=_Object).metadata.resource_version
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        version = ""
    return replace(compact(parse_listed_pod(found, where)), resource_version=version)


def _watch_error(document: msgspec.Raw) -> ApiServerRefusedError:
    """Return the error in an event. Source: Kubernetes ``metav1.Status``; 410 as ``Expired`` or ``Gone``."""
    try:
        found = msgspec.json.decode(document, type=_ErrorStatus)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        found = _ErrorStatus()
    expired = found.code == _EXPIRED or found.reason in ("Expired", "Gone")
    text = escape(found.message)[:_MAX_MESSAGE]
    status = _EXPIRED if expired else found.code
    return ApiServerRefusedError(f"API server: watch {PODS}: {status} {text}", status, found.reason)
