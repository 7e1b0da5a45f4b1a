"""Passes on a large node against the bare list calls of the same run, with the memory of the agent.

The runtime is a simulated one in a process of its own, behind its socket. Bare list calls are the lists of the node
without decoding, planning and recording: each answer is received and parsed. Each node is measured by a process of its
own, for its peak memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from nodeagent._proto.containerd.services.containers.v1 import containers_pb2
from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.act.agent import open_agent
from nodeagent.cli.session import load_settings
from nodeagent.daemon.memory import limit_arenas, release_memory
from nodeagent.plan.gc.scope import Scope
from nodeagent.runtime.connection import Method, RuntimeConnection
from nodeagent.sim.scenario import scale_node
from nodeagent.sim.server import SimServer
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

IMAGES, LAYERS, CONTAINERS = 10_000, 4, 20_000
PADDING_BYTES: Final = 4096
RATIO: Final = 3.0
PEAK_MIB: Final = 900
METADATA: Final = (("containerd-namespace", "k8s.io"),)
_LIST_S: Final = 120.0


def serve(directory: Path, images: int, containers: int, padding_bytes: int) -> None:
    """Serve the node until the process is terminated."""
    node = scale_node(images, LAYERS, containers, root_path=str(directory))
    for each in node.containers.values():
        cast("dict[str, str]", each.labels)["example.com/padding"] = "x" * padding_bytes

    async def run() -> None:
        async with SimServer(node, directory / "s"):
            await asyncio.Event().wait()

    asyncio.run(run())


def _method(path: str, request: type[Message], response: type[Message]) -> Method[Message, Message]:
    return Method(path, request, response, path, _LIST_S)


CRI: Final = (
    _method("/runtime.v1.ImageService/ListImages", api.ListImagesRequest, api.ListImagesResponse),
    _method("/runtime.v1.RuntimeService/ListContainers", api.ListContainersRequest, api.ListContainersResponse),
    _method("/runtime.v1.RuntimeService/ListPodSandbox", api.ListPodSandboxRequest, api.ListPodSandboxResponse),
)
_SERVICES: Final = "/containerd.services."
CONTAINERD: Final = (
    _method(f"{_SERVICES}images.v1.Images/List", images_pb2.ListImagesRequest, images_pb2.ListImagesResponse),
    _method(
        f"{_SERVICES}containers.v1.Containers/List",
        containers_pb2.ListContainersRequest,
        containers_pb2.ListContainersResponse,
    ),
)
STREAMED: Final = (
    _method(
        f"{_SERVICES}snapshots.v1.Snapshots/List",
        snapshots_pb2.ListSnapshotsRequest,
        snapshots_pb2.ListSnapshotsResponse,
    ),
    _method(f"{_SERVICES}content.v1.Content/List", content_pb2.ListContentRequest, content_pb2.ListContentResponse),
)


def _unmeasured(_answer: Message) -> int:
    return 0


async def list_all(
    connection: RuntimeConnection, *, with_containerd: bool, size_of: Callable[[Message], int] = _unmeasured
) -> int:
    """Make the bare list calls of a pass; return the bytes of the answers by ``size_of``, which takes time itself."""
    size_bytes = 0
    for method in CRI + (CONTAINERD if with_containerd else ()):
        size_bytes += size_of(await connection.unary(method, method.request(), metadata=METADATA))
    for method in STREAMED if with_containerd else ():
        request = method.request()
        if isinstance(request, snapshots_pb2.ListSnapshotsRequest):
            request.snapshotter = "overlayfs"
        async for part in connection.stream(method, request, metadata=METADATA):
            size_bytes += size_of(part)
    return size_bytes


async def _timed(runs: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - began)
    return taken


async def measure(config: Path, runs: int, *, with_containerd: bool) -> dict[str, float]:
    """Return the seconds of bare lists, first pass and later passes (medians), and MiB of answers and memory."""
    settings = load_settings(config, {"runtime.containerd_api": "auto" if with_containerd else "off"})
    async with RuntimeConnection(settings.endpoint) as connection:
        size_bytes = await list_all(connection, with_containerd=with_containerd, size_of=lambda part: part.ByteSize())
        bare = await _timed(runs, lambda: list_all(connection, with_containerd=with_containerd))
    async with open_agent(settings, record=True, dry_run=False) as agent:

        async def run_pass() -> None:
            preview = await agent.collector.preview(Scope.ALL)
            await agent.run(preview, trigger="bench", stop=asyncio.Event())

        first = await _timed(1, run_pass)
        later = await _timed(runs, run_pass)
        release_memory()
        return {
            "answers_mib": size_bytes / 2**20,
            "bare_s": statistics.median(bare),
            "first_s": first[0],
            "later_s": statistics.median(later),
            "resident_mib": _resident_mib(),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        }


def _resident_mib() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 2**10


def _child(*words: str) -> list[str]:
    return [sys.executable, "-m", "tests.bench.bench_large", *words]


def main(arguments: list[str] | None = None) -> None:
    """Print a table of both backends, with and without large labels; exit with 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--containers", type=int, default=CONTAINERS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--padding", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--containerd", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve, options.images, options.containers, options.padding)
    elif options.measure:
        limit_arenas()
        gc.set_threshold(50_000, 20, 20)  # as in the command line
        print(json.dumps(asyncio.run(measure(options.measure, options.runs, with_containerd=options.containerd))))
    else:
        sys.exit(_table(options.images, options.containers, options.runs))


def _table(images: int, containers: int, runs: int) -> int:
    print(f"{images} images, {containers} containers; a later pass at most {RATIO:.0f} times the bare list calls")
    print(
        f"{'backend':24} {'answers':>9} {'bare':>8} {'first':>8} {'later':>8} {'ratio':>6} {'resident':>9} {'peak':>9}"
    )
    exceeded = 0
    for padding in (0, PADDING_BYTES):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            sizes = ("--images", str(images), "--containers", str(containers), "--padding", str(padding))
            with subprocess.Popen(_child("--serve", name, *sizes)) as server:
                try:
                    poll("the simulated runtime serves", (directory / "s").exists, timeout_s=300)
                    for backend in ("CRI alone", "containerd"):
                        exceeded += _row(directory, backend, padding, runs)
                finally:
                    server.terminate()
    return 1 if exceeded else 0


def _row(directory: Path, backend: str, padding: int, runs: int) -> bool:
    config = directory / "config.toml"
    lines = [
        'role = "standalone"',
        f"[runtime]\nendpoint = {json.dumps(f'unix://{directory}/s')}",
        f"[state]\ndirectory = {json.dumps(str(directory / backend))}",
        f"[container_gc]\npod_log_root = {json.dumps(f'{directory}/pods')}",
        f"container_log_root = {json.dumps(f'{directory}/containers')}",
    ]
    config.write_text("\n".join(lines) + "\n")
    words = ["--measure", str(config), "--runs", str(runs), *(["--containerd"] if backend == "containerd" else [])]
    got = json.loads(subprocess.run(_child(*words), stdout=subprocess.PIPE, check=True, text=True).stdout)
    ratio = got["later_s"] / got["bare_s"]
    shown = backend + (", large labels" if padding else "")
    columns = (f"{got[name]:6.2f} s" for name in ("bare_s", "first_s", "later_s"))
    memory = (f"{got[name]:5.0f} MiB" for name in ("resident_mib", "peak_mib"))
    print(f"{shown:24} {got['answers_mib']:5.0f} MiB", *columns, f"{ratio:6.1f}", *memory, flush=True)
    return bool(ratio > RATIO or got["peak_mib"] > PEAK_MIB)


if __name__ == "__main__":
    main()
