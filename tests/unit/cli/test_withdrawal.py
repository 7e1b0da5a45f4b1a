"""Removal of the agent's fields from the Node object at uninstallation, over TLS against a fake API server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cli.install import withdraw_from_cluster
from nodeagent.model.kubernetes import Machine
from tests.support.api_server import NODES, TOKEN, ApiServer, Fault, Received, serving_api
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWN = "nodeagent.dev/ImageGCDegraded"
READY = {"type": "Ready", "status": "True"}
TAINTS = [
    {"key": "nodeagent.dev/no-kubelet", "effect": "NoSchedule"},
    {"key": "nodeagent.dev/image-gc-degraded", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
]
LATER = {"key": "example.com/drained", "effect": "NoSchedule"}


class ChangedServer(ApiServer):
    """API server at which another program adds a taint before the first patch of the Node object."""

    changes = 0

    def answer(self, request: Received) -> tuple[int, dict[str, Any]]:
        if request.method == "PATCH" and request.path.endswith("node-1") and self.changes:
            self.changes -= 1
            spec = {**self.node["spec"], "taints": [*TAINTS, LATER]}
            self.put(NODES, "node-1", {**self.node, "spec": spec})
        return super().answer(request)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ChangedServer:
    own = Machine("node-1", machine_id="m", system_uuid="u")
    monkeypatch.setattr("nodeagent.cluster.facts.read_machine", lambda *_: own)
    server = ChangedServer()
    annotations = {"nodeagent.dev/registered": "created", "nodeagent.dev/cordoned": "no-kubelet"}
    status = {"nodeInfo": {"machineID": "m", "systemUUID": "u"}, "conditions": [READY, {"type": OWN, "status": "True"}]}
    server.put(
        NODES,
        "node-1",
        {
            "metadata": {"annotations": annotations},
            "spec": {"taints": TAINTS, "unschedulable": True},
            "status": status,
        },
    )
    return server


@pytest.fixture
def configuration(api: ApiServer, tmp_path: Path) -> Iterator[Path]:
    authority = Authority(tmp_path / "authority")
    authority.issue("server")
    (tmp_path / "token").write_text(TOKEN)
    path = tmp_path / "config.toml"
    with serving_api(api, partial(authority.server_context, "server")) as url:
        path.write_text(
            f'role = "beside-kubelet"\n[kubelet]\nnode_name = "node-1"\n[kubernetes]\nserver = "{url}"\n'
            f'ca_file = "{authority.ca_file}"\ntoken_file = "{tmp_path}/token"\n'
        )
        yield path


def kept(found: list[tuple[str, str]]) -> list[str]:
    return [text for change, text in found if change == "kept"]


def test_own_parts_are_removed_and_those_of_others_are_kept(api: ApiServer, configuration: Path) -> None:
    found = withdraw_from_cluster(configuration)
    node: dict[str, Any] = api.node
    assert node["status"]["conditions"] == [READY]
    assert node["spec"] == {"taints": TAINTS[2:], "unschedulable": True}
    assert node["metadata"]["annotations"] == {}
    (text,) = kept(found)
    assert text.startswith("cordon of Node object node-1")
    assert ("removed", f"condition {OWN} of Node object node-1") in found
    assert withdraw_from_cluster(configuration) == []


def test_missing_rule_is_reported_and_the_uninstallation_continues(api: ApiServer, configuration: Path) -> None:
    api.node_identity = True  # a node identity is not permitted to change taints
    found = withdraw_from_cluster(configuration)
    (text,) = kept(found)
    assert "is not allowed to modify taints" in text
    assert api.node["spec"]["unschedulable"]
    assert ("removed", f"condition {OWN} of Node object node-1") in found
    assert api.node["status"]["conditions"] == [READY]


def test_object_of_another_machine_is_not_changed(api: ApiServer, configuration: Path) -> None:
    api.node["status"]["nodeInfo"]["machineID"] = "other"
    (text,) = kept(withdraw_from_cluster(configuration))
    assert "another machine" in text
    assert {each.method for each in api.requests} == {"GET"}


def test_removal_is_repeated_if_another_program_changes_the_object(api: ChangedServer, configuration: Path) -> None:
    api.changes = 1
    found = withdraw_from_cluster(configuration)
    assert api.node["spec"] == {"taints": [TAINTS[2], LATER], "unschedulable": True}
    assert ("removed", "taint nodeagent.dev/image-gc-degraded:NoSchedule of Node object node-1") in found


def test_absent_object_has_nothing_to_remove(api: ApiServer, configuration: Path) -> None:
    api.objects[NODES].clear()
    assert withdraw_from_cluster(configuration) == []


def test_api_server_that_fails_keeps_everything(api: ApiServer, configuration: Path) -> None:
    api.faults = [Fault(503, "{}")]
    (text,) = kept(withdraw_from_cluster(configuration))
    assert "HTTP 503" in text
    assert api.node["spec"]["taints"] == TAINTS


@pytest.mark.parametrize(("text", "reports"), [("", False), ("dry_run = 7", True), (None, False)])
def test_configuration_without_a_cluster_requests_nothing(tmp_path: Path, text: str | None, reports: bool) -> None:
    path = tmp_path / "config.toml"
    if text is not None:
        path.write_text(text)
    assert bool(withdraw_from_cluster(path)) is reports
