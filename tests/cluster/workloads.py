"""Pod manifests for a real cluster, and pod status from the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.cluster import PODS, RefusedError

if TYPE_CHECKING:
    from tests.support.cluster import Cluster, Document

IMAGE = "registry.test/app:v1"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def container(script: str, *, name: str = "app", image: str = IMAGE, **fields: Any) -> Document:
    """Return the spec of a container that runs a shell script."""
    return {"name": name, "image": image, "imagePullPolicy": "Never", "command": ["sh", "-c", script], **fields}


def pod(name: str, script: str, *, image: str = IMAGE, **spec: Any) -> Document:
    """Return the manifest of a pod on the host network; ``spec`` replaces fields of the pod spec."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "containers": [container(script, image=image)],
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def create(cluster: Cluster, *pods: Document) -> None:
    for each in pods:
        cluster.request("POST", PODS, each)


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.get(f"{PODS}/{name}")["status"].get("phase"))


def has_ended(cluster: Cluster, name: str) -> bool:
    return phase(cluster, name) in ("Succeeded", "Failed")


def logs(cluster: Cluster, name: str, query: str = "") -> str:
    """Return the log of a container; if the request is refused, the HTTP status as text."""
    try:
        return cluster.text("GET", f"{PODS}/{name}/log{query}")
    except RefusedError as error:
        return f"HTTP {error.status}"
