"""Tests of reports on a real containerd against the next pass: explanations, saved plans, leaks, usage breakdown."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.containerd import LoopFs
from tests.support.stacked import StackedNode, stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
Document = dict[str, Any]
KEPT_FOR = ("irreplaceable-later", "protected", "in-use-by-container", "in-use-by-sandbox", "sandbox-image")


@pytest.fixture(scope="module")
def stacked(module_containerd_factory: ContainerdFactory) -> Iterator[StackedNode]:
    daemon = module_containerd_factory(imagefs=LoopFs(400, "ext4"))
    yield stack(daemon)
    daemon.close()


@pytest.fixture
def node(stacked: StackedNode) -> StackedNode:
    stacked.containerd.rewind()
    base = stacked.containerd.base
    subprocess.run(["rm", "-rf", str(base / "agent-state")], check=True)
    (base / "nodeagent.toml").write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{stacked.containerd.socket}"\n'
        f'[state]\ndirectory = "{base}/agent-state"\n'
        '[image_gc]\nhigh_threshold_percent = 40\nlow_threshold_percent = 36\nminimum_age = "0s"\nundo_window = "0s"\n'
        '[protect]\nimages = ["*/tools/*"]\n'
        f'[container_gc]\npod_log_root = "{stacked.containerd.log_root}"\ncontainer_log_root = "{base}/none"\n'
    )
    return stacked


def nodeagent(node: StackedNode, *arguments: str, code: int = 0) -> Document:
    command = [sys.executable, "-m", "nodeagent", *arguments, "-c", str(node.containerd.base / "nodeagent.toml")]
    ended = subprocess.run(
        [*command, "--output", "json"], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert ended.returncode == code, ended.stderr
    answer: Document = json.loads(ended.stdout)
    return answer


def test_explanations_agree_with_the_next_pass(node: StackedNode) -> None:
    listed = nodeagent(node, "images")["images"]
    assert len(listed) >= 30
    explanations = {}
    for image in listed:
        (explained,) = nodeagent(node, "explain", image["id"])["explanations"]
        explanations[image["id"]] = explained
    report = nodeagent(node, "gc", "images", "--yes", code=0)
    removed = {each["id"] for each in report["results"] if each["outcome"] == "done"}
    assert removed
    assert {image_id for image_id, each in explanations.items() if each["verdict"] == "remove"} == removed
    left = {image["id"] for image in nodeagent(node, "images")["images"]}
    assert left == explanations.keys() - removed
    for image_id, each in explanations.items():
        if image_id not in removed:
            assert each["reason"]["code"] in KEPT_FOR, each
    places = {image_id: each["position"] for image_id, each in explanations.items() if each["position"] is not None}
    assert sorted(places.values()) == list(range(1, len(places) + 1))  # images in use have no place
    assert places.keys() >= removed


def test_stale_plan_removes_only_items_that_are_still_removable(node: StackedNode, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    command = [sys.executable, "-m", "nodeagent", "plan", "--scope", "images", "--out", str(saved), "-c"]
    subprocess.run([*command, str(node.containerd.base / "nodeagent.toml")], check=True, cwd=ROOT)
    listed = [each for each in json.loads(saved.read_text())["decisions"] if each["verdict"] == "remove"]
    removed, started, *_ = listed
    node.pods.remove_image(removed["id"])
    sandbox = node.pods.run_sandbox("late")
    image = next(each for each in node.pods.list_images() if each.id == started["id"])
    node.pods.run_container(sandbox, "late", image.tags[0], ["sh", "-c", "sleep 600"])
    try:
        answer = nodeagent(node, "apply", str(saved), "--yes", code=3)
        drift = {each["id"]: each for each in answer["drift"]}
        assert drift[removed["id"]]["gone"]
        assert "in use by" in drift[started["id"]]["why"]
        going = {each["id"] for each in answer["report"]["results"]}
        assert going | drift.keys() == {each["id"] for each in listed}
        assert not going & drift.keys()
        left = {each.id for each in node.pods.list_images()}
        assert started["id"] in left
        assert not left & going
        assert left >= node.candidates.keys() - {each["id"] for each in listed}
    finally:
        node.pods.remove_made()


def test_only_orphaned_pieces_are_listed_as_leaks(node: StackedNode) -> None:
    odd = "registry.example.com/odd/without-config:v1"
    (broken,) = nodeagent(node, "gc", "leaks", "--minimum-age", "0s")["plans"][0]["decisions"]
    assert (broken["id"], broken["kind"]) == (odd, "image-name")
    containerd = node.containerd
    base = next(line.split()[0] for line in containerd.ctr("snapshots", "ls").splitlines() if "Committed" in line)
    containerd.ctr("snapshots", "prepare", "orphan-below", base)
    containerd.ctr("snapshots", "commit", "orphan", "orphan-below")
    containerd.ctr("snapshots", "prepare", "orphan-above", "orphan")
    content = b"lost" * 50_000
    lost = f"sha256:{hashlib.sha256(content).hexdigest()}"
    containerd.ctr("content", "ingest", "--expected-digest", lost, "lost", stdin=content)
    containerd.ctr("content", "label", lost, "containerd.io/gc.root=2024-01-01T00:00:00Z")
    expected = {"orphan", "orphan-above", lost}
    kept = nodeagent(node, "gc", "leaks", "--minimum-age", "0s")["plans"][0]["decisions"]
    codes = {each["id"]: each["reason"]["code"] for each in kept}
    assert codes == dict.fromkeys(expected, "gc-root-label") | {odd: "image-incomplete"}
    young = nodeagent(node, "gc", "leaks", "--rooted")["plans"][0]["decisions"]
    assert {each["verdict"] for each in young} == {"keep"}
    shown = nodeagent(node, "gc", "leaks", "--rooted", "--minimum-age", "0s")["plans"][0]["decisions"]
    assert [each["id"] for each in shown if each["kind"] == "snapshot"] == ["orphan-above", "orphan"]
    assert {each["id"] for each in shown if each["verdict"] == "remove"} == {*expected, odd}
    assert {line.split()[0] for line in containerd.ctr("snapshots", "ls").splitlines()} >= {"orphan", "orphan-above"}
    report = nodeagent(node, "gc", "leaks", "--rooted", "--minimum-age", "0s", "--yes")
    assert {each["id"]: each["outcome"] for each in report["results"]} == dict.fromkeys({*expected, odd}, "done")
    assert report["freed_bytes"] == pytest.approx(report["predicted_bytes"], abs=128 << 10)
    left = {line.split()[0] for line in containerd.ctr("snapshots", "ls").splitlines()}
    assert not left & expected
    assert lost not in containerd.ctr("content", "ls", "-q").split()
    assert node.candidates.keys() <= {image.id for image in node.pods.list_images()}


def test_usage_breakdown_adds_up_to_the_used_bytes(node: StackedNode) -> None:
    found = nodeagent(node, "du")
    used = found["imagefs"]["capacity_bytes"] - found["imagefs"]["available_bytes"]
    sizes = {share["part"]: share["bytes"] for share in found["shares"]}
    assert found["exact"]
    assert used <= sum(sizes.values()) <= used + found["imagefs"]["capacity_bytes"] // 100
    assert sizes["images-unused"] > 20 << 20
    assert sizes["images-in-use"] > 1 << 20
    assert sizes["writable-layers-dead"] >= 3_000_000
    assert sizes["images-unlisted"] > 0
    assert "unreferenced" not in sizes
    assert sizes["unexplained"] <= found["imagefs"]["capacity_bytes"] // 100
