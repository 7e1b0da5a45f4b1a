"""A daemon context with its control API on a real socket, on a simulated node.

The peer of a connection is set by the test, or reported by the kernel as an unprivileged group member.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import socket
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import h11
import msgspec
import pytest

from nodeagent.api.client import encode_request
from nodeagent.api.operations import OPERATIONS
from nodeagent.cli import main as command_line
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.control import server as control, server as control_socket
from nodeagent.daemon.control.server import ControlServer
from nodeagent.daemon.http import server as http_server
from nodeagent.gc.agent import open_agent
from nodeagent.host.sockets import Peer
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from nodeagent.telemetry import logging as log
from nodeagent.units import SystemClock
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.support.other_user import UNPRIVILEGED_UID, as_other_user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractAsyncContextManager

    from nodeagent.gc.agent import Agent
    from nodeagent.units import Clock
    from tests.sim.faults import Faults

ROOT = Peer(1, 0, frozenset({0}))
GROUP = os.getgid()
MEMBER = Peer(2, 4711, frozenset({4711, GROUP}))
STRANGER = Peer(3, 4712, frozenset({4712}))
IMAGE = "registry.example/app:v1"
GROUP_NAME = "group-of-the-test"
MEMBERS_GROUP = 4711 if os.geteuid() == 0 else os.getgid()
"""GID of the control group; a test run as root can use a GID without an existing group."""


class Refused(Exception):  # noqa: N818 - an error response, not a test failure
    """An error response of the control API with a problem document."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


def parse_response(raw: bytes) -> tuple[int, list[dict[str, Any]]]:
    """Return the status code and the JSON lines of a complete response; status 0 if the connection was closed."""
    if not raw:
        return 0, [{"detail": "closed"}]
    wire = h11.Connection(h11.CLIENT)
    wire.send(h11.Request(method="GET", target="/", headers=[("Host", "localhost")]))
    wire.send(h11.EndOfMessage())
    wire.receive_data(raw)
    wire.receive_data(b"")
    status, body = 0, b""
    while not isinstance(event := wire.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    return status, [json.loads(line) for line in body.splitlines()]


@dataclass
class Node:
    """A daemon context with an agent, and a client of its control socket."""

    context: DaemonContext
    sim: SimNode
    path: Path
    log: io.StringIO
    config: Path
    peer: list[Peer] = field(default_factory=lambda: [ROOT])
    faults: Faults = field(init=False)

    async def exchange(
        self, operation: str, request: msgspec.Struct | None = None, *, body: bytes | None = None
    ) -> tuple[int, list[dict[str, Any]]]:
        """Send a request, with ``body`` instead of its encoded fields if given.

        Returns:
            Status code and documents of the response.
        """
        fields = {} if request is None else msgspec.structs.asdict(request)
        target, encoded = encode_request(OPERATIONS[operation], fields)
        sent = encoded if body is None else body
        method = OPERATIONS[operation].method
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n\r\n"
        return parse_response(await asyncio.to_thread(self._send, head.encode() + sent))

    def _send(self, data: bytes) -> bytes:
        """Send a request; return the complete response.

        A blocking socket receives the response even if the server closes the connection without reading the body.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(self.path))
            with suppress(ConnectionError):
                connection.sendall(data)
            received = b""
            with suppress(ConnectionError):
                while part := connection.recv(1 << 16):
                    received += part
            return received

    async def ask(
        self, operation: str, request: msgspec.Struct | None = None, *, body: bytes | None = None
    ) -> dict[str, Any]:
        """Return the document of a successful response; the documents of a stream in a list with the key ``all``.

        Raises:
            Refused: the response is a problem document.
        """
        status, documents = await self.exchange(operation, request, body=body)
        if status != 200 or "problem" in documents[-1]:
            raise Refused(status, documents[-1].get("problem", documents[-1])["detail"])
        return documents[0] if len(documents) == 1 else {"all": documents}

    async def refused(self, operation: str, request: msgspec.Struct | None = None) -> tuple[int, str]:
        """Send a request that must fail; return status code and detail of the problem document."""
        with pytest.raises(Refused) as caught:
            await self.ask(operation, request)
        return caught.value.status, caught.value.detail

    @asynccontextmanager
    async def follow(self, operation: str) -> AsyncIterator[asyncio.StreamReader]:
        """Send a request without fields; yield a reader of the raw response."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        method, path = OPERATIONS[operation][:2]
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        try:
            yield reader
        finally:
            writer.transport.abort()

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [each for each in lines if each["event"] == event]


def _small_node(root: Path) -> SimNode:
    sim = SimNode()
    sim.root_path = str(root)
    sim.add_image(IMAGE, layers=[Layer("base", 1 << 20)])
    sandbox = sim.add_pod("web")
    for number in range(2):
        sim.add_container(sandbox, "app", IMAGE, state=ContainerState.EXITED, age_s=3600 + number)
    return sim


def _configuration(root: Path, sockets: Path, max_per_pod_container: int) -> str:
    return (
        f'role = "standalone"\n'
        f'[runtime]\nendpoint = "unix://{sockets}/cri.sock"\n'
        f'[state]\ndirectory = "{root}/state"\n'
        f'[container_gc]\nminimum_age = "0s"\nmax_per_pod_container = {max_per_pod_container}\n'
        f'pod_log_root = "{root}/pods"\ncontainer_log_root = "{root}/containers"\n'
        f'[control]\nsocket = "{sockets}/control.sock"\n'
    )


def _opened_agent(context: DaemonContext) -> AbstractAsyncContextManager[Agent]:
    settings = context.settings
    return open_agent(
        settings,
        record=True,
        dry_run=settings.dry_run,
        clock=context.clock,
        observer_of_calls=context.observe_call,
        watched_pods=context.watched_pods,
    )


def _keep_unhandled(unhandled: list[dict[str, Any]], error: dict[str, Any]) -> None:
    """Append the error to ``unhandled``, except one of gRPC's completion queue.

    All event loops of a process share that queue. A call that a command cancelled may complete after the end of its
    event loop; the node's event loop then reports it. Outside of tests, node and command are two processes.
    """
    if "PollerCompletionQueue._handle_events" not in error["message"]:
        unhandled.append(error)


@asynccontextmanager
async def serving(
    tmp_path: Path,
    *,
    max_per_pod_container: int = 0,
    simulated_peers: bool = True,
    head: str = "",
    extra: str = "",
    sim: SimNode | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Node]:
    """Serve the control API within the block; yield the node.

    Args:
        tmp_path: directory of configuration, state and logs.
        max_per_pod_container: dead containers kept per container; the node has two dead containers.
        simulated_peers: whether ``Node.peer`` replaces the peer reported by the kernel.
        head: first lines of the configuration.
        extra: further sections of the configuration.
        sim: node with the items of a test; a node with two dead containers of one pod by default.
        clock: clock of the daemon and its agent; the system clock by default.
    """
    directory = Path(tempfile.mkdtemp(dir=tmp_path.parent if simulated_peers else None, prefix="c"))
    config = tmp_path / "config.toml"
    config.write_text(head + _configuration(tmp_path, directory, max_per_pod_container) + extra)
    stream, clock = io.StringIO(), clock or SystemClock()
    logger = log.configure("json", "info", stream)
    made = checked(Origin(config))
    made = replace(made, control=replace(made.control, group=GROUP_NAME))
    context = DaemonContext(made, logger, clock, LoopStatuses(clock), PassLock(clock))
    sim = _small_node(tmp_path) if sim is None else sim
    node = Node(context, sim, directory / "control.sock", stream, config)
    group = GROUP if simulated_peers else MEMBERS_GROUP

    def peer_of(_: object) -> Peer:
        return node.peer[0]

    def number_of(name: str) -> int | None:
        return group if name == GROUP_NAME else None

    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        if simulated_peers:
            stack.enter_context(mock.patch.object(http_server, "read_peer", peer_of))
        stack.enter_context(mock.patch.object(control_socket, "group_number", number_of))
        stack.enter_context(mock.patch.object(control, "group_number", number_of))
        server = await stack.enter_async_context(SimServer(sim, directory / "cri.sock"))
        context.agent = await stack.enter_async_context(_opened_agent(context))
        node.faults = server.faults
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, error: _keep_unhandled(unhandled, error))
        stop = asyncio.Event()
        running = asyncio.ensure_future(ControlServer(context).run(stop))
        while not node.logged("control_listening"):  # noqa: ASYNC110 - log writes set no asyncio.Event
            await asyncio.sleep(0)
        yield node
        stop.set()
        await running
        assert not node.path.exists()
        assert not unhandled, unhandled


@contextmanager
def _unprivileged() -> Iterator[None]:
    """Run the block as an unprivileged user in the control group.

    A test without root privileges runs the block as its own user.
    """
    if os.geteuid() != 0:
        yield
        return
    groups, own = os.getgroups(), os.getegid()
    os.setgroups([MEMBERS_GROUP])
    os.setegid(UNPRIVILEGED_UID)
    try:
        with as_other_user():
            yield
    finally:
        os.setegid(own)
        os.setgroups(groups)


@asynccontextmanager
async def served_to_member(tmp_path: Path, *, max_per_pod_container: int) -> AsyncIterator[Node]:
    """Serve an unprivileged group member with write access; yield the node.

    Connections pass through a relay, so that the kernel reports the credentials of the member.
    """
    tasks: set[asyncio.Task[None]] = set()
    async with serving(tmp_path, max_per_pod_container=max_per_pod_container, simulated_peers=False) as node:
        settings = node.context.settings
        node.context.settings = replace(settings, control=replace(settings.control, group_may_act=True))
        node.path.parent.chmod(0o755)
        direct, node.path = node.path, node.path.with_name("relay.sock")

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with _unprivileged():
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(str(direct))
            upstream.setblocking(False)
            inner_reader, inner_writer = await asyncio.open_unix_connection(sock=upstream)
            pumps = [
                asyncio.ensure_future(_pump(reader, inner_writer)),
                asyncio.ensure_future(_pump(inner_reader, writer)),
            ]
            tasks.update(pumps)
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for each in (writer, inner_writer):
                each.close()

        server = await asyncio.start_unix_server(relay, node.path)
        try:
            yield node
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            node.path.unlink(missing_ok=True)
            node.path = direct


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def say(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, output and error output."""

    def run() -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["nodeagent", *words])
            with pytest.raises(SystemExit) as ended:
                command_line.main()
        return int(ended.value.code or 0)

    code = await asyncio.to_thread(run)
    output = capsys.readouterr()
    return code, output.out, output.err
