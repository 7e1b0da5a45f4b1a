"""The wait between a switch from dry run to active and the first destructive pass."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.config.handoff import checked
from nodeagent.config.settings import Origin
from nodeagent.daemon.pass_lock import PassLock, Pause, PausedBy
from nodeagent.daemon.pause import pause, resume
from nodeagent.daemon.reload_grace import ReloadGrace, grace_needed_s
from nodeagent.plan.eviction.effects import FREED_WITHIN_S
from nodeagent.sim.clock import SimClock
from tests.unit.daemon_node import GRACE_S, IMAGE, Daemon, daemon, place, refused

HELD = Pause(PausedBy.OPERATOR, "maintenance")
FEWER_EXAMPLES = settings(max_examples=settings().max_examples // 4, suppress_health_check=[HealthCheck.too_slow])
"""Each example starts a daemon and reloads it several times."""


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def pass_lock(clock: SimClock) -> PassLock:
    return PassLock(clock)


@pytest.fixture
def grace(clock: SimClock, pass_lock: PassLock) -> ReloadGrace:
    made = ReloadGrace(clock, pass_lock)
    made.begin(60, "test")
    made.announce()
    return made


# ---- the period


def test_nothing_is_pending_at_first(clock: SimClock, pass_lock: PassLock) -> None:
    made = ReloadGrace(clock, pass_lock)
    assert (made.pending, made.over(), made.left_s(), made.until()) == (False, False, 0.0, None)
    made.announce()
    assert not made.pending


def test_period_runs_out(grace: ReloadGrace, clock: SimClock) -> None:
    clock.advance(59)
    assert (grace.over(), grace.left_s()) == (False, 1)
    clock.advance(1)
    assert (grace.over(), grace.left_s(), grace.pending) == (True, 0, True)
    assert grace.end()
    assert not grace.end()
    assert not grace.over()


def test_period_does_not_end_before_the_effect_is_announced(clock: SimClock, pass_lock: PassLock) -> None:
    made = ReloadGrace(clock, pass_lock)
    made.begin(60, "test")
    clock.advance(1000)
    assert (made.over(), made.left_s(), made.until()) == (False, 60, None)
    made.announce()
    assert (made.over(), made.left_s()) == (False, 60)


def test_period_starts_again_at_resume(grace: ReloadGrace, clock: SimClock, pass_lock: PassLock) -> None:
    clock.advance(50)
    pass_lock.add_pause(HELD)
    clock.advance(1000)
    assert (grace.over(), grace.left_s(), grace.until()) == (False, 60, None)
    pass_lock.end_pause(PausedBy.OPERATOR)
    clock.advance(59)
    assert not grace.over()
    clock.advance(1)
    assert grace.over()


def test_period_starts_again_when_a_pause_lapses_unnoticed(
    grace: ReloadGrace, clock: SimClock, pass_lock: PassLock
) -> None:
    pass_lock.add_pause(replace(HELD, until_s=clock.monotonic_s() + 100))
    clock.advance(130)
    assert (grace.over(), grace.left_s()) == (False, 30)


def test_pause_before_the_switch_counts_from_its_end(clock: SimClock, pass_lock: PassLock) -> None:
    made = ReloadGrace(clock, pass_lock)
    pass_lock.add_pause(HELD)
    made.begin(60, "test")
    made.announce()
    clock.advance(100)
    pass_lock.end_pause(PausedBy.OPERATOR)
    assert made.left_s() == 60


def test_last_of_several_pauses_counts(grace: ReloadGrace, clock: SimClock, pass_lock: PassLock) -> None:
    pass_lock.add_pause(HELD)
    pass_lock.add_pause(replace(HELD, by=PausedBy.SHUTDOWN))
    pass_lock.end_pause(PausedBy.OPERATOR)
    clock.advance(100)
    assert not grace.over()
    pass_lock.end_pause(PausedBy.SHUTDOWN)
    assert grace.left_s() == 60


def test_zero_ends_the_wait(grace: ReloadGrace) -> None:
    grace.begin(0, "test")
    assert not grace.pending


@pytest.mark.parametrize(
    ("before", "after", "pending", "waits"),
    [
        (True, False, False, True),
        (True, True, False, False),
        (False, True, False, False),
        (False, True, True, False),
        (False, False, False, False),
        (False, False, True, True),
        (True, False, True, True),
    ],
)
def test_only_a_switch_or_a_change_during_a_wait_waits(before: bool, after: bool, pending: bool, waits: bool) -> None:
    made = checked(Origin())
    needed_s = grace_needed_s(replace(made, dry_run=before), replace(made, dry_run=after), pending=pending)
    assert needed_s == (60.0 if waits else 0.0)


# ---- the daemon


async def test_nothing_is_removed_before_the_period_is_over() -> None:
    async with daemon() as made:
        reloaded = await made.set(dry_run=False)
        assert reloaded.changes == ("dry_run: true -> false",)
        assert reloaded.grace_s == GRACE_S
        await made.advance(59.9)
        assert made.place.removed == []
        assert len(made.logged("would_remove")) >= 2
        await made.advance(0.1)
        (removal, *_) = made.place.removed
        assert removal == ("RemoveContainer", made.place.now_s)
        assert [each["event"] for each in made.logged() if each["event"].startswith("reload_grace")] == [
            "reload_grace_started",
            "reload_grace_ended",
        ]


async def test_effect_is_announced_with_the_deadline() -> None:
    async with daemon() as made:
        reloaded = await made.set(dry_run=False)
        assert reloaded.effect is not None
        assert [each.kind.value for each in reloaded.effect.removals if each.kind.value == "container"] == ["container"]
        (started,) = made.logged("reload_grace_started")
        assert (started["items"], started["seconds"]) == (len(reloaded.effect.removals), GRACE_S)
        assert "1 container" in started["effect"]
        assert reloaded.until is not None
        assert started["until"] == reloaded.until.isoformat(timespec="seconds")
        (removes,) = made.logged("reload_removes_more")
        assert removes["items"] == started["items"]


async def test_status_is_waiting_with_the_seconds_left() -> None:
    async with daemon() as made:
        assert (await made.status())["waiting"] is None
        await made.set(dry_run=False)
        await made.advance(20)
        shown = await made.status()
        assert (shown["waiting"]["for"], shown["waiting"]["seconds_left"]) == ("reload-grace", 40)
        assert shown["agent"]["dry_run"] is True
        assert {each["why"] for each in shown["loops"] if each["activity"] == "waiting"} == {
            "dry run: reload grace period, 40s left"
        }
        await made.advance(40)
        shown = await made.status()
        assert (shown["waiting"], shown["agent"]["dry_run"]) == (None, False)


async def test_pause_cancels_and_the_period_starts_again_at_resume() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        await made.advance(50)
        await made.pause()
        await made.advance(100)
        await made.resume()
        await made.advance(59)
        assert made.place.removed == []
        assert len(made.logged("reload_grace_restarted")) == 1
        await made.advance(1)
        assert made.place.removed


async def test_reload_back_to_dry_run_cancels() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        reloaded = await made.set(dry_run=True)
        assert reloaded.grace_s == 0
        await made.advance(1000)
        assert made.place.removed == []
        assert len(made.logged("reload_grace_cancelled")) == 1
        await made.set(dry_run=False)
        await made.advance(59)
        assert made.place.removed == []


async def test_change_during_the_wait_starts_it_again_and_no_change_keeps_it() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        await made.advance(30)
        unchanged = await made.reload()
        assert (unchanged.changes, unchanged.effect, unchanged.grace_s) == ((), None, 30)
        changed = await made.set(container_gc__max_per_pod_container=1)
        assert changed.grace_s == GRACE_S
        await made.advance(59)
        assert made.place.removed == []


async def test_effect_of_a_change_during_the_wait_is_the_whole_one() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        changed = await made.set(history__maximum_age="31d")
        assert changed.effect is not None
        assert "container" in {each.kind.value for each in changed.effect.removals}


async def test_bad_configuration_during_the_wait_changes_nothing() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        await made.advance(30)
        (made.place.directory / "config.toml").write_text("dry_run = 1\n")
        with pytest.raises(Exception, match="must be true or false"):
            await made.reload()
        assert made.context.grace.left_s() == 30


async def test_zero_disables_the_wait() -> None:
    async with daemon(reload_grace="0s") as made:
        reloaded = await made.set(dry_run=False)
        assert reloaded.grace_s == 0
        assert made.place.removed


async def test_zero_during_the_wait_ends_it() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        await made.set(reload_grace="0s")
        assert made.place.removed
        assert (len(made.logged("reload_grace_ended")), made.logged("reload_grace_cancelled")) == (1, [])


async def test_switch_by_a_drop_in_waits() -> None:
    async with daemon() as made:
        drop_in = made.place.directory / "config.d/50-active.toml"
        drop_in.parent.mkdir()
        drop_in.write_text("dry_run = false\n")
        assert (await made.reload()).changes == ("dry_run: true -> false",)
        await made.settle()
        await made.advance(59)
        assert made.place.removed == []


async def test_effect_that_is_unknown_waits_as_well() -> None:
    async with daemon() as made:
        await made.place.server.stop()
        made.place.write(dry_run=False)
        reloaded = await made.reload()
        assert reloaded.effect is not None
        assert reloaded.effect.problem
        assert reloaded.grace_s == GRACE_S
        assert made.logged("reload_grace_started")[0]["effect"].startswith("no items; effect unknown: ")
        await made.place.server.start()
        made.place.sim.clock.advance(59)
        await made.settle()
        assert made.place.removed == []


async def test_change_without_a_switch_does_not_wait() -> None:
    async with daemon(dry_run=False, container_gc__max_per_pod_container=9) as made:
        assert made.place.removed == []
        reloaded = await made.set(container_gc__max_per_pod_container=0)
        assert (reloaded.grace_s, len(made.logged("reload_removes_more"))) == (0, 1)
        assert made.place.removed


async def test_trigger_during_the_wait_runs_dry() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        answer = await made.trigger("containers")
        assert (answer["result"], answer["dry_run"], made.place.removed) == ("complete", True, [])
        await made.advance(60)
        made.place.litter()
        assert (await made.trigger("containers"))["dry_run"] is False


async def test_apply_during_the_wait_is_refused() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        assert await refused(made.apply("containers"))
        assert await refused(made.apply_plan("containers"))
        assert made.place.removed == []


async def test_metrics_and_control_see_one_dry_run() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        assert made.context.dry_run
        assert not made.context.settings.dry_run
        await made.advance(60)
        assert not made.context.dry_run


async def test_eviction_waits_at_a_hard_threshold_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.daemon.supervisor.STOP_WITHIN_S", 0.5)  # the clock of what settles stands still
    async with place(
        eviction__enabled="on",
        eviction__hard="nodefs.available<99.9999%",
        eviction__evict_unmeasured=True,
        eviction__verify_timeout="1s",
    ) as here:
        here.sim.add_container(here.sandbox, "main", IMAGE)
        async with here.daemon() as made:
            reloaded = await made.set(dry_run=False)
            assert reloaded.effect is not None
            assert "nodefs.available<99.9999%" in {each.threshold.text for each in reloaded.effect.thresholds}
            assert [each.name for each in reloaded.effect.pods] == ["web"]
            await made.advance(59)
            async with asyncio.timeout(30):
                while not made.logged("would_evict"):  # noqa: ASYNC110 - the log is what tells
                    await asyncio.sleep(0.001)
            assert here.removed == []
            await made.advance(1)
            ended_s = here.now_s
            async with asyncio.timeout(30):
                while not made.logged("reclaimed"):  # noqa: ASYNC110 - likewise
                    await asyncio.sleep(0.001)
            await made.advance(FREED_WITHIN_S + 1)  # nothing shows on this machine's filesystem
            async with asyncio.timeout(30):
                while "StopContainer" not in {method for method, _ in here.removed}:  # noqa: ASYNC110 - likewise
                    await asyncio.sleep(0.001)
            assert min(at_s for _, at_s in here.removed) == ended_s


# ---- restarts


async def test_restart_after_a_dry_run_waits() -> None:
    async with place() as here:
        async with here.daemon():
            pass
        here.write(dry_run=False)
        began_s = here.now_s
        async with here.daemon() as made:
            (started,) = made.logged("reload_grace_started")
            assert started["because"] == "dry_run was true before the restart"
            assert "1 container" in started["effect"]
            await made.advance(59)
            assert here.removed == []
            await made.advance(1)
        assert {at_s for _, at_s in here.removed} == {began_s + 60}


async def test_restart_during_the_wait_waits_again() -> None:
    async with place() as here:
        async with here.daemon() as made:
            await made.set(dry_run=False)
            await made.advance(50)
        async with here.daemon() as made:
            await made.advance(59)
            assert here.removed == []
            await made.advance(1)
            assert here.removed


async def test_restart_of_an_active_daemon_does_not_wait() -> None:
    async with place() as here:
        async with here.daemon() as made:
            await made.set(dry_run=False)
            await made.advance(60)
        here.removed.clear()
        here.litter()
        async with here.daemon() as made:
            assert made.logged("reload_grace_started") == []
            assert here.removed


async def test_first_start_is_no_switch() -> None:
    async with daemon(dry_run=False) as made:
        assert made.place.removed


async def test_restart_in_a_pause_waits_from_its_end() -> None:
    async with place() as here:
        async with here.daemon() as made:
            await made.pause()
        here.write(dry_run=False)
        async with here.daemon() as made:
            await made.advance(100)
            await made.resume()
            await made.advance(59)
            assert here.removed == []
            await made.advance(1)
            assert here.removed


@pytest.mark.parametrize("text", ["{", '{"schema": "other", "dry_run": false}'])
async def test_unreadable_mode_counts_as_a_dry_run(text: str) -> None:
    async with place(dry_run=False) as here:
        (here.directory / "state").mkdir()
        (here.directory / "state/mode.json").write_text(text)
        async with here.daemon() as made:
            await made.advance(59)
            assert here.removed == []
            assert "mode.json" in made.logged("reload_grace_started")[0]["because"]
            await made.advance(1)
            assert here.removed


async def test_mode_that_cannot_be_kept_is_logged_and_stops_nothing() -> None:
    async with place() as here:
        (here.directory / "state").write_text("in the way")
        async with here.daemon() as made:
            assert "mode.json" in made.logged("mode_write_failed")[0]["error"]
            await made.set(dry_run=False)
            await made.advance(59)
            assert here.removed == []


# ---- any sequence


class Model:
    """From when on removals are allowed, by what was done so far."""

    def __init__(self, made: Daemon) -> None:
        self.made = made
        self.dry = True
        self.paused = False
        self.armed = False
        self.from_s = math.inf

    def allowed(self, at_s: float) -> bool:
        return not self.dry and at_s >= self.from_s

    def begin(self) -> None:
        self.from_s = self.made.place.now_s + GRACE_S

    async def reload(self, *, dry: bool) -> None:
        if dry:
            self.dry = True
        elif self.dry:
            self.dry, self.armed = False, False
            self.begin()
        await self.made.set(dry_run=dry)

    async def change(self) -> None:
        if not self.dry and not self.armed:
            self.begin()
        before = self.made.place.settings.get("history__maximum_age")
        await self.made.set(history__maximum_age="31d" if before == "32d" else "32d")

    async def pause(self) -> None:
        self.paused = True
        await self.made.pause()

    async def resume(self) -> None:
        if self.paused and not self.armed:
            self.begin()
        self.paused = False
        await self.made.resume()

    async def advance(self, seconds: float) -> None:
        await self.made.advance(seconds)
        if not self.dry and not self.paused and self.made.place.now_s >= self.from_s:
            self.armed = True

    async def do(self, step: str) -> None:
        self.made.place.litter()
        match step.split():
            case ["reload", how]:
                await self.reload(dry=how == "dry")
            case ["change"]:
                await self.change()
            case ["pause"]:
                await self.pause()
            case ["resume"]:
                await self.resume()
            case ["advance", seconds]:
                await self.advance(float(seconds))
            case ["trigger", loop]:
                await refused(self.made.trigger(loop))
            case ["apply"]:
                await refused(self.made.apply("containers"))


STEPS = (
    "reload active",
    "reload dry",
    "change",
    "pause",
    "resume",
    "advance 1",
    "advance 30",
    "advance 59.9",
    "advance 60",
    "trigger containers",
    "trigger images",
    "apply",
)


async def play(steps: list[str]) -> None:
    async with daemon(image_gc__high_threshold_percent=1, image_gc__low_threshold_percent=0) as made:
        model = Model(made)
        for step in ["reload active", *steps]:
            before = len(made.place.removed)
            await model.do(step)
            for method, at_s in made.place.removed[before:]:
                assert model.allowed(at_s), f"{method} {at_s} during {step!r}, allowed from {model.from_s}"
                assert not model.paused, f"{method} while paused"
        if model.paused:
            await model.do("resume")
        await model.do("reload active")
        made.place.removed.clear()
        await model.do("advance 61")
        await made.trigger("containers")
        assert made.place.removed, "nothing is removed at last"


@settings(FEWER_EXAMPLES)
@given(st.lists(st.sampled_from(STEPS), max_size=8))
def test_no_sequence_removes_before_the_period_is_over(steps: list[str]) -> None:
    asyncio.run(play(steps))


@pytest.mark.parametrize(
    "steps",
    [
        ["advance 59.9", "trigger containers", "apply"],
        ["pause", "advance 60", "resume", "advance 59.9", "trigger containers"],
        ["reload dry", "advance 60", "reload active", "advance 59.9"],
        ["advance 30", "change", "advance 59.9", "apply"],
        ["advance 60", "pause", "reload dry", "reload active", "resume", "advance 30"],
        ["advance 60", "reload dry", "pause", "reload active", "advance 60", "resume", "trigger images"],
    ],
)
async def test_sequence_of_interest_removes_nothing_early(steps: list[str]) -> None:
    await play(steps)


async def storm(steps: list[str]) -> None:
    """Do everything at once, while the clock stands still."""
    async with daemon(image_gc__high_threshold_percent=1, image_gc__low_threshold_percent=0) as made:
        under_way: list[asyncio.Future[object]] = []
        for step in ["reload active", *steps, "reload active"]:
            match step.split():
                case ["reload", how]:
                    made.place.write(dry_run=how == "dry")
                    made.context.reload.set()
                case ["pause"]:
                    under_way.append(
                        asyncio.ensure_future(pause(made.context, by="root", why="", seconds=60, is_root=True))
                    )
                case ["resume"]:
                    under_way.append(asyncio.ensure_future(resume(made.context, by="root", is_root=True)))
                case ["trigger", loop]:
                    made.context.wake[loop].set()
                case ["apply"]:
                    under_way.append(asyncio.ensure_future(made.apply("containers")))
                case ["yield", times]:
                    for _ in range(int(times)):
                        await asyncio.sleep(0)
        await asyncio.gather(*under_way, return_exceptions=True)
        await resume(made.context, by="root", is_root=True)
        await made.reload()
        await made.settle()
        assert made.place.removed == []
        await made.advance(61)
        assert made.place.removed, "nothing is removed at last"


REQUESTS = (
    "reload active",
    "reload dry",
    "pause",
    "resume",
    "trigger containers",
    "apply",
    "wait 0",
    "wait 0.01",
    "wait 0.1",
)


@settings(FEWER_EXAMPLES)
@given(st.lists(st.sampled_from(REQUESTS), max_size=25))
def test_requests_at_once_remove_nothing_while_the_clock_stands(steps: list[str]) -> None:
    asyncio.run(storm(steps))
