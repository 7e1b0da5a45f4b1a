"""State of the simulated node: names, garbage collection, forced removals."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from nodeagent.model.runtime import ContainerState
from tests.sim.content import Layer, chain_ids
from tests.sim.node import SimNode
from tests.sim.scenario import scale_node
from tests.sim.store import BLOCK_BYTES, UNCOUNTED_DIRECTORIES, Lease, RefusedError, on_disk

if TYPE_CHECKING:
    from tests.sim.workload import SimImage

MIB = 1024 * 1024
BASE = Layer("base", 50 * MIB)
OWN = Layer("own", 10 * MIB, 4 * MIB)


def unpacked_bytes(layer: Layer) -> int:
    """Return the bytes of a layer's snapshot on disk, including directories missing in the reported usage."""
    return on_disk(layer.size_bytes) + UNCOUNTED_DIRECTORIES * BLOCK_BYTES


def own_bytes(node: SimNode, image: SimImage, *layers: Layer) -> int:
    """Return the bytes on disk of an image's manifest, config and given layers."""
    target = node.store.blobs[image.target_digest]
    config = node.store.blobs[image.id]
    pieces = sum(unpacked_bytes(layer) + on_disk(layer.blob_bytes) for layer in layers)
    return pieces + on_disk(target.size_bytes) + on_disk(config.size_bytes)


def test_chain_ids_equal_those_of_containerd() -> None:
    diff_ids = [
        "sha256:cadda0b056e8d7d9c8a5fe22c4f1eec8d26e34777f7b7acc27e79d509f1c599a",
        "sha256:8f0bca3224d6e8b948b9687f6b9e9185ea6759a1b1d5ff77f0c59e63be0beede",
        "sha256:c1b31fddd67142e42e02e03a35ad38754e820e072316a71e9f7dd70dc4b32071",
    ]
    assert chain_ids(diff_ids) == (
        diff_ids[0],
        "sha256:24bc5109e0a6a8b60a5f6b5a1115e54d16227287858161f33739919d56c99406",
        "sha256:af22742b6c482d57040dc02bed7fb2461bc648bd474c672253a5316ab949fde6",
    )


def test_image_has_the_names_of_containerd() -> None:
    node = SimNode()
    image = node.add_image("registry.test/app:v1", "registry.test/app:latest", layers=[BASE])
    digest = f"registry.test/app@{image.target_digest}"
    assert set(node.names_of(image.id)) == {"registry.test/app:v1", "registry.test/app:latest", digest, image.id}
    assert image.repo_tags == ("registry.test/app:latest", "registry.test/app:v1")
    assert image.repo_digests == (digest,)


@pytest.mark.parametrize("form", ["id", "bare id", "short id", "tag", "digest"])
def test_any_reference_removes_all_names_with_one_collection(form: str) -> None:
    node = SimNode()
    image = node.add_image("docker.io/library/app:v1", "docker.io/library/app:v2", layers=[BASE, OWN])
    reference = {
        "id": image.id,
        "bare id": image.id.removeprefix("sha256:"),
        "short id": image.id.removeprefix("sha256:")[:12],
        "tag": "app:v2",
        "digest": image.repo_digests[0],
    }[form]
    node.remove_image(reference)
    assert node.images == {}
    assert node.store.names == {}
    assert (node.store.blobs, node.store.snapshots, node.store.collections) == ({}, {}, 1)
    assert node.used_bytes == 0


def test_removal_frees_unshared_layers_only() -> None:
    node = SimNode()
    first = node.add_image("a:1", layers=[BASE, OWN])
    second = node.add_image("b:1", layers=[BASE, Layer("other", 20 * MIB)])
    expected, before = own_bytes(node, first, OWN), node.used_bytes
    node.remove_image(first.id)
    assert before - node.used_bytes == expected
    node.remove_image(second.id)
    assert node.used_bytes == 0


def test_removal_of_a_used_image_keeps_the_snapshots_of_its_container() -> None:
    node = SimNode()
    image = node.add_image("a:1", layers=[BASE, OWN])
    container = node.start_container("a:1")
    node.remove_image("a:1")
    assert node.images == {}
    assert node.store.blobs == {}
    assert image.chain_id in node.store.snapshots
    assert node.containers[container.id].running
    own = Layer("writable", node.store.snapshots[container.id].size_bytes)
    node.remove_container(container.id)
    assert image.chain_id in node.store.snapshots  # remains until the next garbage collection
    assert node.collect_garbage() == sum(map(unpacked_bytes, (BASE, OWN, own)))
    assert image.chain_id not in node.store.snapshots


def test_lease_keeps_its_resources() -> None:
    node = SimNode()
    image = node.add_image("a:1", layers=[BASE, OWN])
    node.store.add_lease(Lease("keep", node.now, resources=[(image.chain_id, "snapshots/overlayfs")]))
    node.remove_image("a:1")
    assert set(node.store.snapshots) == set(chain_ids([BASE.diff_id, OWN.diff_id]))
    node.store.delete_lease("keep")
    node.collect_garbage()
    assert node.store.snapshots == {}


def test_blob_of_another_namespace_remains_on_disk() -> None:
    node = SimNode()
    node.add_image("a:1", layers=[BASE])
    node.store.share("moby", BASE.blob_digest)
    node.remove_image("a:1")
    assert node.store.blobs == {}
    assert node.used_bytes == on_disk(BASE.blob_bytes)


def test_image_has_no_tags_after_its_tag_moved() -> None:
    node = SimNode()
    old = node.add_image("a:latest", layers=[BASE], variant="old")
    new = node.add_image("a:latest", layers=[BASE], variant="new")
    assert node.images[old.id].repo_tags == ()
    assert node.images[old.id].repo_digests
    assert node.resolve_image("a:latest") == new.id


def test_image_is_listed_until_its_last_name_is_deleted() -> None:
    node = SimNode()
    image = node.add_image("a:1", layers=[BASE])
    node.delete_image_name("a:1")
    node.delete_image_name(image.repo_digests[0])
    assert node.images[image.id].repo_digests == ()
    node.delete_image_name(image.id)
    assert node.images == {}
    assert node.store.blobs  # blobs remain until the next garbage collection
    with pytest.raises(RefusedError, match="NOT_FOUND"):
        node.delete_image_name(image.id)


@pytest.mark.parametrize("shape", ["index", "docker", "no blobs", "not unpacked"])
def test_removal_of_special_images_frees_all_bytes(shape: str) -> None:
    node = SimNode()
    image = node.add_image(
        "a:1",
        layers=[BASE, OWN],
        index=shape == "index",
        docker=shape == "docker",
        layer_blobs=shape != "no blobs",
        unpacked=shape != "not unpacked",
    )
    assert (BASE.blob_digest in node.store.blobs) == (shape != "no blobs")
    assert (image.chain_id == "") == (shape == "not unpacked")
    node.collect_garbage()
    assert image.id in node.store.blobs
    node.remove_image(image.id)
    assert node.used_bytes == 0


def test_artifact_is_not_an_image_and_is_removed_by_name() -> None:
    node = SimNode()
    node.add_artifact("registry.test/chart:1", [Layer("chart", 9000)])
    assert node.images == {}
    assert node.used_bytes > 9000 * 2 // 5
    node.delete_image_name("registry.test/chart:1", sync=True)
    assert node.used_bytes == 0


@pytest.mark.parametrize("seed", range(8))
def test_only_reachable_records_remain_after_removals_in_any_order(seed: int) -> None:
    """Compare the remaining records with the reachable records of the node."""
    node = scale_node(25, 6, 12, seed=seed)
    node.collect_garbage()
    dice = random.Random(seed)
    for image_id in dice.sample(sorted(node.images), 15):
        if node.users_of(image_id) and dice.random() < 0.5:
            continue
        node.remove_image(image_id)
    for container_id in dice.sample(sorted(node.containers), 5):
        node.remove_container(container_id)
    node.collect_garbage()
    assert set(node.store.blobs) == reachable_blobs(node)
    assert set(node.store.snapshots) == reachable_snapshots(node)


def reachable_blobs(node: SimNode) -> set[str]:
    """Return the reachable blobs by mark and sweep, an independent check of the reference counts."""
    marked: set[str] = set()
    queue = [name.target.digest for name in node.store.names.values()]
    while queue:
        digest = queue.pop()
        if digest in node.store.blobs and digest not in marked:
            marked.add(digest)
            queue += [key for kind, key in node.store.blobs[digest].references if kind == "blob"]
    return marked


def reachable_snapshots(node: SimNode) -> set[str]:
    tops = [image.chain_id for image in node.images.values()]
    tops += [*node.containers, *node.sandboxes]
    marked: set[str] = set()
    for top in tops:
        key = top
        while key and key not in marked:
            marked.add(key)
            key = node.store.snapshots[key].parent
    return marked


def test_running_container_is_removed_and_a_second_removal_ignored() -> None:
    node = SimNode()
    node.add_image("a:1", layers=[BASE])
    container = node.start_container("a:1")
    node.remove_container(container.id)
    node.remove_container(container.id)
    assert node.containers == {}


def test_ready_sandbox_is_stopped_and_removed_with_its_containers() -> None:
    node = SimNode()
    node.add_image("a:1", layers=[BASE])
    pod = node.add_pod("web")
    container = node.add_container(pod, "app", "a:1")
    node.advance(60)
    assert node.stop_sandbox(pod.id)
    assert not node.sandboxes[pod.id].ready
    stopped = node.containers[container.id]
    assert (stopped.state, stopped.finished_at) == (ContainerState.EXITED, node.now)
    node.remove_sandbox(pod.id)
    node.remove_sandbox(pod.id)
    assert not node.stop_sandbox(pod.id)
    assert (node.sandboxes, node.containers) == ({}, {})
    assert set(node.store.snapshots) == {BASE.diff_id}


def test_written_bytes_reduce_the_available_bytes() -> None:
    node = SimNode(capacity_bytes=1000 * MIB)
    node.add_image("a:1", layers=[BASE])
    container = node.start_container("a:1")
    before = node.available_bytes
    node.grow_container(container, 3 * MIB)
    assert before - node.available_bytes == 3 * MIB
    node.fill_to(90)
    assert node.available_bytes == 100 * MIB
    with pytest.raises(ValueError, match="exceeds 1 percent"):
        node.fill_to(1)


def test_container_requires_an_existing_image() -> None:
    with pytest.raises(ValueError, match="unknown image missing"):
        SimNode().start_container("missing")
