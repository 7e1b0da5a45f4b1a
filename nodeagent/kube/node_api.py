"""API server requests of a node: Node object, node status, Lease and Events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from nodeagent.errors import ApiServerRefusedError
from nodeagent.kube.api_client import STRATEGIC_PATCH, ApiRequest
from nodeagent.model.kubernetes import Lease, Node

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from nodeagent.kube.api_client import ApiClient

K = TypeVar("K", Node, Lease)
NODES: Final = "/api/v1/nodes"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces"
_CONFLICT: Final = 409
_CONFLICT_ATTEMPTS: Final = 5
_MANAGER: Final = "fieldManager=nodeagent"


class NodeApi:
    """API server requests for one node. Every request raises the errors of :meth:`ApiClient.send`."""

    def __init__(self, client: ApiClient, name: str) -> None:
        """Create the requests for the node ``name`` over ``client``."""
        self._client = client
        self._node = name
        self._name = quote(name, safe="")

    async def get_node(self) -> Node | None:
        """Return the Node object; ``None`` if the node is not registered."""
        return await self._get(f"{NODES}/{self._name}", Node)

    async def create_node(self, node: Node) -> Node:
        """Create the Node object; return the stored object."""
        return await self._client.send(ApiRequest("POST", f"{NODES}?{_MANAGER}", msgspec.json.encode(node)), Node)

    async def patch_node(self, patch: Mapping[str, Any], *, dry_run: bool = False) -> Node:
        """Patch the metadata or spec of the Node; return the stored object, in a dry run the object without storage."""
        return await self._patch(f"{NODES}/{self._name}?{_MANAGER}{'&dryRun=All' if dry_run else ''}", patch)

    async def patch_status(self, patch: Mapping[str, Any]) -> Node:
        """Patch the status of the Node; return the stored object."""
        return await self._patch(f"{NODES}/{self._name}/status?{_MANAGER}", patch)

    async def get_lease(self) -> Lease | None:
        """Return the Lease of the node; ``None`` if the Lease does not exist."""
        return await self._get(f"{LEASES}/{self._name}", Lease)

    async def write_lease(self, lease: Lease) -> Lease:
        """Create the Lease, or replace it if ``lease`` has a resource version; return the stored object."""
        body = msgspec.json.encode(lease)
        if lease.metadata.resource_version:
            return await self._client.send(ApiRequest("PUT", f"{LEASES}/{self._name}?{_MANAGER}", body), Lease)
        return await self._client.send(ApiRequest("POST", f"{LEASES}?{_MANAGER}", body), Lease)

    async def create_event(self, body: Mapping[str, Any]) -> None:
        """Create an Event in the namespace of its metadata."""
        target = f"{EVENTS}/{quote(body['metadata']['namespace'], safe='')}/events?{_MANAGER}"
        await self._client.send(ApiRequest("POST", target, msgspec.json.encode(body)), msgspec.Raw)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    async def _patch(self, target: str, patch: Mapping[str, Any]) -> Node:
        body = msgspec.json.encode(patch)
        return await self._client.send(ApiRequest("PATCH", target, body, STRATEGIC_PATCH), Node)

    async def _get(self, target: str, kind: type[K]) -> K | None:
        try:
            return await self._client.send(ApiRequest("GET", target), kind)
        except ApiServerRefusedError as error:
            if error.status == 404:
                return None
            raise


class PatchPlan(Protocol):
    """Changes of the Node object."""

    @property
    def patch(self) -> Mapping[str, Any] | None:
        """Patch with the ``resourceVersion`` of the object that was read; ``None`` without changes."""


P = TypeVar("P", bound=PatchPlan)


async def patch_planned(nodes: NodeApi, plan: P, plan_again: Callable[[], Awaitable[P]]) -> P:
    """Patch the Node object as planned; after a conflict read, plan and patch again. Return the plan of the last patch.

    Raises:
        ApiServerError: a request failed, or the object changed during each of 5 attempts.
    """
    attempts = 1
    while plan.patch is not None:
        try:
            await nodes.patch_node(plan.patch)
            break
        except ApiServerRefusedError as error:
            if error.status != _CONFLICT or attempts == _CONFLICT_ATTEMPTS:
                raise
        attempts += 1
        plan = await plan_again()
    return plan
