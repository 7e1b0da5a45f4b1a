"""TLS of the metrics address: accepted and refused clients, changed files, clients that send nothing."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from nodeagent.config.metrics import Listen, TlsFiles, tls_files
from nodeagent.daemon.http.metrics_task import LIMITS
from nodeagent.daemon.http.tls import CertificateError, ServerCertificates, make_context
from tests.support.certificates import Authority
from tests.unit.daemon.http.test_metrics_task import WITHIN_S, Served, serving

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
LISTEN = Listen("127.0.0.1", 20310)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    """Return the CA of server and clients, and another one."""
    made = Authority(tmp_path_factory.mktemp("ca")), Authority(tmp_path_factory.mktemp("other"))
    for each in made:
        for name in ("server", "client"):
            each.issue(name, f"/CN={name}")
    return made


@pytest.fixture
def files(authorities: tuple[Authority, Authority], tmp_path: Path) -> TlsFiles:
    """Return copies of the files, which a test can change."""
    made = TlsFiles(tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "ca.crt")
    for each in made.paths:
        shutil.copy(authorities[0].directory / each.name, each)
    return made


@pytest.fixture
def port() -> Listen:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Listen("127.0.0.1", probe.getsockname()[1])


def client(server: Authority, identity: Authority | None) -> ssl.SSLContext:
    """Return the context of a client that verifies the server, with a certificate of ``identity`` if given."""
    context = ssl.create_default_context(cafile=str(server.ca_file))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if identity is not None:
        context.load_cert_chain(identity.directory / "client.crt", identity.directory / "client.key")
    return context


async def ask(listen: Listen, context: ssl.SSLContext | None, request: bytes = REQUEST) -> bytes:
    """Return the response; empty if the server refused the connection."""
    writer = None
    try:
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_connection(listen.host, listen.port, ssl=context)
            writer.write(request)
            return await reader.read()
    except OSError:
        return b""
    finally:
        if writer is not None:
            writer.transport.abort()


async def poll(made: Served) -> None:
    """Let the task poll its files, as a reload without changes does."""
    made.context.renew.set()
    for _ in range(5):
        await asyncio.sleep(0)
    made.context.renew.clear()


async def test_client_of_the_ca_is_served_and_others_are_refused(
    authorities: tuple[Authority, Authority], files: TlsFiles, port: Listen
) -> None:
    own, other = authorities
    async with serving(port, tls=files) as made:
        await made.until("metrics_listening")
        assert (await ask(port, client(own, own))).startswith(b"HTTP/1.1 200")
        assert await ask(port, client(own, None)) == b""
        assert await ask(port, client(own, other)) == b""
        assert b"HTTP/" not in await ask(port, None)
        body = b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        assert (await ask(port, client(own, own), body)).startswith(b"HTTP/1.1 405")


def read_to_close(listen: Listen, context: ssl.SSLContext) -> bytes:
    """Return the response until the server closes TLS; an aborted connection is an error."""
    received = b""
    with (
        socket.create_connection((listen.host, listen.port), WITHIN_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False) as stream,
    ):
        stream.sendall(REQUEST.replace(b"/healthz", b"/metrics"))
        while part := stream.recv(1 << 16):
            received += part
    return received


async def test_response_is_complete_and_closed(
    authorities: tuple[Authority, Authority], files: TlsFiles, port: Listen
) -> None:
    async with serving(port, tls=files) as made:
        await made.until("metrics_listening")
        answer = await asyncio.to_thread(read_to_close, port, client(authorities[0], authorities[0]))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert b"nodeagent_build_info" in body


async def test_changed_files_are_used_without_a_restart_and_unusable_ones_are_not(
    authorities: tuple[Authority, Authority], files: TlsFiles, port: Listen
) -> None:
    own, other = authorities
    async with serving(port, tls=files) as made:
        await made.until("metrics_listening")
        files.key.write_text("no key")
        await poll(made)
        await made.until("metrics_certificate_rejected")
        assert (await ask(port, client(own, own))).startswith(b"HTTP/1.1 200")
        for each in files.paths:
            shutil.copy(other.directory / each.name, each)
        await poll(made)
        await made.until("metrics_certificate_loaded")
        assert (await ask(port, client(other, other))).startswith(b"HTTP/1.1 200")
        assert await ask(port, client(own, own)) == b""
    (rejected,) = [each for each in made.logged if each["event"] == "metrics_certificate_rejected"]
    assert f"cannot load {files.certificate} with the key in {files.key}" in rejected["error"]


async def test_reload_changes_between_tls_and_plain_http_on_the_same_port(
    authorities: tuple[Authority, Authority], files: TlsFiles, port: Listen
) -> None:
    async with serving(port, tls=files) as made:
        await made.until("metrics_listening")
        await made.move(port)
        await made.until("metrics_listening", 2)
        assert (await ask(port, None)).startswith(b"HTTP/1.1 200")
        assert await ask(port, client(authorities[0], authorities[0])) == b""
    assert {each["event"] for each in made.logged} == {"metrics_listening"}


async def test_unusable_files_at_the_start_never_lead_to_plain_http(files: TlsFiles, port: Listen) -> None:
    files.client_ca.unlink()
    async with serving(port, tls=files) as made:
        await made.until("metrics_unavailable")
        assert await ask(port, None) == b""
    assert f"cannot read {files.client_ca}: No such file" in made.logged[0]["error"]


async def test_clients_that_send_nothing_do_not_exclude_others(
    authorities: tuple[Authority, Authority], files: TlsFiles, port: Listen
) -> None:
    async with serving(port, tls=files) as made:
        await made.until("metrics_listening")
        silent = [await asyncio.open_connection(port.host, port.port) for _ in range(LIMITS.total + 4)]
        assert (await ask(port, client(authorities[0], authorities[0]))).startswith(b"HTTP/1.1 200")
        for _, writer in silent:
            writer.transport.abort()


async def test_daemon_stops_with_an_unfinished_handshake(files: TlsFiles, port: Listen) -> None:
    async with serving(port, tls=files) as made:
        await made.until("metrics_listening")
        reader, writer = await asyncio.open_connection(port.host, port.port)
    assert await asyncio.wait_for(reader.read(), WITHIN_S) == b""
    writer.transport.abort()


def test_unchanged_files_are_loaded_once(files: TlsFiles) -> None:
    certificates = ServerCertificates(files)
    assert [certificates.load(), certificates.load()] == [True, False]


def test_last_usable_context_is_kept(files: TlsFiles) -> None:
    certificates = ServerCertificates(files)
    certificates.load()
    usable = certificates.context
    files.certificate.unlink()
    with pytest.raises(CertificateError):
        certificates.load()
    assert certificates.context is usable


@pytest.mark.parametrize("name", ["server.crt", "server.key", "ca.crt"])
@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_file_without_its_content_is_refused(files: TlsFiles, name: str, text: bytes) -> None:
    (files.key.parent / name).write_bytes(text)
    with pytest.raises(CertificateError, match=name):
        make_context(files)


def test_file_that_others_can_write_is_refused(files: TlsFiles) -> None:
    files.client_ca.chmod(0o666)
    with pytest.raises(CertificateError, match="not trusted"):
        make_context(files)


@pytest.mark.parametrize(
    ("listen", "certificate", "key", "client_ca", "fault"),
    [
        (LISTEN, "/c", "", "", "tls_client_ca_file missing"),
        (LISTEN, "", "", "/a", "tls_certificate_file missing"),
        (LISTEN, "", "/k", "", "tls_certificate_file missing"),
        (None, "/c", "", "/a", "requires a listen address"),
        (Listen(path="/s"), "/c", "", "/a", "requires a listen address"),
    ],
)
def test_contradictory_settings_are_refused(
    listen: Listen | None, certificate: str, key: str, client_ca: str, fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        tls_files(listen, certificate, key, client_ca)


def test_key_is_in_the_certificate_file_by_default() -> None:
    made = tls_files(LISTEN, "/c", "", "/a")
    assert made is not None
    assert made.key == made.certificate
    assert tls_files(LISTEN, "", "", "") is None
