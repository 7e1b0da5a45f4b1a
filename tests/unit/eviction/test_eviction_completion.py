"""Completion of evictions: running containers of evicted pods, restarts, reloads, pauses, records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeUnavailableError
from nodeagent.eviction.container_removal import CleanupResult
from nodeagent.eviction.effects import EvictionFile
from nodeagent.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.eviction.plan.state import suspended
from nodeagent.host.node import boot_id
from nodeagent.loops.passes import Pause, PausedBy
from tests.unit.eviction.eviction_node import disk_node, run_pass, run_passes
from tests.unit.eviction.plan.cases import disk, pod, read

if TYPE_CHECKING:
    from pathlib import Path


async def test_pod_that_was_not_stopped_is_retried_before_another_pod_is_evicted() -> None:
    node = disk_node()
    node.pods = (*node.pods, pod("other", writable=disk(100)))
    node.outcomes["writer"] = EvictionOutcome.FAILED
    node.cleanup = lambda: CleanupResult(confirmed=False, running=True, detail="running: app")
    loop = node.loop()
    await run_pass(node, loop)
    assert (node.evicted, node.result()) == ([], "failed")
    await run_passes(node, loop, 25)
    assert len(node.events("eviction_failed")) == 1
    await run_passes(node, loop, 30)
    assert (node.evicted, len(node.events("eviction_failed"))) == ([], 2)
    await run_passes(node, loop, 15)
    assert node.evicted[:1] == ["other"]


async def test_removal_is_completed_after_a_late_end_and_no_other_pod_is_evicted() -> None:
    node = disk_node()
    node.outcomes["writer"] = EvictionOutcome.FAILED
    node.cleanup = lambda: CleanupResult(confirmed=False, running=True, detail="running: app")
    loop = node.loop()
    await run_passes(node, loop, 10)
    node.cleanup = lambda: CleanupResult(confirmed=True)
    node.readings = lambda: (read("imagefs.available", 350),)
    await run_passes(node, loop, 20)
    assert (node.evicted, node.context.eviction.outstanding) == ([], ())
    assert [each["end"] for each in node.events("effect_measured")] == ["measured"]


async def test_restarted_daemon_completes_the_eviction_and_evicts_no_other_pod(tmp_path: Path) -> None:
    node = disk_node(file=EvictionFile(tmp_path), cleanup=lambda: CleanupResult(confirmed=False, detail="busy"))
    loop = node.loop()
    await run_pass(node, loop)
    await node.effects.close()
    assert node.evicted == ["writer"]

    again = disk_node(file=EvictionFile(tmp_path), clock=node.clock, pods=node.pods[1:])
    again.cleanup = lambda: CleanupResult(confirmed=False, detail="busy")
    loop = again.loop()
    await again.effects.restore()
    await run_passes(again, loop, 25)
    assert again.evicted == []
    assert set(again.cleaned_up) == {"writer"}
    assert [each["pod_name"] for each in again.events("eviction_resumed")] == ["writer"]
    again.cleanup = lambda: CleanupResult(confirmed=True)
    again.readings = lambda: (read("imagefs.available", 350),)
    await run_passes(again, loop, 15)
    assert (again.evicted, again.context.eviction.outstanding) == ([], ())
    await again.effects.close()
    assert EvictionFile(tmp_path).read(boot_id())[1][0].cleared


async def test_interrupted_eviction_that_stopped_nothing_is_dropped_after_a_restart(tmp_path: Path) -> None:
    node = disk_node(file=EvictionFile(tmp_path))

    async def disconnect(*_: object) -> EvictionResult:
        raise RuntimeUnavailableError("no connection")

    node.evict = disconnect  # type: ignore[method-assign,assignment]
    loop = node.loop()
    await run_pass(node, loop)
    await node.effects.close()
    assert EvictionFile(tmp_path).read(boot_id())[1]

    again = disk_node(file=EvictionFile(tmp_path), clock=node.clock)
    again.cleanup = lambda: CleanupResult(confirmed=False, running=True)
    loop = again.loop()
    await again.effects.restore()
    await run_passes(again, loop, 4)
    assert again.evicted == ["writer"]


async def test_unreadable_record_pauses_evictions_for_disk_space_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "evictions.json").write_text("{")
    node = disk_node(file=EvictionFile(tmp_path))
    loop = node.loop()
    await node.effects.restore()
    await run_passes(node, loop, 25)
    assert (node.evicted, bool(node.reclaimed)) == ([], True)
    await run_passes(node, loop, 10)
    assert node.evicted[:1] == ["writer"]
    assert "outstanding evictions unknown" in node.events("eviction_warning")[0]["warning"]


async def test_unwritable_record_does_not_stop_evictions(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    node = disk_node(file=EvictionFile(tmp_path / "file"))
    loop = node.loop()
    await run_pass(node, loop)
    await node.effects.close()
    assert node.evicted == ["writer"]
    assert len(node.events("eviction_warning")) == 1


async def test_outstanding_effects_outlive_a_reload() -> None:
    node = disk_node(cleanup=lambda: CleanupResult(confirmed=False, detail="busy"))
    loop = node.loop()
    await run_pass(node, loop)
    await node.effects.close()
    await run_passes(node, node.loop(), 25)
    assert node.evicted == ["writer"]


async def test_eviction_suspended_beside_a_kubelet_is_completed_when_evictions_resume() -> None:
    node = disk_node(cleanup=lambda: CleanupResult(confirmed=False, detail="busy"))
    await run_pass(node)
    await node.effects.close()
    node.context.eviction = suspended(node.context.eviction, node.clock.monotonic_s())
    node.cleanup = lambda: CleanupResult(confirmed=True)
    node.readings = lambda: (read("imagefs.available", 350),)
    await run_passes(node, node.loop(), 20)
    assert (node.evicted, node.context.eviction.outstanding) == (["writer"], ())
    assert [each.cleared for each in node.context.eviction.victims] == [True]


@pytest.mark.parametrize("end", ["pause", "dry-run"])
async def test_containers_are_not_removed_in_a_pause_or_dry_run(end: str) -> None:
    node = disk_node(cleanup=lambda: CleanupResult(confirmed=False, detail="busy"))
    await run_passes(node, node.loop(), 3)
    attempts = len(node.cleaned_up)
    if end == "pause":
        node.context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, "debugging"))
    node.dry_run = end == "dry-run"
    await run_passes(node, node.loop(), 20)
    assert len(node.cleaned_up) == attempts
