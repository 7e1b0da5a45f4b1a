"""Output of commands for eviction previews, thresholds and outstanding evictions."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.evict import eviction_lines
from nodeagent.eviction.documents import EvictionPreview
from nodeagent.eviction.effects import EvictionFile
from nodeagent.eviction.plan.effects import OutstandingEffect
from nodeagent.eviction.plan.planner import plan_eviction
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.preview import plans_around_reclaim
from nodeagent.eviction.plan.reclaim import Shortage
from nodeagent.host.node import boot_id
from nodeagent.model.pressure import EmptyDirFacts, FilesystemLayout, Signal
from nodeagent.units import SystemClock
from tests.support.command import nodeagent
from tests.unit.cli.served_process import served
from tests.unit.eviction.plan.cases import evaluated, known, planned, pod, read, thresholds

if TYPE_CHECKING:
    from pathlib import Path

DEDICATED = FilesystemLayout.DEDICATED_IMAGEFS


def test_eviction_preview_shows_thresholds_usage_and_sources(config: Path, tmp_path: Path) -> None:
    with served(tmp_path):
        quiet = nodeagent("evict", "--dry-run", "--config", str(config))
        assert quiet.returncode == 0, quiet.stderr
        assert "no pod would be evicted: no eviction threshold met" in quiet.stdout
        low = nodeagent("evict", "--simulate", "memory.available=1Mi", "--config", str(config), "--output", "json")
        shown = json.loads(low.stdout)
        assert shown["schema"] == "nodeagent/evict/v1"
        assert shown["plan"]["threshold"]["threshold"] == "memory.available<100Mi"
        assert len(shown["plan"]["decisions"]) == len(shown["pods"]) > 0
        assert all(fact["source"] for pod in shown["pods"].values() for fact in (pod["priority"], pod["qos"]))
        full = nodeagent("evict", "-s", "nodefs.available=1%", "--config", str(config))
        assert "first unused-images on nodefs" in full.stdout
        assert "\x1b" not in full.stdout


def test_preview_names_the_usage_that_was_not_read_for_a_storage_limit() -> None:
    evaluation = evaluated(read(available_mib=900))
    pods = [pod("cache", empty_dirs=(EmptyDirFacts("tmp", None, 1),))]
    plan = planned(pods, read(available_mib=900))
    preview = EvictionPreview.of(evaluation, plan, plan, pods, simulated=(), disabled_because="", warnings=())
    shown = [line.text for line in eviction_lines(preview, None)]
    assert shown[0] == "no pod would be evicted: no eviction threshold met"
    assert shown[-1] == ("warning: shop/cache: storage limit not checked, usage not read: files of emptyDir tmp")


def test_preview_names_the_threshold_of_the_reclaim_steps_before_an_eviction_for_another_threshold() -> None:
    limits, pods = thresholds("imagefs.available<100Mi,memory.available<100Mi"), [pod("web", memory=1)]
    evaluation = evaluated(read("imagefs.available", 50), read(available_mib=50), limits=limits)
    plan = partial(plan_eviction, evaluation, pods, EvictionPolicy(), layout=DEDICATED, now=evaluation.at)
    first, then = plans_around_reclaim(plan)
    preview = EvictionPreview.of(evaluation, first, then, pods, simulated=(), disabled_because="", warnings=())
    shown = [line.text for line in eviction_lines(preview, None)]
    steps = [f"  first {each} on imagefs" for each in ("dead-containers", "unused-images", "irreplaceable-images")]
    assert shown[:5] == [
        "threshold exceeded: imagefs.available<100Mi",
        *steps,
        "threshold exceeded: memory.available<100Mi",
    ]


def test_preview_states_that_no_eviction_helps_only_if_reclaim_frees_nothing() -> None:
    limits, pods = thresholds("imagefs.available<100Mi"), [pod("web", static=known(value=True))]
    evaluation = evaluated(read("imagefs.available", 50), limits=limits)
    plan = partial(plan_eviction, evaluation, pods, EvictionPolicy(), layout=DEDICATED, now=evaluation.at)
    first, then = plans_around_reclaim(plan)
    preview = EvictionPreview.of(evaluation, first, then, pods, simulated=(), disabled_because="", warnings=())
    shown = [line.text for line in eviction_lines(preview, None)]
    assert shown[-1].startswith("warning: if these steps free nothing: imagefs.available<100Mi is met, and no eviction")


def test_outstanding_effect_is_shown_as_withheld_in_the_preview(config: Path, tmp_path: Path) -> None:
    now_s = SystemClock().monotonic_s()
    effect = OutstandingEffect(
        "eviction of shop/web", Shortage.NODEFS, Signal.NODEFS_AVAILABLE, 0.0, 5 << 20, now_s, now_s + 3000
    )
    EvictionFile(config.parent / "state").write(boot_id(), [effect], [])
    with served(tmp_path):
        shown = json.loads(
            nodeagent("evict", "-s", "nodefs.available=1%", "--config", str(config), "--output", "json").stdout
        )
        assert shown["plan"]["withheld"]["code"] == "effect-outstanding"
        assert shown["plan"]["withheld"]["details"]["action"] == "eviction of shop/web"
        assert (shown["plan"]["victim"], shown["reclaim_first"]) == (None, [])
        table = nodeagent("evict", "-s", "nodefs.available=1%", "--config", str(config))
        printed = " ".join(table.stdout.split())
        assert "withheld: nodefs.available<10% met; waiting for the effect of eviction of shop/web" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "add --dry-run, or --simulate"),
        (("-s", "memory.avail=1Mi"), "expected SIGNAL=AMOUNT"),
        (("-s", "memory.available"), "expected SIGNAL=AMOUNT"),
        (("-s", "memory.available=lots"), "'lots' is not a size"),
        (("-s", "nodefs.available=0%"), "disable a threshold"),
    ],
)
def test_invalid_simulated_signal_exits_with_2(arguments: tuple[str, ...], words: str, config: Path) -> None:
    ended = nodeagent("evict", *arguments, "--config", str(config))
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_configured_threshold_is_shown_and_invalid_one_exits_with_2(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text() + '[eviction]\nhard = "memory.available<1Mi"\n')
    with served(tmp_path):
        shown = json.loads(nodeagent("pressure", "--config", str(config), "--output", "json").stdout)
    (memory,) = [each for each in shown["signals"] if each["signal"] == "memory.available"]
    assert [each["text"] for each in memory["thresholds"]] == ["memory.available<1Mi"]
    assert memory["thresholds"][0]["distance"] > 0
    config.write_text(config.read_text().replace("memory.available<1Mi", "memory.available<1Mo"))
    ended = nodeagent("config", "check", "--config", str(config))
    assert ended.returncode == 2
    assert "'1Mo' is not a size" in ended.stderr


def test_config_check_warns_of_thresholds_that_evict_no_pod(config: Path) -> None:
    config.write_text(
        '[eviction]\nhard = "memory.psi.some>40%,io.psi.full>20"\nsoft = "io.psi.some>30.5%"\n'
        'soft_grace_period = "io.psi.some=1m"\n'
    )
    ended = nodeagent("config", "check", "--config", str(config))
    assert ended.returncode == 0
    assert [each.split(": ")[2] for each in ended.stderr.splitlines()] == [
        "no pod is evicted for io.psi.full>20%",
        "no pod is evicted for io.psi.some>30.5%",
    ]


def test_config_check_warns_of_eviction_enabled_beside_a_kubelet(config: Path) -> None:
    config.write_text('role = "beside-kubelet"\n[eviction]\nenabled = "on"\n[shutdown]\nenabled = "auto"\n')
    ended = nodeagent("config", "check", "--config", str(config))
    assert ended.returncode == 0
    assert 'eviction.enabled = "on" has no effect with role = "beside-kubelet"' in ended.stderr
    assert "shutdown" not in ended.stderr
