"""Pods of one node from the API server: a paged list, and a watch of changes.

Only the :class:`PodSpec` fields of each object are kept in memory, because a Pod object can exceed a megabyte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from nodeagent.errors import ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.kube.api_client import FIELD_MANAGER, STRATEGIC_PATCH, ApiClient, ApiRequest, ApiStatus, ApiStream
from nodeagent.kube.podspec import parse_listed_pod
from nodeagent.model.pods import ENDED, PodSpec
from nodeagent.pods.plan.watch import MAX_ENDED, MAX_PODS, EventKind, PodEvent, compact
from nodeagent.record import replace
from nodeagent.text import escape

if TYPE_CHECKING:
    from nodeagent.kube.api_credentials import ApiCredentials
    from nodeagent.model.kubernetes import ApiAccess

T = TypeVar("T")

PODS: Final = "/api/v1/pods"
PAGE_SIZE: Final = 50
MAX_LISTED: Final = 100_000
MAX_LINE_BYTES: Final = 4 << 20
"""Maximum length of a watch line, above the size of any object. Source: etcd, default request limit of 1.5 MiB."""
IDLE_S: Final = 150.0
"""Seconds without an event after which the watch is reopened; the API server sends a bookmark every minute."""
_MAX_MESSAGE: Final = 300
_ERROR: Final = "ERROR"
_EXPIRED: Final = 410
_NOT_A_LIST: Final = f"API server: GET {PODS}: answer is not a list of pods"
_KINDS: Final = {each.value: each for each in EventKind}


class _ListMeta(msgspec.Struct, frozen=True):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    next_page: str = msgspec.field(default="", name="continue")


class PodPage(msgspec.Struct, frozen=True):
    """One page of a list of pods; the pods are not decoded."""

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


async def list_page(client: ApiClient, selector: str, next_page: str) -> tuple[PodPage, Mapping[str, str]]:
    """Return one page of the pods of a field selector, the first for an empty token, and the headers of the answer.

    Raises:
        ApiServerError: as :meth:`ApiClient.send`.
    """
    query = {"fieldSelector": selector, "limit": str(PAGE_SIZE)}
    if next_page:
        query["continue"] = next_page
    page, headers = await client.send_with_headers(ApiRequest("GET", f"{PODS}?{urlencode(query)}"), PodPage)
    if page.kind != "PodList":
        raise ApiServerUnavailableError(_NOT_A_LIST)
    return page, headers


def decode_object(document: bytes | msgspec.Raw, kind: type[T]) -> T | None:
    """Return an object of the API server; ``None`` for a malformed one."""
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


class PodApi:
    """List requests for the pods bound to one node."""

    def __init__(self, client: ApiClient, node: str) -> None:
        """Create the requests for the pods of ``node`` over ``client``."""
        self._client = client
        self._selector = f"spec.nodeName={node}"

    async def list(self) -> tuple[tuple[PodSpec, ...], str, bool]:
        """Return the pods of the node, the resource version of the list, and whether pods are omitted.

        The list includes every earlier write. Pods beyond ``MAX_PODS`` and ``MAX_ENDED`` are omitted, and all pods
        after ``MAX_LISTED``.

        Raises:
            ApiServerError: as :meth:`ApiClient.send`, with status 410 after the expiry of a continue token.

        Source: Kubernetes API concepts, retrieving large results in chunks.
        """
        pods: list[PodSpec] = []
        left = {False: MAX_PODS, True: MAX_ENDED}
        read = 0
        next_page = ""
        while True:
            page, _ = await list_page(self._client, self._selector, next_page)
            if not page.metadata.resource_version:
                raise ApiServerUnavailableError(_NOT_A_LIST)
            for document in page.items or ():
                pod = _pod(document, f"pod {read}")
                read += 1
                if left[pod.phase in ENDED]:
                    left[pod.phase in ENDED] -= 1
                    pods.append(pod)
            if not page.metadata.next_page or read >= MAX_LISTED:
                return tuple(pods), page.metadata.resource_version, len(pods) < read or bool(page.metadata.next_page)
            if next_page == page.metadata.next_page:
                raise ApiServerUnavailableError(f"API server: GET {PODS}: continue token repeated")
            next_page = page.metadata.next_page


async def patch_pod_status(client: ApiClient, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
    """Patch the status of a pod.

    Raises:
        ApiServerError: as :meth:`ApiClient.send`, with status 409 for a pod with another UID than in ``patch``.
    """
    target = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}/status?{FIELD_MANAGER}"
    await client.send(ApiRequest("PATCH", target, msgspec.json.encode(patch), STRATEGIC_PATCH), msgspec.Raw)


class PodWatch:
    """One watch of the pods of a node, from a resource version."""

    def __init__(self, access: ApiAccess, credentials: ApiCredentials, node: str) -> None:
        """Prepare a watch of the pods of ``node``; :meth:`open` connects."""
        self._stream = ApiStream(access, credentials, idle_s=IDLE_S, max_line_bytes=MAX_LINE_BYTES)
        self._selector = f"spec.nodeName={node}"

    async def open(self, resource_version: str, timeout_s: int) -> None:
        """Start the watch; the API server ends the watch after ``timeout_s`` seconds.

        Raises:
            ApiServerError: as :meth:`ApiStream.open`, with status 410 if the resource version has expired.
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
            ApiServerRefusedError: the server reported an error, with status 410 if the resource version has expired.
            ApiServerUnavailableError: as :meth:`ApiStream.next_line`.
        """
        line = await self._stream.next_line()
        return None if line is None else parse_event(line)

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()


def parse_event(line: bytes) -> PodEvent:
    """Return the event in a line of a watch; ``kind`` is ``None`` for a malformed event or an unknown type.

    Raises:
        ApiServerRefusedError: the event is an ``ERROR`` event, which ends the watch.
    """
    found = decode_object(line, _Event)
    if found is None:
        return PodEvent(None)
    if found.kind == _ERROR:
        raise _watch_error(found.document)
    version = _version(found.document)
    kind = _KINDS.get(found.kind)
    if kind is None or kind is EventKind.BOOKMARK:
        return PodEvent(kind if version else None, resource_version=version)
    return PodEvent(kind, _pod(found.document, "watched pod"), version)


def _pod(document: msgspec.Raw, where: str) -> PodSpec:
    """Return the pod spec of a Pod object; a malformed pod has the readable name and UID, and the error."""
    try:
        found: Any = msgspec.json.decode(document)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return PodSpec("", "", "", malformed=f"{where}: not JSON")
    return replace(compact(parse_listed_pod(found, where)), resource_version=_version(document))


def _version(document: msgspec.Raw) -> str:
    return (decode_object(document, _Object) or _Object()).metadata.resource_version


def _watch_error(document: msgspec.Raw) -> ApiServerRefusedError:
    """Return the error of an ``ERROR`` event, with status 410 for the reasons ``Expired`` and ``Gone``.

    Source: Kubernetes ``metav1.Status``.
    """
    found = decode_object(document, _ErrorStatus) or _ErrorStatus()
    expired = found.code == _EXPIRED or found.reason in ("Expired", "Gone")
    text = escape(found.message)[:_MAX_MESSAGE]
    status = _EXPIRED if expired else found.code
    return ApiServerRefusedError(f"API server: watch {PODS}: {status} {text}", status, found.reason)
