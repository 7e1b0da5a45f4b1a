"""A daemon context with its control API on a real socket, on a simulated node.

The caller is the peer that the test sets, or the one that the kernel reports: an unprivileged member of the group.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import grpc
import grpc.aio
import pytest

from nodeagent._proto.control.v1 import control_pb2 as api
from nodeagent.act.agent import open_agent
from nodeagent.cli import main as command_line
from nodeagent.clock import SystemClock
from nodeagent.config.handoff import checked
from nodeagent.config.settings import Origin
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.control import guard
from nodeagent.daemon.control import socket as control_socket
from nodeagent.daemon.control.socket import ControlServer
from nodeagent.daemon.loop_status import LoopStatuses
from nodeagent.daemon.pass_lock import PassLock
from nodeagent.host.peer import Peer
from nodeagent.model import ContainerState
from nodeagent.sim.content import Layer
from nodeagent.sim.node import SimNode
from nodeagent.sim.server import SimServer
from nodeagent.telemetry import logging as log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nodeagent.sim.faults import Faults

SERVICE = api.DESCRIPTOR.services_by_name["Control"]
ROOT = Peer(1, 0, frozenset({0}))
GROUP = os.getgid()
MEMBER = Peer(2, 4711, frozenset({4711, GROUP}))
STRANGER = Peer(3, 4712, frozenset({4712}))
IMAGE = "registry.example/app:v1"
GROUP_NAME = "group-of-the-test"
NOBODY = 65534
MEMBERS_GROUP = 4711 if os.geteuid() == 0 else os.getgid()
"""Group of the unprivileged member; root can take any number, also that of no existing group."""


@dataclass
class Node:
    """A daemon context with an agent and the socket of its control API."""

    context: DaemonContext
    sim: SimNode
    path: Path
    log: io.StringIO
    config: Path
    peer: list[Peer] = field(default_factory=lambda: [ROOT])
    faults: Faults = field(init=False)

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{self.path}", options=options) as made:
            yield made

    async def ask(self, method: str, request: Any = None, *, raw: bytes | None = None) -> dict[str, Any]:
        sent = raw if raw is not None else (request or getattr(api, f"{method}Request")()).SerializeToString()
        path = f"/{SERVICE.full_name}/{method}"
        async with self.channel() as channel:
            if SERVICE.methods_by_name[method].server_streaming:
                found = [each async for each in channel.unary_stream(path, bytes, bytes)(sent, timeout=20)]
            else:
                found = [await channel.unary_unary(path, bytes, bytes)(sent, timeout=20)]
        documents = [json.loads(api.Document.FromString(each).json) for each in found]
        return documents[0] if len(documents) == 1 else {"all": documents}

    async def refused(self, method: str, request: Any = None) -> tuple[str, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(method, request)
        return caught.value.code().name, caught.value.details() or ""

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [each for each in lines if each["event"] == event]


@asynccontextmanager
async def serving(
    tmp_path: Path, *, max_per_pod_container: int = 0, simulated_peers: bool = True, head: str = ""
) -> AsyncIterator[Node]:
    """Serve the control API; its socket is removed at the end.

    Args:
        tmp_path: for configuration, state and logs.
        max_per_pod_container: number of dead containers to keep of each container; the node has two.
        simulated_peers: whether the caller is ``Node.peer``, not the peer that the kernel reports.
        head: first lines of the configuration.
    """
    directory = Path(tempfile.mkdtemp(dir=tmp_path.parent if simulated_peers else None, prefix="c"))
    config = tmp_path / "config.toml"
    config.write_text(
        f'{head}role = "standalone"\n'
        f'[runtime]\nendpoint = "unix://{directory}/cri.sock"\n'
        f'[state]\ndirectory = "{tmp_path}/state"\n'
        f'[container_gc]\nminimum_age = "0s"\nmax_per_pod_container = {max_per_pod_container}\n'
        f'pod_log_root = "{tmp_path}/pods"\ncontainer_log_root = "{tmp_path}/containers"\n'
        f'[control]\nsocket = "{directory}/control.sock"\n'
    )
    stream, clock = io.StringIO(), SystemClock()
    logger = log.configure("json", "info", stream)
    made = checked(Origin(config))
    made = replace(made, control=replace(made.control, group=GROUP_NAME))
    context = DaemonContext(made, logger, clock, LoopStatuses(clock), PassLock(clock))
    sim = SimNode()
    sim.root_path = str(tmp_path)
    sim.add_image(IMAGE, layers=[Layer("base", 1 << 20)])
    sandbox = sim.add_pod("web")
    for number in range(2):
        sim.add_container(sandbox, "app", IMAGE, state=ContainerState.EXITED, age_s=3600 + number)
    node = Node(context, sim, directory / "control.sock", stream, config)
    group = GROUP if simulated_peers else MEMBERS_GROUP

    def peer_of(_: object) -> Peer:
        return node.peer[0]

    def number_of(name: str) -> int | None:
        return group if name == GROUP_NAME else None

    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        if simulated_peers:
            stack.enter_context(mock.patch.object(control_socket, "read_peer", peer_of))
        stack.enter_context(mock.patch.object(control_socket, "group_number", number_of))
        stack.enter_context(mock.patch.object(guard, "group_number", number_of))
        server = await stack.enter_async_context(SimServer(sim, directory / "cri.sock"))
        context.agent = await stack.enter_async_context(
            open_agent(made, record=True, dry_run=made.dry_run, observer_of_calls=context.observe_call)
        )
        node.faults = server.faults
        stop = asyncio.Event()
        running = asyncio.ensure_future(ControlServer(context).run(stop))
        while not node.logged("control_listening"):  # noqa: ASYNC110 - the log has no event to wait on
            await asyncio.sleep(0)
        yield node
        stop.set()
        await running
        assert not node.path.exists()


@contextmanager
def _unprivileged() -> Iterator[None]:
    """Run the block as an unprivileged user in the group of the members.

    A test that does not run as root is such a user already.
    """
    if os.geteuid() != 0:
        yield
        return
    groups, own = os.getgroups(), os.getegid()
    os.setgroups([MEMBERS_GROUP])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(own)
        os.setgroups(groups)


@asynccontextmanager
async def served_to_member(tmp_path: Path, *, max_per_pod_container: int) -> AsyncIterator[Node]:
    """Serve an unprivileged member with write access; the kernel reports its credentials for every connection."""
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
