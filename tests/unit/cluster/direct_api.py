"""API client of one node that calls the fake API server without a network, for tests in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from nodeagent.errors import ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.model.kubernetes import Lease, Node
from tests.support.api_server import EVENTS, LEASES, NODES, TOKEN, ApiServer, Received

if TYPE_CHECKING:
    from collections.abc import Mapping

K = TypeVar("K", Node, Lease)


class DirectApi:
    """API client of the node ``node-1``.

    Attributes:
        down: whether all requests fail as with an unavailable API server.
        lost: number of the next writes that take effect without a response to the client.
        refusals: HTTP statuses of the next refused requests, by the end of their path.
        outdated: number of the next changes of metadata or spec that another client precedes with a change of the
            object.
        sent: time in seconds, and method with path, of all requests, including failed requests.
    """

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.down = False
        self.lost = 0
        self.refusals: dict[str, list[int]] = {}
        self.outdated = 0
        self.sent: list[tuple[float, str]] = []

    async def get_node(self) -> Node | None:
        return await self._get(f"{NODES}/node-1", Node)

    async def create_node(self, node: Node) -> Node:
        return self._send("POST", NODES, Node, msgspec.json.encode(node))

    async def patch_node(self, patch: Mapping[str, Any]) -> Node:
        if self.outdated:
            self.outdated -= 1
            self.server.put(NODES, "node-1", self.server.node)
        return self._send("PATCH", f"{NODES}/node-1", Node, msgspec.json.encode(patch))

    async def patch_status(self, patch: Mapping[str, Any]) -> Node:
        return self._send("PATCH", f"{NODES}/node-1/status", Node, msgspec.json.encode(patch))

    async def get_lease(self) -> Lease | None:
        return await self._get(f"{LEASES}/node-1", Lease)

    async def write_lease(self, lease: Lease) -> Lease:
        body = msgspec.json.encode(lease)
        if lease.metadata.resource_version:
            return self._send("PUT", f"{LEASES}/node-1", Lease, body)
        return self._send("POST", LEASES, Lease, body)

    async def create_event(self, body: Mapping[str, Any]) -> None:
        path = EVENTS.replace("default", body["metadata"]["namespace"])
        self._send("POST", path, Node, msgspec.json.encode(body))

    async def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        self._send("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", Node, msgspec.json.encode(patch))

    async def _get(self, path: str, kind: type[K]) -> K | None:
        try:
            return self._send("GET", path, kind)
        except ApiServerRefusedError as error:
            if error.status == 404:
                return None
            raise

    def _send(self, method: str, path: str, kind: type[K], body: bytes = b"") -> K:
        self.sent.append((asyncio.get_running_loop().time(), f"{method} {path}"))
        if self.down:
            raise ApiServerUnavailableError("down")
        refused = next((each for end, each in self.refusals.items() if path.endswith(end) and each), None)
        if refused:
            status = refused.pop(0)
            raise ApiServerRefusedError(f"HTTP {status}", status)
        request = Received(method, path, "", json.loads(body) if body else None, TOKEN, "", "")
        self.server.requests.append(request)
        if self.server.faults:
            fault = self.server.faults.pop(0)
            raise ApiServerRefusedError(f"HTTP {fault.status}", fault.status, retry_after_s=7.0)
        status, answer = self.server.answer(request)
        if status >= 300:
            raise ApiServerRefusedError(f"{status}: {answer['message']}", status, answer["reason"])
        if self.lost and method != "GET":
            self.lost -= 1
            raise ApiServerUnavailableError("no answer")
        return msgspec.convert(json.loads(json.dumps(answer)), kind)

    def times(self, text: str) -> list[float]:
        """Return the times in seconds of the requests with ``text`` in method and path."""
        return [at_s for at_s, request in self.sent if text in request]
