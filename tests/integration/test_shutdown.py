"""Tests of graceful shutdown on a real containerd, with pods that write the times of their signals and exits.

Most cases run only with ``NODEAGENT_TEST_RUNS``; see ``make campaign-shutdown``. logind is simulated on a private bus.
Pods read the time from ``/proc/uptime``, in hundredths of a second; the records of the agent use the same clock.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.config.validation import convert
from nodeagent.daemon.context import DaemonContext
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.settings.settings import Config
from nodeagent.shutdown.environment import HostServices, Intervals
from nodeagent.shutdown.recorder import ShutdownFiles
from nodeagent.shutdown.task import InhibitorTask
from nodeagent.telemetry import logging as log
from nodeagent.units import SystemClock
from tests.support import images, login1
from tests.support.descriptor_store import CopyingStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator

    from nodeagent.model.stops import StoppedPod
    from tests.support.containerd import Containerd
    from tests.support.pods import Container, Pods

pytestmark = pytest.mark.real

BANDS = (0, 1000, 100_000, 2_000_000_000)
AT_ONCE, TWO_SECONDS, IGNORES = "now", "slow", "deaf"
WITHIN_S = 120.0
_WRITE = "w() { until read up rest < /proc/uptime && [ $up ]; do :; done; echo $1 $up; }; "  # a signal interrupts read
_WAIT = " TERM; w up; while :; do sleep 1000 & wait $!; done"
_SCRIPTS = {
    AT_ONCE: f"{_WRITE} trap 'w term; w exit; exit 0' {_WAIT}",
    TWO_SECONDS: f"{_WRITE} trap 'w term; sleep 2; w exit; exit 0' {_WAIT}",
    IGNORES: f"{_WRITE} trap 'w term' {_WAIT}",
}


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[login1.PrivateBus]:
    reason = login1.unavailable()
    if reason is not None:
        pytest.skip(reason)
    found = login1.PrivateBus(tmp_path)
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def image(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> str:
    archive = images.write_oci(tmp_path_factory.mktemp("app") / "app.tar", images.image("shutdown.test/app:v1"))
    containerd.import_images(archive)
    return archive.tags[0]


def run_pods(pods: Pods, image: str, count: int, kinds: tuple[str, ...]) -> dict[str, Container]:
    """Run ``count`` pods, distributed over the priority bands and the kinds; return the containers by pod name."""
    running = {}
    for index in range(count):
        band, kind = index % len(BANDS), kinds[index // len(BANDS) % len(kinds)]
        name = f"b{band}-{index // len(BANDS)}-{kind}"
        made = pods.run_sandbox(name, annotations={"nodeagent.dev/priority": str(BANDS[band])})
        running[name] = pods.run_container(made, "main", image, ("sh", "-c", _SCRIPTS[kind]))
    return running


class Shutdown:
    """Shutdown of a node with a simulated logind, its inhibitor delay limit, and the agent's record."""

    def __init__(self, containerd: Containerd, directory: Path, logind: login1.Login1, limit_s: float) -> None:
        logind.limit_us = round(limit_s * 1e6)
        self.logind = logind
        self.limit_s = limit_s
        self.store = CopyingStore()
        self.stream = io.StringIO()
        self.released_s = 0.0
        self._directory = directory
        self._files = ShutdownFiles(directory / "state")
        self._settings = convert(
            Config,
            {
                "role": "standalone",
                "runtime": {"endpoint": f"unix://{containerd.socket}"},
                "state": {"directory": str(directory / "state")},
                "shutdown": {
                    "by_priority": [{"min_priority": each, "seconds": limit_s / len(BANDS)} for each in BANDS]
                },
            },
        ).settings()

    @asynccontextmanager
    async def agent(self, *, adopted: int | None = None) -> AsyncIterator[asyncio.Task[None]]:
        """Run the inhibitor task; a cancelled task writes no further record, as after SIGKILL."""
        clock = SystemClock()
        logger = log.configure("json", "info", self.stream)
        context = DaemonContext(self._settings, logger, clock, LoopStatuses(clock), PassLock(clock))
        host = HostServices(
            self.logind.address, self._directory, self.store, boot_id="boot", runtime_directory=self._directory
        )
        task = InhibitorTask(context, host=host, adopted=adopted, intervals=Intervals())
        stop = asyncio.Event()
        running = asyncio.ensure_future(task.run(stop))
        try:
            yield running
        finally:
            stop.set()
            if running.cancelling():
                task.recorder.files = ShutdownFiles(self._directory / "elsewhere")
            await asyncio.wait({running}, timeout=WITHIN_S)

    async def ready(self, names: set[str]) -> None:
        """Wait until the inhibitor lock is acquired and the pods with these names are recorded."""

        def recorded() -> bool:
            boot = self._files.read_boot()
            return boot is not None and {each.name for each in boot.pods} >= names

        await self.until(lambda: bool(self.logind.locks) and recorded())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110 - changes of files and of the log cause no event
                await asyncio.sleep(0.005)

    async def finished(self) -> None:
        """Wait for the release of the inhibitor lock, then for the end of the shutdown in the log."""
        await self.until(lambda: self.logind.executed == 1)
        self.released_s = SystemClock().monotonic_s()
        await self.until(lambda: "shutdown_finished" in self.stream.getvalue())

    def events(self, name: str) -> list[dict[str, Any]]:
        return [each for each in map(json.loads, self.stream.getvalue().splitlines()) if each["event"] == name]

    def pods(self) -> dict[str, StoppedPod]:
        stop = self._files.read_stop()
        assert stop is not None
        return {each.name: each for each in stop.pods}

    def has_signalled(self, names: Collection[str] = ()) -> bool:
        """Return whether a delivered TERM is recorded for at least one pod and for each pod in ``names``."""
        stop = self._files.read_stop()
        signalled = {each.name for each in stop.pods if each.terms} if stop is not None else set()
        return bool(signalled) and signalled.issuperset(names)

    def started_s(self) -> float:
        stop = self._files.read_stop()
        assert stop is not None
        return stop.started_s


@dataclass
class Place:
    """Containerd with an image, and a private bus for the simulated logind."""

    containerd: Containerd
    pods: Pods
    image: str
    directory: Path
    bus: login1.PrivateBus

    @asynccontextmanager
    async def shutdown(self, limit_s: float) -> AsyncIterator[Shutdown]:
        logind = login1.Login1(self.bus.address, self.directory)
        await logind.start()
        shutdown = Shutdown(self.containerd, self.directory, logind, limit_s)
        try:
            yield shutdown
        finally:
            shutdown.store.forget()
            await logind.stop()


@pytest.fixture
def place(containerd: Containerd, pods: Pods, image: str, tmp_path: Path, bus: login1.PrivateBus) -> Place:
    return Place(containerd, pods, image, tmp_path, bus)


def words(container: Container) -> dict[str, float]:
    """Return the first time of each word that a pod wrote to stdout, in seconds since boot.

    On stderr, the shell reports a child that was killed before the shell itself.
    """
    assert container.log_file is not None
    found: dict[str, float] = {}
    for line in container.log_file.read_text().splitlines():
        _, stream, _, text = line.split(" ", 3)
        if stream == "stdout":
            word, at = text.split(" ")
            found.setdefault(word, float(at))
    return found


def times_of(container: Container, word: str) -> int:
    assert container.log_file is not None
    return container.log_file.read_text().count(f" {word} ")


def shim_of(containerd: Containerd, container: Container) -> int:
    lines = {each: Path(f"/proc/{each}/cmdline").read_bytes() for each in containerd.shims()}
    (shim,) = [each for each, line in lines.items() if container.sandbox.id.encode() in line]
    return shim


def check(shutdown: Shutdown, running: dict[str, Container], pods: Pods, *, may_repeat: bool = False) -> None:
    """Compare the record with the pods' logs: outcomes, order of TERM, and release of the lock within the limit.

    Args:
        shutdown: the finished shutdown.
        running: containers of the pods, by pod name.
        pods: CRI client of the runtime.
        may_repeat: whether pods may receive a second TERM.
    """
    recorded, heard = shutdown.pods(), {name: words(each) for name, each in running.items()}
    start_s = shutdown.started_s()
    codes = {name: pods.status(each.id).exit_code for name, each in running.items()}
    for name, logged in sorted(heard.items()):
        each, times = recorded[name], {word: round(at - start_s, 2) for word, at in logged.items() if word != "up"}
        print(f"{name:10} {each.outcome} asked={each.requested_at_ms} took={each.took_ms} exit={codes[name]} {times}")
    ends_s = [logged["exit"] for logged in heard.values() if "exit" in logged]
    ends_s += [
        start_s + (each.requested_at_ms + each.took_ms) / 1000
        for name, each in recorded.items()
        if each.took_ms is not None and "exit" not in heard[name]
    ]
    released_s = shutdown.released_s
    delay_s, total_s = released_s - max(ends_s), released_s - start_s
    print(
        f"{shutdown.events('shutdown_finished')[0]['outcomes']}; released after {total_s:.2f} s, {delay_s:.3f} s late"
    )
    assert {name: each.outcome.value for name, each in recorded.items() if each.outcome} == {
        name: "stopped" if "exit" in logged else "killed" for name, logged in heard.items()
    }
    expected = {name: (0,) if "exit" in logged else (137, 255) for name, logged in heard.items()}
    assert all(codes[name] in expected[name] for name in heard), "255 replaces one that containerd missed"
    assert all("term" in logged and logged["term"] <= released_s for logged in heard.values())
    repeated = [name for name, each in running.items() if times_of(each, "term") > 1 and "exit" in heard[name]]
    assert may_repeat or repeated == [], "a second TERM, which may cost a pod its cleanup"
    for band in range(1, len(BANDS)):
        first_s = min(logged["term"] for name, logged in heard.items() if name.startswith(f"b{band}-"))
        earlier = [logged["term"] for name, logged in heard.items() if name.startswith(f"b{band - 1}-")]
        assert max(earlier) <= first_s
    assert total_s <= shutdown.limit_s


CAMPAIGN = "NODEAGENT_TEST_RUNS" in os.environ
CASES: list[tuple[int, tuple[str, ...], float]] = [(8, (AT_ONCE, IGNORES), 4)]
INTERRUPTIONS = [("agent", 1)]
if CAMPAIGN:
    CASES += [
        (12, (AT_ONCE,), 4),
        (12, (AT_ONCE, TWO_SECONDS, IGNORES), 30),
        (40, (AT_ONCE,), 4),
        (40, (AT_ONCE, IGNORES), 4),
        (40, (AT_ONCE,), 30),
        (40, (AT_ONCE, TWO_SECONDS, IGNORES), 30),
        (40, (AT_ONCE, TWO_SECONDS, IGNORES), 90),
    ]
    BOTH = ("agent-then-containerd", "containerd-then-agent")
    INTERRUPTIONS = [(what, band) for what in ("agent", "containerd", *BOTH) for band in range(len(BANDS))]


@pytest.mark.parametrize(("count", "kinds", "limit_s"), CASES)
async def test_every_outcome_is_what_the_pod_itself_wrote(
    place: Place, count: int, kinds: tuple[str, ...], limit_s: float
) -> None:
    running = run_pods(place.pods, place.image, count, kinds)
    async with place.shutdown(limit_s) as shutdown, shutdown.agent():
        await shutdown.ready(set(running))
        shutdown.logind.request_shutdown()
        await shutdown.finished()
    check(shutdown, running, place.pods)


@pytest.mark.campaign
@pytest.mark.parametrize(("what", "band"), INTERRUPTIONS)
async def test_crash_in_each_phase_kills_no_pod_without_term(place: Place, what: str, band: int) -> None:
    running = run_pods(place.pods, place.image, 8, (TWO_SECONDS, IGNORES if CAMPAIGN else AT_ONCE))
    members = {name for name in running if name.startswith(f"b{band}-")}
    killed = what.split("-then-")
    async with place.shutdown(40) as shutdown:
        async with shutdown.agent() as agent:
            await shutdown.ready(set(running))
            shutdown.logind.request_shutdown()
            await shutdown.until(lambda: shutdown.has_signalled(members))
            if killed[0] == "containerd":
                await asyncio.to_thread(place.containerd.kill)
            if "agent" in killed:
                number, shutdown.store.number = shutdown.store.number, None
                agent.cancel()
            else:
                await asyncio.to_thread(place.containerd.start)
                await shutdown.finished()
        if "agent" in killed:
            if killed[1:] == ["containerd"]:
                await asyncio.to_thread(place.containerd.kill)
            restarting = asyncio.to_thread(place.containerd.start if len(killed) > 1 else lambda: None)
            async with shutdown.agent(adopted=number):
                await asyncio.gather(restarting, shutdown.finished())
            assert shutdown.events("shutdown_resumed")
    check(shutdown, running, place.pods)
    assert all("exit" in words(each) for name, each in running.items() if name.endswith(TWO_SECONDS))


@pytest.mark.campaign
@pytest.mark.long
async def test_frozen_shim_delays_neither_its_pod_nor_the_release(place: Place) -> None:
    running = run_pods(place.pods, place.image, 8, (AT_ONCE, TWO_SECONDS))
    frozen = running[f"b1-1-{TWO_SECONDS}"]
    shim = shim_of(place.containerd, frozen)
    async with place.shutdown(40) as shutdown:
        async with shutdown.agent():
            await shutdown.ready(set(running))
            os.kill(shim, signal.SIGSTOP)
            try:
                shutdown.logind.request_shutdown()
                await shutdown.finished()
            finally:
                os.kill(shim, signal.SIGCONT)
        await asyncio.to_thread(place.pods.wait_exited, frozen)
    check(shutdown, running, place.pods)
    assert "exit code not reported" in shutdown.pods()[f"b1-1-{TWO_SECONDS}"].detail
    assert shutdown.released_s - shutdown.started_s() < 20


@pytest.mark.campaign
@pytest.mark.long
@pytest.mark.parametrize("crashed", [False, True], ids=["agent-runs", "agent-crashes"])
@pytest.mark.parametrize("frozen_s", [3, 60])
async def test_frozen_runtime_delays_no_term(place: Place, frozen_s: float, crashed: bool) -> None:
    running = run_pods(place.pods, place.image, 12, (AT_ONCE, TWO_SECONDS, IGNORES))
    async with place.shutdown(20) as shutdown:
        async with shutdown.agent() as agent:
            await shutdown.ready(set(running))
            place.containerd.freeze()  # containerd also writes the logs of the pods
            thaw = asyncio.get_running_loop().call_later(frozen_s, place.containerd.thaw)
            shutdown.logind.request_shutdown()
            if crashed:
                await shutdown.until(shutdown.has_signalled)
                number, shutdown.store.number = shutdown.store.number, None
                agent.cancel()
            else:
                await shutdown.finished()
        if crashed:
            async with shutdown.agent(adopted=number):
                await shutdown.finished()
            assert shutdown.events("shutdown_resumed")
        thaw.cancel()
        place.containerd.thaw()
    await asyncio.gather(*(asyncio.to_thread(place.pods.wait_exited, each) for each in running.values()))
    # a resumed runtime may execute the requests of the crashed agent before it detects the closed connection
    check(shutdown, running, place.pods, may_repeat=crashed and frozen_s < 20)
