"""Tests of the freed bytes predicted by the storage graph, compared with the freed bytes of the filesystem.

Random sets of stacked images are removed from the same initial state; the other images must remain complete.
``NODEAGENT_TEST_RUNS`` is the number of sets; see ``make campaign-needed-space``.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pytest

from nodeagent.cli.reading import load_settings
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.image_targets import LayerLedger
from nodeagent.gc.plan.policy import Scope
from tests.support import reclaim, stacked
from tests.support.containerd import LoopFs
from tests.support.stacked import StackedNode, chain_ids, stack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nodeagent.model.node import NodeSnapshot
    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

Kind = Literal["ext4", "xfs"]

MIB = 1 << 20
SETS = int(os.environ.get("NODEAGENT_TEST_RUNS", "5"))
FEWEST_IMAGES = 30
# Tolerance of the prediction: the larger of a number of bytes and a share. containerd's databases are on the same
# filesystem, and XFS frees inodes in chunks of 64, which images can share.
SLACK: dict[Kind, tuple[int, float]] = {"ext4": (64 << 10, 0), "xfs": (MIB, 0.02)}


@dataclass(frozen=True, slots=True)
class Freed:
    size_bytes: int
    inodes: int


@dataclass(frozen=True, slots=True)
class Case:
    """Filesystem type, node on it with images that share layers, and pairs of predictions and measurements."""

    kind: Kind
    node: StackedNode
    pairs: list[tuple[Freed, Freed]]

    def __str__(self) -> str:
        off = [predicted.size_bytes - measured.size_bytes for predicted, measured in self.pairs]
        share = max(abs(one.size_bytes - other.size_bytes) / max(1, other.size_bytes) for one, other in self.pairs)
        inodes = max(abs(one.inodes - other.inodes) for one, other in self.pairs)
        return (
            f"{self.kind}, {len(self.pairs)} sets: predicted {min(off):+} to {max(off):+} bytes off, "
            f"at most {share:.2%} and {inodes} inodes"
        )


@pytest.fixture(scope="module", params=["ext4", "xfs"])
def case(request: pytest.FixtureRequest, module_containerd_factory: ContainerdFactory) -> Iterator[Case]:
    kind: Kind = request.param
    daemon = module_containerd_factory(imagefs=LoopFs(400, kind))
    made = Case(kind, stack(daemon), [])
    yield made
    if made.pairs:
        print(made)
    daemon.close()


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(SETS))
def test_set_of_images_frees_the_predicted_bytes(case: Case, number: int) -> None:
    node = case.node
    assert len(node.candidates) >= FEWEST_IMAGES
    node.containerd.rewind()
    chosen = subset(tuple(node.candidates), number)
    predicted = predict(observe(node), chosen)
    before = free(node)
    for image_id in chosen:
        node.pods.remove_image(image_id)
    after = free(node)
    measured = Freed(after.size_bytes - before.size_bytes, after.inodes - before.inodes)
    case.pairs.append((predicted, measured))
    slack_bytes, slack_share = SLACK[case.kind]
    assert predicted.size_bytes == pytest.approx(measured.size_bytes, rel=slack_share, abs=slack_bytes)
    if case.kind == "ext4":
        assert predicted.inodes == pytest.approx(measured.inodes, abs=2)
    assert_kept_images_are_complete(node, chosen)


def subset(images: Sequence[str], number: int) -> list[str]:
    """Return a random set of images in random order: set 0 has one image, set 1 has all images."""
    generator = random.Random(number)
    size = {0: 1, 1: len(images)}.get(number) or generator.randint(2, len(images) - 1)
    return generator.sample(images, size)


def observe(node: StackedNode) -> NodeSnapshot:
    """Return a snapshot of the node as the agent observes it without stored state."""
    config = node.containerd.base / "nodeagent.toml"
    config.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{node.containerd.socket}"\n'
        f'[state]\ndirectory = "{node.containerd.base}/agent-state"\n'
    )

    async def observe() -> NodeSnapshot:
        async with open_agent(load_settings(config, {}), record=False, dry_run=True) as agent:
            return (await agent.collector.preview(Scope.IMAGES)).snapshot

    return asyncio.run(observe())


def predict(snapshot: NodeSnapshot, chosen: Sequence[str]) -> Freed:
    assert snapshot.storage is not None
    ledger = LayerLedger(snapshot.storage)
    images = {image.id: image for image in snapshot.images}
    size_bytes = inodes = 0
    for image_id in chosen:
        more_bytes, more_inodes = ledger.gain(images[image_id])
        assert more_bytes is not None, image_id
        assert more_inodes is not None, image_id
        size_bytes, inodes = size_bytes + more_bytes, inodes + more_inodes
        ledger.take(images[image_id])
    return Freed(size_bytes, inodes)


def free(node: StackedNode) -> Freed:
    """Return the free bytes and inodes of the filesystem after containerd has become idle.

    XFS frees inodes and blocks of deleted files in the background; freezing the filesystem waits for completion.
    """
    root = node.containerd.root
    try:
        subprocess.run(["fsfreeze", "--freeze", root], check=True)
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", root], check=True)
    usage = os.statvfs(root)
    return Freed(usage.f_bfree * usage.f_frsize, usage.f_ffree)


def assert_kept_images_are_complete(node: StackedNode, removed: Sequence[str]) -> None:
    """Assert that all kept images are complete, and that the image with the most layers of removed images runs."""
    blobs = set(node.containerd.ctr("content", "ls", "-q").split())
    snapshots = {line.split()[0] for line in node.containerd.ctr("snapshots", "ls").splitlines()}
    listed = {image.id for image in node.pods.list_images()}
    assert not listed & set(removed)
    shared: dict[str, int] = {}
    removed_chains = {
        name for image_id in removed for built in node.candidates[image_id] for name in chain_ids(built.diff_ids)
    }
    for image_id in node.candidates.keys() - set(removed):
        assert image_id in listed
        for built in node.candidates[image_id]:
            chain = chain_ids(built.diff_ids)
            assert set(chain) <= snapshots, built.tags
            if stacked.DAMAGED not in built.tags:
                assert {built.digest, built.config_digest, *built.layer_digests} <= blobs, built.tags
                shared[built.digest] = len(removed_chains.intersection(chain))
    digest = max(sorted(shared), key=lambda each: shared[each], default="")
    if shared.get(digest):
        built = next(one for several in node.candidates.values() for one in several if one.digest == digest)
        assert_image_runs(node, built.tags[0], stacked.files(node.contents[digest]))


def assert_image_runs(node: StackedNode, image: str, files: dict[str, bytes]) -> None:
    """Assert that a container of the image reads the expected content of every file."""
    script = "busybox find bin lib -type f | busybox sort | busybox xargs cat | busybox sha256sum"
    contents = b"".join(files[path] for path in sorted(files) if path.startswith(("bin/", "lib/")))
    sandbox = node.pods.run_sandbox("whole")
    try:
        container = node.pods.run_container(sandbox, "whole", image, ["sh", "-c", script])
        assert node.pods.wait_exited(container).exit_code == 0
        log = container.log_file
        assert log is not None
        digest = hashlib.sha256(contents).hexdigest()
        reclaim.poll("the log has the digest", lambda: digest in log.read_text())
    finally:
        node.pods.remove_made()
