"""Pod list of the kubelet over sockets, with and without TLS: credentials, invalid responses, deadlines."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import ConfigError, ObservationError
from nodeagent.host.sockets import port_owners
from nodeagent.kube.kubelet_pods import KubeletPods
from nodeagent.model.kubernetes import KubeletAccess
from nodeagent.model.node import KubeletConfig
from nodeagent.settings.kubelet_config import ask_kubelet
from tests.support.kubelet_api import FORBIDDEN, LIST, POD, Answer, kubelet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a key and a self-signed certificate for the name ``node-1``."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("authority")
    subject = ["-subj", "/CN=node-1", "-addext", "subjectAltName=DNS:node-1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*command, "-keyout", directory / "key.pem", "-out", directory / "cert.pem"], check=True, capture_output=True
    )
    return directory


def secured(authority: Path, *, client_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "cert.pem", authority / "key.pem")
    if client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority / "cert.pem")
    return context


async def refused(access: KubeletAccess) -> str:
    with pytest.raises(ObservationError) as caught:
        await KubeletPods(access, port_owners).read()
    return str(caught.value)


async def test_read_only_port_requires_no_credentials() -> None:
    with kubelet(answer := Answer()) as url:
        (pod,) = await KubeletPods(KubeletAccess(url), port_owners).read()
    assert (pod.uid, pod.namespace, pod.name, pod.priority) == ("u-1", "shop", "web", 7)
    assert answer.requests[0]["path"] == "/pods"
    assert "Authorization" not in answer.requests[0]


def trusted(url: str, authority: Path) -> KubeletAccess:
    return KubeletAccess(url, ca_file=authority / "cert.pem", server_name="node-1")


def test_running_kubelet_decides_if_its_api_permits_it(authority: Path) -> None:
    found = KubeletConfig({"imageGCHighThresholdPercent": 60}, {"root-dir": "/srv"}, "k3s", unread=("cannot read /x",))
    answer = Answer(body=b'{"kubeletconfig": {"imageGCHighThresholdPercent": 71}}')
    with kubelet(answer, secured(authority)) as url:
        asked = ask_kubelet(found, trusted(url, authority))
    fields = {"evictionHard": {}, "imageGCHighThresholdPercent": 71}  # an omitted map is empty, not the default
    assert asked == KubeletConfig(fields, found.flags, "k3s", (f"{url}/configz",))
    assert answer.requests[0]["path"] == "/configz"
    with kubelet(Answer(403, FORBIDDEN), secured(authority)) as url:
        assert ask_kubelet(found, trusted(url, authority)) == found
    assert ask_kubelet(found, None) == found


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(403, FORBIDDEN), "HTTP 403"),
        (Answer(), "not a configuration"),
        (Answer(body=b"[]"), "not a configuration"),
        (Answer(body=b"{"), "not JSON"),
    ],
)
async def test_configuration_that_is_refused_or_malformed_is_an_error(
    answer: Answer, error: str, authority: Path
) -> None:
    with kubelet(answer, secured(authority)) as url, pytest.raises(ObservationError, match=error):
        await KubeletPods(trusted(url, authority), port_owners).read_config()


async def test_configuration_of_an_unverified_server_is_not_requested() -> None:
    with kubelet(answer := Answer()) as url, pytest.raises(ObservationError, match="not verified"):
        await KubeletPods(KubeletAccess(url), port_owners).read_config()
    assert answer.requests == []


async def test_token_file_is_read_for_each_request(authority: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    with kubelet(answer := Answer(), secured(authority)) as url:
        lister = KubeletPods(
            KubeletAccess(url, token_file=token, ca_file=authority / "cert.pem", server_name="node-1"), port_owners
        )
        for text in ("first\n", "second"):
            token.write_text(text)
            assert len(await lister.read()) == 1
    assert [each["Authorization"] for each in answer.requests] == ["Bearer first", "Bearer second"]


async def test_client_certificate_is_presented(authority: Path) -> None:
    with kubelet(Answer(), secured(authority, client_certificate=True)) as url:
        known: dict[str, Any] = {"ca_file": authority / "cert.pem", "server_name": "node-1", "timeout_s": 3}
        own: dict[str, Any] = {"certificate_file": authority / "cert.pem", "key_file": authority / "key.pem"}
        assert len(await KubeletPods(KubeletAccess(url, **known, **own), port_owners).read()) == 1
        assert "kubelet" in await refused(KubeletAccess(url, **known))


async def test_unknown_certificate_is_refused_unless_insecure(authority: Path) -> None:
    with kubelet(answer := Answer(), secured(authority)) as url:
        error = await refused(KubeletAccess(url))
        assert "certificate not trusted" in error
        assert "set ca_file" in error
        named = await refused(KubeletAccess(url, ca_file=authority / "cert.pem"))
        assert "certificate not trusted" in named
        assert answer.requests == []
        assert len(await KubeletPods(KubeletAccess(url, insecure=True), port_owners).read()) == 1


@pytest.mark.parametrize("owners", [frozenset({12345}), frozenset({0, 12345}), frozenset()])
async def test_server_of_another_user_gets_no_request_and_no_token(
    authority: Path, tmp_path: Path, owners: frozenset[int]
) -> None:
    (tmp_path / "token").write_text("secret")
    known: dict[str, Any] = {"ca_file": authority / "cert.pem", "server_name": "node-1"}
    for fields, context in ((known | {"token_file": tmp_path / "token"}, secured(authority)), ({}, None)):
        refusal = pytest.raises(ObservationError, match=r"server .* user.*: no credentials sent")
        with kubelet(answer := Answer(), context) as url, refusal:
            await KubeletPods(KubeletAccess(url, **fields), lambda *_: owners).read()
        assert answer.requests == []


async def test_server_whose_owner_cannot_be_read_gets_no_request() -> None:
    def fail(*_: int) -> frozenset[int]:
        raise PermissionError(13, "Permission denied")

    with kubelet(answer := Answer()) as url, pytest.raises(ObservationError, match="Permission denied"):
        await KubeletPods(KubeletAccess(url), fail).read()
    assert answer.requests == []


async def test_only_a_list_of_a_verified_server_is_marked_as_verified(authority: Path) -> None:
    known: dict[str, Any] = {"ca_file": authority / "cert.pem", "server_name": "node-1"}
    for fields, context, verified in (
        (known, secured(authority), True),
        ({"insecure": True}, secured(authority), False),
        ({}, None, False),
    ):
        with kubelet(Answer(), context) as url:
            (pod,) = await KubeletPods(KubeletAccess(url, **fields), port_owners).read()
        assert pod.is_verified == verified


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Answer(401, b"Unauthorized"), "HTTP 401 Unauthorized; credentials unknown"),
        (
            Answer(403, FORBIDDEN),
            "HTTP 403 Forbidden; Forbidden (user=agent, verb=get, resource=nodes, subresource(s)=",
        ),
        (Answer(403, b""), "HTTP 403 Forbidden; credentials lack access; grant get on nodes/pods (kubelets before"),
        (
            Answer(500, b"Authorization error (user=agent, verb=get,\n subresource=pods)\n"),
            "HTTP 500 Internal Server Error; Authorization error (user=agent, verb=get, subresource=pods)",
        ),
        (Answer(500, b"\x1b[2J\x00<b>" + b"x" * 5000), "HTTP 500 Internal Server Error; \\x1b[2J\\x00<b>xxx"),
        (Answer(500, b""), "HTTP 500 Internal Server Error"),
        (Answer(503, b"x", length=-1), "HTTP 503 Service Unavailable; x"),
        (Answer(302), "HTTP 302 Found"),
        (Answer(body=b""), "answer is not JSON"),
        (Answer(body=b'{"kind": "PodList", "items": ['), "answer is not JSON"),
        (Answer(body=b"[" * 100_000), "answer is not JSON"),
        (Answer(body=b"\xff\xfe"), "answer is not JSON"),
        (Answer(body=b"[]"), "not a list of pods"),
        (Answer(body=b'{"kind": "Status"}'), "not a list of pods"),
        (Answer(body=b'{"kind": "PodList", "items": {}}'), "items is not a list"),
        (Answer(length=10_000), "answer truncated"),
        (Answer(body=b"x" * 300_000), "answer has more than 200000 bytes"),
        (Answer(body=b"x" * 300_000, length=-1), "answer has more than 200000 bytes"),
    ],
)
async def test_invalid_answer_is_an_error_with_its_cause(answer: Answer, cause: str) -> None:
    with kubelet(answer) as url:
        error = await refused(KubeletAccess(url, max_bytes=200_000))
    assert error.startswith(f"kubelet {url}/pods: ")
    assert cause in error
    assert error.isprintable()
    assert len(error) < 700


async def test_list_without_pods_is_valid() -> None:
    with kubelet(Answer(body=b'{"kind": "PodList", "items": null}')) as url:
        assert await KubeletPods(KubeletAccess(url), port_owners).read() == ()


async def test_malformed_pod_costs_only_itself() -> None:
    odd = {
        "metadata": {"name": "odd", "uid": "u-2"},
        "spec": {"containers": [{"resources": {"limits": {"memory": "x"}}}]},
    }
    huge = {"metadata": {"name": "huge", "uid": "u-3"}, "spec": {"overhead": {"memory": "12E"}}}
    body = json.dumps(LIST | {"items": [odd, {}, POD, huge]}).encode()
    with kubelet(Answer(body=body)) as url:
        found = await KubeletPods(KubeletAccess(url), port_owners).read()
    assert [(each.uid, bool(each.malformed)) for each in found] == [
        ("u-2", True),
        ("", True),
        ("u-1", False),
        ("u-3", False),
    ]
    assert found[3].memory_request_bytes == 2**63 - 1


async def test_refused_connection_is_an_error() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        error = await refused(KubeletAccess(f"http://127.0.0.1:{bound.getsockname()[1]}"))
    assert "connection refused" in error


@contextmanager
def sending(answer: bytes, *, complete: bool) -> Iterator[str]:
    """Serve one client within the block: send bytes, and close the connection only if they are ``complete``.

    Yields:
        The URL of the server.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(4096)
                accepted.sendall(answer)
                if not complete:
                    accepted.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


async def test_chunked_answer_after_an_interim_response_is_read() -> None:
    body = json.dumps(LIST).encode()
    answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    with sending(answer % (len(body), body), complete=True) as url:
        (found,) = await KubeletPods(KubeletAccess(url), port_owners).read()
    assert found.uid == "u-1"


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
async def test_endless_answer_is_aborted_at_the_deadline(begin: bytes) -> None:
    with sending(begin, complete=False) as url:
        error = await refused(KubeletAccess(url, timeout_s=0.2))
    assert error.endswith("no answer in 0.2 s")


@pytest.mark.parametrize(
    "answer",
    [
        b"\x1b[2J" + b"x" * 60_000 + b"\r\n\r\n",
        b"HTTP/1.1 20\x1b[2J " + b"x" * 60_000 + b"\r\n\r\n",
        b"HTTP/1.1 500 \x1b[2J" + b"x" * 60_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\x1b[2J" + b"x" * 60_000 + b"\r\n",
    ],
    ids=["no HTTP", "status", "reason", "chunk"],
)
async def test_malformed_answer_is_quoted_in_a_short_and_printable_error(answer: bytes) -> None:
    with sending(answer, complete=True) as url:
        error = await refused(KubeletAccess(url))
    assert error.isprintable()
    assert len(error) < 700


async def test_unreadable_credentials_are_an_error_with_the_setting(tmp_path: Path, authority: Path) -> None:
    url = "https://127.0.0.1:1"
    assert "token_file" in await refused(KubeletAccess(url, token_file=tmp_path / "none"))
    (tmp_path / "empty").write_text("\n")
    assert "contains no token" in await refused(KubeletAccess(url, token_file=tmp_path / "empty"))
    (tmp_path / "split").write_text("a\r\nX-Other: b")
    assert "contains no token" in await refused(KubeletAccess(url, token_file=tmp_path / "split"))
    assert "ca_file" in await refused(KubeletAccess(url, ca_file=tmp_path / "none"))
    lone = KubeletAccess(url, certificate_file=authority / "cert.pem")
    assert "client certificate" in await refused(lone)


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "ftp://x"},
        {"url": "127.0.0.1:10250"},
        {"url": "https://x:99999"},
        {"url": "https://x/pods"},
        {"url": "https://"},
        {"url": "https://user@x"},
        {"url": "http://x", "token_file": "t"},
        {"url": "http://x", "certificate_file": "c"},
        {"url": "https://x", "token_file": "t", "insecure": True},
        {"url": "https://x", "key_file": "k"},
    ],
)
def test_impossible_access_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="kubelet"):
        KubeletAccess(**fields)
