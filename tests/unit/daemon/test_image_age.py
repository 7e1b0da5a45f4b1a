"""Removal of images by age on a simulated runtime: an image counts as used during gaps of the observation."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.agent import open_agent
from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.decision import Verdict
from nodeagent.record import replace
from nodeagent.settings.loading import load
from nodeagent.store.clock_record import GRACE_S
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nodeagent.gc.agent import Agent
    from nodeagent.model.decision import Plan

MAXIMUM_S = 1800.0
INTERVAL_S = 300.0
DAY_S = 86_400.0
IMAGE = "registry.test/job:v1"
NEWER = "PRAGMA user_version = 99"


class Place:
    """A simulated node with one image pulled 20 days ago, and a state directory for successive agents."""

    def __init__(self, directory: Path) -> None:
        self.node = SimNode()
        self.node.root_path = str(directory)
        self.image = self.node.add_image(IMAGE, layers=[Layer("base", 1 << 20)], variant="job").id
        self.node.advance(20 * DAY_S)
        self.directory = directory
        self.state = directory / "state"
        self.database = self.state / "nodeagent.db"

    @asynccontextmanager
    async def agent(
        self, *, maximum_s: float = MAXIMUM_S, record: bool = True, removal: str = "auto"
    ) -> AsyncIterator[Agent]:
        """Compose an agent as the daemon and the one-shot commands do."""
        values: dict[str, str | int] = {
            "runtime.endpoint": f"unix://{self.directory}/cri.sock",
            "state.directory": str(self.state),
            "role": "standalone",
            "image_gc.interval": f"{INTERVAL_S:.0f}s",
            "image_gc.high_threshold_percent": 100,
            "image_gc.removal": removal,
        }
        made = load(None, values, {}).config.settings()
        policy = replace(made.policy.images, maximum_unused_age_s=maximum_s)
        made = replace(made, policy=replace(made.policy, images=policy))
        async with open_agent(made, record=record, dry_run=False, clock=self.node.clock) as agent:
            yield agent

    def use(self) -> None:
        """Run a pod with the image, and delete the pod one second later."""
        sandbox = self.node.add_pod("job")
        container = self.node.add_container(sandbox, "main", IMAGE)
        self.node.advance(1)
        self.node.stop_container(container.id)
        self.node.remove_container(container.id)
        self.node.stop_sandbox(sandbox.id)
        self.node.remove_sandbox(sandbox.id)

    async def observe(self, agent: Agent, seconds: float) -> None:
        """Run the image passes of the daemon over ``seconds``, from the start to the end."""
        await plan_of(agent)
        while seconds > 0:
            step_s = min(seconds, INTERVAL_S)
            self.node.advance(step_s)
            seconds -= step_s
            await plan_of(agent)

    def set_wall(self, by_s: float) -> None:
        self.node.clock.set_wall_time(self.node.now + timedelta(seconds=by_s))


async def plan_of(agent: Agent) -> Plan:
    (plan,) = (await agent.collector.preview(Scope.IMAGES)).plans
    return plan


async def verdict(place: Place, agent: Agent) -> str:
    """Run a pass; return verdict and reason code of the image."""
    (found,) = (each for each in (await plan_of(agent)).decisions if each.id == place.image)
    return f"{'removed' if found.verdict is Verdict.REMOVE else 'kept'}: {found.reason.code.value}"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    async with SimServer(made.node, tmp_path / "cri.sock"):
        yield made


KEPT = ("kept: age-not-observed", "kept: threshold-disabled", "kept: too-young")
"""Verdicts on an image that is not removed by age: not observed for the maximum age, or not unused for that long."""
REMOVED = "removed: unused-too-long"


async def test_fresh_installation_removes_no_image_by_age_before_the_maximum_was_observed(place: Place) -> None:
    place.use()
    async with place.agent() as agent:
        assert await verdict(place, agent) in KEPT
        await place.observe(agent, MAXIMUM_S)
        assert await verdict(place, agent) in KEPT
        place.node.advance(1)
        assert await verdict(place, agent) == REMOVED


def corrupt(place: Place) -> None:
    place.database.write_bytes(b"not a database" * 1000)


def unreadable(place: Place) -> None:
    place.database.rename(place.state / "elsewhere.db")
    place.database.mkdir()


def newer(place: Place) -> None:
    with closing(sqlite3.connect(place.database)) as connection:
        connection.execute(NEWER)


@pytest.mark.parametrize("damage", [corrupt, unreadable, newer])
@pytest.mark.parametrize("record", [True, False], ids=["run", "preview"])
async def test_lost_database_removes_no_image_by_age(
    place: Place, damage: Callable[[Place], None], *, record: bool
) -> None:
    async with place.agent() as agent:
        await place.observe(agent, 2 * MAXIMUM_S)
        assert await verdict(place, agent) == REMOVED
    place.use()
    damage(place)
    async with place.agent(record=record) as agent:
        assert await verdict(place, agent) in KEPT


@pytest.mark.parametrize("damage", [unreadable, newer])
async def test_degraded_store_removes_no_image_by_age_after_any_time(
    place: Place, damage: Callable[[Place], None]
) -> None:
    async with place.agent() as agent:
        await plan_of(agent)
    damage(place)
    async with place.agent() as agent:
        await place.observe(agent, 3 * MAXIMUM_S)
        plan = await plan_of(agent)
        assert await verdict(place, agent) in KEPT
        assert "no image is removed by age: image use is not observed: state database unavailable" in (plan.warnings)


async def test_store_that_recovers_keeps_the_observation_in_memory(place: Place) -> None:
    place.database.mkdir(parents=True)
    async with place.agent() as agent:
        await place.observe(agent, 2 * MAXIMUM_S)
        assert await verdict(place, agent) in KEPT
        place.database.rmdir()
        assert await verdict(place, agent) == REMOVED


@pytest.mark.parametrize("down_s", [MAXIMUM_S + 1, 30 * DAY_S])
async def test_agent_down_longer_than_the_maximum_removes_no_image_by_age(place: Place, down_s: float) -> None:
    async with place.agent() as agent:
        await place.observe(agent, 2 * MAXIMUM_S)
    place.node.advance(down_s)
    place.use()
    async with place.agent() as agent:
        assert await verdict(place, agent) in KEPT
        await place.observe(agent, MAXIMUM_S)
        assert await verdict(place, agent) in KEPT
        place.node.advance(1)
        assert await verdict(place, agent) == REMOVED


async def test_agent_down_longer_than_a_short_maximum_removes_no_image_by_age(place: Place) -> None:
    """Run successive agents, as one-shot commands do, with a maximum age shorter than the gap between the agents."""
    async with place.agent(maximum_s=5) as agent:
        await plan_of(agent)
    place.node.advance(5)
    place.use()
    async with place.agent(maximum_s=5) as agent:
        assert await verdict(place, agent) in KEPT


@pytest.mark.parametrize("down_s", [0, 600])
async def test_short_restart_continues_the_observation(place: Place, down_s: float) -> None:
    async with place.agent() as agent:
        await place.observe(agent, MAXIMUM_S)
        assert await verdict(place, agent) in KEPT
    place.node.advance(down_s)
    async with place.agent(record=False) as reader:
        await plan_of(reader)
    async with place.agent() as agent:
        place.node.advance(1)
        assert await verdict(place, agent) == REMOVED


async def test_use_that_ended_during_a_short_downtime_counts_until_the_next_start(place: Place) -> None:
    async with place.agent() as agent:
        await place.observe(agent, 2 * MAXIMUM_S)
        sandbox = place.node.add_pod("job")
        container = place.node.add_container(sandbox, "main", IMAGE)
        assert await verdict(place, agent) == "kept: in-use-by-container"
    place.node.advance(599)
    place.node.stop_container(container.id)
    place.node.remove_container(container.id)
    place.node.advance(1)
    async with place.agent() as agent:
        await place.observe(agent, MAXIMUM_S - 1)
        assert await verdict(place, agent) == "kept: threshold-disabled"
        place.node.advance(1)
        assert await verdict(place, agent) == REMOVED


async def test_reboot_restarts_the_observation(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place.agent() as agent:
        await place.observe(agent, 2 * MAXIMUM_S)
        assert await verdict(place, agent) == REMOVED
    monkeypatch.setattr("nodeagent.gc.agent.boot_id", lambda: "another boot")
    monkeypatch.setattr("nodeagent.gc.agent_parts.boot_id", lambda: "another boot")
    async with place.agent() as agent:
        assert await verdict(place, agent) in KEPT


async def test_unavailable_runtime_restarts_the_observation(place: Place) -> None:
    async with place.agent() as agent:
        await place.observe(agent, 2 * MAXIMUM_S)
        place.node.advance(3 * INTERVAL_S)
        assert await verdict(place, agent) == REMOVED
        place.node.advance(3 * INTERVAL_S)
        place.use()
        assert await verdict(place, agent) in KEPT


@pytest.mark.parametrize("step_s", [3650 * DAY_S, 59.0], ids=["ten years", "a little"])
async def test_wall_clock_that_was_ahead_ages_no_image(place: Place, step_s: float) -> None:
    async with place.agent() as agent:
        await place.observe(agent, 2 * INTERVAL_S)
        place.set_wall(step_s)
        assert await verdict(place, agent) in KEPT
        await place.observe(agent, MAXIMUM_S - 2 * INTERVAL_S)
        place.set_wall(-step_s)
        assert await verdict(place, agent) in KEPT
        place.node.advance(1)
        assert await verdict(place, agent) == "kept: clock-untrusted"
        await place.observe(agent, GRACE_S - 1)
        assert await verdict(place, agent) == REMOVED


async def test_pull_in_the_future_after_a_step_of_the_wall_clock_is_no_use(place: Place) -> None:
    async with place.agent() as agent:
        await place.observe(agent, 2 * MAXIMUM_S)
        place.set_wall(-3650 * DAY_S)
        assert await verdict(place, agent) == "kept: clock-untrusted"
        await place.observe(agent, GRACE_S)
        assert await verdict(place, agent) == REMOVED
        place.set_wall(3650 * DAY_S)
        assert await verdict(place, agent) == "kept: clock-untrusted"


async def test_small_steps_of_the_wall_clock_do_not_add_up(place: Place) -> None:
    async with place.agent() as agent:
        await place.observe(agent, 2 * MAXIMUM_S)
        sandbox = place.node.add_pod("job")
        container = place.node.add_container(sandbox, "main", IMAGE)
        await plan_of(agent)
        place.node.stop_container(container.id)
        place.node.remove_container(container.id)
        for _ in range(55):
            place.node.advance(30)
            place.set_wall(59)
            assert await verdict(place, agent) != REMOVED


async def test_image_pulled_under_a_wrong_clock_is_as_old_as_its_first_detection(place: Place) -> None:
    async with place.agent() as agent:
        await place.observe(agent, 2 * MAXIMUM_S)
        place.set_wall(-3650 * DAY_S)
        late = place.node.add_image("registry.test/late:v1", layers=[Layer("late", 1 << 20)]).id
        place.set_wall(3650 * DAY_S)
        removed = {each.id for each in (await plan_of(agent)).removals}
        assert (place.image in removed, late in removed) == (True, False)


async def test_image_pulled_again_counts_as_used(place: Place) -> None:
    async with place.agent() as agent:
        sandbox = place.node.add_pod("job")
        container = place.node.add_container(sandbox, "main", IMAGE)
        await plan_of(agent)
        place.node.stop_container(container.id)
        place.node.remove_container(container.id)
        await place.observe(agent, 2 * MAXIMUM_S)
        assert await verdict(place, agent) == REMOVED
        place.node.add_image("registry.test/job:v2", layers=[Layer("base", 1 << 20)], variant="job")
        assert await verdict(place, agent) == "kept: too-young"


async def test_image_missing_from_one_listing_counts_as_used_when_listed_again(place: Place) -> None:
    async with place.agent() as agent:
        sandbox = place.node.add_pod("job")
        container = place.node.add_container(sandbox, "main", IMAGE)
        await place.observe(agent, 2 * MAXIMUM_S)
        hidden = place.node.images.pop(place.image)
        place.node.stop_container(container.id)
        place.node.remove_container(container.id)
        await plan_of(agent)
        place.node.images[place.image] = hidden
        assert await verdict(place, agent) == "kept: too-young"
        place.node.advance(INTERVAL_S)
        assert await verdict(place, agent) == "kept: threshold-disabled"


@pytest.mark.parametrize("maximum_s", [0.0, MAXIMUM_S])
async def test_preview_of_a_command_equals_the_run(place: Place, maximum_s: float) -> None:
    async with place.agent(maximum_s=maximum_s) as agent:
        for _ in range(4):
            await place.observe(agent, MAXIMUM_S / 2)
            async with place.agent(maximum_s=maximum_s, record=False) as reader:
                before = place.database.read_bytes()
                assert await verdict(place, reader) == await verdict(place, agent)
                assert place.database.read_bytes() == before or not reader.record


@pytest.mark.parametrize("removal", ["auto", "cri"])
@pytest.mark.parametrize(("delay_s", "outcome"), [(599.0, Outcome.DONE), (601.0, Outcome.CHANGED)])
async def test_plan_executed_late_removes_no_image_by_age(
    place: Place, delay_s: float, outcome: Outcome, removal: str
) -> None:
    async with place.agent(removal=removal) as agent:
        await place.observe(agent, 2 * MAXIMUM_S)
        preview = await agent.collector.preview(Scope.IMAGES)
        place.node.advance(delay_s)
        report = await agent.run(preview, trigger="test", stop=asyncio.Event())
        assert [(each.decision.id, each.outcome) for each in report.results] == [(place.image, outcome)]
        assert (place.image in place.node.images) == (outcome is Outcome.CHANGED)
