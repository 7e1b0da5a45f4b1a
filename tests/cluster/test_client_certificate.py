"""TLS bootstrap at a real API server: from a bootstrap token to a renewed certificate, and each refusal on the way.

Approver and signer are the controller manager's, with the documented role bindings, or the tests themselves.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from nodeagent.cluster.plan.client_certificate import RENEWAL_SHARE
from tests.support.cluster import LEASE, NODES
from tests.support.cluster_node import NAME
from tests.support.command import ROOT
from tests.support.signer import issue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster import Cluster, Document

REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
BINDINGS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
TOKEN_SECRET: Final = "0123456789abcdef"
NODE_USER: Final = f"system:node:{NAME}"
VALIDITY: Final = "2m30s"
"""Shortest validity in which the agent does not renew at once: the signer sets its start 5 minutes back."""
RENEWED_S: Final = 200.0
POLLED_S: Final = 90.0
"""Upper bound of the time between two readings of a request, plus the time of a reading."""
LEASE_INTERVAL_S: Final = 12.4
CREDENTIAL: Final = "authentication.kubernetes.io/credential-id"


@pytest.fixture
def token(cluster: Cluster, agent: ClusterAgent) -> Iterator[str]:
    """Create the documented role bindings and a token, and return its id; remove all objects of the test afterwards.

    Each test has its own token, since the API server accepts a deleted one for another 10 s.
    """
    made = os.urandom(3).hex()
    for document in bindings():
        cluster.apply(f"{BINDINGS}/{document['metadata']['name']}", document)
    create_token(cluster, made)
    access = f'server = "https://127.0.0.1:6443"\nca_file = "{cluster.authority.ca_file}"\n'
    agent.configure(f'register_node = true\n{access}bootstrap_token_file = "{token_file(cluster)}"')
    yield made
    agent.stop()
    for path in (secret(made), LEASE, f"{NODES}/{NAME}"):  # the control plane deletes the Lease of a deleted node
        if cluster.exists(path):
            cluster.request("DELETE", path)
    cluster.request("DELETE", REQUESTS)


def bindings() -> list[Document]:
    """Return the role bindings of the documentation."""
    text = (ROOT / "nodeagent/docs/kubernetes.md").read_text()
    (block,) = [each for each in text.split("```") if each.startswith("yaml\n") and "system:node-bootstrapper" in each]
    return list(yaml.safe_load_all(block.removeprefix("yaml\n")))


def secret(token: str) -> str:
    """Return the path of the Secret of a token, given by its id."""
    return f"{SECRETS}/bootstrap-token-{token}"


def user(token: str) -> str:
    """Return the user of a token."""
    return f"system:bootstrap:{token}"


def create_token(cluster: Cluster, token: str, **fields: str) -> None:
    """Store a bootstrap token, with further ``fields`` of its Secret, and write the token to the agent's file."""
    data = {"token-id": token, "token-secret": TOKEN_SECRET, "usage-bootstrap-authentication": "true", **fields}
    metadata = {"name": secret(token).rpartition("/")[2]}
    cluster.request(
        "POST", SECRETS, {"metadata": metadata, "type": "bootstrap.kubernetes.io/token", "stringData": data}
    )
    token_file(cluster).touch(mode=0o600)
    token_file(cluster).write_text(f"{token}.{TOKEN_SECRET}\n")


def token_file(cluster: Cluster) -> Path:
    return cluster.node.base / "bootstrap-token"


def certificate(agent: ClusterAgent) -> Path:
    return agent.state / "api-client.pem"


@pytest.fixture
def _signer(cluster: Cluster) -> Iterator[None]:
    """Run the controllers that approve and sign requests, and remove expired tokens."""
    cluster.start_controllers(
        "--controllers=*,bootstrapsigner,tokencleaner",
        f"--cluster-signing-cert-file={cluster.authority.ca_file}",
        f"--cluster-signing-key-file={cluster.file('ca.key')}",
        f"--cluster-signing-duration={VALIDITY}",
    )
    yield
    for each in ("kube-controller-manager", "kube-scheduler"):
        cluster.node.stop(each)


def waiting(cluster: Cluster) -> Document:
    """Return the only request without a decision."""
    (found,) = [each for each in cluster.items(REQUESTS) if not each["status"].get("conditions")]
    return found


def decide(cluster: Cluster, kind: str, message: str) -> Document:
    """Decide the waiting request as an approver; return it."""
    found = waiting(cluster)
    found["status"] = {"conditions": [{"type": kind, "status": "True", "reason": "ByTest", "message": message}]}
    return cluster.request("PUT", f"{REQUESTS}/{found['metadata']['name']}/approval", found)


def sign(cluster: Cluster, *, node: str = NAME, after_s: float = 3600) -> None:
    """Approve and sign the waiting request for a node."""
    found = decide(cluster, "Approved", "")
    csr = x509.load_pem_x509_csr(base64.b64decode(found["spec"]["request"]))
    pem = issue(cluster.authority, csr, node=node, before_s=0, after_s=after_s)
    found["status"]["certificate"] = base64.b64encode(pem).decode()
    cluster.request("PUT", f"{REQUESTS}/{found['metadata']['name']}/status", found)


def finding(agent: ClusterAgent) -> Document:
    """Return the finding of ``doctor`` on the client certificate."""
    findings = json.loads(agent.command("doctor", "--output", "json"))["findings"]
    (found,) = [each for each in findings if each["check"] == "kubernetes-certificate"]
    return dict(found)


def task(agent: ClusterAgent, name: str) -> str:
    """Return the status of a task of the daemon as text."""
    loops = json.loads(agent.command("status", "--output", "json"))["loops"]
    return json.dumps([each for each in loops if each["name"] == name])


def has_finding(agent: ClusterAgent, *words: str) -> bool:
    evidence = finding(agent)["evidence"]
    return all(each in evidence for each in words)


def requested(cluster: Cluster, since: int) -> list[tuple[str, str]]:
    """Return user and name of each request that the agent has created, from the audit log."""
    return [
        (each["user"]["username"], each["objectRef"].get("name", ""))
        for each in agent_entries(cluster, since)
        if each["verb"] == "create" and each["objectRef"]["resource"] == "certificatesigningrequests"
        if each["responseStatus"]["code"] == 201
    ]


def agent_entries(cluster: Cluster, since: int) -> list[Document]:
    return [
        each
        for each in cluster.audit()[since:]
        if each.get("userAgent", "").startswith("nodeagent/") and "objectRef" in each
    ]


def renewals(cluster: Cluster, since: int) -> list[tuple[str, datetime]]:
    """Return credential and time of each write of the Lease."""
    return [
        (credential(each["user"]), datetime.fromisoformat(each["requestReceivedTimestamp"]))
        for each in agent_entries(cluster, since)
        if each["objectRef"]["resource"] == "leases" and each["verb"] in ("create", "update")
    ]


def credential(user: dict[str, Any]) -> str:
    (found,) = user.get("extra", {}).get(CREDENTIAL, ["none"])
    return str(found)


def credential_of(pem: bytes) -> str:
    """Return the credential id of a certificate in the audit log. Source: API server, X.509 authentication."""
    return f"X509SHA256={x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()}"


def is_registered(cluster: Cluster) -> bool:
    return cluster.is_node_ready() and cluster.exists(LEASE)


@pytest.mark.usefixtures("_signer")
def test_token_becomes_a_certificate_and_the_old_one_is_used_until_the_renewed_one_works(
    cluster: Cluster, agent: ClusterAgent, token: str
) -> None:
    since = len(cluster.audit())
    agent.start()
    agent.wait("the node is registered", lambda: is_registered(cluster), timeout_s=POLLED_S)
    first = certificate(agent).read_bytes()
    assert stat.S_IMODE(certificate(agent).stat().st_mode) == 0o600
    assert b"PRIVATE KEY" in first
    found = finding(agent)
    assert (found["verdict"], "renewed from" in found["evidence"]) == ("ok", True), found
    token_file(cluster).unlink()

    agent.wait("the certificate is renewed", lambda: certificate(agent).read_bytes() != first, timeout_s=RENEWED_S)
    second = certificate(agent).read_bytes()
    assert stat.S_IMODE(certificate(agent).stat().st_mode) == 0o600
    used = [credential_of(first), credential_of(second)]
    agent.wait("the Lease is renewed with it", lambda: renewals(cluster, since)[-1][0] == used[-1])
    renewed = renewals(cluster, since)
    assert [key for key, _ in groupby(key for key, _ in renewed)] == used
    gaps = [(b - a).total_seconds() for (_, a), (_, b) in pairwise(renewed)]
    assert max(gaps) <= LEASE_INTERVAL_S, gaps
    assert [user for user, _ in requested(cluster, since)] == [user(token), NODE_USER]
    assert not [each for each in agent_entries(cluster, since) if each["responseStatus"]["code"] in (401, 403)]
    shares = renewal_share(cluster, first, since)
    assert RENEWAL_SHARE[0] <= shares <= RENEWAL_SHARE[1], shares
    print(
        f"renewed after {shares:.1%} of the validity; {len(renewed)} writes of the Lease, at most {max(gaps)} s apart"
    )


def renewal_share(cluster: Cluster, pem: bytes, since: int) -> float:
    """Return the share of the validity of a certificate after which its renewal was requested."""
    of = x509.load_pem_x509_certificate(pem)
    (at,) = [
        datetime.fromisoformat(each["requestReceivedTimestamp"])
        for each in agent_entries(cluster, since)
        if (each["user"]["username"], each["verb"]) == (NODE_USER, "create")
        and each["objectRef"]["resource"] == "certificatesigningrequests"
    ]
    return (at - of.not_valid_before_utc) / (of.not_valid_after_utc - of.not_valid_before_utc)


def test_request_is_pending_until_an_approver_comes_an_hour_later(
    cluster: Cluster, agent: ClusterAgent, token: str
) -> None:
    since = len(cluster.audit())
    agent.start()
    agent.wait("the request is pending", lambda: has_finding(agent, "no client certificate", "pending"))
    name = waiting(cluster)["metadata"]["name"]
    assert f"kubectl certificate approve {name}" in finding(agent)["fix"]
    assert "pending" in task(agent, "client-certificate")
    assert "no client certificate yet" in task(agent, "kubernetes")
    agent.stop()
    stored = agent.state / "api-client-request.json"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    request = json.loads(stored.read_text())
    earlier = datetime.fromisoformat(request["requested_at"]) - timedelta(hours=1)
    stored.write_text(json.dumps({**request, "requested_at": earlier.isoformat()}))
    agent.start()
    agent.wait("it is still pending", lambda: "pending" in task(agent, "client-certificate"))
    sign(cluster)
    agent.wait("the node is registered", lambda: is_registered(cluster), timeout_s=POLLED_S)
    assert requested(cluster, since) == [(user(token), name)]
    assert finding(agent)["verdict"] == "ok"


def test_denied_request_is_kept_until_its_deletion(cluster: Cluster, agent: ClusterAgent, token: str) -> None:
    since = len(cluster.audit())
    agent.start()
    agent.wait("a request exists", lambda: bool(cluster.items(REQUESTS)))
    name = decide(cluster, "Denied", "not a machine of this cluster")["metadata"]["name"]
    agent.wait("the denial is reported", lambda: has_finding(agent, "denied: ByTest: not a machine of this cluster"))
    assert f"kubectl delete csr {name}" in finding(agent)["fix"]
    assert "denied" in task(agent, "client-certificate")
    assert requested(cluster, since) == [(user(token), name)]
    cluster.request("DELETE", f"{REQUESTS}/{name}")
    agent.wait("another request exists", lambda: bool(waiting_names(cluster) - {name}), timeout_s=2 * POLLED_S)
    sign(cluster)
    agent.wait("the node is registered", lambda: is_registered(cluster), timeout_s=POLLED_S)


def waiting_names(cluster: Cluster) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.items(REQUESTS) if not each["status"].get("conditions")}


def test_certificate_for_another_name_is_refused_and_never_used(
    cluster: Cluster, agent: ClusterAgent, token: str
) -> None:
    since = len(cluster.audit())
    agent.start()
    agent.wait("a request exists", lambda: bool(cluster.items(REQUESTS)))
    sign(cluster, node="node-2")
    expected = ("refused by the agent", "CN=system:node:node-2", f"expected CN={NODE_USER}")
    agent.wait("the certificate is refused", lambda: has_finding(agent, *expected))
    assert not certificate(agent).exists()
    assert {each["user"]["username"] for each in agent_entries(cluster, since)} == {user(token)}


def test_token_is_used_again_after_the_certificate_has_expired(
    cluster: Cluster, agent: ClusterAgent, token: str
) -> None:
    since = len(cluster.audit())
    agent.start()
    agent.wait("a request exists", lambda: bool(waiting_names(cluster)))
    sign(cluster, after_s=30)
    agent.wait("the node is registered", lambda: is_registered(cluster))
    agent.stop()
    expires_at = x509.load_pem_x509_certificate(certificate(agent).read_bytes()).not_valid_after_utc
    agent.wait("the certificate has expired", lambda: datetime.now(UTC) > expires_at)
    agent.start()
    agent.wait("the expiry is reported", lambda: has_finding(agent, "the certificate expired at", "pending"))
    sign(cluster)
    renewed = cluster.get(LEASE)["spec"]["renewTime"]
    agent.wait("the Lease is renewed", lambda: cluster.get(LEASE)["spec"]["renewTime"] > renewed)
    assert [user for user, _ in requested(cluster, since)] == [user(token)] * 2


@pytest.mark.parametrize("fault", ["deleted", "expired", "without-role"])
def test_refused_token_is_reported_and_the_request_sent_once_the_token_is_valid(
    cluster: Cluster, agent: ClusterAgent, token: str, fault: str
) -> None:
    cluster.request("DELETE", secret(token))
    if fault == "expired":
        create_token(cluster, token, expiration="2026-01-01T00:00:00Z")
    elif fault == "without-role":
        create_token(cluster, token)
        cluster.request("DELETE", f"{BINDINGS}/create-csrs-for-bootstrapping")
    agent.start()
    because, fix = ("bootstrap token rejected", "kubeadm token create")
    if fault == "without-role":
        because, fix = ("HTTP 403", "system:node-bootstrapper")
    agent.wait("the refusal is reported", lambda: has_finding(agent, "not sent", because))
    assert fix in finding(agent)["fix"]
    assert because in task(agent, "client-certificate")
    if cluster.exists(secret(token)):
        cluster.request("DELETE", secret(token))
    create_token(cluster, token)
    for document in bindings()[:1]:
        cluster.apply(f"{BINDINGS}/{document['metadata']['name']}", document)
    agent.wait("the request is sent", lambda: bool(waiting_names(cluster)), timeout_s=POLLED_S)
