"""Tests of garbage collection on a real containerd through the command line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from nodeagent.cli.reading import load_settings
from nodeagent.gc.agent import open_agent
from nodeagent.gc.executor import Outcome, PassEnd
from nodeagent.gc.plan.policy import Scope
from nodeagent.runtime.cri import CriClient
from tests.support import reclaim
from tests.support.command import ROOT
from tests.support.worn_commands import Document, configure, gc, nodeagent, tags
from tests.support.worn_node import FRESH, KEPT, PINNED, USED_DEAD, USED_GONE, USED_RUNNING, WornNode

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.gc.executor import PassReport, Result


pytestmark = pytest.mark.real


def to_remove(preview: Document) -> set[str]:
    return {each["id"] for plan in preview["plans"] for each in plan["decisions"] if each["verdict"] == "remove"}


def removed(report: Document) -> set[str]:
    return {each["id"] for each in report["results"] if each["outcome"] == "done"}


def test_images_are_removed_as_in_the_preview_down_to_the_low_threshold(worn: WornNode) -> None:
    before = tags(worn)
    preview = gc(worn, "images", "--dry-run")
    assert tags(worn) == before
    assert to_remove(preview)
    assert preview["plans"][0]["accounting"] == "layers"

    report = gc(worn, "images", "--yes")
    assert removed(report) == to_remove(preview)
    assert report["end"] == "complete", report["end_detail"]
    assert worn.used_percent <= 80
    assert report["freed_bytes"] == pytest.approx(report["predicted_bytes"], rel=0.02, abs=1 << 20)
    assert {FRESH, KEPT, PINNED, USED_DEAD, USED_GONE, USED_RUNNING, worn.containerd.sandbox_image} <= tags(worn)

    again = gc(worn, "images", "--yes")
    assert (again["end"], again["results"]) == ("nothing-to-do", [])


def test_every_kept_image_has_its_reason(worn: WornNode) -> None:
    preview = gc(worn, "images", "--dry-run", "--high", "2", "--low", "1", code=3)
    reasons = {each["name"]: each["reason"]["code"] for each in preview["plans"][0]["decisions"]}
    expected = {
        FRESH: "too-young",
        KEPT: "protected",
        PINNED: "pinned",
        USED_DEAD: "in-use-by-container",
        USED_GONE: "in-use-by-container",
        worn.containerd.sandbox_image: "in-use-by-sandbox",
    }
    assert {name: reasons[name] for name in expected} == expected
    report = gc(worn, "images", "--yes", "--high", "2", "--low", "1", code=3)
    assert report["end"] == "shortfall"
    assert "above the low threshold" in report["end_detail"]
    assert set(expected) <= tags(worn)
    assert USED_RUNNING in tags(worn)


def test_pass_over_images_in_use_reports_a_shortfall_with_breakdown_and_history(worn: WornNode) -> None:
    in_use = {USED_RUNNING, USED_DEAD, USED_GONE, worn.containerd.sandbox_image}
    for image in worn.pods.list_images():
        if not in_use & set(image.tags):
            worn.pods.remove_image(image.id)
    reclaim.poll("only images in use remain", lambda: tags(worn) >= in_use and len(tags(worn)) < 8, timeout_s=30)
    usage = os.statvfs(worn.containerd.root)
    worn.containerd.fill(usage.f_blocks * usage.f_frsize * 9 // 100)
    remaining = tags(worn)
    assert worn.used_percent >= 90

    dry = gc(worn, "images", "--dry-run", code=3)
    assert to_remove(dry) == set()
    assert dry["plans"][0]["shortfall_bytes"] > 0
    gc(worn, "all", "--dry-run", code=3)
    assert json.loads(nodeagent(worn, "history", "--output", "json"))["passes"] == []

    report = gc(worn, "images", "--yes", code=3)
    assert (report["end"], report["results"]) == ("shortfall", [])
    assert "above the low threshold 80%" in report["end_detail"]
    shares = {each["part"]: each["bytes"] for each in report["breakdown"]["shares"]}
    assert shares["images-in-use"] > 0
    assert shares["host-files"] > shares["images-in-use"]
    shown = nodeagent(worn, "gc", "images", "--yes", code=3)
    assert "images in use" in shown
    assert "shortfall: imagefs is " in shown
    passes = json.loads(nodeagent(worn, "history", "--output", "json"))["passes"]
    assert [(each["trigger"], each["end"], each["actions"]) for each in passes] == [("command", "shortfall", [])] * 2

    nodeagent(worn, "run", "--once", "--dry-run", code=3)
    assert {each.id for each in worn.deleted} <= {each.id for each in worn.pods.list_containers()}
    nodeagent(worn, "run", "--once", code=3)
    assert tags(worn) >= {USED_RUNNING, USED_DEAD, worn.containerd.sandbox_image}
    assert remaining - tags(worn) <= {USED_GONE}


def test_dead_containers_sandboxes_and_logs_are_removed(worn: WornNode) -> None:
    assert worn.crash_sandbox is not None
    assert worn.deleted_sandbox is not None
    newest = worn.crashed[-1]
    preview = gc(worn, "containers", "--dry-run")
    report = gc(worn, "containers", "--yes")
    assert removed(report) == to_remove(preview)

    remaining = {each.id: each.state for each in worn.pods.list_containers()}
    assert newest.id in remaining
    assert not {each.id for each in worn.crashed[:-1]} & remaining.keys()
    assert not {each.id for each in worn.deleted} & remaining.keys()
    assert worn.running is not None
    assert remaining[worn.running.id] == "RUNNING"
    assert newest.log_file is not None
    assert "attempt 3" in newest.log_file.read_text()
    assert [each.log_file for each in worn.crashed if each.log_file and each.log_file.exists()] == [newest.log_file]
    assert worn.deleted_sandbox.id not in {each.id for each in worn.pods.list_sandboxes()}
    assert worn.crash_sandbox.id in {each.id for each in worn.pods.list_sandboxes()}
    assert worn.deleted_sandbox.log_directory is not None
    assert not worn.deleted_sandbox.log_directory.exists()
    links = list((worn.containerd.base / "containers").iterdir())
    assert len(links) == 2
    assert all(link.exists() for link in links)
    by_hand = [each for plan in report["plans"] for each in plan["decisions"] if each["id"] == "made-by-hand"]
    assert [each["reason"]["code"] for each in by_hand] == ["not-kubelet-managed"]
    assert "made-by-hand" in worn.containerd.ctr("containers", "ls", "-q")
    assert gc(worn, "containers", "--yes")["results"] == []

    gc(worn, "containers", "--yes", "--max-containers", "0")
    assert {each.id for each in worn.pods.list_containers()} == {worn.running.id}
    assert "made-by-hand" in worn.containerd.ctr("containers", "ls", "-q")


def test_image_with_a_container_created_after_the_plan_is_kept(worn: WornNode) -> None:
    async def plan_start_run() -> None:
        settings = load_settings(worn.config, {"image_gc.minimum_age": worn.minimum_age})
        async with open_agent(settings, record=True, dry_run=False) as agent:
            preview = await agent.collector.preview(Scope.IMAGES)
            victim = preview.removals[0]
            sandbox = await asyncio.to_thread(worn.pods.run_sandbox, "late", namespace="shop")
            await asyncio.to_thread(worn.pods.run_container, sandbox, "late", victim.name)
            report = await agent.run(preview, trigger="test", stop=asyncio.Event())
        outcomes = {result.decision.id: result.outcome for result in report.results}
        assert outcomes[victim.id] is Outcome.CHANGED
        assert victim.name in tags(worn)
        assert report.end is PassEnd.COMPLETE
        assert worn.used_percent <= 80

    asyncio.run(plan_start_run())


@pytest.mark.parametrize("removal", ["cri", "auto"])
def test_pass_ends_at_a_restart_of_the_runtime_and_the_next_one_finishes(worn: WornNode, removal: str) -> None:
    configure(worn, "[runtime]", f'[image_gc]\nremoval = "{removal}"\n\n[runtime]')

    async def interrupted_then_whole() -> None:
        settings = load_settings(worn.config, {"image_gc.minimum_age": worn.minimum_age})
        async with open_agent(settings, record=True, dry_run=False) as agent:
            preview = await agent.collector.preview(Scope.IMAGES)
            removed_ids: list[str] = []

            def stop_after_the_first(result: Result) -> None:
                removed_ids.append(result.decision.id)
                if len(removed_ids) == 1:
                    worn.containerd.stop()

            report = await agent.run(preview, trigger="test", stop=asyncio.Event(), on_result=stop_after_the_first)
            assert report.end is PassEnd.RUNTIME_LOST
            kinds = [result.outcome for result in report.results]
            if removal == "cri":
                assert kinds[:2] == [Outcome.DONE, Outcome.FAILED]
                assert set(kinds[2:]) == {Outcome.NOT_ATTEMPTED}
            else:  # one transaction removed all images; CRI's list could not be checked
                assert set(kinds) == {Outcome.DONE}
            await asyncio.to_thread(worn.containerd.start)
        async with open_agent(settings, record=True, dry_run=False) as agent:
            again = await agent.collector.preview(Scope.IMAGES)
            remaining = {each.decision.id for each in report.results if each.outcome is not Outcome.DONE}
            assert {each.id for each in again.removals} <= remaining
            report = await agent.run(again, trigger="test", stop=asyncio.Event())
            assert report.failed == ()
        assert {KEPT, PINNED, USED_RUNNING, USED_DEAD, worn.containerd.sandbox_image} <= tags(worn)

    asyncio.run(interrupted_then_whole())


def test_hung_removal_times_out_and_the_pass_continues(worn: WornNode, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(worn, "[runtime]", '[image_gc]\nremoval = "cri"\n\n[runtime]\nremoval_timeout = "2s"')
    ask = CriClient.remove_image
    hung: list[str] = []

    async def hang_first(client: CriClient, image: str) -> None:
        if hung:
            await ask(client, image)
            return
        hung.append(image)
        worn.containerd.freeze()
        try:
            await ask(client, image)
        finally:
            worn.containerd.thaw()

    async def collect() -> PassReport:
        settings = load_settings(worn.config, {"image_gc.minimum_age": worn.minimum_age})
        async with open_agent(settings, record=True, dry_run=False) as agent:
            preview = await agent.collector.preview(Scope.IMAGES)
            return await agent.run(preview, trigger="test", stop=asyncio.Event())

    monkeypatch.setattr(CriClient, "remove_image", hang_first)
    report = asyncio.run(collect())
    first, *others = report.results
    assert first.decision.id == hung[0]
    if first.outcome is Outcome.DONE:  # the removal succeeded before the agent checked CRI's list
        assert hung[0] not in {image.id for image in worn.pods.list_images()}
    else:
        assert first.outcome is Outcome.FAILED
        assert "RemoveImage" in first.detail
        assert "DEADLINE_EXCEEDED" in first.detail
    assert others
    assert {result.outcome for result in others} == {Outcome.DONE}
    assert worn.used_percent <= 80
    assert {KEPT, PINNED, USED_RUNNING, USED_DEAD, worn.containerd.sandbox_image} <= tags(worn)


def test_hung_runtime_times_out_and_nothing_is_removed(worn: WornNode) -> None:
    configure(worn, "[runtime]", '[runtime]\ntimeout = "1s"')
    before = tags(worn)
    worn.containerd.freeze()
    try:
        command = [sys.executable, "-m", "nodeagent", "gc", "all", "--yes", "--config", str(worn.config)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
        assert ended.returncode in (1, 4), ended.stderr  # either the connection or the first call times out
        assert ended.stderr.startswith("nodeagent: ")
        assert "Traceback" not in ended.stderr
    finally:
        worn.containerd.thaw()
    assert tags(worn) == before


def test_log_that_is_written_or_open_keeps_the_directory_of_an_unlisted_pod(worn: WornNode) -> None:
    """Check logs at the depth at which containerd writes them, in directories that are two hours old."""
    configure(worn, 'log_minimum_age = "0s"', 'log_minimum_age = "2s"')
    assert worn.running is not None
    assert worn.running.log_file is not None
    held, appended, closed = (worn.containerd.log_root / f"shop_{name}_{uuid4()}" for name in ("held", "live", "old"))
    for each in (held, appended, closed):
        (each / "web").mkdir(parents=True)
    os.link(worn.running.log_file, held / "web" / "0.log")  # containerd has this log open for writing
    for each in (appended, closed):
        (each / "web" / "0.log").write_text("line\n")
    age(held, appended, closed)
    append = f"while :; do echo line >> {appended}/web/0.log; sleep 0.2; done"
    with subprocess.Popen(["sh", "-c", append]) as writer:
        try:
            log = closed / "web" / "0.log"
            reclaim.poll("the change is old enough", lambda: time.time() - log.stat().st_ctime > 2.5, timeout_s=30)
            report = gc(worn, "containers", "--dry-run")
            reasons = {each["id"]: each["reason"]["code"] for plan in report["plans"] for each in plan["decisions"]}
            assert reasons[held.name] == "log-open"
            assert reasons[appended.name] == "modified-recently"
            assert reasons[closed.name] == "pod-deleted"
            gc(worn, "containers", "--yes")
        finally:
            writer.kill()
    assert [each.exists() for each in (held, appended, closed)] == [True, True, False]


def age(*directories: Path) -> None:
    """Set the modification time of the directories and of their subdirectories to two hours ago."""
    for top in directories:
        for each in (top / "web", top):
            os.utime(each, (time.time() - 7200,) * 2)
