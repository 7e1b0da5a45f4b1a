"""Client certificate of a node over TLS with a fake API server: bootstrap, renewal, refusals, failures, restarts."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import stat
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodeagent.cluster.client_certificate import ClientCertificate, ClientCertificateTask, ClientFiles
from nodeagent.cluster.plan.client_certificate import RequestState
from nodeagent.cluster.session_task import RegistrationReporter
from nodeagent.cluster.task import RegistrationTask
from nodeagent.config.validation import convert
from nodeagent.loops.passes import LoopStatuses
from nodeagent.model.kubernetes import ApiAccess
from nodeagent.pods.role import RoleWatch
from nodeagent.settings.settings import Config
from nodeagent.telemetry import logging as log
from nodeagent.telemetry.logging import StateLog
from nodeagent.units import format_time
from tests.support.api_server import CSRS, NODES, ApiServer, Fault, serving_api
from tests.support.manual_clock import ManualClock
from tests.support.signer import Signer
from tests.unit.cluster.tasks import context_of, running, until
from tests.unit.kubelet_double import KubeletDouble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.certificates import Authority

BOOTSTRAP = "abcdef.0123456789abcdef"


@dataclass
class Node:
    """A node with a bootstrap token, the fake API server of its cluster, and the signer of that cluster."""

    server: ApiServer
    signer: Signer
    access: ApiAccess
    clock: ManualClock = field(default_factory=lambda: ManualClock(datetime.now(UTC)))
    stream: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        assert self.access.certificate_file is not None
        self.files = ClientFiles(self.access.certificate_file)
        self.restart()

    def restart(self) -> None:
        states = StateLog(log.configure("json", "info", self.stream), self.clock)
        self.statuses = LoopStatuses(self.clock)
        reporter = RegistrationReporter(states, self.statuses)
        self.certificate = ClientCertificate(self.access, "node-1", self.clock, reporter, states)

    async def step(self, count: int = 1) -> float:
        """Carry out steps without waits between them; return the wait of the last one."""
        wait_s = 0.0
        for _ in range(count):
            wait_s = await self.certificate.step()
        return wait_s

    async def bootstrapped(self, **signed: Any) -> bytes:
        """Request and receive a certificate; return its file."""
        await self.step()
        self.signer.sign(**signed)
        await self.step(2)
        self.signer.delete()
        return self.files.certificate.read_bytes()

    def advance(self, seconds: float) -> None:
        self.clock.wall += timedelta(seconds=seconds)
        self.clock.at_s += seconds

    def state(self) -> RequestState | None:
        found = self.files.read_request()
        return None if found is None else found.state

    @property
    def detail(self) -> str:
        found = self.files.read_request()
        return "" if found is None else found.detail


@asynccontextmanager
async def node_of(authority: Authority, directory: Path) -> AsyncIterator[Node]:
    server = ApiServer()
    server.bootstrap_token, server.token = BOOTSTRAP, "of another identity"
    token = directory / "bootstrap-token"
    token.write_text(BOOTSTRAP + "\n")
    context = partial(authority.server_context, "server", clients=True)
    with serving_api(server, context) as url:
        access = ApiAccess(
            url=url,
            ca_file=authority.ca_file,
            certificate_file=directory / "api-client.pem",
            bootstrap_token_file=token,
            timeout_s=20,
        )
        yield Node(server, Signer(server, authority), access)


async def test_certificate_is_requested_with_the_token_and_renewed_with_the_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    async with node_of(authority, tmp_path) as node:
        await node.step()
        spec, csr = node.signer.waiting["spec"], node.signer.csr()
        assert spec["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
        assert spec["usages"] == ["digital signature", "client auth"]
        assert isinstance(csr.public_key(), ec.EllipticCurvePublicKey)
        assert [(each.oid, each.value) for each in csr.subject] == [
            (NameOID.ORGANIZATION_NAME, "system:nodes"),
            (NameOID.COMMON_NAME, "system:node:node-1"),
        ]
        assert node.server.requests[0].token == BOOTSTRAP
        assert 1 <= await node.step() <= 2  # pending
        node.signer.sign()
        await node.step()
        first = node.files.certificate.read_bytes()
        assert node.server.requests[-1].subject == "system:node:node-1"
        assert node.server.requests[-1].path == f"{NODES}/node-1"
        node.signer.delete()

        now = node.clock.now()
        wait_s = await node.step()
        assert 239 <= wait_s <= 481  # 70 to 90 % of 1200 s, of which 600 s are over
        expires_at = x509.load_pem_x509_certificate(first).not_valid_after_utc
        assert [each.detail for each in node.statuses.all] == [f"valid until {format_time(expires_at)}"]
        node.advance(wait_s + 1)
        sent = len(node.server.requests)
        await node.step(2)
        assert {(each.subject, each.token) for each in node.server.requests[sent:]} == {("system:node:node-1", "")}
        assert node.files.certificate.read_bytes() == first
        node.signer.sign(after_s=6000)
        await node.step()
        second = node.files.certificate.read_bytes()
        assert second != first
        assert x509.load_pem_x509_certificate(second).not_valid_after_utc > now + timedelta(seconds=5000)
        assert not node.files.issued.exists()
        assert not node.files.request.exists()
        assert stat.S_IMODE(node.files.certificate.stat().st_mode) == 0o600
        logged = node.stream.getvalue()
        assert [json.loads(each)["event"] for each in logged.splitlines()] == [
            "client_certificate_requested",
            "client_certificate_changed",
        ] * 2
        assert BOOTSTRAP not in logged
        assert "PRIVATE" not in logged


async def test_key_in_progress_is_readable_by_its_owner_only(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        await node.step()
        assert stat.S_IMODE(node.files.request.stat().st_mode) == 0o600
        request = node.files.read_request()
        assert request is not None
        assert "PRIVATE" in request.key
        assert "PRIVATE" not in repr(request)


async def test_denied_request_is_followed_by_another_after_its_deletion_only(
    authority: Authority, tmp_path: Path
) -> None:
    async with node_of(authority, tmp_path) as node:
        await node.step()
        denied = node.signer.waiting["metadata"]["name"]
        node.signer.answer(
            {"type": "Denied", "status": "True", "reason": "Unknown", "message": "not in the \x1binventory"}
        )
        for _ in range(20):
            node.advance(await node.step())
        assert (node.state(), node.detail) == (RequestState.DENIED, "Unknown: not in the \\x1binventory")
        assert [each.method for each in node.server.requests].count("POST") == 1
        (failed,) = [each for each in map(json.loads, node.stream.getvalue().splitlines()) if "error" in each]
        assert failed["error"] == f"certificate request {denied} denied: Unknown: not in the \\x1binventory"
        node.signer.delete()
        await node.step(2)
        assert node.signer.waiting["metadata"]["name"] != denied
        node.signer.sign(after_s=6000)
        await node.step()
        assert node.files.certificate.exists()


async def test_approver_absent_for_an_hour_receives_one_request(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        await node.step()
        start, sent = node.clock.at_s, len(node.server.requests)
        while node.clock.at_s - start < 3600:
            wait_s = await node.step()
            assert 1 <= wait_s <= 60
            node.advance(wait_s)
        assert node.state() is RequestState.PENDING
        assert len(node.server.objects[CSRS]) == 1
        assert len(node.server.requests) - sent < 80
        node.signer.sign(after_s=7200)
        await node.step()
        assert node.files.certificate.exists()


async def test_request_deleted_at_once_is_replaced_after_a_minute(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        await node.step()
        deleted = node.signer.waiting["metadata"]["name"]
        node.signer.delete()
        node.advance(20)
        assert await node.step() == pytest.approx(40)
        assert not node.server.objects[CSRS]
        (failed,) = [each for each in map(json.loads, node.stream.getvalue().splitlines()) if "error" in each]
        assert failed["error"] == f"certificate request {deleted} was deleted"
        node.advance(40)
        await node.step(2)
        assert len(node.server.objects[CSRS]) == 1


async def test_request_of_a_clock_that_was_ahead_is_polled_each_minute_and_replaced_after_its_deletion(
    authority: Authority, tmp_path: Path
) -> None:
    async with node_of(authority, tmp_path) as node:
        node.advance(86_400)
        await node.step()
        node.advance(-86_400)
        assert await node.step() == 60
        node.signer.delete()
        await node.step(2)
        assert len(node.server.objects[CSRS]) == 1


OTHER_KEY = ec.generate_private_key(ec.SECP256R1()).public_key()


@pytest.mark.parametrize(
    ("signed", "reason"),
    [
        (
            {"node": "node-2"},
            "the certificate is for O=system:nodes, CN=system:node:node-2, expected CN=system:node:node-1",
        ),
        ({"node": "node-1\x1b[2J"}, "CN=system:node:node-1\\x1b[2J"),
        ({"key": OTHER_KEY}, "key values mismatch"),
        ({"after_s": -60}, "the certificate expired at"),
    ],
    ids=["other-name", "escaped-name", "other-key", "expired"],
)
async def test_wrong_certificate_is_refused_and_the_old_one_stays_in_use(
    authority: Authority, tmp_path: Path, signed: dict[str, Any], reason: str
) -> None:
    async with node_of(authority, tmp_path) as node:
        first = await node.bootstrapped()
        node.advance(500)
        await node.step()
        node.signer.sign(**signed)
        node.advance(await node.step())
        assert node.state() is RequestState.REFUSED
        assert reason in node.detail
        assert node.files.certificate.read_bytes() == first
        assert not node.files.issued.exists()
        await node.step(3)
        assert len(node.server.objects[CSRS]) == 1
        node.signer.delete()
        node.advance(60)
        await node.step(2)
        node.signer.sign(after_s=6000)
        await node.step()
        assert node.files.certificate.read_bytes() != first


async def test_explanatory_text_around_a_certificate_is_dropped(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        pem = await node.bootstrapped(text="Subject: O=Gerät\n", after_s=6000)
        assert pem.startswith(b"-----BEGIN CERTIFICATE-----\n")
        assert node.state() is None


async def test_text_without_a_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        await node.step()
        text = "-----BEGIN CERTIFICATE-----\nGerät\n-----END CERTIFICATE-----\n"
        node.signer.answer(certificate=base64.b64encode(text.encode()).decode())
        assert await node.step() >= 1
        assert (node.state(), node.detail) == (
            RequestState.REFUSED,
            "not a certificate in PEM form of at most 64 KiB",
        )


async def test_certificate_that_the_api_server_does_not_accept_is_not_used(
    authority: Authority, tmp_path: Path
) -> None:
    async with node_of(authority, tmp_path) as node:
        first = await node.bootstrapped()
        node.advance(500)
        await node.step()
        node.signer.sign(after_s=6000)
        accepted = node.server.answer
        node.server.answer = lambda request: (  # type: ignore[method-assign]
            (401, {"reason": "Unauthorized"}) if request.path.startswith(NODES) else accepted(request)
        )
        await node.step(3)
        assert node.state() is RequestState.UNPROVEN
        assert "HTTP 401" in node.detail
        assert node.files.certificate.read_bytes() == first
        node.server.answer = accepted  # type: ignore[method-assign]
        node.restart()
        await node.step()
        assert node.files.certificate.read_bytes() != first
        assert node.state() is None


@pytest.mark.parametrize("damage", ["truncated", "empty", "other-key"])
async def test_damaged_certificate_file_is_replaced_with_the_token(
    authority: Authority, tmp_path: Path, damage: str
) -> None:
    async with node_of(authority, tmp_path) as node:
        first = await node.bootstrapped()
        other = (authority.directory / "server.key").read_bytes()
        certificate = first[: first.index(b"-----BEGIN PRIVATE")]
        node.files.certificate.write_bytes(
            {"truncated": first[:-40], "empty": b"", "other-key": certificate + other}[damage]
        )
        sent = len(node.server.requests)
        await node.step()
        assert node.server.requests[sent].token == BOOTSTRAP
        node.signer.sign()
        await node.step()
        assert node.files.certificate.read_bytes() not in (first, b"")
        notices = [each for each in map(json.loads, node.stream.getvalue().splitlines()) if "notice" in each]
        assert len(notices) == 1
        assert "api-client.pem is not used: " in notices[0]["notice"]


@pytest.mark.parametrize("damage", ["document", "key"])
async def test_damaged_request_file_is_replaced_by_a_new_request(
    authority: Authority, tmp_path: Path, damage: str
) -> None:
    async with node_of(authority, tmp_path) as node:
        node.server.faults.append(Fault(behaviour="close"))
        await node.step()
        assert node.state() is RequestState.UNSENT
        text = node.files.request.read_text()
        node.files.request.write_text(text[:50] if damage == "document" else text.replace("PRIVATE", "BROKEN"))
        await node.step(2)
        assert node.state() is RequestState.PENDING
        assert len(node.server.objects[CSRS]) == 1


async def test_renewal_while_the_api_server_is_down_keeps_the_certificate(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        first = await node.bootstrapped()
        node.advance(500)
        for _ in range(6):
            node.server.faults += [Fault(behaviour="close")]
            assert 0 < await node.step() <= 60
        assert node.state() is RequestState.UNSENT
        assert "connection closed" in node.detail
        assert node.files.certificate.read_bytes() == first
        await node.step()
        assert (node.state(), node.detail) == (RequestState.PENDING, "")
        node.server.faults += [Fault(503, "{}")]
        await node.step()
        assert "HTTP 503" in node.detail
        node.signer.sign(after_s=6000)
        await node.step()
        assert node.files.certificate.read_bytes() != first


async def test_request_with_a_lost_response_is_not_repeated(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        node.server.faults.append(Fault(behaviour="close-after"))
        await node.step(2)
        assert node.state() is RequestState.PENDING
        assert len(node.server.objects[CSRS]) == 1


async def test_key_of_a_request_is_stored_before_the_request_is_sent(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        node.server.faults.append(Fault(behaviour="hang"))
        step = asyncio.create_task(node.step())
        await until(lambda: bool(node.server.requests))
        step.cancel()
        await asyncio.wait({step})
        request = node.files.read_request()
        assert request is not None
        node.restart()
        await node.step()
        assert node.signer.waiting["metadata"]["name"] == request.name


async def test_restart_before_each_step_leads_to_the_same_result(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:

        async def restarted() -> None:
            node.restart()
            await node.step()

        node.server.faults += [Fault(behaviour="close")]
        await restarted()
        assert node.state() is RequestState.UNSENT
        await restarted()
        await restarted()
        assert node.state() is RequestState.PENDING
        node.signer.answer({"type": "Failed", "status": "True", "message": "no key"})
        await restarted()
        await restarted()
        assert (node.state(), node.detail) == (RequestState.FAILED, "no key")
        node.signer.delete()
        node.advance(60)
        await restarted()
        await restarted()
        node.signer.sign()
        await restarted()
        first = node.files.certificate.read_bytes()
        request = node.signer.waiting["metadata"]["name"]
        assert node.state() is None
        node.advance(500)
        node.signer.delete()
        await restarted()
        assert node.signer.waiting["metadata"]["name"] != request
        assert node.files.certificate.read_bytes() == first


async def test_crash_after_the_change_of_the_certificate_has_no_effect(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        await node.step()
        request = node.files.read_request()
        assert request is not None
        node.signer.sign()
        await node.step()
        first = node.files.certificate.read_bytes()
        node.files.write_request(request)
        node.restart()
        await node.step(2)
        assert node.state() is None
        assert node.files.certificate.read_bytes() == first
        node.files.write_request(request)
        node.signer.delete()
        node.restart()
        node.advance(61)
        await node.step(2)
        assert node.state() is None
        assert not node.server.objects[CSRS]


async def test_rejected_bootstrap_token_is_stated_until_the_file_has_another(
    authority: Authority, tmp_path: Path
) -> None:
    async with node_of(authority, tmp_path) as node:
        node.server.bootstrap_token = "another"
        await node.step(10)
        assert node.state() is RequestState.UNSENT
        assert node.detail.startswith("bootstrap token rejected: ")
        assert await node.step() == 60
        (tmp_path / "bootstrap-token").write_text("another")
        await node.step()
        assert node.state() is RequestState.PENDING


async def test_expired_certificate_is_replaced_with_the_token(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        first = await node.bootstrapped()
        node.advance(601)
        sent = len(node.server.requests)
        await node.step()
        assert node.server.requests[sent].token == BOOTSTRAP
        node.signer.sign(after_s=6000)
        await node.step()
        assert node.files.certificate.read_bytes() != first


async def test_refused_certificate_is_replaced_with_the_token(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        await node.bootstrapped()
        node.advance(500)
        node.server.faults.append(Fault(401, "{}"))
        await node.step()
        assert node.state() is RequestState.PENDING
        assert [each.token for each in node.server.requests][-2:] == ["", BOOTSTRAP]


async def test_unwritable_state_directory_is_reported(authority: Authority, tmp_path: Path) -> None:
    async with node_of(authority, tmp_path) as node:
        node.files.request.mkdir()
        assert await node.step() == 60
        assert "cannot request the client certificate" in node.stream.getvalue()
        assert node.server.requests == []


def settings_of(authority: Authority, url: str, directory: Path, **changes: Any) -> Any:
    (directory / "bootstrap-token").write_text(BOOTSTRAP)
    kubernetes = {
        "register_node": True,
        "server": url,
        "ca_file": str(authority.ca_file),
        "bootstrap_token_file": str(directory / "bootstrap-token"),
    }
    document = {"kubernetes": kubernetes, "kubelet": {"node_name": "node-1"}, "state": {"directory": str(directory)}}
    return convert(Config, {"role": "standalone", **document, **changes}).settings()


async def test_daemon_registers_the_node_with_the_requested_certificate(authority: Authority, tmp_path: Path) -> None:
    server = ApiServer()
    server.bootstrap_token, server.token, server.node_identity = BOOTSTRAP, "of another identity", True
    signer = Signer(server, authority)
    with serving_api(server, partial(authority.server_context, "server", clients=True)) as url:
        context = context_of(settings_of(authority, url, tmp_path), io.StringIO())
        context.roles = RoleWatch(KubeletDouble().clock, context.logger, reader=KubeletDouble())
        async with running(context, ClientCertificateTask(context)), running(context, RegistrationTask(context)):
            await until(lambda: bool(server.objects[CSRS]))
            with server.lock:
                signer.sign()
            await until(lambda: bool(server.objects[NODES]))
    (created,) = server.seen("POST", NODES)
    assert created.subject == "system:node:node-1"


async def test_no_certificate_is_requested_in_a_dry_run(authority: Authority, tmp_path: Path) -> None:
    server = ApiServer()
    with serving_api(server, partial(authority.server_context, "server", clients=True)) as url:
        context = context_of(settings_of(authority, url, tmp_path, dry_run=True), io.StringIO())
        async with running(context, ClientCertificateTask(context)):
            await asyncio.sleep(0)
    assert server.requests == []
    assert not (tmp_path / "api-client-request.json").exists()
