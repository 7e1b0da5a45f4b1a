"""Metrics listener with TLS: clients with valid, invalid and no certificates, renewed files, slow handshakes."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from nodeagent.daemon.http.metrics_task import LIMITS, NAME, MetricsCertificate
from nodeagent.errors import ConfigError
from nodeagent.host.server_certificate import server_context
from nodeagent.model.kubernetes import TlsFiles
from nodeagent.record import replace
from nodeagent.settings.settings import Listen
from tests.support.certificates import Authority
from tests.unit.daemon.http.test_metrics_task import WITHIN_S, Served, serving

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("tls") / "ca")
    for name in ("server", "renewed", "prometheus"):
        made.issue(name)
    made.issue("late", days=-1)
    return made


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("tls") / "other-ca")
    made.issue("prometheus")
    return made


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsFiles:
    """Return the TLS files of a listener, as copies that a test can change."""
    tmp_path.chmod(0o700)
    made = TlsFiles(*(str(tmp_path / each) for each in ("tls.crt", "tls.key", "clients.crt")))
    install(authority, "server", made)
    shutil.copy(authority.ca_file, made.client_ca)
    return made


def install(authority: Authority, name: str, files: TlsFiles) -> None:
    """Replace the certificate and key files by renames, as a certificate renewal does."""
    replace_file(authority.directory / f"{name}.key", files.key)
    replace_file(authority.directory / f"{name}.crt", files.certificate)


@pytest.fixture
def listen() -> Listen:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Listen("127.0.0.1", probe.getsockname()[1])


def client(authority: Authority, name: str = "") -> ssl.SSLContext:
    """Return a TLS context that trusts the CA, with the client certificate ``name`` unless empty."""
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    if name:
        context.load_cert_chain(authority.directory / f"{name}.crt", authority.directory / f"{name}.key")
    return context


async def exchange(listen: Listen, context: ssl.SSLContext, request: bytes = REQUEST) -> tuple[bytes, int]:
    """Send a request over TLS.

    Returns:
        The response and the serial number of the server certificate.

    Raises:
        OSError: the handshake fails.
    """
    reader, writer = await asyncio.open_connection(listen.host, listen.port, ssl=context, server_hostname="localhost")
    try:
        serial = int(writer.get_extra_info("peercert")["serialNumber"], 16)
        writer.write(request)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), WITHIN_S), serial
    finally:
        writer.transport.abort()


async def is_refused(listen: Listen, context: ssl.SSLContext) -> bool:
    """Return whether the server refuses the client: failed handshake, or with TLS 1.3 an empty response."""
    try:
        response, _ = await exchange(listen, context)
    except OSError:
        return True
    return not response


async def reload(made: Served) -> None:
    """Reload with unchanged settings, which immediately reads the TLS files."""
    made.context.swap(made.context.settings)
    for _ in range(5):
        await asyncio.sleep(0)
    made.context.take_next()


def replace_file(source: Path, target: str) -> None:
    """Replace the file ``target`` by a copy of ``source``, with a rename."""
    fresh = Path(f"{target}.new")
    shutil.copy(source, fresh)
    fresh.chmod(0o600)
    fresh.replace(target)


def make_private(path: str) -> None:
    Path(path).chmod(0o600)


def make_readable(path: str) -> None:
    Path(path).chmod(0o644)


async def test_client_with_a_certificate_of_the_ca_is_answered(
    listen: Listen, files: TlsFiles, authority: Authority
) -> None:
    async with serving(listen, files) as made:
        await made.until("metrics_listening")
        response, _ = await exchange(listen, client(authority, "prometheus"))
        assert response.startswith(b"HTTP/1.1 200 ")
        response, _ = await exchange(listen, client(authority, "prometheus"), REQUEST.replace(b"/healthz", b"/metrics"))
        assert b"nodeagent_ready" in response


@pytest.mark.parametrize(
    "case",
    [
        ("", ssl.TLSVersion.TLSv1_3, "certificate"),
        ("", ssl.TLSVersion.TLSv1_2, "certificate"),
        ("late", ssl.TLSVersion.TLSv1_3, "expired"),
        ("stranger", ssl.TLSVersion.TLSv1_3, "certificate"),
    ],
)
async def test_client_without_a_valid_certificate_gets_no_response_and_the_cause_is_logged_once(
    listen: Listen, files: TlsFiles, authority: Authority, stranger: Authority, case: tuple[str, ssl.TLSVersion, str]
) -> None:
    name, version, cause = case
    context = client(authority, "" if name == "stranger" else name)
    if name == "stranger":
        context.load_cert_chain(stranger.directory / "prometheus.crt", stranger.directory / "prometheus.key")
    context.maximum_version = version
    async with serving(listen, files) as made:
        await made.until("metrics_listening")
        for _ in range(3):
            assert await is_refused(listen, context)
        await made.until("metrics_client_refused")
        response, _ = await exchange(listen, client(authority, "prometheus"))
        assert response.startswith(b"HTTP/1.1 200 ")
        refused = [each["error"] for each in made.logged if each["event"] == "metrics_client_refused"]
        assert len(refused) == 1
        assert cause in refused[0]


async def test_plaintext_request_gets_no_response(listen: Listen, files: TlsFiles) -> None:
    async with serving(listen, files) as made:
        await made.until("metrics_listening")
        reader, writer = await asyncio.open_connection(listen.host, listen.port)
        writer.write(REQUEST)
        answer = await asyncio.wait_for(reader.read(), WITHIN_S)
        writer.close()
        assert b"HTTP" not in answer


async def test_tls_before_version_1_2_is_refused(listen: Listen, files: TlsFiles, authority: Authority) -> None:
    context = client(authority, "prometheus")
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    async with serving(listen, files) as made:
        await made.until("metrics_listening")
        with pytest.raises(OSError):  # noqa: PT011 - asyncio closes the connection without an alert
            await exchange(listen, context)


async def test_without_a_client_ca_every_tls_client_is_answered(
    listen: Listen, files: TlsFiles, authority: Authority
) -> None:
    async with serving(listen, replace(files, client_ca="")) as made:
        await made.until("metrics_listening")
        assert (await exchange(listen, client(authority)))[0].startswith(b"HTTP/1.1 200 ")


async def test_renewed_certificate_is_used_and_a_wrong_one_keeps_the_former(
    listen: Listen, files: TlsFiles, authority: Authority
) -> None:
    async with serving(listen, files) as made:
        await made.until("metrics_listening")
        _, first = await exchange(listen, client(authority, "prometheus"))
        replace_file(authority.directory / "renewed.crt", files.certificate)  # the key file is not renewed yet
        await reload(made)
        await made.until("metrics_certificate_not_renewed")
        assert "the key is not that of the certificate" in made.logged[-1]["error"]
        assert (await exchange(listen, client(authority, "prometheus")))[1] == first
        install(authority, "renewed", files)
        await reload(made)
        await made.until("metrics_certificate_renewed")
        assert (await exchange(listen, client(authority, "prometheus")))[1] != first


async def test_renewed_key_is_used_after_a_correction_of_its_mode_alone(files: TlsFiles, authority: Authority) -> None:
    with capture_logs() as logged:
        certificate = MetricsCertificate(files, structlog.get_logger())
        await certificate.load()
        install(authority, "renewed", files)
        make_readable(files.key)
        assert (await certificate.renewed(), await certificate.renewed()) == (None, None)
        make_private(files.key)
        assert await certificate.renewed() is not None
    assert [each["event"] for each in logged] == ["metrics_certificate_not_renewed", "metrics_certificate_renewed"]


async def test_replaced_client_ca_refuses_clients_of_the_former_one(
    listen: Listen, files: TlsFiles, authority: Authority, stranger: Authority
) -> None:
    async with serving(listen, files) as made:
        await made.until("metrics_listening")
        known = client(authority, "prometheus")
        assert (await exchange(listen, known))[0].startswith(b"HTTP/1.1 200 ")
        replace_file(stranger.ca_file, files.client_ca)
        await reload(made)
        await made.until("metrics_certificate_renewed")
        assert await is_refused(listen, known)


async def test_slow_handshakes_do_not_delay_a_complete_request(
    listen: Listen, files: TlsFiles, authority: Authority
) -> None:
    async with serving(listen, files) as made:
        await made.until("metrics_listening")
        silent = [await asyncio.open_connection(listen.host, listen.port) for _ in range(LIMITS.total * 2)]
        for _, writer in silent:
            writer.write(b"\x16\x03\x01")  # header of an incomplete TLS record
        response, _ = await exchange(listen, client(authority, "prometheus"))
        assert response.startswith(b"HTTP/1.1 200 ")
        for _, writer in silent:
            writer.transport.abort()


async def test_body_that_is_not_read_does_not_delay_the_refusal_of_its_request(
    listen: Listen, files: TlsFiles, authority: Authority
) -> None:
    request = b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    async with serving(listen, files) as made:
        await made.until("metrics_listening")
        response, _ = await exchange(listen, client(authority, "prometheus"), request)
        assert response.startswith(b"HTTP/1.1 405 ")


async def test_client_that_disconnects_during_the_response_leaves_the_listener_usable(
    listen: Listen, files: TlsFiles, authority: Authority
) -> None:
    async with serving(listen, files) as made:
        await made.until("metrics_listening")
        for _ in range(20):
            _, writer = await asyncio.open_connection(
                listen.host, listen.port, ssl=client(authority, "prometheus"), server_hostname="localhost"
            )
            writer.write(REQUEST.replace(b"/healthz", b"/metrics"))
            writer.transport.abort()
        assert (await exchange(listen, client(authority, "prometheus")))[0].startswith(b"HTTP/1.1 200 ")
        assert not [each for each in made.logged if each["event"] == "metrics_crashed"]


async def test_handshake_beyond_its_deadline_is_disconnected(listen: Listen, files: TlsFiles) -> None:
    async with serving(listen, files, read_within_s=0.01) as made:
        await made.until("metrics_listening")
        reader, writer = await asyncio.open_connection(listen.host, listen.port)
        try:
            assert await asyncio.wait_for(reader.read(), WITHIN_S) == b""
        except ConnectionResetError:
            pass
        finally:
            writer.transport.abort()


async def test_listener_without_valid_files_never_serves_and_starts_after_their_correction(
    listen: Listen, files: TlsFiles, authority: Authority
) -> None:
    make_readable(files.key)
    async with serving(listen, files) as made:
        await made.until("metrics_unavailable")
        assert "the key is readable by all users; run: chmod o=" in made.logged[0]["error"]
        line = next(each for each in made.context.loop_statuses.all if each.name == NAME)
        assert line.activity.value == "paused"
        with pytest.raises(ConnectionRefusedError):
            await exchange(listen, client(authority, "prometheus"))
        make_private(files.key)
        await reload(made)
        await made.until("metrics_listening")
        assert (await exchange(listen, client(authority, "prometheus")))[0].startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("broken", ["certificate", "key", "client_ca"])
@pytest.mark.parametrize(
    ("damage", "error"),
    [("missing", "cannot read"), ("empty", "PEM form"), ("writable", "writable by all users"), ("large", "more than")],
)
def test_unusable_file_is_refused_with_its_path(files: TlsFiles, broken: str, damage: str, error: str) -> None:
    path = Path(getattr(files, broken))
    if damage == "missing":
        path.unlink()
    elif damage == "writable":
        path.chmod(0o602)
    else:
        path.write_bytes(b"" if damage == "empty" else b" " * (2 << 20))
    with pytest.raises(ConfigError, match=error) as raised:
        server_context(files)
    assert str(path) in str(raised.value)


def test_encrypted_key_is_refused_without_a_prompt(files: TlsFiles) -> None:
    command = ["openssl", "pkcs8", "-topk8", "-in", files.key, "-passout", "pass:x", "-out", f"{files.key}.new"]
    subprocess.run(command, check=True, capture_output=True)
    Path(f"{files.key}.new").replace(files.key)
    with pytest.raises(ConfigError, match="the key is encrypted"):
        server_context(files)


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the owner of a file requires root")
def test_key_of_another_user_is_refused(files: TlsFiles) -> None:
    os.chown(files.key, 65534, 65534)
    with pytest.raises(ConfigError, match="owned by uid 65534"):
        server_context(files)
