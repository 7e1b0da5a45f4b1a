"""Responses of the fake API server to requests of each identity equal those recorded from Kubernetes 1.36."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.support.api_server import LEASES, NODES, TOKEN, ApiServer, Received

RECORDED: Final = json.loads((Path(__file__).parents[2] / "data/kubernetes/api-writes.json").read_text())
OWN_CONDITION: Final = {"status": {"conditions": [{"type": "nodeagent.dev/X", "status": "True"}]}}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "node condition of own type (strategic)": OWN_CONDITION,
    "node condition by server-side apply": OWN_CONDITION,
    "another node's status": OWN_CONDITION,
    "node annotation": {"metadata": {"annotations": {"nodeagent.dev/a": "b"}}},
    "node label own prefix": {"metadata": {"labels": {"nodeagent.dev/a": "b"}}},
    "node label unknown k8s.io": {"metadata": {"labels": {"foo.kubernetes.io/a": "b"}}},
    "node taint": {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
    "node unschedulable": {"spec": {"unschedulable": True}},
    "Lease own name, kube-node-lease": {"metadata": {"name": "nodeagent-node-1"}},
    "Lease node's own": {"spec": {"leaseDurationSeconds": 40}},
}


@pytest.mark.parametrize("fact", RECORDED, ids=lambda fact: f"{fact['identity']}: {fact['what']}")
def test_request_has_the_recorded_answer(fact: dict[str, Any]) -> None:
    server = ApiServer()
    server.node_identity = fact["identity"] == "node"
    server.put(NODES, "node-1", {})
    server.put(LEASES, "node-1", {})
    method, _, target = fact["request"].partition(" ")
    parts = urlsplit(target)
    content = "application/apply-patch+yaml" if "apply" in fact["what"] else ""
    request = Received(method, parts.path, parts.query, BODIES.get(fact["what"]), TOKEN, "", content)
    status, answer = server.answer(request)
    assert status == fact["code"]
    if status >= 400:
        assert answer["message"] == fact["answer"]
