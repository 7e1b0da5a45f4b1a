"""Fuzz target for responses of the API server: bytes over TLS, input of the client and of registration plans."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from nodeagent.cluster.plan.heartbeat import (
    ReportMemory,
    complete_status,
    is_lease_free,
    renewed_lease,
    sight_lease,
    status_patch,
)
from nodeagent.cluster.plan.registration import RegistrationPolicy, plan_registration
from nodeagent.errors import ApiServerError, ApiServerRefusedError
from nodeagent.kube.api_client import ApiClient, ApiRequest
from nodeagent.kube.api_credentials import ApiCredentials
from nodeagent.model.kubernetes import ApiAccess, Lease, Node, NodeStatus, NodeSystemInfo, ObjectMeta
from nodeagent.pods.plan.watch import WatchState, after_events, after_list
from nodeagent.pods.pod_api import PodApi, PodWatch, parse_event
from nodeagent.text import escape
from tests.fuzz.target import DefectError, Target
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nodeagent.cluster.plan.heartbeat import LeaseSighting

K = TypeVar("K", Node, Lease)
NOW: Final = datetime(2026, 1, 10, 12, tzinfo=UTC)
TOKEN: Final = "token-of-the-agent"
_MAX_BYTES: Final = 8192
_MAX_SHOWN: Final = 1000
_OWN: Final = Node(
    metadata=ObjectMeta(name="node-1", labels={"kubernetes.io/os": "linux"}),
    status=NodeStatus(node_info=NodeSystemInfo(machine_id="5f", system_uuid="A0")),
)
_POLICY: Final = RegistrationPolicy(labels={"pool": "a"}, provider_id="test://1")


class _Server:
    """Server that sends the prepared response to a request, then closes the connection."""

    def __init__(self) -> None:
        self.answer = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.answer)
            await writer.drain()
        writer.close()


class _Answers:
    """Reader that sends requests and processes the responses as the daemon does."""

    def __init__(self, access: ApiAccess, server: _Server) -> None:
        self._access = access
        self._credentials = ApiCredentials(access)
        self._server = server
        self._sighting: LeaseSighting | None = None

    async def read(self, data: bytes) -> bool:
        """Read the response in ``data[1:]``; return whether it is complete and well-formed or a refusal.

        The first byte selects the request: ``L`` for a Lease, ``P`` for a list of pods, ``W`` for a watch, otherwise a
        Node.

        Raises:
            DefectError: the error text is unsuitable, or a malformed change of a watch hides another change.
        """
        self._server.answer = data[1:]
        readers = {b"L": self._read_lease, b"P": self._read_pods, b"W": self._read_watch}
        try:
            return await readers.get(data[:1], self._read_node)()
        except ApiServerError as error:
            text = str(error)
            if len(text) > _MAX_SHOWN or escape(text) != text or TOKEN in text:
                raise DefectError(f"unsuitable error text: {text[:_MAX_SHOWN]!r}") from error
            return isinstance(error, ApiServerRefusedError)

    async def _read_lease(self) -> bool:
        lease = await self._send(Lease)
        self._sighting = sight_lease(self._sighting, lease, 0.0)
        msgspec.json.encode(renewed_lease(lease, _OWN, NOW))
        return True

    async def _read_node(self) -> bool:
        node = await self._send(Node)
        sighting = self._sighting or sight_lease(None, None, 0.0)
        plan = plan_registration(node, _OWN, _POLICY, lease_free=is_lease_free(sighting, 60.0))
        for body in (plan.node, plan.patch, renewed_lease(None, node, NOW)):
            msgspec.json.encode(body)
        msgspec.json.encode(
            status_patch(complete_status(_OWN.status, ReportMemory(node.status)), node.status.addresses)
        )
        return True

    async def _read_pods(self) -> bool:
        client = ApiClient(self._access, self._credentials)
        try:
            pods, version, truncated = await PodApi(client, "node-1").list()
        finally:
            client.close()
        after_list(WatchState(), pods, version, requested_s=0.0, now_s=0.0, now=NOW, truncated=truncated)
        return not any(each.malformed for each in pods)

    async def _read_watch(self) -> bool:
        watch, state, read = PodWatch(self._access, self._credentials, "node-1"), WatchState(), 0
        try:
            await watch.open("7", 60)
            while (event := await watch.next_event()) is not None:
                state = after_events(state, [event], 0.0, NOW)
                read += event.kind is not None
        finally:
            watch.close()
        state = after_events(state, [parse_event(_GOOD_EVENT)], 0.0, NOW)
        if state.pods["u-good"].malformed or state.resource_version != "99":
            raise DefectError("a malformed change hides another one")
        return read > 0

    async def _send(self, kind: type[K]) -> K:
        client = ApiClient(self._access, self._credentials)
        try:
            return await client.send(ApiRequest("GET", "/api/v1/nodes/node-1"), kind)
        finally:
            client.close()


def _answer(status: str, body: object, *headers: str) -> bytes:
    """Return an HTTP response without a content length, so that mutations can change the length of its body."""
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", json.dumps(body))).encode()


_NODE: Final = {
    "kind": "Node",
    "apiVersion": "v1",
    "metadata": {
        "name": "node-1",
        "uid": "u-1",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-10T12:00:00Z",
        "labels": {"a": "b"},
        "annotations": {"nodeagent.dev/registered": "created"},
    },
    "spec": {
        "providerID": "test://1",
        "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-10T12:00:00Z"}],
    },
    "status": {
        "capacity": {"cpu": "2"},
        "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-10T12:00:00Z"}],
        "nodeInfo": {"machineID": "5f", "systemUUID": "a0", "swap": {"capacity": 5}},
        "images": [{"names": ["r/a:1"], "sizeBytes": 5}],
    },
}
_LEASE: Final = {
    "kind": "Lease",
    "metadata": {"name": "node-1", "resourceVersion": "9", "ownerReferences": []},
    "spec": {
        "holderIdentity": "node-1",
        "leaseDurationSeconds": 40,
        "renewTime": "2026-01-10T12:00:00.000000Z",
    },
}
_REFUSAL: Final = {"kind": "Status", "status": "Failure", "reason": "Conflict", "message": "the object was modified"}
_WITHOUT_HEARTBEAT: Final = _NODE | {"metadata": {"name": "node-1"}, "status": {}}
_POD: Final[dict[str, Any]] = {
    "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "resourceVersion": "8", "annotations": {"a": "b"}},
    "spec": {"nodeName": "node-1", "priority": 7, "containers": [{"name": "a", "image": "r/a:1"}]},
    "status": {"phase": "Running", "qosClass": "BestEffort"},
}
_EVENTS: Final = (
    {"type": "ADDED", "object": _POD},
    {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "9"}}},
    {"type": "DELETED", "object": _POD},
)
_GONE: Final = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
_GOOD_EVENT: Final = json.dumps(
    {"type": "MODIFIED", "object": {**_POD, "metadata": {"uid": "u-good", "name": "g", "resourceVersion": "99"}}}
).encode()
_PODS: Final = {"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": [_POD]}
_SEEDS: Final = (
    b"P" + _answer("200 OK", _PODS),
    b"W" + _answer("200 OK", _EVENTS[0]) + b"".join(b"\n" + json.dumps(each).encode() for each in _EVENTS) + b"\n",
    b"W" + _answer("200 OK", _GONE) + b"\n",
    b"N" + _answer("200 OK", _NODE),
    b"N" + _answer("200 OK", _WITHOUT_HEARTBEAT),
    b"L" + _answer("200 OK", _LEASE),
    b"N" + _answer("409 Conflict", _REFUSAL),
    b"L" + _answer("429 Too Many Requests", _REFUSAL, "Retry-After: 5"),
    b"LHTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    b'NHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{"kind": "Node",\r\nb\r\n"spec": {}}\r\n0\r\n\r\n',
    b"LHTTP/1.1 100 Continue\r\n\r\n" + _answer("200 OK", _LEASE),
)


@contextmanager
def api_server_target(directory: Path, runner: asyncio.Runner) -> Iterator[Target]:
    """Return the fuzz target, with a separate server that has its certificates in ``directory``."""
    authority = Authority(directory)
    authority.issue("server")
    (directory / "token").write_text(TOKEN)
    server, context = _Server(), authority.server_context("server")
    listener = runner.run(asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context))
    access = ApiAccess(
        url=f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}",
        ca_file=authority.ca_file,
        token_file=directory / "token",
        timeout_s=30,
        max_bytes=_MAX_BYTES,
    )
    answers = _Answers(access, server)
    yield Target(lambda data: runner.run(answers.read(data)), _SEEDS)
    listener.close()
