from __future__ import annotations

import asyncio
import os
import socket as sockets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.errors import (
    ConfigError,
    NodeAgentError,
    RuntimeNotFoundError,
    RuntimeRequestError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    RuntimeUnsupportedError,
)
from nodeagent.runtime.connection import (
    K3S_SOCKET as K3S,
    Method,
    RuntimeConnection,
    check_permission,
    discover_endpoint,
)
from nodeagent.runtime.cri import CriClient
from tests.support.other_user import UNPRIVILEGED_UID, as_other_user
from tests.unit.runtime.conftest import Fake, cri_handlers, serving

if TYPE_CHECKING:
    from pathlib import Path

VERSION = Method("/runtime.v1.RuntimeService/Version", api.VersionRequest, api.VersionResponse)
REMOVE = Method("/runtime.v1.ImageService/RemoveImage", api.RemoveImageRequest, api.RemoveImageResponse, changes=True)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, RuntimeNotFoundError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, RuntimeTimeoutError),
        (grpc.StatusCode.UNIMPLEMENTED, RuntimeUnsupportedError),
        (grpc.StatusCode.FAILED_PRECONDITION, RuntimeRequestError),
        (grpc.StatusCode.UNKNOWN, RuntimeRequestError),
        (grpc.StatusCode.CANCELLED, RuntimeRequestError),
    ],
)
async def test_status_becomes_an_error_that_names_method_target_and_reason(
    socket: Path, connection: RuntimeConnection, code: grpc.StatusCode, kind: type[RuntimeRequestError]
) -> None:
    fake = Fake()
    fake.answers["Version"] = (code, "because")
    async with serving(socket, *cri_handlers(fake)):
        with pytest.raises(RuntimeRequestError) as caught:
            await connection.unary(VERSION, api.VersionRequest(), target="x")
    assert type(caught.value) is kind
    assert str(caught.value) == f"Version for x failed: {code.name}: because"


async def test_exceeded_deadline_is_a_timeout_and_is_observed(socket: Path) -> None:
    fake, seen, never = Fake(), list[tuple[str, float, str]](), asyncio.Event()
    fake.answers["Version"] = never.wait
    connection = RuntimeConnection(str(socket), deadlines={"Version": 0.05}, observer=lambda *call: seen.append(call))
    async with connection, serving(socket, *cri_handlers(fake)):
        with pytest.raises(RuntimeTimeoutError, match=rf"no answer from {socket} in time; is the runtime stopped"):
            await connection.unary(VERSION, api.VersionRequest())
    assert [(name, status) for name, _, status in seen] == [("Version", "DEADLINE_EXCEEDED")]
    assert seen[0][1] >= 0.04


async def test_missing_service_is_reported_as_disabled_cri_plugin(socket: Path, connection: RuntimeConnection) -> None:
    fake = Fake()
    fake.answers["Version"] = (grpc.StatusCode.UNIMPLEMENTED, "unknown service runtime.v1.RuntimeService")
    async with serving(socket, *cri_handlers(fake)):
        with pytest.raises(RuntimeUnsupportedError, match="CRI plugin is disabled"):
            await connection.unary(VERSION, api.VersionRequest())


async def test_absent_socket_is_reported(connection: RuntimeConnection, socket: Path) -> None:
    with pytest.raises(RuntimeUnavailableError, match=f"{socket}: no such socket"):
        await connection.unary(VERSION, api.VersionRequest())


async def test_socket_without_listener_is_reported(connection: RuntimeConnection, socket: Path) -> None:
    with sockets.socket(sockets.AF_UNIX) as left_over:
        left_over.bind(str(socket))
    with pytest.raises(RuntimeUnavailableError, match="not listening"):
        await connection.unary(VERSION, api.VersionRequest())


async def test_lost_answer_of_a_change_leaves_its_effect_unknown(socket: Path, connection: RuntimeConnection) -> None:
    accepted = asyncio.Event()

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # an empty SETTINGS frame starts the call
        await _reader.read(200)
        accepted.set()
        await _reader.read(1 << 16)
        writer.close()

    server = await asyncio.start_unix_server(hang_up, str(socket))
    with pytest.raises(RuntimeUnavailableError, match="effect of RemoveImage of i unknown"):
        await connection.unary(REMOVE, api.RemoveImageRequest(), target="i")
    assert accepted.is_set()
    server.close()


async def test_cancellation_is_propagated(socket: Path, connection: RuntimeConnection) -> None:
    fake, entered, never = Fake(), asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        entered.set()
        await never.wait()

    fake.answers["Version"] = hang
    async with serving(socket, *cri_handlers(fake)):
        task = asyncio.ensure_future(connection.unary(VERSION, api.VersionRequest()))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_close_during_a_call_is_not_a_cancellation(socket: Path, connection: RuntimeConnection) -> None:
    fake, entered, never = Fake(), asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        entered.set()
        await never.wait()

    fake.answers["Version"] = hang
    async with serving(socket, *cri_handlers(fake)):
        task = asyncio.ensure_future(connection.unary(VERSION, api.VersionRequest()))
        await entered.wait()
        await connection.close()
        with pytest.raises(RuntimeUnavailableError, match="was closed"):
            await task


async def test_connection_is_reopened_after_a_runtime_restart(socket: Path, connection: RuntimeConnection) -> None:
    fake = Fake()
    fake.answers["Version"] = api.VersionResponse(runtime_name="fake")
    client = CriClient(connection)
    async with serving(socket, *cri_handlers(fake)):
        assert (await client.version()).name == "fake"
    with pytest.raises(RuntimeUnavailableError):
        await client.version()
    async with serving(socket, *cri_handlers(fake)), asyncio.timeout(30):
        while True:
            try:
                assert (await client.version()).name == "fake"
                break
            except RuntimeUnavailableError:
                await asyncio.sleep(0)


async def test_authority_is_localhost_and_not_the_path(socket: Path, connection: RuntimeConnection) -> None:
    authorities: list[bytes] = []

    class Spy:
        def Version(self, _request: object, context: Any) -> api.VersionResponse:  # noqa: N802 - gRPC method name
            authorities.append(context._rpc_event.call_details.host)  # noqa: SLF001 - grpc has no public attribute for it
            return api.VersionResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(cri_handlers(Spy()))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    await connection.unary(VERSION, api.VersionRequest())
    server.stop(None).wait()
    assert authorities == [b"localhost"]


@pytest.mark.parametrize("endpoint", ["unix:///a/b.sock", "unix:/a/b.sock", "/a/b.sock"])
def test_unix_url_and_absolute_path_are_accepted(endpoint: str) -> None:
    assert RuntimeConnection(endpoint).endpoint == "unix:///a/b.sock"
    assert discover_endpoint(endpoint) == "unix:///a/b.sock"


@pytest.mark.parametrize("endpoint", ["tcp://1.2.3.4:1", "run/x.sock", "unix://x.sock", "npipe:////./pipe/x"])
def test_endpoint_other_than_a_unix_socket_is_rejected(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.endpoint"):
        discover_endpoint(endpoint)


@pytest.mark.parametrize(
    ("present", "found"),
    [
        (["run/crio/crio.sock"], "run/crio/crio.sock"),
        (["run/crio/crio.sock", K3S], K3S),
        (
            [K3S, "run/containerd/containerd.sock"],
            K3S,
        ),
        (["run/crio/crio.sock", "run/containerd/containerd.sock"], "run/containerd/containerd.sock"),
    ],
    ids=["crio", "k3s-and-crio", "k3s-and-docker", "containerd-and-crio"],
)
def test_first_existing_socket_is_discovered(tmp_path: Path, present: list[str], found: str) -> None:
    for name in present:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert discover_endpoint(None, tmp_path) == f"unix://{tmp_path / found}"


def test_served_socket_precedes_one_left_by_a_crash(socket: Path) -> None:
    root = socket.parent
    default, crio, k3s = (root / "run" / each for each in ("containerd", "crio", "k3s/containerd"))
    for directory in (default, crio, k3s):
        directory.mkdir(parents=True)
    with (
        sockets.socket(sockets.AF_UNIX) as crashed,
        sockets.socket(sockets.AF_UNIX) as server,
    ):
        crashed.bind(str(k3s / "containerd.sock"))
        assert discover_endpoint(None, root) == f"unix://{k3s / 'containerd.sock'}", "no socket has a listener"
        server.bind(str(default / "containerd.sock"))
        server.listen(1)
        assert discover_endpoint(None, root) == f"unix://{default / 'containerd.sock'}"
        crashed.listen(1)
        assert discover_endpoint(None, root) == f"unix://{k3s / 'containerd.sock'}"


def test_failed_discovery_lists_the_tried_sockets(tmp_path: Path) -> None:
    with pytest.raises(NodeAgentError) as caught:
        discover_endpoint("", tmp_path)
    for name in ("containerd/containerd.sock", "k3s", "crio.sock", "runtime.endpoint"):
        assert name in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="changing to another user requires root")
async def test_only_missing_permission_fails_the_check_of_permission(socket: Path) -> None:
    socket.parent.chmod(0o755)
    with as_other_user():
        check_permission(str(socket))  # no error without a listening runtime
    async with serving(socket, *cri_handlers(Fake())):
        os.chmod(socket, 0o666)  # noqa: PTH101 - does not block on a temporary file
        with as_other_user():
            check_permission(str(socket))
        os.chmod(socket, 0o600)  # noqa: PTH101 - does not block on a temporary file
        check_permission(str(socket))
        denied = f"permission denied for user {UNPRIVILEGED_UID}; run as root"
        with as_other_user(), pytest.raises(RuntimeUnavailableError, match=denied):
            check_permission(str(socket))


@pytest.mark.skipif(os.geteuid() != 0, reason="changing to another user requires root")
async def test_missing_permission_is_reported(socket: Path) -> None:
    fake = Fake()
    fake.answers["Version"] = api.VersionResponse()
    socket.parent.chmod(0o755)
    async with serving(socket, *cri_handlers(fake)), RuntimeConnection(str(socket)) as connection:
        os.chmod(socket, 0o600)  # noqa: PTH101 - does not block on a temporary file
        with (
            as_other_user(),
            pytest.raises(RuntimeUnavailableError, match=f"permission denied for user {UNPRIVILEGED_UID}"),
        ):
            await connection.unary(VERSION, api.VersionRequest())
