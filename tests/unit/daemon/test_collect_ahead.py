"""Daemon with collection ahead of the forecast: one collection for each forecast, and the trigger of its pass."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from unittest import mock

from nodeagent.gc import agent_parts
from nodeagent.gc.plan.policy import Scope
from nodeagent.host.processes import is_running
from nodeagent.host.stalls import IdleDisk
from nodeagent.model.outlook import Outlook, ThresholdKind
from nodeagent.store.history import History
from nodeagent.trend.plan.forecast import Forecast, Threshold
from nodeagent.trend.plan.outlook import ResourceOutlook
from tests.sim.content import Layer
from tests.sim.disk import GIB
from tests.sim.filesystem import SimFilesystem
from tests.unit.daemon_node import Daemon, place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

HOUR_S = 3600.0
IMAGES = 12
RATE = 8 * GIB / HOUR_S


async def idle(_disk: IdleDisk) -> str:
    return ""


@asynccontextmanager
async def growing(**settings: object) -> AsyncIterator[Daemon]:
    """Run a daemon on a node of unused images, 80% full, that has observed image use for an hour."""
    async with place(
        dry_run=False, image_gc__collect_ahead="30m", image_gc__low_threshold_percent=50, **settings
    ) as made:
        for each in range(IMAGES):
            name = f"registry.example/unused:{each}"
            made.sim.add_image(name, layers=[Layer(name, GIB, 1)], age_s=48 * HOUR_S)
        made.sim.fill_to(80)
        read = SimFilesystem(made.sim).read_node_filesystem
        with (
            mock.patch.object(agent_parts, "read_filesystem", read),
            mock.patch.object(IdleDisk, "wait", idle),
        ):
            async with made.daemon() as daemon:
                for _ in range(8):
                    made.sim.advance(500)
                    await daemon.trigger("images")
                yield daemon


def expect(daemon: Daemon, rate: float | None) -> None:
    """Set the forecast of the high threshold, made from a reading of this moment, at a rate in bytes per second."""
    sim = daemon.place.sim
    threshold = Threshold(ThresholdKind.COLLECTION, 0.85 * sim.capacity_bytes, after_collection=False)
    found = Forecast(threshold, Outlook.RANGE if rate else Outlook.NO_TREND, rate_per_s=rate, observed_s=HOUR_S)
    capacity, used = float(sim.capacity_bytes), float(sim.used_bytes)
    daemon.context.trend.outlook = (ResourceOutlook("nodefs.available", used, capacity, sim.now, (found,), (), ()),)


def removed(daemon: Daemon) -> list[str]:
    return [
        each["reason"] for each in daemon.logged("removal") if each["kind"] == "image" and each["outcome"] == "done"
    ]


async def test_images_are_collected_once_for_each_forecast() -> None:
    async with growing() as made:
        assert removed(made) == []
        expect(made, RATE)
        await made.trigger("images")
        assert removed(made) == ["collect-ahead"] * 3
        made.place.sim.fill_to(83)
        made.place.sim.advance(300)
        await made.trigger("images")
        assert len(removed(made)) == 3, "the forecast has no reading after the collection"
        expect(made, RATE)
        await made.trigger("images")
        assert len(removed(made)) > 3


async def test_nothing_is_collected_without_a_trend() -> None:
    async with growing() as made:
        expect(made, None)
        await made.trigger("images")
        assert removed(made) == []


async def test_reload_without_the_setting_ends_collection_ahead() -> None:
    async with growing() as made:
        await made.set(image_gc__collect_ahead="0s")
        expect(made, RATE)
        await made.trigger("images")
        assert removed(made) == []


async def test_dry_run_logs_the_removals_with_their_reason() -> None:
    async with growing() as made:
        await made.set(dry_run=True)
        expect(made, RATE)
        await made.trigger("images")
        planned = [each for each in made.logged("would_remove") if each["kind"] == "image"]
        assert [each["reason"] for each in planned] == ["collect-ahead"] * 3
        assert "by the forecast imagefs is 85% full in" in planned[0]["why"]
        assert len(made.place.sim.images) > IMAGES


def announced(daemon: Daemon) -> bool:
    (found,) = [each for each in daemon.context.loop_statuses.all if each.name == Scope.IMAGES.value]
    return found.collects_ahead


async def test_collection_ahead_is_announced_until_a_pass_carries_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(_disk: IdleDisk) -> str:
        return "postponed: busy"

    async with growing(reload_grace="0s") as made:
        await made.set(dry_run=True)
        expect(made, RATE)
        await made.trigger("images")
        assert announced(made)
        with monkeypatch.context() as patch:
            patch.setattr(IdleDisk, "wait", busy)
            await made.set(dry_run=False)
            await made.trigger("images")
        assert announced(made)
        await made.trigger("images")
        assert (announced(made), removed(made)) == (False, ["collect-ahead"] * 3)


async def test_pass_by_the_interval_has_its_own_trigger() -> None:
    async with growing() as made:
        expect(made, RATE)
        made.mark = len(made.logged())
        made.context.wake[Scope.IMAGES.value].set()
        made.context.wake[Scope.CONTAINERS.value].set()
        await made.wait_for_passes()
        history = History(made.place.directory / "state", is_running=is_running)
        assert [each.trigger for each in history.read() if each.scope == "images"] == ["collect-ahead"]
