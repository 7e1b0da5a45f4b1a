"""Daemon in dry run: logs and history contain changes of the plan, not the whole plan of every pass."""

from __future__ import annotations

from datetime import timedelta

from nodeagent.gc.hold_file import HoldFile
from nodeagent.host.processes import is_running
from nodeagent.model.clock import TRUSTED
from nodeagent.model.node import Hold
from nodeagent.store.history import History
from tests.sim.content import Layer
from tests.unit.daemon_node import IMAGE, daemon


async def test_planned_removal_is_logged_once_and_a_summary_per_pass() -> None:
    async with daemon() as made:
        for _ in range(3):
            await made.trigger("containers")
        planned = [each for each in made.logged("would_remove") if each["kind"] == "container"]
        finished = [each for each in made.logged("pass_finished") if each["scope"] == "containers"]
        assert len(planned) == 1
        assert [each["planned"] for each in finished] == [1] * 4
        assert all(each["dry_run"] for each in finished)


async def test_new_item_and_item_no_longer_planned_are_logged() -> None:
    async with daemon() as made:
        (first,) = (each for each in made.logged("would_remove") if each["kind"] == "container")
        made.place.sim.remove_container(first["id"])
        made.place.add_garbage()
        await made.trigger("containers")
        second = [each for each in made.logged("would_remove") if each["kind"] == "container"][1]
        assert second["id"] != first["id"]
        (kept,) = made.logged("would_keep")
        assert (kept["id"], kept["name"], kept["why"]) == (first["id"], first["name"], "it no longer exists")


async def test_item_that_is_kept_again_is_logged_with_the_reason() -> None:
    thresholds = {"image_gc__high_threshold_percent": 1, "image_gc__low_threshold_percent": 0}
    async with daemon(**thresholds, image_gc__minimum_age="0s") as made:
        made.place.sim.fill_to(50)
        made.place.sim.add_image("registry.example/unused:v1", layers=[Layer("unused", 1 << 20)])
        made.place.sim.clock.advance(60)
        await made.trigger("images")
        assert [each["name"] for each in made.logged("would_remove") if each["kind"] == "image"] == [
            "registry.example/unused:v1"
        ]
        now = made.place.sim.now
        hold = Hold("", "registry.example/unused:v1", "debugging", "ann", now, now + timedelta(hours=1))
        HoldFile(made.place.directory / "state").add(hold, TRUSTED)
        await made.trigger("images")
        (kept,) = made.logged("would_keep")
        assert (kept["name"], kept["why"].partition(" until")[0]) == ("registry.example/unused:v1", "held by ann")


async def test_unchanged_dry_runs_are_recorded_without_their_removals() -> None:
    async with daemon() as made:
        for _ in range(3):
            await made.trigger("containers")
        history = History(made.place.directory / "state", is_running=is_running)
        noteworthy = [each for each in history.read() if each.scope == "containers"]
        (recorded,) = noteworthy
        assert [each.outcome for each in recorded.actions] == ["dry-run"]
        everything = [each for each in history.read(quiet=True) if each.scope == "containers"]
        assert sorted(len(each.actions) for each in everything) == [0, 0, 0, 1]
        assert {each.detail for each in everything} == {"", f"the same 1 removals as in dry run {recorded.id}"}


async def test_requested_dry_run_lists_every_removal() -> None:
    async with daemon() as made:
        await made.apply("containers")
        planned = [each for each in made.logged("would_remove") if each["kind"] == "container"]
        assert len(planned) == 2, IMAGE
