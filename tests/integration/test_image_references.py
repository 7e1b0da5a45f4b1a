"""Tests of image references on a real containerd: digests, image volumes, other namespaces, labels of other tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import images
from tests.support.stacked import chain_ids
from tests.support.worn_commands import nodeagent, tags
from tests.support.worn_node import MIB, REGISTRY, USED_RUNNING, wear

if TYPE_CHECKING:
    from tests.integration.conftest import ContainerdFactory
    from tests.support.worn_node import AgedImages, WornNode

pytestmark = pytest.mark.real

NAMESPACES = ("moby", "buildkit", "default")
LAZY = (
    "containerd.io/snapshot/remote=stargz snapshot",
    "containerd.io/snapshot/nydus-bootstrap=true",
    "containerd.io/snapshot/remote/soci.index.digest=sha256:0",
)
"""Labels of snapshotters that fetch the content of layers on demand."""


@pytest.fixture(scope="module")
def worn(module_containerd_factory: ContainerdFactory, aged_images: AgedImages) -> WornNode:
    """Return a node with used and unused images; each test adds further images."""
    return wear(module_containerd_factory(imagefs=aged_images.imagefs, with_pause=False), aged=aged_images)


def build(node: WornNode, name: str, *, platforms: bool = False) -> images.Built:
    """Import an image of 3 MiB with a base layer shared by all these images; return its digests.

    With ``platforms``, the image is an index of this machine's platform, another platform, and a platform without
    content.
    """
    tag = f"{REGISTRY}/refs/{name}:v1"
    own = images.image(tag, layers=[images.blob("shared base", 2 * MIB), images.blob(name, MIB)])
    other = images.Image((), (images.blob(f"{name} elsewhere", MIB),), architecture="riscv64")
    described = images.Index((tag,), (other, own), absent=("s390x",)) if platforms else own
    archive = images.write_oci(node.containerd.base / f"{name}.tar", described)
    node.containerd.import_images(archive, pulled=True)
    return archive.images[0]


def remove_unused(node: WornNode) -> dict[str, Any]:
    """Remove every removable image regardless of its age; return the report of the pass."""
    options = ("--minimum-age", "0s", "--undo-window", "0s", "--high", "2", "--low", "1", "--output", "json")
    report: dict[str, Any] = json.loads(nodeagent(node, "gc", "images", "--yes", *options, code=3))
    return report


def ids(node: WornNode) -> set[str]:
    return {each.id for each in node.pods.list_images()}


def inventory(node: WornNode, namespace: str) -> tuple[str, ...]:
    """Return the images of a containerd namespace, with the completeness of their content, and its snapshots."""
    ctr = node.containerd.ctr
    return tuple(
        "\n".join(sorted(ctr(*words, namespace=namespace).splitlines()))
        for words in (("images", "check"), ("snapshots", "ls"))
    )


def test_images_used_by_digest_or_under_a_moved_tag_stay_and_their_containers_restart(worn: WornNode) -> None:
    by_id, by_digest, moved, unused = (
        build(worn, name, platforms=name == "by-digest") for name in ("by-id", "by-digest", "moved", "unused")
    )
    sandbox = worn.pods.run_sandbox("references", namespace="shop")
    for name, image in (
        ("by-id", by_id.config_digest),
        ("by-digest", f"{REGISTRY}/refs/by-digest@{by_digest.digest}"),
        ("moved", moved.tags[0]),
    ):
        container = worn.pods.run_container(sandbox, name, image, ["true"])
        worn.pods.wait_exited(container)
    worn.containerd.ctr("images", "tag", "--force", USED_RUNNING, moved.tags[0])

    remove_unused(worn)
    assert {by_id.config_digest, by_digest.config_digest, moved.config_digest} <= ids(worn)
    assert unused.config_digest not in ids(worn)
    for name, used in (("by-id", by_id), ("by-digest", by_digest), ("moved", moved)):
        again = worn.pods.run_container(sandbox, name, used.config_digest, ["true"], attempt=1)
        assert worn.pods.wait_exited(again).exit_code == 0


def test_content_of_other_namespaces_and_of_foreign_labels_is_kept_and_counts_as_not_freed(worn: WornNode) -> None:
    shared, referenced, lazy = (
        build(worn, name, platforms=name == "lazy") for name in ("shared", "referenced", "lazy")
    )
    top = chain_ids(lazy.diff_ids)[-1]
    for label in LAZY:
        worn.containerd.ctr("snapshots", "label", top, label)
    for namespace in NAMESPACES:
        worn.containerd.ctr("images", "import", str(worn.containerd.base / "shared.tar"), namespace=namespace)
    before = {namespace: inventory(worn, namespace) for namespace in NAMESPACES}
    kept = next(each for each in worn.pods.list_images() if USED_RUNNING in each.tags)
    worn.containerd.ctr(
        "content", "label", kept.id, f"containerd.io/gc.ref.content.tool={referenced.layer_digests[-1]}"
    )

    report = remove_unused(worn)
    assert not {each.config_digest for each in (shared, referenced, lazy)} & ids(worn)
    assert top not in worn.containerd.ctr("snapshots", "ls")
    assert report["freed_bytes"] == pytest.approx(report["predicted_bytes"], rel=0.02, abs=1 << 20)
    assert {namespace: inventory(worn, namespace) for namespace in NAMESPACES} == before
    blobs = worn.containerd.ctr("content", "ls", "--quiet").split()
    assert referenced.layer_digests[-1] in blobs


@pytest.mark.containerd("2.1")
def test_image_volumes_of_running_and_dead_containers_stay(worn: WornNode) -> None:
    running, dead, unused = (build(worn, name) for name in ("volume-running", "volume-dead", "volume-unused"))
    sandbox = worn.pods.run_sandbox("volumes", namespace="shop")
    for name, image, words in (("running", running, ()), ("dead", dead, ("true",))):
        container = worn.pods.create_container(
            sandbox, name, USED_RUNNING, words, image_volumes={image.tags[0]: "/volume"}
        )
        worn.pods.start(container)
        if words:
            worn.pods.wait_exited(container)

    remove_unused(worn)
    assert {running.config_digest, dead.config_digest} <= ids(worn)
    assert unused.config_digest not in ids(worn)
    assert running.tags[0] in tags(worn)
