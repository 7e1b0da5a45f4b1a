"""CPU time of passes on a large node, compared with bare list calls of the same run, and memory of the agent.

The runtime is simulated in a separate process. Bare list calls are the calls of every pass, made sequentially over an
equal connection: version, status, filesystems and lists, once each. Each response is received and decoded into
messages, and the id of every listed item is read. Bare list calls and passes alternate. Each node is measured by a
separate process, so that its peak memory is measured.

With ``--rotate`` the runtime lists the objects of CRI in another order in every response, as containerd does, since it
iterates over a hash table. With ``--change`` a label of one container differs in every response.
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
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from nodeagent._proto.containerd.services.containers.v1 import containers_pb2
from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.cli.reading import load_settings
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.policy import Scope
from nodeagent.loops.memory import configure_malloc, release_memory
from nodeagent.runtime.connection import Method, RuntimeConnection
from tests.sim.scenario import scale_node
from tests.sim.server import SimServer
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

IMAGES, LAYERS, CONTAINERS = 10_000, 4, 20_000
PADDING_BYTES: Final = 4096
RATIOS: Final = {"CRI alone": 4.0, "containerd": 2.0}
"""Maximum CPU time of a later pass, in bare list calls, by backend."""
PEAK_MIB: Final = 900
METADATA: Final = (("containerd-namespace", "k8s.io"),)
_LIST_S: Final = 120.0


def serve(directory: Path, images: int, containers: int, padding_bytes: int, *, rotated: bool, changing: bool) -> None:
    """Serve the node until the process is terminated.

    ``rotated`` and ``changing`` are the options ``--rotate`` and ``--change``.
    """
    node = scale_node(images, LAYERS, containers, root_path=str(directory))
    for each in node.containers.values():
        cast("dict[str, str]", each.labels)["example.com/padding"] = "x" * padding_bytes

    async def run() -> None:
        async with SimServer(node, directory / "s") as server:
            for name, field in ROTATED.items() if rotated else ():
                server.faults.alter(name, _rotation(field))
            if changing:
                server.faults.alter("ListContainers", _changing())
            await asyncio.Event().wait()

    asyncio.run(run())


def _method(path: str, request: type[Message], response: type[Message]) -> Method[Message, Message]:
    return Method(path, request, response, _LIST_S)


def _rotation(field: str) -> Callable[[Message], Message]:
    """Return a function that rotates the items of a list response by another offset on each call."""
    answers: list[Message] = []

    def rotate(answer: Message) -> Message:
        if not answers:
            items, kind = list(getattr(answer, field)), type(answer)
            starts = [len(items) * number // ROTATIONS for number in range(ROTATIONS)]
            answers.extend(kind(**{field: items[start:] + items[:start]}) for start in starts)
        return next(turns)

    turns = (answer for number in cycle(range(ROTATIONS)) for answer in [answers[number]])
    return rotate


def _changing() -> Callable[[Message], Message]:
    """Return a function that changes a label of one container in each list response."""
    answers: list[Message] = []

    def change(answer: Message) -> Message:
        if not answers:
            for number in range(ROTATIONS):
                changed = api.ListContainersResponse()
                changed.CopyFrom(cast("api.ListContainersResponse", answer))
                changed.containers[len(changed.containers) // 2].labels["example.com/answer"] = str(number)
                answers.append(changed)
        return next(turns)

    turns = (answer for number in cycle(range(ROTATIONS)) for answer in [answers[number]])
    return change


ROTATIONS: Final = 4
ROTATED: Final = {"ListImages": "images", "ListContainers": "containers", "ListPodSandbox": "items"}
CALLS: Final = (
    _method("/runtime.v1.RuntimeService/Version", api.VersionRequest, api.VersionResponse),
    _method("/runtime.v1.RuntimeService/Status", api.StatusRequest, api.StatusResponse),
    _method("/runtime.v1.ImageService/ImageFsInfo", api.ImageFsInfoRequest, api.ImageFsInfoResponse),
)
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


def _bytes_of(answer: Message) -> int:
    return answer.ByteSize()


def _read_ids(answer: Message) -> int:
    """Read the id of every item in a list response; return the number of items."""
    field, key = LISTS.get(type(answer), ("", ""))
    return len(list(map(attrgetter(key), getattr(answer, field)))) if field else 0


LISTS: Final[dict[type[Message], tuple[str, str]]] = {
    api.ListImagesResponse: ("images", "id"),
    api.ListContainersResponse: ("containers", "id"),
    api.ListPodSandboxResponse: ("items", "id"),
    images_pb2.ListImagesResponse: ("images", "name"),
    containers_pb2.ListContainersResponse: ("containers", "id"),
    snapshots_pb2.ListSnapshotsResponse: ("info", "name"),
    content_pb2.ListContentResponse: ("info", "digest"),
}
"""For each list response, the field of the items and the id field of an item."""


async def list_all(
    connection: RuntimeConnection, *, with_containerd: bool, read: Callable[[Message], int] = _read_ids
) -> int:
    """Make the bare list calls of a pass; return the sum of the results of ``read`` for each response."""
    total = 0
    for method in CALLS + CRI + (CONTAINERD if with_containerd else ()):
        request = method.request()
        if isinstance(request, api.StatusRequest):
            request.verbose = True
        total += read(await connection.unary(method, request, metadata=METADATA))
    for method in STREAMED if with_containerd else ():
        request = method.request()
        if isinstance(request, snapshots_pb2.ListSnapshotsRequest):
            request.snapshotter = "overlayfs"
        async for part in connection.stream(method, request, metadata=METADATA):
            total += read(part)
    return total


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    """Return the CPU time of a call in this process, which does not include the simulated runtime."""
    began = time.process_time()
    await call()
    return time.process_time() - began


async def measure(config: Path, runs: int, *, with_containerd: bool) -> dict[str, float]:
    """Return the CPU seconds of bare list calls and passes, and the sizes of responses and memory in MiB.

    CPU times are medians except that of the first pass. ``unread_s`` is the CPU time of bare list calls without reading
    the ids of the items.
    """
    settings = load_settings(config, {"runtime.containerd_api": "auto" if with_containerd else "off"})
    async with RuntimeConnection(settings.endpoint) as connection:
        size_bytes = await list_all(connection, with_containerd=with_containerd, read=_bytes_of)
    bare, unread, later = list[float](), list[float](), list[float]()
    async with (
        RuntimeConnection(settings.endpoint) as connection,
        open_agent(settings, record=True, dry_run=False) as agent,
    ):

        async def run_pass() -> None:
            preview = await agent.collector.preview(Scope.ALL)
            await agent.run(preview, trigger="bench", stop=asyncio.Event())

        first_s = await _timed(run_pass)
        for _ in range(runs):
            bare.append(await _timed(lambda: list_all(connection, with_containerd=with_containerd)))
            later.append(await _timed(run_pass))
            unread.append(await _timed(lambda: list_all(connection, with_containerd=with_containerd, read=lambda _: 0)))
        release_memory()
        return {
            "answers_mib": size_bytes / 2**20,
            "bare_s": statistics.median(bare),
            "unread_s": statistics.median(unread),
            "first_s": first_s,
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
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--rotate", action="store_true", help="list in another order each time, as containerd does")
    parser.add_argument("--change", action="store_true", help="change one container between all lists")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--containers", type=int, default=CONTAINERS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--padding", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--containerd", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(
            options.serve,
            options.images,
            options.containers,
            options.padding,
            rotated=options.rotate,
            changing=options.change,
        )
    elif options.measure:
        configure_malloc()
        gc.set_threshold(50_000, 20, 20)  # with the garbage collector settings of the command line
        print(json.dumps(asyncio.run(measure(options.measure, options.runs, with_containerd=options.containerd))))
    else:
        words = [*(["--rotate"] if options.rotate else []), *(["--change"] if options.change else [])]
        sys.exit(_table(options.images, options.containers, options.runs, *words))


def _table(images: int, containers: int, runs: int, *options: str) -> int:
    limits = ", ".join(f"{name} {ratio:.1f}" for name, ratio in RATIOS.items())
    print(f"{images} images, {containers} containers; CPU time of a later pass in bare list calls, at most: {limits}")
    print(
        f"{'backend':24} {'answers':>9} {'bare':>8} {'unread':>8} {'first':>8} {'later':>8} {'ratio':>6} "
        f"{'resident':>9} {'peak':>9}"
    )
    exceeded = 0
    for padding in (0, PADDING_BYTES):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            sizes: tuple[str, ...] = (
                "--images",
                str(images),
                "--containers",
                str(containers),
                "--padding",
                str(padding),
            )
            with subprocess.Popen(_child("--serve", name, *sizes, *options)) as server:
                try:
                    poll("the simulated runtime serves", (directory / "s").exists, timeout_s=300)
                    for backend in RATIOS:
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
    ratio, unread = got["later_s"] / got["bare_s"], got["later_s"] / got["unread_s"]
    shown = backend + (", large labels" if padding else "")
    columns = (f"{got[name]:6.3f} s" for name in ("bare_s", "unread_s", "first_s", "later_s"))
    memory = (f"{got[name]:5.0f} MiB" for name in ("resident_mib", "peak_mib"))
    print(
        f"{shown:24} {got['answers_mib']:5.0f} MiB", *columns, f"{ratio:6.2f}", f"({unread:.2f})", *memory, flush=True
    )
    return bool(ratio > RATIOS[backend] or got["peak_mib"] > PEAK_MIB)


if __name__ == "__main__":
    main()
