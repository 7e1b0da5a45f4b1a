"""Check of the API server access: wrong CA, expired certificate, missing RBAC rules, and no side effects."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from hypothesis import given, strategies as st

from nodeagent.cli.doctor import cluster_findings
from nodeagent.cluster.plan.rules import RULES, SETTINGS, access_reviews, role_documents, rules_for
from nodeagent.doctor.api_access import read_api_access, read_pod_access
from nodeagent.doctor.plan.node import Finding, Grade, check_api_access, check_pod_access
from nodeagent.kube.certificate import expiry
from nodeagent.model.kubernetes import ApiAccess, Machine
from nodeagent.settings.loading import load
from tests.support.api_pods import pod
from tests.support.api_server import NODES, TOKEN, ApiServer, serving_api
from tests.support.certificates import Authority
from tests.support.command import nodeagent

if TYPE_CHECKING:
    from collections.abc import Callable


OWN: Final = {"status": {"nodeInfo": {"machineID": "m", "systemUUID": "u"}}}
OTHER: Final = {"status": {"nodeInfo": {"machineID": "other", "systemUUID": "u"}}}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    found = Authority(tmp_path_factory.mktemp("authority"))
    found.issue("server")
    found.issue("client", "/CN=system:node:node-1")
    found.issue("old", "/CN=system:node:node-1", days=-1)
    return found


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Machine("node-1", machine_id="m", system_uuid="u")
    monkeypatch.setattr("nodeagent.cluster.facts.read_machine", lambda *_: own)


async def finding(
    authority: Authority,
    tmp_path: Path,
    prepare: Callable[[ApiServer], object],
    ca: Path | None = None,
    client: str = "",
    *,
    settings: tuple[str, ...] = ("register_node",),
) -> tuple[Finding, ApiServer]:
    server = ApiServer()
    prepare(server)
    (tmp_path / "token").write_text("token-of-the-agent")
    own = authority.directory
    with serving_api(server, partial(authority.server_context, "server", clients=True)) as url:
        access = ApiAccess(
            url=url,
            ca_file=ca or authority.ca_file,
            token_file=None if client else tmp_path / "token",
            certificate_file=own / f"{client}.crt" if client else None,
            key_file=own / f"{client}.key" if client else None,
        )
        facts = await read_api_access(access, "node-1", settings)
    found = check_api_access(
        facts.error,
        facts.missing,
        facts.expires_at,
        foreign=facts.foreign,
        has_node=facts.has_node,
        now=datetime.now(UTC),
    )
    return found, server


async def test_complete_access_is_ok_and_nothing_is_changed(authority: Authority, tmp_path: Path) -> None:
    def register(server: ApiServer) -> None:
        server.put(NODES, "node-1", OWN)

    found, server = await finding(authority, tmp_path, register)
    assert found.verdict is Grade.OK
    assert "the Node object is of this machine" in found.evidence
    assert {each.path.rpartition("/")[2] for each in server.requests if each.method != "GET"} == {
        "selfsubjectaccessreviews"
    }


@pytest.mark.parametrize(
    ("node", "verdict", "words"),
    [
        (None, Grade.OK, "there is no Node object with this name"),
        (OTHER, Grade.PROBLEM, "the Node object is of another machine"),
        ({}, Grade.PROBLEM, "the Node object has no ids of its machine"),
    ],
)
async def test_node_object_that_is_not_of_this_machine_is_not_called_registered(
    authority: Authority, tmp_path: Path, node: dict[str, Any] | None, verdict: Grade, words: str
) -> None:
    found, _ = await finding(authority, tmp_path, lambda server: node is None or server.put(NODES, "node-1", node))
    assert found.verdict is verdict
    assert words in found.evidence


async def test_wrong_ca_is_named(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other").ca_file
    found, _ = await finding(authority, tmp_path, lambda _: None, other)
    assert found.verdict is Grade.PROBLEM
    assert "server certificate not trusted" in found.evidence
    assert "ca_file" in found.fix


async def test_missing_rules_are_named(authority: Authority, tmp_path: Path) -> None:
    def deny(server: ApiServer) -> None:
        server.denied = {("PATCH", "nodes/status"), ("PUT", "leases"), ("GET", "nodes")}

    found, _ = await finding(authority, tmp_path, deny)
    assert found.verdict is Grade.PROBLEM
    for rule in ("get nodes", "patch nodes/status", "update leases in kube-node-lease"):
        assert rule in found.evidence
    assert "patch nodes," not in found.evidence


@pytest.mark.parametrize(
    ("in_pod", "fix"),
    [
        (False, "nodeagent manifest rbac --watch-pods --evict-pods | kubectl apply -f -"),
        (True, "nodeagent manifest daemonset"),
    ],
)
def test_fix_of_a_missing_rule_is_the_manifest_of_the_identity(*, in_pod: bool, fix: str) -> None:
    used = ("watch_pods", "evict_pods")
    found = check_api_access(
        "", ("get nodes",), None, foreign="", has_node=True, now=datetime.now(UTC), options=used, in_pod=in_pod
    )
    assert fix in found.fix


@pytest.mark.parametrize(("node_identity", "verdict"), [(False, Grade.OK), (True, Grade.PROBLEM)])
async def test_taints_are_tried_without_a_change_and_their_refusal_to_a_node_certificate_is_named(
    authority: Authority, tmp_path: Path, *, node_identity: bool, verdict: Grade
) -> None:
    def register(server: ApiServer) -> None:
        server.node_identity = node_identity
        server.put(NODES, "node-1", {**OWN, "spec": {"taints": [{"key": "example.com/a", "effect": "NoSchedule"}]}})

    found, server = await finding(authority, tmp_path, register, settings=("condition_taints",))
    assert found.verdict is verdict
    assert ("patch nodes with taints (not permitted to node certificates" in found.evidence) is node_identity
    (trial,) = server.seen("PATCH")
    assert "dryRun=All" in trial.query
    assert server.node["spec"] == {"taints": [{"key": "example.com/a", "effect": "NoSchedule"}]}


async def test_refused_token_is_named(authority: Authority, tmp_path: Path) -> None:
    def renew(server: ApiServer) -> None:
        server.token = "other"

    found, _ = await finding(authority, tmp_path, renew)
    assert "HTTP 401" in found.evidence
    assert found.fix == "renew the token or certificate of the agent"


async def test_expired_client_certificate_is_named_with_its_date(authority: Authority, tmp_path: Path) -> None:
    found, _ = await finding(authority, tmp_path, lambda _: None, client="old")
    assert found.verdict is Grade.PROBLEM
    assert found.evidence.startswith("the client certificate expired at 20")
    soon, _ = await finding(authority, tmp_path, lambda _: None, client="client")
    assert soon.verdict is Grade.WARNING
    assert soon.evidence.startswith("the client certificate expires at 20")


def test_end_of_validity_is_read(authority: Authority) -> None:
    found = expiry((authority.directory / "client.crt").read_bytes())
    assert found is not None
    command = ("openssl", "x509", "-in", "client.crt", "-noout", "-enddate")
    printed = subprocess.run(command, cwd=authority.directory, check=True, capture_output=True, text=True).stdout
    assert printed.strip() == f"notAfter={found:%b %e %H:%M:%S %Y} GMT"


@given(st.binary(max_size=200))
def test_malformed_certificate_has_no_date(data: bytes) -> None:
    import base64  # noqa: PLC0415 - used only in this test

    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(data) + b"\n-----END CERTIFICATE-----\n"
    assert expiry(data) is None
    assert expiry(pem) is None


SELECTED: Final = [*((each,) for each in SETTINGS), ("watch_pods", "delete_failed_after"), SETTINGS]
GRANTED: Final = {
    "register_node": {
        *("get nodes", "create nodes", "patch nodes", "patch nodes/status", "create events in default"),
        *(f"{verb} leases in kube-node-lease" for verb in ("get", "update", "create")),
    },
    "watch_pods": {"get nodes", "list pods", "watch pods"},
    "publish_conditions": {"get nodes", "patch nodes/status"},
    "condition_taints": {"get nodes", "patch nodes"},
    "publish_events": {"get nodes", "create events"},
    "publish_pod_status": {"get nodes", "patch pods/status"},
    "evict_pods": {"get nodes", "create pods/eviction"},
    "override_disruption_budgets": {"get nodes", "delete pods"},
    "delete_failed_after": {"get nodes", "list pods", "delete pods"},
}
"""Permissions that the requests of each setting need."""


@pytest.mark.parametrize("settings", SELECTED, ids="+".join)
def test_manifest_grants_exactly_the_permissions_of_the_settings_once_with_their_purposes(
    settings: tuple[str, ...],
) -> None:
    options = [f"--{each.replace('_', '-')}" for each in settings]
    printed = nodeagent("manifest", "rbac", "--node", "node-1", *options).stdout
    documents = list(yaml.safe_load_all(printed))
    assert documents == list(role_documents(settings, ["node-1"]))
    granted = [
        (f"{verb} {resource}{' in ' if namespace else ''}{namespace}", rule.get("resourceNames"))
        for document in documents
        for namespace in [document["metadata"].get("namespace", "")]
        for rule in document.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    expected = set().union(*(GRANTED[each] for each in settings))
    if "create events" in expected:
        expected.discard("create events in default")  # granted in all namespaces
    assert sorted(each for each, _ in granted) == sorted(expected)
    for text, names in granted:
        limited = not text.startswith("create") and text.split()[1].startswith(("nodes", "leases"))
        assert names == (["node-1"] if limited else None), text
    reviewed = {rule.text(verb): body for rule, verb, body in access_reviews("node-1", settings)}
    assert reviewed.keys() == expected
    assert all(f": {rule.purpose}\n" in printed for rule in rules_for(settings))


def test_api_server_that_no_setting_uses_is_not_asked(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[kubernetes]\nserver = "https://127.0.0.1:9"\ntoken_file = "/nonexistent/token"\n')
    (found,) = cluster_findings(load(config, {}, {}).config.settings())
    assert (found.verdict, found.evidence.startswith("no setting uses the API server")) == (Grade.SKIPPED, True)


def test_rule_is_limited_to_the_nodes_in_the_manifest_as_in_its_review() -> None:
    for rule, verb, body in access_reviews("node-1", SETTINGS):
        attributes = body["spec"]["resourceAttributes"]
        assert ("name" in attributes) == rule.of_node
        assert ("fieldSelector" in attributes) == (verb in ("list", "watch"))


def test_manifest_without_a_setting_is_refused_with_the_options() -> None:
    ended = nodeagent("manifest", "rbac")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert all(f"--{each.replace('_', '-')}" in ended.stderr for each in SETTINGS)


def test_document_lists_every_rule_with_its_settings_purpose_and_risk() -> None:
    text = (Path(__file__).parents[3] / "nodeagent/docs/kubernetes.md").read_text()
    rows = re.findall(
        r"^\| ((?:get|create|patch|update|list|delete)[^|]*) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE
    )
    assert [(each.replace("`", ""), names.replace("`", ""), *rest) for each, names, *rest in rows] == [
        (
            rule.text(", ".join(rule.verbs)),
            "all" if rule.settings == SETTINGS else ", ".join(rule.settings),
            rule.purpose,
            rule.risk,
        )
        for rule in RULES
    ]


@pytest.mark.parametrize(
    ("machine_id", "own_id", "words", "fix"),
    [
        ("m", "m", "1 pods of this node, whose ids match", ""),
        ("other", "m", "the Node object is of another machine: its machine id is other", "kubelet.node_name"),
        (None, "m", "there is no Node object with this name", "if it was deleted"),
        ("m", "", "the machine id of this machine is unknown", "mount it read-only"),
        ("", "m", "the Node object has no ids", "wait until the kubelet"),
    ],
)
async def test_pods_are_listed_and_the_node_object_compared_with_this_machine(
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    machine_id: str | None,
    own_id: str,
    words: str,
    fix: str,
) -> None:
    own = Machine("node-1", machine_id=own_id, system_uuid="u")
    monkeypatch.setattr("nodeagent.cluster.facts.read_machine", lambda *_: own)
    server = ApiServer()
    server.pods.put(pod("a"))
    if machine_id is not None:
        server.put(NODES, "node-1", {"status": {"nodeInfo": {"machineID": machine_id, "systemUUID": "u"}}})
    (tmp_path / "token").write_text(TOKEN)
    with serving_api(server, partial(authority.server_context, "server")) as url:
        access = ApiAccess(url=url, ca_file=authority.ca_file, token_file=tmp_path / "token")
        found = check_pod_access(*await read_pod_access(access, "node-1"))
    assert found.verdict is (Grade.PROBLEM if fix else Grade.OK)
    assert words in found.evidence
    assert fix in found.fix
