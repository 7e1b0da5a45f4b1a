"""Reload grace period under random sequences of requests: no removal before its end."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from nodeagent.loops.pause import pause, resume
from tests.unit.daemon_node import GRACE_S, Daemon, daemon, refused


class Model:
    """Model of the reload grace period: the start of allowed removals after the executed steps."""

    def __init__(self, made: Daemon) -> None:
        self.made = made
        self.dry = True
        self.paused = False
        self.active = False
        self.from_s = math.inf

    def allowed(self, at_s: float) -> bool:
        return not self.dry and at_s >= self.from_s

    def begin(self) -> None:
        self.from_s = self.made.place.now_s + GRACE_S

    async def reload(self, *, dry: bool) -> None:
        if dry:
            self.dry = True
        elif self.dry:
            self.dry, self.active = False, False
            self.begin()
        await self.made.set(dry_run=dry)

    async def change(self) -> None:
        if not self.dry and not self.active:
            self.begin()
        before = self.made.place.settings.get("history__maximum_age")
        await self.made.set(history__maximum_age="31d" if before == "32d" else "32d")

    async def pause(self) -> None:
        self.paused = True
        await self.made.pause()

    async def resume(self) -> None:
        if self.paused and not self.active:
            self.begin()
        self.paused = False
        await self.made.resume()

    async def advance(self, seconds: float) -> None:
        await self.made.advance(seconds)
        if not self.dry and not self.paused and self.made.place.now_s >= self.from_s:
            self.active = True

    async def apply_step(self, step: str) -> None:
        self.made.place.add_garbage()
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


FEWER_EXAMPLES = settings(
    max_examples=max(5, settings().max_examples // 13), suppress_health_check=[HealthCheck.too_slow]
)
"""Settings with fewer examples, since each example starts a daemon and reloads several times."""

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
            await model.apply_step(step)
            for method, at_s in made.place.removed[before:]:
                assert model.allowed(at_s), f"{method} {at_s} during {step!r}, allowed from {model.from_s}"
                assert not model.paused, f"{method} while paused"
        if model.paused:
            await model.apply_step("resume")
        await model.apply_step("reload active")
        made.place.removed.clear()
        await model.apply_step("advance 61")
        await made.trigger("containers")
        assert made.place.removed, "no removal after the period"


@settings(FEWER_EXAMPLES)
@given(st.lists(st.sampled_from(STEPS), max_size=8))
def test_no_sequence_of_steps_removes_before_the_end_of_the_period(steps: list[str]) -> None:
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
async def test_known_sequence_does_not_remove_early(steps: list[str]) -> None:
    await play(steps)


async def send_concurrently(steps: list[str]) -> None:
    """Send all requests concurrently, without advancing the clock; check the removals."""
    async with daemon(image_gc__high_threshold_percent=1, image_gc__low_threshold_percent=0) as made:
        running: list[asyncio.Future[object]] = []
        for step in ["reload active", *steps, "reload active"]:
            match step.split():
                case ["reload", how]:
                    made.place.write(dry_run=how == "dry")
                    made.context.reload.set()
                case ["pause"]:
                    running.append(
                        asyncio.ensure_future(pause(made.context, by="root", why="", seconds=60, is_root=True))
                    )
                case ["resume"]:
                    running.append(asyncio.ensure_future(resume(made.context, by="root", is_root=True)))
                case ["trigger", loop]:
                    made.context.wake[loop].set()
                case ["apply"]:
                    running.append(asyncio.ensure_future(made.apply("containers")))
                case ["yield", times]:
                    for _ in range(int(times)):
                        await asyncio.sleep(0)
        await asyncio.gather(*running, return_exceptions=True)
        await resume(made.context, by="root", is_root=True)
        await made.reload()
        await made.wait_for_passes()
        assert made.place.removed == []
        await made.advance(61)
        assert made.place.removed, "no removal after the period"


REQUESTS = (
    "reload active",
    "reload dry",
    "pause",
    "resume",
    "trigger containers",
    "apply",
    "yield 1",
    "yield 10",
    "yield 100",
)


@settings(FEWER_EXAMPLES)
@given(st.lists(st.sampled_from(REQUESTS), max_size=25))
def test_concurrent_requests_do_not_remove_before_the_period(steps: list[str]) -> None:
    asyncio.run(send_concurrently(steps))
