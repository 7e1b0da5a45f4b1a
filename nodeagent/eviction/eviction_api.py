"""Pod eviction, which respects pod disruption budgets, and pod deletion, which does not, at the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from nodeagent.kube.api_client import ApiRequest

if TYPE_CHECKING:
    from nodeagent.kube.api_client import ApiClient


class EvictionApi:
    """Eviction and deletion requests for pods. Every request raises the errors of :meth:`ApiClient.send`."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def evict(self, namespace: str, name: str, uid: str, resource_version: str, grace_s: int) -> None:
        """Evict a pod, provided that its UID and resource version match; an empty version matches every version.

        Source: Kubernetes API-initiated eviction, ``policy/v1``; ``DeleteOptions`` of ``meta/v1``.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _options(uid, resource_version, grace_s),
        }
        await self._send("POST", f"{_path(namespace, name)}/eviction", body)

    async def delete(self, namespace: str, name: str, uid: str, resource_version: str, grace_s: int) -> None:
        """Delete a pod, provided that its UID and resource version match; an empty version matches every version.

        With ``grace_s`` 0 the API server removes the Pod object immediately.
        """
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **_options(uid, resource_version, grace_s)}
        await self._send("DELETE", _path(namespace, name), body)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    async def _send(self, method: str, target: str, body: dict[str, Any]) -> None:
        await self._client.send(ApiRequest(method, target, msgspec.json.encode(body)), msgspec.Raw)


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def _options(uid: str, resource_version: str, grace_s: int) -> dict[str, Any]:
    preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
    return {"gracePeriodSeconds": grace_s, "preconditions": preconditions}
