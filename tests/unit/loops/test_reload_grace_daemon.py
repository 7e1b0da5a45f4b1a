"""Reload grace period of a running daemon, over reloads, pauses and restarts."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.daemon_node import GRACE_S, IMAGE, daemon, place, refused


async def test_no_item_is_removed_before_the_end_of_the_period() -> None:
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


async def test_effect_is_logged_with_the_deadline() -> None:
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
        assert all(each["name"] in ("images", "containers") for each in shown["loops"] if "dry run" in each["why"])
        await made.advance(40)
        shown = await made.status()
        assert (shown["waiting"], shown["agent"]["dry_run"]) == (None, False)


async def test_loops_that_remove_are_paused_with_the_pause_and_other_tasks_are_not() -> None:
    async with daemon() as made:
        made.context.loop_statuses.waiting("node-lease", 10.0, 60.0)
        await made.pause()
        shown = await made.status()
        why = shown["paused"]["why"]
        assert why.startswith("test (by root, until ")
        assert {each["name"]: (each["activity"], each["why"], each["due_in_s"]) for each in shown["loops"]} == {
            "containers": ("paused", why, None),
            "eviction": ("disabled", 'eviction.enabled = "off"', None),
            "images": ("paused", why, None),
            "node-lease": ("waiting", "", 10),
        }
        await made.resume()
        assert {each["activity"] for each in (await made.status())["loops"]} == {"waiting", "disabled"}


async def test_pause_stops_the_period_and_resume_restarts_it() -> None:
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


async def test_reload_with_dry_run_during_the_wait_cancels_the_period() -> None:
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


async def test_change_during_the_wait_restarts_it_and_a_reload_without_a_change_does_not() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        await made.advance(30)
        unchanged = await made.reload()
        assert (unchanged.changes, unchanged.effect, unchanged.grace_s) == ((), None, 30)
        changed = await made.set(container_gc__max_per_pod_container=1)
        assert changed.grace_s == GRACE_S
        await made.advance(59)
        assert made.place.removed == []


async def test_effect_of_a_change_during_the_wait_has_all_removals() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        changed = await made.set(history__maximum_age="31d")
        assert changed.effect is not None
        assert "container" in {each.kind.value for each in changed.effect.removals}


async def test_invalid_configuration_during_the_wait_does_not_change_the_period() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        await made.advance(30)
        (made.place.directory / "config.toml").write_text("dry_run = 1\n")
        with pytest.raises(Exception, match="must be true or false"):
            await made.reload()
        assert made.context.grace.left_s() == 30


async def test_reload_grace_of_zero_disables_the_wait() -> None:
    async with daemon(reload_grace="0s") as made:
        reloaded = await made.set(dry_run=False)
        assert reloaded.grace_s == 0
        assert made.place.removed


async def test_reload_grace_of_zero_during_the_wait_ends_it() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        await made.set(reload_grace="0s")
        assert made.place.removed
        assert (len(made.logged("reload_grace_ended")), made.logged("reload_grace_cancelled")) == (1, [])


async def test_switch_by_a_drop_in_file_waits() -> None:
    async with daemon() as made:
        drop_in = made.place.directory / "config.d/50-active.toml"
        drop_in.parent.mkdir()
        drop_in.write_text("dry_run = false\n")
        assert (await made.reload()).changes == ("dry_run: true -> false",)
        await made.wait_for_passes()
        await made.advance(59)
        assert made.place.removed == []


async def test_switch_with_an_unknown_effect_waits() -> None:
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
        await made.wait_for_passes()
        assert made.place.removed == []


async def test_change_without_a_switch_does_not_wait() -> None:
    async with daemon(dry_run=False, container_gc__max_per_pod_container=9) as made:
        assert made.place.removed == []
        reloaded = await made.set(container_gc__max_per_pod_container=0)
        assert (reloaded.grace_s, len(made.logged("reload_removes_more"))) == (0, 1)
        assert made.place.removed


async def test_trigger_during_the_wait_is_a_dry_run() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        answer = await made.trigger("containers")
        assert (answer["result"], answer["dry_run"], made.place.removed) == ("dry-run", True, [])
        await made.advance(60)
        made.place.add_garbage()
        assert (await made.trigger("containers"))["dry_run"] is False


async def test_apply_during_the_wait_is_refused() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        assert await refused(made.apply("containers"))
        assert await refused(made.apply_plan("containers"))
        assert made.place.removed == []


async def test_context_is_a_dry_run_during_the_wait() -> None:
    async with daemon() as made:
        await made.set(dry_run=False)
        assert made.context.dry_run
        assert not made.context.settings.dry_run
        await made.advance(60)
        assert not made.context.dry_run


async def test_eviction_waits_at_a_hard_threshold_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # The eviction loop waits for freed bytes on a clock that the test does not advance, so that the supervisor has to
    # cancel the loop at the stop.
    monkeypatch.setattr("nodeagent.daemon.supervisor.STOP_WITHIN_S", 0.5)
    async with place(
        eviction__enabled="on",
        eviction__hard="nodefs.available<99.9999%",
        eviction__evict_unmeasured=True,
        eviction__always_evict=True,
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
                while not made.logged("would_evict"):  # noqa: ASYNC110 - log writes set no asyncio.Event
                    await asyncio.sleep(0.001)
            assert here.removed == []
            await made.advance(1)
            ended_s = here.now_s
            async with asyncio.timeout(30):
                while "StopContainer" not in {method for method, _ in here.removed}:
                    here.sim.clock.advance(1)  # simulated removals free no bytes on this machine
                    await asyncio.sleep(0.01)
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


async def test_restart_during_the_wait_restarts_it() -> None:
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
        here.add_garbage()
        async with here.daemon() as made:
            assert made.logged("reload_grace_started") == []
            assert here.removed


async def test_first_start_does_not_wait() -> None:
    async with daemon(dry_run=False) as made:
        assert made.place.removed


async def test_restart_during_a_pause_waits_from_its_end() -> None:
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


async def test_mode_that_cannot_be_written_is_logged_and_the_daemon_continues() -> None:
    async with place() as here:
        (here.directory / "state").write_text("not a directory")
        async with here.daemon() as made:
            assert "mode.json" in made.logged("mode_write_failed")[0]["error"]
            await made.set(dry_run=False)
            await made.advance(59)
            assert here.removed == []
