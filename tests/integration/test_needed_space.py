"""Removals free the predicted bytes and end with the item that frees the needed space, on a real containerd.

The stores are random: images that share layers, some of them imported, and finished pods with writable layers and logs.
``NODEAGENT_TEST_RUNS`` is the number of stores; see ``make campaign-needed-space``.
"""

from __future__ import annotations

import json
import os
import pty
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import images
from tests.support.command import nodeagent
from tests.support.containerd import LoopFs
from tests.support.pressed import APP, MIB, PressedNode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

RUNS = int(os.environ.get("NODEAGENT_TEST_RUNS", "1"))
SLACK_BYTES = MIB // 2
"""Tolerance of predictions: databases of containerd, directories of writable layers, and metadata of pods."""


@dataclass
class Store:
    """Node with images and finished pods.

    Attributes:
        imported: tags of unused images that cannot be pulled again.
        unused: tags of images without a container.
    """

    node: PressedNode
    imported: set[str] = field(default_factory=set)
    unused: set[str] = field(default_factory=set)

    def add_image(self, tag: str, *layers: images.Layer, pulled: bool) -> None:
        archive = images.write_oci(self.node.directory / "image.tar", images.image(tag, layers=layers))
        self.node.containerd.import_images(archive, pulled=pulled)
        self.unused.add(tag)
        if not pulled:
            self.imported.add(tag)

    def finish_pod(self, name: str, image: str, *, layer_mib: int, log_mib: int) -> None:
        pods = self.node.pods
        sandbox = pods.run_sandbox(name)
        script = f"dd if=/dev/zero of=/data bs=1M count={layer_mib} 2>/dev/null; sync /data; "
        script += f"yes $(seq 60) | head -c {log_mib * 1_000_000}"
        container = pods.run_container(sandbox, "main", image, ["sh", "-c", script])
        pods.wait_exited(container, timeout_s=60)
        pods.stop_sandbox(sandbox)
        self.unused.discard(image)


@pytest.fixture
def node(containerd_factory: ContainerdFactory, tmp_path: Path) -> PressedNode:
    pressed = PressedNode(containerd_factory(imagefs=LoopFs(700, "ext4")), tmp_path)
    pressed.container_gc = 'deleted_pod_grace = "0s"\nsandbox_minimum_age = "0s"'
    pressed.import_images()
    return pressed


def random_store(node: PressedNode, seed: int) -> Store:
    dice, store = random.Random(seed), Store(node)
    bases = [images.blob(f"base-{each}", dice.randint(1, 12) * MIB, seed=seed) for each in range(2)]
    tags = [f"registry.example.com/store/app-{each}:v1" for each in range(dice.randint(3, 8))]
    for tag in tags:
        own = images.blob(tag.rpartition("/")[2], dice.randint(1, 24 * 1024) * 1024, seed=seed)
        store.add_image(tag, *bases[: dice.randint(0, 2)], own, pulled=dice.random() < 0.7)
    for each in range(dice.randint(0, 3)):
        store.finish_pod(
            f"finished-{each}", dice.choice((APP, *tags)), layer_mib=dice.randint(0, 12), log_mib=dice.randint(0, 12)
        )
    os.sync()
    return store


def removals(node: PressedNode) -> list[dict[str, Any]]:
    return [each for each in node.events("removal") if each["outcome"] == "done"]


def freed(decisions: Sequence[dict[str, Any]]) -> int:
    return sum(each["frees_bytes"] or 0 for each in decisions)


def press(node: PressedNode, signal: str, short_bytes: int, reclaim_bytes: int = 0) -> tuple[int, int]:
    """Run the daemon with a threshold that is met by ``short_bytes``; return the needed bytes and the freed bytes."""
    before = node.available_bytes
    reclaim = f'\nminimum_reclaim = "{signal}={reclaim_bytes}"' if reclaim_bytes else ""
    with node.daemon(f'hard = "{signal}<{before + short_bytes}"{reclaim}'):
        node.wait_until_any("threshold_cleared", "no_evictable_pod")
        node.wait_passes(2)
    os.sync()
    return short_bytes + reclaim_bytes, node.available_bytes - before


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(RUNS))
def test_reclaim_for_an_eviction_threshold_ends_with_the_removal_that_is_needed(node: PressedNode, seed: int) -> None:
    dice = random.Random(seed)
    single = dice.random() < 0.5
    if single:
        node.with_single_filesystem()
    store = random_store(node, seed)
    signal = "nodefs.available" if single else "imagefs.available"
    needed, gained = press(node, signal, dice.randint(1, 120 * 1024) * 1024, dice.choice((0, 0, 5 * MIB)))
    removed = removals(node)
    predicted = freed(removed)
    cleared = bool(node.events("threshold_cleared"))
    print(f"seed {seed}: needed {needed}, predicted {predicted}, measured {gained}, {len(removed)} items, {cleared}")
    assert predicted == pytest.approx(gained, abs=SLACK_BYTES)
    assert freed(removed[:-1]) < needed + SLACK_BYTES
    assert cleared is (gained >= needed)
    kept = node.tags()
    if not cleared:
        assert kept >= store.imported
        assert not kept & (store.unused - store.imported)
    elif not kept >= store.imported:
        assert not kept & (store.unused - store.imported)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(RUNS))
def test_pass_over_all_items_frees_the_predicted_bytes_and_no_image_too_many(node: PressedNode, seed: int) -> None:
    random_store(node, seed)
    usage = os.statvfs(node.containerd.root)
    capacity, before = usage.f_blocks * usage.f_frsize, node.available_bytes
    used = 100 - before * 100 // capacity
    low = used - random.Random(seed).randint(1, min(20, used - 1))
    gained, report = collect_all(node, low + 1, low)
    removed = report["results"]
    predicted = freed(removed)
    print(
        f"seed {seed}: {used}% to {low}%, predicted {predicted}, measured {gained}, "
        f"{len(removed)} items, {[each['kind'] for each in removed].count('image')} images"
    )
    assert predicted == pytest.approx(gained, abs=SLACK_BYTES)
    assert {each["outcome"] for each in removed} <= {"done"}
    if removed and removed[-1]["kind"] == "image":
        assert before + freed(removed[:-1]) < capacity * (100 - low) // 100 + SLACK_BYTES


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(RUNS))
def test_requested_space_is_freed_with_no_item_too_many_and_no_image_that_cannot_be_pulled_again_before_others(
    node: PressedNode, seed: int
) -> None:
    store, dice = random_store(node, seed), random.Random(seed)
    usage = os.statvfs(node.containerd.root)
    capacity, before = usage.f_blocks * usage.f_frsize, node.available_bytes
    wanted = before + dice.randint(1, 80 * 1024) * 1024
    goal = ["--free", f"{(wanted - before) >> 10}Ki"]
    if dice.random() < 0.5:
        percent = 100 - wanted * 100 // capacity
        goal, wanted = ["--to", f"{percent}%"], capacity * (100 - percent) // 100
    command = ("gc", *goal, "-o", "json", "--config", str(node.configure("")))
    preview, report = (json.loads(nodeagent(*command, each).stdout) for each in ("--dry-run", "--yes"))
    collect_garbage(node)
    gained, removed = node.available_bytes - before, report["results"]
    print(f"seed {seed}: {' '.join(goal)}, freed {freed(removed)}, measured {gained}, {len(removed)} items")
    assert freed(removed) == pytest.approx(gained, abs=SLACK_BYTES)
    assert (report["end"] == "shortfall") is (gained < wanted - before)
    assert freed(removed[:-1]) < wanted - before + SLACK_BYTES
    planned = [each["id"] for plan in preview["plans"] for each in plan["decisions"] if each["verdict"] == "remove"]
    assert [each["id"] for each in removed] == planned[: len(removed)]
    if not store.imported <= node.tags():
        assert not node.tags() & (store.unused - store.imported)


def collect_all(node: PressedNode, high: int, low: int) -> tuple[int, dict[str, Any]]:
    """Run ``gc all`` after a preview with the same removals; return the freed bytes and the report."""
    config, before = node.configure(""), node.available_bytes
    command = ("gc", "all", "-o", "json", "--config", str(config), "--high", str(high), "--low", str(low))
    preview = json.loads(nodeagent(*command, "--dry-run").stdout)
    report = json.loads(nodeagent(*command, "--yes").stdout)
    planned = [each["id"] for plan in preview["plans"] for each in plan["decisions"] if each["verdict"] == "remove"]
    assert [each["id"] for each in report["results"]] == planned
    collect_garbage(node)
    return node.available_bytes - before, report


def collect_garbage(node: PressedNode) -> None:
    """Run the garbage collection of containerd and wait for its end."""
    collect = f"needed-space-{time.monotonic_ns()}"
    node.containerd.ctr("leases", "create", "--id", collect)
    node.containerd.ctr("leases", "delete", "--sync", collect)
    os.sync()


def test_one_of_eight_unused_images_is_removed_for_a_small_shortage(node: PressedNode) -> None:
    store = Store(node)
    for each in range(8):
        store.add_image(
            f"registry.example.com/store/app-{each}:v1", images.blob(f"app-{each}", 16 * MIB), pulled=each % 2 == 0
        )
    needed, gained = press(node, "imagefs.available", 5 * MIB)
    (removed,) = removals(node)
    assert removed["frees_bytes"] == pytest.approx(gained, abs=SLACK_BYTES)
    assert gained >= needed
    assert len(store.unused & node.tags()) == 7
    assert store.imported <= node.tags()


def test_images_of_finished_pods_are_counted_with_the_layers_that_their_containers_release(node: PressedNode) -> None:
    store = Store(node)
    for each in range(4):
        tag = f"registry.example.com/store/app-{each}:v1"
        store.add_image(tag, images.blob(f"app-{each}", 20 * MIB), pulled=True)
        store.finish_pod(f"finished-{each}", tag, layer_mib=0, log_mib=0)
    usage = os.statvfs(node.containerd.root)
    capacity = usage.f_blocks * usage.f_frsize
    low = 100 - -(-(node.available_bytes + 31 * MIB) * 100 // capacity)
    used = 100 - node.available_bytes * 100 // capacity
    gained, report = collect_all(node, used, low)
    assert [each["kind"] for each in report["results"]].count("image") == 1
    assert freed(report["results"]) == pytest.approx(gained, abs=SLACK_BYTES)


@pytest.mark.parametrize("pulled", [True, False])
def test_image_that_cannot_be_pulled_again_is_kept_in_a_shortage_that_it_cannot_end(
    node: PressedNode, *, pulled: bool
) -> None:
    store = Store(node)
    store.add_image("registry.example.com/store/app:v1", images.blob("app", 16 * MIB), pulled=pulled)
    node.containerd.fill(node.available_bytes - 100 * MIB)
    press(node, "imagefs.available", 120 * MIB)
    assert store.unused <= node.tags() if not pulled else not store.unused & node.tags()


def answered(config: Path, answer: bytes) -> tuple[int, str]:
    """Run ``nodeagent gc --free 1Mi`` on a terminal, answer its question; return the exit code and the screen."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "nodeagent", "gc", "--free", "1Mi", "--config", str(config)])
    screen, sent = b"", False
    with suppress(OSError):  # the end of the terminal
        while read := os.read(terminal, 4096):
            screen += read
            if b"[y/N]" in screen and not sent:
                os.write(terminal, answer)
                sent = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), screen.decode()


def test_answer_to_the_question_of_a_removal_decides_and_ctrl_c_ends_the_command_at_once(node: PressedNode) -> None:
    store = Store(node)
    store.add_image("registry.example.com/store/app:v1", images.blob("app", 4 * MIB), pulled=True)
    config = node.configure("")
    for answer, code in ((b"\x03", 130), (b"\x04", 0), (b"n\n", 0), (b"\n", 0)):
        ended, screen = answered(config, answer)
        assert (ended, "nothing was removed" in screen) == (code, True), (answer, screen)
        assert store.unused <= node.tags(), answer
    ended, screen = answered(config, b"yes\n")
    assert (ended, "measured " in screen) == (0, True), screen
    assert not store.unused & node.tags()
