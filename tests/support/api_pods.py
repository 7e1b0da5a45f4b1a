"""Pods of the fake API server: lists in pages, watches with bookmarks, expired resource versions.

Responses have the format of kube-apiserver: an expired version is reported as an ``ERROR`` event with status 410 in an
accepted watch, and as HTTP status 410 for a page.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SELECTOR = "spec.nodeName=node-1"
ALL_PODS_REFUSED = (
    'pods is forbidden: User "system:node:node-1" cannot list resource "pods" in API group "" at the cluster scope: '
    "can only list/watch pods with spec.nodeName field selector"
)
ERROR_STATUS = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}


def pod(name: str, uid: str = "", **fields: Any) -> dict[str, Any]:
    """Return a pod object of ``node-1``; ``fields`` are merged into metadata, spec and status."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"namespace": "default", "name": name, "uid": uid or f"uid-{name}", **fields.get("metadata", {})},
        "spec": {
            "nodeName": "node-1",
            "priority": 0,
            "containers": [{"name": "app", "image": "registry.test/app:v1"}],
            **fields.get("spec", {}),
        },
        "status": {"phase": "Running", "qosClass": "BestEffort", **fields.get("status", {})},
    }


class Pods:
    """Pods of the fake API server and the history of their changes.

    Attributes:
        version: resource version of the latest change.
        oldest: resource version before which the history is lost.
        page_size: maximum number of pods in a page, if it is less than the client's limit.
        held: number of latest changes that watches do not send yet.
        budgets: message of the disruption budget that forbids the eviction of a pod, by pod name.
        last_disruptions: message of a disruption budget that allows one more disruption of a pod, by pod name.
        denied: message of the admission webhook that denies the deletion of a pod, by pod name.
        several_budgets: names of the pods with more than one disruption budget.
        ended: name and grace period in seconds of each evicted or deleted pod, in order.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Any] = {}
        self.history: list[tuple[int, str, Any]] = []
        self.version = 1000
        self.oldest = 0
        self.page_size = 500
        self.held = 0
        self.budgets: dict[str, str] = {}
        self.last_disruptions: dict[str, str] = {}
        self.denied: dict[str, str] = {}
        self.several_budgets: set[str] = set()
        self.ended: list[tuple[str, int]] = []
        self._pages: dict[str, tuple[list[Any], int]] = {}

    def put(self, value: dict[str, Any]) -> None:
        """Create or change a pod and record the change."""
        uid = value["metadata"]["uid"]
        self._record("MODIFIED" if uid in self.pods else "ADDED", value)

    def delete(self, uid: str) -> None:
        """Delete a pod and record the change."""
        self._record("DELETED", self.pods[uid])

    def compact(self) -> None:
        """Drop the history and the pages, so that all versions before the latest change expire."""
        self.oldest, self._pages = self.version, {}

    def end(
        self, namespace: str, name: str, options: dict[str, Any], *, by_eviction: bool
    ) -> tuple[int, dict[str, Any]]:
        """Evict or delete a pod; return HTTP status and response body.

        The pod receives a deletion timestamp, as until its kubelet has ended it; with grace period 0 it is removed
        immediately.

        Error texts are those of kube-apiserver 1.36.
        """
        found = self._named(namespace, name)
        if found is None:
            absent = {"name": name, "kind": "pods"}
            message = f'pods "{name}" not found'
            return 404, {**ERROR_STATUS, "reason": "NotFound", "message": message, "details": absent, "code": 404}
        metadata = found["metadata"]
        if name in self.denied:
            return 403, {**ERROR_STATUS, "reason": "Forbidden", "message": self.denied[name], "code": 403}
        if by_eviction and "deletionTimestamp" not in metadata and (refused := self._disruption(name)) is not None:
            return refused
        for key, what in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            given = options.get("preconditions", {}).get(key, metadata[key])
            if given != metadata[key]:
                about = f"Precondition failed: {what} in precondition: {given}, {what} in object meta: {metadata[key]}"
                message = f'Operation cannot be fulfilled on pods "{name}": {about}'
                return 409, {**ERROR_STATUS, "reason": "Conflict", "message": message, "code": 409}
        ended = found["status"].get("phase") in ("Failed", "Succeeded")
        grace_s = 0 if ended else options["gracePeriodSeconds"]  # source: Kubernetes podStrategy.CheckGracefulDelete
        self.ended.append((name, grace_s))
        if grace_s == 0:
            self.delete(metadata["uid"])
        else:
            ending = {"deletionTimestamp": "2026-11-22T12:00:00Z", "deletionGracePeriodSeconds": grace_s}
            self.put({**found, "metadata": {**metadata, **ending}})
        return (201 if by_eviction else 200), {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def patch_status(
        self, namespace: str, name: str, body: dict[str, Any], merge: Callable[[Any, Any], Any]
    ) -> tuple[int, dict[str, Any]]:
        """Patch the status of a pod by a strategic merge; return HTTP status and response body."""
        found = self._named(namespace, name)
        if found is None:
            return 404, {**ERROR_STATUS, "reason": "NotFound", "message": f'pods "{name}" not found', "code": 404}
        if name in self.denied:
            return 403, {**ERROR_STATUS, "reason": "Forbidden", "message": self.denied[name], "code": 403}
        if body["metadata"]["uid"] != found["metadata"]["uid"]:
            message = f'Operation cannot be fulfilled on pods "{name}": the UID differs'
            return 409, {**ERROR_STATUS, "reason": "Conflict", "message": message, "code": 409}
        changed = {**found, "status": merge(found["status"], body["status"])}
        self.put(changed)
        return 200, changed

    def _named(self, namespace: str, name: str) -> dict[str, Any] | None:
        identity = (namespace, name)
        pods = self.pods.values()
        return next(
            (each for each in pods if (each["metadata"]["namespace"], each["metadata"]["name"]) == identity), None
        )

    def _disruption(self, name: str) -> tuple[int, dict[str, Any]] | None:
        """Use one allowed disruption of a pod's budget; return the refusal, ``None`` if the disruption is allowed.

        The budget is charged before the pod's version is compared, as by kube-apiserver.
        """
        if name in self.several_budgets:
            message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            return 500, {**ERROR_STATUS, "message": message, "code": 500}
        if name in self.budgets:
            cause = {"reason": "DisruptionBudget", "message": self.budgets[name]}
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            refused = {"reason": "TooManyRequests", "message": message, "details": {"causes": [cause]}, "code": 429}
            return 429, {**ERROR_STATUS, **refused}
        if name in self.last_disruptions:
            self.budgets[name] = self.last_disruptions.pop(name)
        return None

    def _record(self, kind: str, value: dict[str, Any]) -> None:
        self.version += 1
        value = copy.deepcopy(value)
        value["metadata"]["resourceVersion"] = str(self.version)
        uid = value["metadata"]["uid"]
        self.pods = {key: each for key, each in self.pods.items() if key != uid}
        if kind != "DELETED":
            self.pods[uid] = value
        self.history.append((self.version, kind, value))

    def page(self, query: str) -> tuple[int, dict[str, Any]]:
        """Return the HTTP status and the body of one page of the pod list."""
        fields = {key: values[0] for key, values in parse_qs(query).items()}
        selector, _, phase = fields.get("fieldSelector", "").partition(",status.phase=")
        if selector != SELECTOR:
            return 403, {**ERROR_STATUS, "reason": "Forbidden", "message": ALL_PODS_REFUSED, "code": 403}
        if "continue" in fields:
            if fields["continue"] not in self._pages:
                return 410, {**ERROR_STATUS, "reason": "Expired", "message": "continue token too old", "code": 410}
            items, version = self._pages[fields["continue"]]
        else:
            of_phase = [each for each in self.pods.values() if phase in ("", each["status"]["phase"])]
            items, version = of_phase, self.version
        size = min(self.page_size, int(fields.get("limit", 500)))
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if len(items) > size:
            metadata["continue"] = f"page-{len(self._pages)}"
            self._pages[metadata["continue"]] = items[size:], version
        return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items[:size]}

    def changes(self, version: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the version and the event of each change after a version; only an error event if it has expired."""
        if version < self.oldest:
            message = f"too old resource version: {version} ({self.oldest})"
            yield (
                version,
                {"type": "ERROR", "object": {**ERROR_STATUS, "reason": "Expired", "message": message, "code": 410}},
            )
            return
        shown = self.history[: len(self.history) - self.held]
        yield from ((at, {"type": kind, "object": value}) for at, kind, value in shown if at > version)

    def bookmark(self, version: int) -> dict[str, Any]:
        """Return a bookmark event of a watch. Source: Kubernetes API concepts, "Watch bookmarks"."""
        metadata = {"resourceVersion": str(version), "creationTimestamp": None}
        return {"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}}
