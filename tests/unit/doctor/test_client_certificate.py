"""Check of the requested client certificate: each state of a request with its fix, from the files of the daemon."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.doctor import cluster_findings
from nodeagent.cluster.client_certificate import ClientFiles
from nodeagent.cluster.plan.client_certificate import TOKEN_REJECTED, CertificateRequest, RequestState
from nodeagent.config.validation import convert
from nodeagent.doctor.plan.node import Grade, check_client_certificate
from nodeagent.model.kubernetes import Certificate
from nodeagent.settings.settings import Config

if TYPE_CHECKING:
    from pathlib import Path

T0 = datetime(2026, 1, 10, tzinfo=UTC)
USABLE = Certificate(("CN=system:node:node-1", "O=system:nodes"), T0, T0 + timedelta(days=1))


def request(state: RequestState, detail: str = "") -> CertificateRequest:
    return CertificateRequest("nodeagent-1", "SECRET", T0, state, detail)


@pytest.mark.parametrize(
    ("certificate", "problem", "waiting", "verdict", "words", "fix"),
    [
        (USABLE, "", None, Grade.OK, "valid until 2026-01-11T00:00:00.000Z, renewed from 2026-01-10T18:00:00.000Z", ""),
        (None, "", None, Grade.PROBLEM, "no client certificate; none is requested", "systemctl start nodeagent"),
        (
            USABLE,
            "the certificate expired at 2026-01-11T00:00:00.000Z",
            request(RequestState.PENDING),
            Grade.PROBLEM,
            "expired at 2026-01-11T00:00:00.000Z; request nodeagent-1 of 2026-01-10T00:00:00.000Z pending",
            "kubectl certificate approve nodeagent-1",
        ),
        (
            USABLE,
            "",
            request(RequestState.PENDING),
            Grade.WARNING,
            "valid until 2026-01-11T00:00:00.000Z; renewal: request nodeagent-1 of 2026-01-10T00:00:00.000Z pending",
            "kubectl certificate approve nodeagent-1",
        ),
        (
            None,
            "",
            request(RequestState.DENIED, "not in the \x1binventory"),
            Grade.PROBLEM,
            "denied: not in the \\x1binventory",
            "kubectl delete csr nodeagent-1",
        ),
        (None, "", request(RequestState.FAILED, "m"), Grade.PROBLEM, "failed: m", "kubectl delete csr nodeagent-1"),
        (
            None,
            "",
            request(RequestState.REFUSED, "for O=x"),
            Grade.PROBLEM,
            "certificate refused by the agent: for O=x",
            "kubectl delete csr nodeagent-1",
        ),
        (
            None,
            "",
            request(RequestState.UNSENT, f"{TOKEN_REJECTED}: API server: POST /x: HTTP 401"),
            Grade.PROBLEM,
            "not sent: bootstrap token rejected",
            "kubeadm token create",
        ),
        (
            None,
            "",
            request(RequestState.UNSENT, "API server: POST /x: HTTP 403; Forbidden"),
            Grade.PROBLEM,
            "not sent",
            "system:node-bootstrapper",
        ),
        (
            None,
            "",
            request(RequestState.UNSENT, "API server: POST /x: connection refused"),
            Grade.PROBLEM,
            "connection refused",
            "IPAddressAllow=",
        ),
        (
            None,
            "",
            request(RequestState.UNPROVEN, "HTTP 401"),
            Grade.PROBLEM,
            "no request with it has succeeded",
            "renew",
        ),
    ],
)
def test_state_of_the_certificate_is_stated_with_its_fix(  # noqa: PLR0917 - columns of the table
    certificate: Certificate | None,
    problem: str,
    waiting: CertificateRequest | None,
    verdict: Grade,
    words: str,
    fix: str,
) -> None:
    found = check_client_certificate(
        certificate, problem, waiting, node="node-1", renewal_at=T0 + timedelta(hours=18), dry_run=False
    )
    assert found.verdict is verdict
    assert words in found.evidence
    assert fix in found.fix
    assert "SECRET" not in repr(found)


@pytest.mark.parametrize(
    ("node", "dry_run", "words"), [("n" * 53, False, "longer than 52 characters"), ("node-1", True, "dry_run = true")]
)
def test_missing_request_is_explained(node: str, dry_run: bool, words: str) -> None:
    found = check_client_certificate(None, "", None, node=node, renewal_at=None, dry_run=dry_run)
    assert found.verdict is Grade.PROBLEM
    assert words in found.evidence


def test_files_of_the_daemon_are_read_and_the_api_server_is_not_asked_without_a_certificate(tmp_path: Path) -> None:
    kubernetes = {"server": "https://127.0.0.1:9", "bootstrap_token_file": "/nonexistent", "register_node": True}
    document = {"kubernetes": kubernetes, "kubelet": {"node_name": "node-1"}, "state": {"directory": str(tmp_path)}}
    settings = convert(Config, document).settings()
    ClientFiles(tmp_path / "api-client.pem").write_request(request(RequestState.DENIED, "because"))
    denied, skipped = cluster_findings(settings)
    assert (denied.check, denied.verdict) == ("kubernetes-certificate", Grade.PROBLEM)
    assert "denied: because" in denied.evidence
    assert (skipped.check, skipped.verdict) == ("kubernetes", Grade.SKIPPED)
    (tmp_path / "api-client.pem").mkdir()
    unread, *_ = cluster_findings(settings)
    assert unread.verdict is Grade.SKIPPED
    assert "Is a directory" in unread.evidence
