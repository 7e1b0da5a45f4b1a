"""API client over TLS with a fake API server: trust, credentials, rotation, failures, limits."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import yaml

from nodeagent.errors import ApiServerError, ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.kube.api_client import ApiClient, ApiRequest, tls_context
from nodeagent.kube.api_credentials import ApiCredentials, ApiIdentity
from nodeagent.model.kubernetes import ApiAccess, Node
from nodeagent.record import replace
from tests.support.api_server import NODES, TOKEN, ApiServer, Fault, serving_api
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

GET = ApiRequest("GET", f"{NODES}/node-1")


@contextmanager
def api(authority: Authority, certificate: str = "server") -> Iterator[tuple[ApiServer, str]]:
    server = ApiServer()
    server.put(NODES, "node-1", {"kind": "Node", "spec": {"providerID": "test://1"}})
    with serving_api(server, partial(authority.server_context, certificate, clients=True)) as url:
        yield server, url


def with_token(authority: Authority, url: str, token_file: Path) -> ApiAccess:
    return ApiAccess(url=url, ca_file=authority.ca_file, token_file=token_file, timeout_s=20)


async def get(access: ApiAccess) -> Node:
    client = ApiClient(access, ApiCredentials(access))
    try:
        return await client.send(GET, Node)
    finally:
        client.close()


async def refused(access: ApiAccess) -> str:
    with pytest.raises(ApiServerError) as caught:
        await get(access)
    return str(caught.value)


async def test_object_is_read_with_a_token_over_verified_tls(api_authority: Authority, token_file: Path) -> None:
    with api(api_authority) as (server, url):
        node = await get(with_token(api_authority, url, token_file))
        assert node.spec.provider_id == "test://1"
        assert server.requests[0].token == TOKEN


async def test_client_certificate_is_an_identity_without_token(api_authority: Authority) -> None:
    own = api_authority.directory
    with api(api_authority) as (server, url):
        access = ApiAccess(
            url=url, ca_file=api_authority.ca_file, certificate_file=own / "client.crt", key_file=own / "client.key"
        )
        await get(access)
        assert (server.requests[0].subject, server.requests[0].token) == ("system:node:node-1", "")


@pytest.mark.parametrize("inline", [False, True], ids=["files", "data"])
async def test_kubeconfig_with_a_client_certificate(api_authority: Authority, tmp_path: Path, inline: bool) -> None:
    own = api_authority.directory
    files = {"certificate-authority": "ca.crt", "client-certificate": "client.crt", "client-key": "client.key"}
    values = {
        f"{name}-data" if inline else name: base64.b64encode((own / file).read_bytes()).decode()
        if inline
        else str(own / file)
        for name, file in files.items()
    }
    with api(api_authority) as (server, url):
        cluster = {"server": url, **{name: each for name, each in values.items() if name.startswith("cert")}}
        user = {name: each for name, each in values.items() if name.startswith("client")}
        await get(ApiAccess(kubeconfig=kubeconfig(tmp_path, cluster, user)))
        assert server.requests[0].subject == "system:node:node-1"


def kubeconfig(directory: Path, cluster: Mapping[str, object], user: Mapping[str, object]) -> Path:
    path = directory / "kubeconfig"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": dict(cluster)}],
        "users": [{"name": "u", "user": dict(user)}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


SERVER: dict[str, object] = {"server": "https://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("cluster", "user", "error"),
    [
        ({**SERVER, "insecure-skip-tls-verify": True}, {"token": TOKEN}, "insecure-skip-tls-verify is refused"),
        ({"server": "http://127.0.0.1:1"}, {"token": TOKEN}, "expected https"),
        ({"server": "https://u:secret-p@h"}, {"token": TOKEN}, "expected https"),
        ({**SERVER, "proxy-url": "http://p"}, {"token": TOKEN}, "proxy-url is not supported"),
        (SERVER, {"exec": {"command": "x"}, "token": TOKEN}, "exec is refused"),
        (SERVER, {"username": "u", "password": TOKEN}, "username is refused"),
        (SERVER, {"as": "admin", "token": TOKEN}, "as is refused"),
        (SERVER, {}, "no credentials"),
        (SERVER, {"token": f"{TOKEN}\nX: y"}, "contains no token"),
        (SERVER, {"token": 5}, "token is not a string"),
        (SERVER, {"client-certificate-data": "!"}, "is not base64"),
        (SERVER, {"client-certificate-data": base64.b64encode(b"no PEM").decode()}, "cannot load the client cert"),
        (
            {**SERVER, "certificate-authority-data": base64.b64encode(b"no PEM").decode()},
            {"token": TOKEN},
            "load the CA",
        ),
        (SERVER, {"tokenFile": "absent"}, "cannot read"),
    ],
)
async def test_unsafe_or_malformed_kubeconfig_is_refused_without_secrets_in_the_error(
    tmp_path: Path, cluster: dict[str, object], user: dict[str, object], error: str
) -> None:
    shown = await refused(ApiAccess(kubeconfig=kubeconfig(tmp_path, cluster, user)))
    assert error in shown
    assert TOKEN not in shown
    assert "secret-p" not in shown


@pytest.mark.parametrize("text", ["", "[", "- a", "current-context: c", "a: &a [*a]", f"key: {TOKEN}: [x"])
async def test_text_that_is_no_kubeconfig_is_refused_without_its_content(tmp_path: Path, text: str) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    shown = await refused(ApiAccess(kubeconfig=tmp_path / "kubeconfig"))
    assert "kubeconfig" in shown
    assert TOKEN not in shown


async def test_credentials_that_others_can_write_are_refused(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, SERVER, {"token": TOKEN})
    path.chmod(0o666)
    assert "not trusted" in await refused(ApiAccess(kubeconfig=path))
    assert TOKEN not in repr(ApiCredentials(ApiAccess(kubeconfig=path)))


@pytest.mark.parametrize(
    ("certificate", "error"),
    [("expired", "certificate has expired"), ("foreign", "is not valid for"), ("server", "")],
)
async def test_untrusted_server_receives_no_request(
    api_authority: Authority, token_file: Path, tmp_path: Path, certificate: str, error: str
) -> None:
    with api(api_authority, certificate) as (server, url):
        access = with_token(api_authority, url, token_file)
        if not error:
            access = replace(access, ca_file=Authority(tmp_path / "other").ca_file)
        shown = await refused(access)
        assert "server certificate not trusted" in shown
        assert error in shown
        assert server.requests == []


def test_server_is_always_verified_also_one_of_an_older_cluster(api_authority: Authority) -> None:
    identity = ApiIdentity("https://127.0.0.1", ca=api_authority.ca_file.read_text())
    context = tls_context(identity)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT  # older clusters: CA without key identifiers


async def test_renewed_token_is_used_without_restart_on_a_new_connection(
    api_authority: Authority, token_file: Path, tmp_path: Path
) -> None:
    with api(api_authority) as (server, url):
        access = with_token(api_authority, url, token_file)
        client = ApiClient(access, ApiCredentials(access))
        await client.send(GET, Node)
        await client.send(GET, Node)
        assert server.connections == 1
        server.token = "renewed"
        fresh = tmp_path / "fresh"
        fresh.write_text("renewed")
        fresh.replace(token_file)
        await client.send(GET, Node)
        assert [each.token for each in server.requests] == [TOKEN, TOKEN, "renewed"]
        client.close()


class HangingCredentials(ApiCredentials):
    """Credentials on an unresponsive filesystem: each read hangs until ``released`` is set."""

    def __init__(self, access: ApiAccess) -> None:
        super().__init__(access)
        self.released = threading.Event()
        self.readings = 0

    def read(self) -> ApiIdentity:
        self.readings += 1
        self.released.wait(30)
        return super().read()


async def test_credentials_that_cannot_be_read_occupy_one_thread(api_authority: Authority, token_file: Path) -> None:
    with api(api_authority) as (_, url):
        access = with_token(api_authority, url, token_file)
        credentials = HangingCredentials(access)
        hasty = [ApiClient(replace(access, timeout_s=0.05), credentials) for _ in range(2)]
        for client in (*hasty, *hasty):
            with pytest.raises(ApiServerUnavailableError, match="no answer"):
                await client.send(GET, Node)
        assert credentials.readings == 1
        credentials.released.set()
        patient = ApiClient(access, credentials)
        assert (await patient.send(GET, Node)).metadata.name == "node-1"
        patient.close()


async def test_renewed_client_certificate_opens_a_new_connection(api_authority: Authority, tmp_path: Path) -> None:
    own, pair = api_authority.directory, tmp_path / "pair.pem"
    api_authority.issue("renewed", "/CN=system:node:renewed")

    def write(name: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_bytes((own / f"{name}.crt").read_bytes() + (own / f"{name}.key").read_bytes())
        fresh.replace(pair)

    write("client")
    with api(api_authority) as (server, url):
        access = ApiAccess(url=url, ca_file=api_authority.ca_file, certificate_file=pair)
        client = ApiClient(access, ApiCredentials(access))
        await client.send(GET, Node)
        write("renewed")
        await client.send(GET, Node)
        assert [each.subject for each in server.requests] == ["system:node:node-1", "system:node:renewed"]
        client.close()


async def test_expired_token_is_refused_and_read_again(api_authority: Authority, token_file: Path) -> None:
    with api(api_authority) as (server, url):
        access = with_token(api_authority, url, token_file)
        client = ApiClient(access, ApiCredentials(access))
        server.token = "other"
        with pytest.raises(ApiServerRefusedError, match="credentials refused") as caught:
            await client.send(GET, Node)
        assert caught.value.status == 401
        assert TOKEN not in str(caught.value)
        server.token = TOKEN
        assert (await client.send(GET, Node)).metadata.name == "node-1"
        client.close()


async def test_connection_closed_while_idle_is_opened_again(api_authority: Authority, token_file: Path) -> None:
    with api(api_authority) as (server, url):
        access = with_token(api_authority, url, token_file)
        client = ApiClient(access, ApiCredentials(access))
        await client.send(GET, Node)
        server.faults = [Fault(behaviour="close")]
        await client.send(GET, Node)
        assert server.connections == 2
        server.faults = [Fault(behaviour="close"), Fault(behaviour="close")]
        with pytest.raises(ApiServerUnavailableError):
            await client.send(GET, Node)
        await client.send(GET, Node)
        client.close()


@pytest.mark.parametrize("behaviour", ["hang", "slow"])
async def test_answer_that_is_not_complete_in_time_is_unavailable(
    api_authority: Authority, token_file: Path, behaviour: str
) -> None:
    with api(api_authority) as (server, url):
        server.faults = [Fault(behaviour=behaviour)]
        access = replace(with_token(api_authority, url, token_file), timeout_s=0.2)
        assert "no answer in 0.2 s" in await refused(access)


async def test_server_that_accepts_without_tls_is_unavailable(api_authority: Authority, token_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        access = replace(with_token(api_authority, url, token_file), timeout_s=0.2)
        assert "no answer" in await refused(access)
    assert "connection refused" in await refused(access)


async def test_server_that_closes_the_connection_during_the_handshake_is_unavailable(
    api_authority: Authority, token_file: Path
) -> None:
    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert "connection closed by the server" in await refused(with_token(api_authority, url, token_file))


@pytest.mark.parametrize(
    ("status", "headers", "retry_after_s"),
    [
        (429, {"Retry-After": "7"}, 7.0),
        (503, {"Retry-After": "99999"}, 60.0),
        (500, {"Retry-After": "soon"}, None),
        (307, {"Location": "https://elsewhere.test/"}, None),
        (422, {}, None),
    ],
)
async def test_refusal_has_status_and_bounded_retry_time(
    api_authority: Authority, token_file: Path, status: int, headers: dict[str, str], retry_after_s: float | None
) -> None:
    with api(api_authority) as (server, url):
        text = json.dumps({"kind": "Status", "reason": "Why", "message": "m\x1b[31m" + "x" * 500})
        server.faults = [Fault(status, text, headers)]
        with pytest.raises(ApiServerRefusedError) as caught:
            await get(with_token(api_authority, url, token_file))
        error = caught.value
        assert (error.status, error.reason, error.retry_after_s) == (status, "Why", retry_after_s)
        assert "\x1b" not in str(error)
        assert len(str(error)) < 500


@pytest.mark.parametrize("body", ["", "{", "[]", '{"metadata": 5}', "\udcff", "[" * 50_000])
async def test_malformed_object_is_unavailable(api_authority: Authority, token_file: Path, body: str) -> None:
    with api(api_authority) as (server, url):
        server.faults = [Fault(200, body.encode("utf-8", "replace").decode())]
        with pytest.raises(ApiServerUnavailableError, match="answer is not a Node"):
            await get(with_token(api_authority, url, token_file))


async def test_answer_above_the_limit_is_dropped(api_authority: Authority, token_file: Path) -> None:
    with api(api_authority) as (server, url):
        server.faults = [Fault(200, " " * 2000)]
        access = replace(with_token(api_authority, url, token_file), max_bytes=1000)
        assert "more than 1000 bytes" in await refused(access)


async def test_cancelled_request_leaves_the_client_usable(api_authority: Authority, token_file: Path) -> None:
    with api(api_authority) as (server, url):
        access = with_token(api_authority, url, token_file)
        client = ApiClient(access, ApiCredentials(access))
        server.faults = [Fault(behaviour="hang")]
        waiting = asyncio.ensure_future(client.send(GET, Node))
        assert await asyncio.to_thread(server.received.wait, 10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await client.send(GET, Node)).metadata.name == "node-1"
        client.close()
