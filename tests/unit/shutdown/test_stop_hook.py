"""Stop hook of the unit: stops the remaining pods if the daemon did not complete the node shutdown."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from nodeagent.config.validation import convert
from nodeagent.errors import StoreError
from nodeagent.host import kubelet_traces as kubelet_detection
from nodeagent.host.systemd import STOPPING, UnitStop
from nodeagent.loops.clock_reading import read_clocks
from nodeagent.loops.pause_file import PauseFile, StoredPause
from nodeagent.model.stops import LastActivity, NodeStop, PodOutcome, StopEnd, StopKind, StoppedPod
from nodeagent.record import replace
from nodeagent.settings.settings import Config
from nodeagent.shutdown.recorder import LOCK_FILE, STALLED_AFTER_S, ShutdownFiles
from nodeagent.shutdown.stop_hook import stop_pods_at_unit_stop
from nodeagent.telemetry import logging as log
from nodeagent.units import SystemClock
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.support.kubelet_tree import add_process, make_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from nodeagent.settings.settings import Settings

BOOT = "11111111-0000"
IMAGE = "registry.test/app:v1"
DOWN = UnitStop(STOPPING, 60_000_000)


class StopHookNode:
    """A node with the pods ``web`` and ``dns``, and the settings and log of its stop hook."""

    def __init__(self, directory: Path, server: SimServer) -> None:
        self.server = server
        self.runtime_directory = directory / "run"
        self.runtime_directory.mkdir()
        self.files = ShutdownFiles(directory / "state", self.runtime_directory)
        self.settings = self.configured(directory)
        self.stream = io.StringIO()
        for name, priority in (("web", "0"), ("dns", "2000")):
            annotations = {"nodeagent.dev/priority": priority}
            sandbox = server.node.add_pod(name, namespace="shop", uid=f"uid-{name}", annotations=annotations)
            server.node.add_container(sandbox, "main", IMAGE)

    def configured(self, directory: Path, **shutdown: Any) -> Settings:
        bands = [{"min_priority": 0, "seconds": 1.0}, {"min_priority": 1000, "seconds": 0.5}]
        return convert(
            Config,
            {
                "role": "standalone",
                "runtime": {"endpoint": self.server.endpoint, "timeout": "1s"},
                "state": {"directory": str(directory / "state")},
                "shutdown": {"by_priority": bands, **shutdown},
            },
        ).settings()

    async def stop(
        self,
        unit_stop: UnitStop = DOWN,
        settings: Settings | None = None,
        *,
        began_s: float | None = None,
        main_pid: int | None = None,
    ) -> StopEnd | None:
        logger = log.configure("json", "debug", self.stream)
        return await stop_pods_at_unit_stop(
            settings or self.settings,
            logger,
            unit_stop,
            began_s=began_s,
            main_pid=main_pid,
            this_boot=BOOT,
            runtime_directory=self.runtime_directory,
        )

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.stream.getvalue().splitlines()]

    def stopped(self) -> list[str]:
        node = self.server.node
        return [
            node.sandboxes[node.containers[each].sandbox_id].name
            for each in self.server.faults.targets("StopContainer")
        ]


@pytest_asyncio.fixture
async def hook(tmp_path: Path) -> AsyncIterator[StopHookNode]:
    node = SimNode()
    node.add_image(IMAGE, layers=[Layer("base", 1000)])
    async with SimServer(node, tmp_path / "cri.sock") as server:
        yield StopHookNode(tmp_path, server)


@pytest.mark.difference("shutdown-stop-hook")
async def test_pods_are_stopped_in_order_without_a_shutdown_of_the_daemon(hook: StopHookNode) -> None:
    assert await hook.stop() is StopEnd.COMPLETE
    assert hook.stopped() == ["web", "dns"]
    stop = hook.files.read_stop()
    assert stop is not None
    assert (stop.kind, stop.end) == (StopKind.UNIT_STOP, StopEnd.COMPLETE)
    boot = hook.files.read_boot()
    assert boot is not None
    assert boot.activity is LastActivity.GOING_DOWN


@pytest.mark.parametrize("state", ["running", "degraded", "starting", ""])
async def test_stop_of_the_unit_alone_stops_no_pod(hook: StopHookNode, state: str) -> None:
    assert await hook.stop(UnitStop(state)) is None
    assert hook.server.calls == []


@pytest.mark.parametrize("end", [StopEnd.COMPLETE, StopEnd.CANCELLED])
async def test_stop_of_the_unit_in_a_shutdown_waits_until_the_daemon_has_stopped_the_pods(
    hook: StopHookNode, end: StopEnd
) -> None:
    hook.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC)))
    with hook.files.claim() as claimed:
        assert claimed
        stopping = asyncio.create_task(
            asyncio.to_thread(lambda: asyncio.run(hook.stop(UnitStop("running", 600_000_000, is_announced=True))))
        )
        async with asyncio.timeout(60):
            while "unit_stop_delayed" not in hook.events():  # noqa: ASYNC110 - another thread writes the log
                await asyncio.sleep(0.01)
        assert not stopping.done()
        hook.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), end=end))
    assert await stopping is (end if end is StopEnd.COMPLETE else None)
    assert hook.server.calls == []


async def test_stop_of_the_unit_in_a_shutdown_stops_the_pods_of_a_daemon_that_crashed(hook: StopHookNode) -> None:
    hook.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC)))
    assert await hook.stop(UnitStop("running", 600_000_000, is_announced=True)) is StopEnd.COMPLETE
    assert hook.stopped() == ["web", "dns"]


@pytest.mark.parametrize("end", [None, StopEnd.CANCELLED, StopEnd.COMPLETE])
async def test_stop_of_the_unit_waits_for_no_shutdown_that_has_ended(hook: StopHookNode, end: StopEnd | None) -> None:
    if end is not None:
        hook.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), end=end))
    with hook.files.claim() as claimed:
        assert claimed
        assert await hook.stop(UnitStop("running", 600_000_000, is_announced=True)) is None
    assert hook.server.calls == []
    assert "unit_stop_delayed" not in hook.events()


async def test_complete_shutdown_of_the_daemon_is_not_repeated(hook: StopHookNode) -> None:
    hook.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), end=StopEnd.COMPLETE))
    assert await hook.stop() is StopEnd.COMPLETE
    assert hook.server.calls == []


@pytest.fixture
def unwritable(hook: StopHookNode) -> None:
    """Replace the state directory by a file, so that every write to the state directory fails."""
    hook.settings.state_directory.write_text("")


@pytest.mark.usefixtures("unwritable")
async def test_complete_shutdown_without_a_writable_state_directory_is_not_repeated(hook: StopHookNode) -> None:
    with pytest.raises(StoreError):
        hook.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), end=StopEnd.COMPLETE))
    assert await hook.stop() is StopEnd.COMPLETE
    assert hook.server.calls == []
    assert hook.events()[-1] == "shutdown_already_done"


@pytest.mark.parametrize("known", ["", "poweroff"])
async def test_record_of_a_daemon_that_did_not_learn_the_operation_has_that_of_the_jobs(
    hook: StopHookNode, known: str
) -> None:
    complete = NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), end=StopEnd.COMPLETE, operation=known)
    hook.files.write_stop(complete)
    assert await hook.stop(UnitStop(STOPPING, 60_000_000, "reboot")) is StopEnd.COMPLETE
    recorded = hook.files.read_stop()
    assert recorded == replace(complete, operation=known or "reboot")
    assert hook.events()[-1] == "shutdown_already_done"


@pytest.mark.usefixtures("unwritable")
async def test_stop_hook_without_a_writable_state_directory_stops_the_pods_once(hook: StopHookNode) -> None:
    assert await hook.stop() is StopEnd.COMPLETE
    assert hook.stopped() == ["web", "dns"]
    assert await hook.stop() is StopEnd.COMPLETE
    assert hook.stopped() == ["web", "dns"]
    assert hook.events().count("shutdown_finished") == 1
    assert hook.events().count("shutdown_already_done") == 1


@pytest.mark.usefixtures("unwritable")
async def test_stop_hook_waits_for_a_daemon_without_a_writable_state_directory(hook: StopHookNode) -> None:
    with hook.files.claim() as claimed:
        assert claimed
        assert await hook.stop(UnitStop(STOPPING, 10_200_000)) is None
    assert hook.server.calls == []


async def test_stop_hook_waits_for_a_running_shutdown_of_the_daemon(hook: StopHookNode) -> None:
    hook.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC)))
    with hook.files.claim() as claimed:
        assert claimed
        assert await hook.stop(UnitStop(STOPPING, 10_200_000)) is None
    assert hook.server.calls == []
    assert hook.events() == ["shutdown_delegated"]


@contextmanager
def stopped_holder(hook: StopHookNode) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds the lock on stopping pods and is stopped by SIGSTOP; yield the process."""
    hook.settings.state_directory.mkdir(exist_ok=True)
    command = [sys.executable, "-c", _HOLDER, str(hook.settings.state_directory / LOCK_FILE)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "locked\n"
        holder.send_signal(signal.SIGSTOP)
        yield holder
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


_HOLDER = """
import fcntl, os, signal, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("locked", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("announced", [False, True], ids=["node-stopping", "announced"])
async def test_stop_hook_takes_over_from_a_daemon_without_progress(hook: StopHookNode, announced: bool) -> None:
    pods = (StoppedPod("uid-web", "shop", "web", "priority-0", outcome=PodOutcome.STOPPING),)
    now_s = SystemClock().monotonic_s()
    progress_s = now_s - 2 * STALLED_AFTER_S
    hook.files.write_stop(
        NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), now_s - 30, pods=pods, progress_s=progress_s)
    )
    unit_stop = UnitStop("running", 60_000_000, is_announced=True) if announced else DOWN
    with stopped_holder(hook) as holder:
        assert await hook.stop(unit_stop, main_pid=holder.pid) is StopEnd.COMPLETE
        assert holder.wait(10) == -signal.SIGKILL
    assert hook.stopped() == ["web", "dns"]
    assert "shutdown_taken_over" in hook.events()


@pytest.mark.parametrize("age_s", [None, 0.0], ids=["unknown", "recent"])
async def test_stop_hook_kills_no_daemon_whose_progress_is_recent_or_unknown(
    hook: StopHookNode, age_s: float | None
) -> None:
    progress_s = None if age_s is None else SystemClock().monotonic_s() - age_s
    hook.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), progress_s=progress_s))
    with stopped_holder(hook) as holder:
        assert await hook.stop(UnitStop(STOPPING, 10_700_000), main_pid=holder.pid) is None
        assert holder.poll() is None
    assert hook.server.calls == []
    assert hook.events()[-1] == "shutdown_delegated"


async def test_stop_hook_waits_for_no_daemon_that_was_stopped_after_the_last_pod(hook: StopHookNode) -> None:
    hook.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), end=StopEnd.COMPLETE))
    with stopped_holder(hook) as holder:
        assert await hook.stop(main_pid=holder.pid) is StopEnd.COMPLETE
        assert holder.poll() is None
    assert hook.server.calls == []


async def test_interrupted_shutdown_of_the_daemon_is_resumed(hook: StopHookNode) -> None:
    pods = (
        StoppedPod("uid-web", "shop", "web", "priority-0", "", PodOutcome.STOPPED, 5, 10),
        StoppedPod("uid-dns", "shop", "dns", "priority-1000", "", PodOutcome.STOPPING, 20),
    )
    started_s = SystemClock().monotonic_s() - 3
    hook.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), started_s, 1500, pods=pods))
    web = next(each for each in hook.server.node.containers.values() if each.name == "main")
    hook.server.node.exit_container(web)
    assert await hook.stop() is StopEnd.COMPLETE
    assert hook.stopped() == ["dns"]
    assert "shutdown_resumed" in hook.events()


async def test_shutdown_of_an_earlier_boot_is_ignored(hook: StopHookNode) -> None:
    hook.files.write_stop(NodeStop("22222222-0000", StopKind.SIGNAL, datetime.now(UTC), end=StopEnd.COMPLETE))
    assert await hook.stop() is StopEnd.COMPLETE
    assert hook.stopped() == ["web", "dns"]


async def test_disabled_shutdown_stops_no_pod(hook: StopHookNode, tmp_path: Path) -> None:
    assert await hook.stop(settings=hook.configured(tmp_path, enabled="off")) is None
    assert hook.server.calls == []


@pytest.mark.parametrize("enabled", ["auto", "on"])
async def test_no_pod_is_stopped_beside_a_running_kubelet(
    hook: StopHookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str
) -> None:
    root = make_node(tmp_path / "node")
    add_process(root, 812, "kubelet", ("/usr/bin/kubelet",))
    monkeypatch.setattr(kubelet_detection, "HOST_ROOT", root)
    assert await hook.stop(settings=hook.configured(tmp_path, enabled=enabled)) is None
    assert hook.server.calls == []
    assert hook.events() == ["role_contradiction", "shutdown_disabled"]


async def test_dry_run_reads_and_stops_no_pod(hook: StopHookNode) -> None:
    assert await hook.stop(settings=replace(hook.settings, dry_run=True)) is None
    assert (hook.server.calls, hook.events()) == ([], ["shutdown_disabled"])


@pytest.mark.parametrize(("started_s", "stopped"), [(0.0, []), (-4000.0, ["web", "dns"])], ids=["in-force", "over"])
async def test_pause_of_the_operator_stops_no_pod(hook: StopHookNode, started_s: float, stopped: list[str]) -> None:
    at = read_clocks(SystemClock())
    placed_s = max(0.0, at.boottime_s + started_s)
    seconds = 3600.0 if started_s == 0 else at.boottime_s - placed_s
    pause = StoredPause("root", "maintenance", at.wall, seconds, at.boot_id, placed_s)
    PauseFile(hook.settings.state_directory).write(pause)
    assert await hook.stop() is (StopEnd.COMPLETE if stopped else None)
    assert hook.stopped() == stopped


async def test_unreadable_pause_stops_no_pod(hook: StopHookNode) -> None:
    PauseFile(hook.settings.state_directory).write(StoredPause("root", "", datetime.now(UTC)))
    (hook.settings.state_directory / "pause.json").write_text("{")
    assert await hook.stop() is None
    assert hook.stopped() == []


async def test_short_stop_timeout_scales_the_phases_and_kills_no_pod_right_after_term(hook: StopHookNode) -> None:
    hung = asyncio.Event()
    hook.server.faults.delay("StopContainer", hung, times=None)
    assert await hook.stop(UnitStop(STOPPING, 10_500_000)) is StopEnd.INCOMPLETE
    stop = hook.files.read_stop()
    assert stop is not None
    assert stop.granted_ms <= 450
    # On a busy machine the hook may end before the last failure is recorded.
    assert {each.outcome for each in stop.pods} - {None} <= {PodOutcome.FAILED}


async def test_time_of_a_slow_start_of_the_stop_hook_is_no_time_for_the_pods(hook: StopHookNode) -> None:
    assert await hook.stop(began_s=SystemClock().monotonic_s() - 49.5) is StopEnd.COMPLETE
    stop = hook.files.read_stop()
    assert stop is not None
    assert stop.granted_ms <= 450


@pytest.mark.parametrize("timeout_us", [0, 10_000_000])
async def test_stop_timeout_below_the_reserve_kills_no_pod(hook: StopHookNode, timeout_us: int) -> None:
    assert await hook.stop(UnitStop(STOPPING, timeout_us)) is None
    assert hook.stopped() == []
    assert hook.events() == ["shutdown_delegated"]


async def test_shutdown_without_a_runtime_ends_in_time(hook: StopHookNode) -> None:
    await hook.server.stop()
    assert await hook.stop() is StopEnd.COMPLETE
    assert "shutdown_pods_unavailable" in hook.events()
