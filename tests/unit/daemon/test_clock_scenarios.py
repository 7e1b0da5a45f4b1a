"""Garbage collection on a simulated node with a wrong, jumping or corrected wall clock."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from nodeagent.daemon import supervisor
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.policy import Scope
from nodeagent.loops.clock_reading import with_valid_times
from nodeagent.model.decision import Verdict
from nodeagent.record import replace
from nodeagent.settings.loading import load
from nodeagent.store.database import Store
from tests.sim.clock import SimClock
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.unit import daemon_node
from tests.unit.store.clock_node import Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.gc.agent import Agent
    from tests.sim.workload import SimSandbox

HOUR_S, DAY_S = 3600.0, 86_400.0
TEN_YEARS_S = 3650 * DAY_S
GRACE_S = 600.0
EPOCH_BOOT = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
IMAGE = "registry.test/app:v1"


class Clock(SimClock):
    """Clocks of a machine: the true time, and a wall clock with a settable error."""

    def __init__(self) -> None:
        super().__init__(datetime.now(UTC), monotonic_s=10 * DAY_S)
        self.true_now = self.now()
        self.boot = "boot 0"

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.true_now += timedelta(seconds=seconds)

    def step(self, seconds: float) -> None:
        """Step the wall clock by ``seconds``, as NTP does."""
        self.set_wall_time(self.now() + timedelta(seconds=seconds))

    def correct(self) -> None:
        self.set_wall_time(self.true_now)

    def reboot(self, *, off_s: float = 60.0, wall: datetime | None = None) -> None:
        """Reboot; the hardware clock sets the wall clock to ``wall``, by default to the true time."""
        self.true_now += timedelta(seconds=off_s)
        self.boot = f"boot {int(self.boot[5:]) + 1}"
        self._monotonic_s = 5.0
        self.set_wall_time(wall or self.true_now)


class Place:
    """A simulated node with log directories, and a state directory for successive agents."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.node = SimNode(clock=self.clock)
        self.node.root_path = str(directory)
        self.image = self.node.add_image(IMAGE, layers=[Layer("base", 1 << 20)], variant="app").id
        self.directory = directory
        self.state = directory / "state"
        (directory / "pods").mkdir()
        (directory / "containers").mkdir()

    @asynccontextmanager
    async def agent(self, **more: str | int) -> AsyncIterator[Agent]:
        values: dict[str, str | int] = {
            "runtime.endpoint": f"unix://{self.directory}/cri.sock",
            "state.directory": str(self.state),
            "role": "standalone",
            "container_gc.pod_log_root": str(self.directory / "pods"),
            "container_gc.container_log_root": str(self.directory / "containers"),
            **more,
        }
        made = load(None, values, {}).config.settings()
        async with open_agent(made, record=True, dry_run=False, clock=self.clock) as agent:
            yield agent

    def dead_pod(self, name: str) -> SimSandbox:
        """Create a pod with an exited container and a stopped sandbox; return its sandbox."""
        sandbox = self.node.add_pod(name)
        container = self.node.add_container(sandbox, "main", IMAGE)
        self.node.stop_container(container.id)
        self.node.stop_sandbox(sandbox.id)
        return sandbox

    def hold(self, seconds: float) -> None:
        """Write an image hold for ``seconds``, without a boot id, to the state directory."""
        now = self.clock.now()
        row = {"id": "1", "image": IMAGE, "why": "", "by": "ann"}
        times = {"placed_at": now.isoformat(), "until": (now + timedelta(seconds=seconds)).isoformat()}
        self.state.mkdir(exist_ok=True)
        (self.state / "holds.json").write_text(json.dumps({"schema": "nodeagent/holds/v1", "holds": [row | times]}))

    async def run(self, agent: Agent, seconds: float = 0.0, *, every_s: float = 60.0) -> list[str]:
        """Run passes each ``every_s`` over ``seconds``, from the start to the end; return the removed items."""
        removed = await self.make_pass(agent)
        while seconds > 0:
            self.clock.advance(min(seconds, every_s))
            seconds -= every_s
            removed += await self.make_pass(agent)
        return removed

    @staticmethod
    async def make_pass(agent: Agent) -> list[str]:
        preview = await agent.collector.preview(Scope.ALL)
        report = await agent.run(preview, trigger="interval", stop=asyncio.Event())
        return [each.decision.kind.value for each in report.removed]


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    monkeypatch.setattr("nodeagent.gc.agent.boot_id", lambda: made.clock.boot)
    monkeypatch.setattr("nodeagent.gc.agent_parts.boot_id", lambda: made.clock.boot)
    async with SimServer(made.node, tmp_path / "cri.sock"):
        yield made


DEAD_POD = ["container", "sandbox"]


async def test_dead_pod_is_removed_after_the_grace_period_with_a_correct_clock(place: Place) -> None:
    place.dead_pod("job")
    async with place.agent() as agent:
        assert await place.run(agent, 240) == []
        assert await place.run(agent, 60) == DEAD_POD


@pytest.mark.parametrize("started_at_s", [0.0, 30.0], ids=["agent before the step", "agent after the step"])
async def test_pod_from_before_the_reboot_is_kept_after_the_correction_of_a_clock_that_was_behind(
    place: Place, started_at_s: float
) -> None:
    """Simulate a machine without a hardware clock: its wall clock lags after a reboot until NTP steps it forward."""
    async with place.agent() as agent:
        await place.run(agent, 1200)
    place.dead_pod("job")
    place.clock.reboot(off_s=20 * HOUR_S, wall=place.clock.now())
    place.clock.advance(30)
    if started_at_s:
        place.clock.correct()
    async with place.agent() as agent:
        if not started_at_s:
            assert await place.run(agent, 10) == []
            place.clock.correct()
            assert await place.run(agent, GRACE_S - 1, every_s=6) == []
            assert await place.run(agent, 60) == DEAD_POD
        else:
            assert await place.run(agent, 264, every_s=6) == []  # the grace period starts at the boot
            assert await place.run(agent, 60) == DEAD_POD


@pytest.mark.parametrize("jump_s", [TEN_YEARS_S, 2 * HOUR_S, -TEN_YEARS_S, -2 * HOUR_S])
async def test_items_seconds_old_are_kept_after_a_jump(place: Place, jump_s: float) -> None:
    async with place.agent() as agent:
        await place.run(agent, 60)
        place.dead_pod("job")
        place.node.add_pod("empty", ready=False)
        (place.directory / "pods/default_other_uid-other").mkdir()
        place.clock.advance(2)
        place.clock.step(jump_s)
        assert await place.run(agent, GRACE_S - 1) == []
        removed = await place.run(agent, 2 * GRACE_S)
        assert removed.count("container") == 1
        assert removed.count("sandbox") == 2


async def test_items_made_before_the_agent_saw_the_clock_are_kept_after_its_correction(place: Place) -> None:
    """Correct the clock before the first pass: no item can be older than the boot, so that ages count from the boot."""
    place.clock.reboot(wall=EPOCH_BOOT)
    place.dead_pod("job")
    place.clock.advance(3)
    place.clock.correct()
    async with place.agent() as agent:
        assert await place.run(agent, 299, every_s=13) == []
        assert await place.run(agent, 60) == DEAD_POD


async def test_items_made_in_a_transient_jump_are_kept_for_the_grace_period_and_removed_after_it(place: Place) -> None:
    async with place.agent() as agent:
        await place.run(agent, 60)
        place.clock.step(TEN_YEARS_S)
        place.dead_pod("job")
        place.clock.advance(1)
        place.clock.correct()
        assert await place.run(agent, 299, every_s=13) == []
        assert await place.run(agent, GRACE_S) == DEAD_POD


@pytest.mark.parametrize("jump_s", [TEN_YEARS_S, -TEN_YEARS_S])
async def test_agent_started_after_a_jump_keeps_items_made_before_it(place: Place, jump_s: float) -> None:
    async with place.agent() as agent:
        await place.run(agent, 60)
    place.dead_pod("job")
    place.clock.advance(1)
    place.clock.step(jump_s)
    async with place.agent() as agent:
        assert await place.run(agent, GRACE_S - 1) == []
    async with place.agent() as agent:
        assert await place.run(agent, 60) == DEAD_POD


async def test_use_of_images_is_kept_over_a_boot_in_1970(place: Place) -> None:
    names = [f"registry.test/{name}:v1" for name in ("a", "b", "c")]
    ids = [place.node.add_image(name, layers=[Layer(name, 8 << 20)], variant=name).id for name in names]

    async def use(agent: Agent, name: str) -> None:
        sandbox = place.node.add_pod("user")
        container = place.node.add_container(sandbox, "main", name)
        await place.run(agent)
        place.node.stop_container(container.id)
        place.node.remove_container(container.id)
        place.node.stop_sandbox(sandbox.id)
        place.node.remove_sandbox(sandbox.id)
        await place.run(agent, 120)

    options: dict[str, str | int] = {"image_gc.maximum_unused_age": "1d", "image_gc.high_threshold_percent": 100}
    async with place.agent(**options) as agent:
        await use(agent, names[1])
        await use(agent, names[0])
    place.clock.reboot(wall=EPOCH_BOOT)
    async with place.agent(**options) as agent:
        await use(agent, names[2])
    place.clock.reboot()
    async with place.agent(**options) as agent:
        await place.run(agent, 700)
        preview = await agent.collector.preview(Scope.IMAGES)
        usage = preview.snapshot.image_usage
        used = [usage[each].last_used for each in ids]
        assert all(at is not None and at > place.clock.now() - timedelta(hours=1) for at in used)
        assert sorted(range(3), key=lambda index: str(used[index])) == [1, 0, 2]
        assert {each.verdict for each in preview.plans[0].decisions} == {Verdict.KEEP}


async def observed(agent: Agent) -> dict[str, str]:
    preview = await agent.collector.preview(Scope.IMAGES)
    return {each.id: each.reason.code.value for each in preview.plans[0].decisions}


@pytest.mark.parametrize("lasts_s", [5.0, 3 * HOUR_S], ids=["seconds", "hours"])
async def test_transient_jump_forward_ends_no_hold_and_erases_no_history(place: Place, lasts_s: float) -> None:
    place.dead_pod("job")
    async with place.agent(**{"image_gc.high_threshold_percent": 100}) as agent:
        place.hold(6 * HOUR_S)
        await place.run(agent, 1200)
        before = {each.id for each in agent.history.read(limit=1000) if each.actions}
        assert before
        place.clock.step(TEN_YEARS_S)
        await place.run(agent, lasts_s)
        assert (await observed(agent))[place.image] == "held"
        place.clock.correct()
        await place.run(agent, 1200)
        assert (await observed(agent))[place.image] == "held"
        assert {each.id for each in agent.history.read(limit=1000)} >= before
        place.clock.advance(6 * HOUR_S)
        assert (await observed(agent))[place.image] != "held"


async def test_jump_at_the_start_of_an_agent_ends_no_hold(place: Place) -> None:
    options = {"image_gc.high_threshold_percent": 100}
    place.hold(2 * HOUR_S)
    async with place.agent(**options) as agent:
        await place.run(agent, 60)
    place.clock.step(TEN_YEARS_S)
    async with place.agent(**options) as agent:
        await place.run(agent, 60)
        place.clock.correct()
        await place.run(agent, 60)
        assert (await observed(agent))[place.image] == "held"


@pytest.mark.parametrize(
    "change",
    ["suspend", "leap second", "slew", "restart"],
)
async def test_regular_changes_of_the_clock_start_no_grace_period(place: Place, change: str) -> None:
    async with place.agent() as agent:
        await place.run(agent, 60)
        place.dead_pod("job")
        if change == "suspend":
            place.clock.advance(200)
        elif change == "leap second":
            place.clock.step(-1)
        elif change == "slew":
            place.clock.advance(0.5)
    async with place.agent() as agent:
        preview = await agent.collector.preview(Scope.ALL)
        assert preview.snapshot.clock.untrusted_until is None
        assert sorted(await place.run(agent, 360)) == DEAD_POD


async def test_dead_container_is_removed_after_a_reboot_with_a_correct_clock(place: Place) -> None:
    async with place.agent() as agent:
        await place.run(agent, 60)
        place.dead_pod("job")
    place.clock.reboot()
    async with place.agent() as agent:
        assert await place.run(agent, 290) == []
        assert await place.run(agent, 60) == DEAD_POD


@pytest.mark.parametrize("first", Scope)
async def test_scope_of_the_first_reading_does_not_change_the_age_of_a_pod_that_ended_before_the_boot(
    place: Place, first: Scope
) -> None:
    place.dead_pod("job")
    place.clock.reboot()
    place.clock.advance(600)
    async with place.agent() as agent:
        await agent.collector.preview(first)
        assert await place.run(agent) == DEAD_POD


def test_incomplete_reading_of_an_unchanged_log_does_not_restart_its_age(tmp_path: Path) -> None:
    node, store = Node(), Store(tmp_path)
    name = "0" * 31 + "1"
    node.logs[name] = node.write()
    for problem in ("", "not read in time", ""):
        node.true_s += 100
        snapshot = node.snapshot()
        (directory,) = snapshot.pod_log_directories
        assert directory.tree is not None
        tree = replace(directory.tree, problem=problem, digest="ff" if problem else directory.tree.digest)
        snapshot = replace(snapshot, pod_log_directories=(replace(directory, tree=tree),))
        snapshot = with_valid_times(snapshot, node.reading, store.first_seen, with_details=True)
    (directory,) = snapshot.pod_log_directories
    assert directory.tree is not None
    assert directory.tree.changed_at == node.logs[name].stamp


@pytest.mark.parametrize("is_node_stopping", [True, False], ids=["shutdown", "restart"])
async def test_stop_of_the_daemon_is_recorded_only_in_a_shutdown_of_the_node(*, is_node_stopping: bool) -> None:
    with mock.patch.object(supervisor, "is_node_stopping", return_value=is_node_stopping):
        async with daemon_node.place(image_gc__interval="60s") as here:
            async with here.daemon() as made:
                await made.advance(GRACE_S)
                await made.trigger("images")
            database = here.directory / "state/nodeagent.db"
            with closing(sqlite3.connect(database)) as connection:
                ((row,),) = connection.execute("SELECT value FROM meta WHERE key = 'observed_reboots'")
    assert (json.loads(row)["stopped_s"] is not None) is is_node_stopping
