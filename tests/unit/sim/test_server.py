"""gRPC server of the simulated node: CRI and containerd services over a socket, per runtime profile."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty

from nodeagent._proto.containerd.services.containers.v1 import containers_pb2
from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.leases.v1 import leases_pb2
from nodeagent._proto.containerd.services.namespaces.v1 import namespaces_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError
from nodeagent.gc.plan.image_targets import LayerLedger
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.cri import CriClient
from nodeagent.runtime.storage_graph import LayerCache
from tests.sim.content import Layer
from tests.sim.node import PAUSE, SimNode
from tests.sim.profiles import PROFILES
from tests.sim.scenario import example_node
from tests.sim.server import SimServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.sim.conftest import Caller


MIB = 1024 * 1024
CONTAINERD = "/containerd.services."


async def test_client_of_the_agent_reads_the_state_of_the_node(node: SimNode, cri: CriClient) -> None:
    images = {image.id: image for image in await cri.list_images()}
    assert {key: (image.repo_tags, image.pinned) for key, image in images.items()} == {
        key: (image.repo_tags, image.pinned) for key, image in node.images.items()
    }
    (sandbox,) = await cri.list_sandboxes()
    assert (sandbox.name, sandbox.namespace, sandbox.uid, sandbox.ready) == ("web", "shop", "u-1", True)
    details = await cri.sandbox_details(sandbox.id)
    assert details.sandbox.image == PAUSE
    assert details.sandbox.log_directory == "/var/log/pods/shop_web_u-1"
    assert details.cgroup_parent == "/kubepods/besteffort/podu-1"
    serve, once = await cri.list_containers()
    assert (serve.state, once.state) == (ContainerState.RUNNING, ContainerState.EXITED)
    assert serve.image_ref == node.resolve_image("registry.test/a:v1")
    exited = await cri.container_status(once.id)
    assert (exited.exit_code, exited.attempt) == (3, 2)
    assert exited.finished_at == node.containers[once.id].finished_at
    assert exited.log_path == "/var/log/pods/shop_web_u-1/once/2.log"
    usage = await cri.list_container_stats()
    assert {each.container_id for each in usage} == {serve.id, once.id}
    assert (await cri.image_fs_info()).image_mountpoints == (node.imagefs_path,)


async def test_removing_an_image_frees_its_own_layers(node: SimNode, cri: CriClient) -> None:
    node.remove_container(next(each.id for each in node.containers.values() if each.name == "once"))
    node.collect_garbage()
    before = node.available_bytes
    await cri.remove_image("registry.test/b:v1")
    freed = node.available_bytes - before
    assert 7 * MIB + 7 * MIB * 2 // 5 <= freed < 10 * MIB
    await cri.remove_image("registry.test/b:v1")
    assert await cri.image_status("registry.test/b:v1") is None


async def test_missing_targets_are_not_found_or_ignored(cri: CriClient) -> None:
    with pytest.raises(RuntimeNotFoundError):
        await cri.container_status("missing")
    with pytest.raises(RuntimeNotFoundError):
        await cri.sandbox_status("missing")
    await cri.remove_container("missing")
    await cri.stop_sandbox("missing")
    await cri.remove_sandbox("missing")


@pytest.mark.parametrize(
    ("profile", "pinned", "sandbox_image", "image_id", "volumes"),
    [
        ("1.6", False, PAUSE, False, False),
        ("1.7", True, PAUSE, False, False),
        ("2.1", True, None, False, True),
        ("cri-o", True, PAUSE, True, True),
    ],
)
async def test_profile_decides_the_reported_fields(  # noqa: PLR0917 - parametrized
    node: SimNode,
    socket: Path,
    profile: str,
    pinned: bool,
    sandbox_image: str | None,
    image_id: bool,
    volumes: bool,
) -> None:
    async with SimServer(node, socket, profile=profile) as server, RuntimeConnection(server.endpoint) as connection:
        cri = CriClient(connection)
        assert (await cri.version()).version.startswith(profile if profile != "cri-o" else "1.31")
        assert any(image.pinned for image in await cri.list_images()) == pinned
        assert (await cri.status()).sandbox_image == sandbox_image
        serve = (await cri.list_containers())[0]
        assert bool(serve.image_id) == image_id
        assert bool((await cri.container_status(serve.id)).volume_images) == volumes
        assert (await cri.sandbox_status(serve.sandbox_id)).image == PAUSE


async def test_custom_profile_is_accepted(node: SimNode, socket: Path) -> None:
    newer = replace(PROFILES["2.1"], runtime_version="2.9.0", reports_image_id=True)
    async with SimServer(node, socket, profile=newer) as server, RuntimeConnection(server.endpoint) as connection:
        assert all(container.image_id for container in await CriClient(connection).list_containers())


async def test_cri_o_refuses_used_images_and_untags_names(node: SimNode, socket: Path) -> None:
    async with SimServer(node, socket, profile="cri-o") as server, RuntimeConnection(server.endpoint) as connection:
        cri = CriClient(connection)
        listed = {tag: image for image in await cri.list_images() for tag in image.repo_tags}
        assert not listed["registry.test/a:v1"].id.startswith("sha256:")
        with pytest.raises(RuntimeRequestError, match="in use by a container"):
            await cri.remove_image(listed["registry.test/a:v1"].id)
        await cri.remove_image("registry.test/a:latest")
        image = await cri.image_status("registry.test/a:v1")
        assert image is not None
        assert image.repo_tags == ("registry.test/a:v1",)


async def test_disabled_containerd_services_are_unimplemented(node: SimNode, socket: Path, call: Caller) -> None:
    async with SimServer(node, socket, containerd_api=False) as server:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(
                server,
                f"{CONTAINERD}namespaces.v1.Namespaces/List",
                namespaces_pb2.ListNamespacesRequest(),
                namespaces_pb2.ListNamespacesResponse,
            )
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_manifest_config_and_snapshots_are_linked(node: SimNode, server: SimServer, call: Caller) -> None:
    (names,) = await call(
        server,
        f"{CONTAINERD}images.v1.Images/List",
        images_pb2.ListImagesRequest(filters=['name=="registry.test/a:v1"']),
        images_pb2.ListImagesResponse,
    )
    assert [image.name for image in names.images] == ["registry.test/a:v1"]
    manifest = read_json(node, names.images[0].target.digest)
    config_digest = manifest["config"]["digest"]
    assert config_digest == node.resolve_image("registry.test/a:v1")
    (info,) = await call(
        server,
        f"{CONTAINERD}content.v1.Content/Info",
        content_pb2.InfoRequest(digest=config_digest),
        content_pb2.InfoResponse,
    )
    chain_id = info.info.labels["containerd.io/gc.ref.snapshot.overlayfs"]
    assert chain_id == node.images[config_digest].chain_id
    (usage,) = await call(
        server,
        f"{CONTAINERD}snapshots.v1.Snapshots/Usage",
        snapshots_pb2.UsageRequest(snapshotter="overlayfs", key=chain_id),
        snapshots_pb2.UsageResponse,
    )
    assert usage.size == 5 * MIB
    config = read_json(node, config_digest)
    assert len(config["rootfs"]["diff_ids"]) == len(manifest["layers"]) == 2


def read_json(node: SimNode, digest: str) -> dict[str, dict[str, str]]:
    data = node.store.blobs[digest].data
    assert data is not None
    document: dict[str, dict[str, str]] = json.loads(data)
    return document


async def test_bulk_deletion_collects_garbage_once(node: SimNode, server: SimServer, call: Caller) -> None:
    image_id = node.resolve_image("registry.test/b:v1")
    assert image_id is not None
    *names, last = node.names_of(image_id)
    for name, sync in [*((name, False) for name in names), (last, True)]:
        request = images_pb2.DeleteImageRequest(name=name, sync=sync)
        assert node.store.collections == 0
        await call(server, f"{CONTAINERD}images.v1.Images/Delete", request, Empty)
    assert node.store.collections == 1
    assert image_id not in node.images
    assert image_id not in node.store.blobs
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(server, f"{CONTAINERD}images.v1.Images/Delete", images_pb2.DeleteImageRequest(name=last), Empty)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("seed", range(6))
async def test_layer_graph_predicts_the_freed_bytes(tmp_path: Path, seed: int) -> None:
    node, dice = example_node(seed).node, random.Random(seed)
    async with (
        SimServer(node, tmp_path / "s", gc_delay_s=None) as server,
        RuntimeConnection(server.endpoint) as connection,
    ):
        cri = CriClient(connection)
        listed = await cri.list_images()
        graph = await LayerCache().build(ContainerdClient(connection), listed, snapshotter="overlayfs")
        ledger, expected = LayerLedger(graph), 0
        before, inodes_before = node.used_bytes, node.inodes_free
        inodes = 0
        for image in dice.sample(listed, 12):
            gained, inodes_gained = ledger.gain(image)
            assert gained is not None
            assert inodes_gained is not None
            expected, inodes = expected + gained, inodes + inodes_gained
            ledger.take(image)
            await cri.remove_image(image.id)
    assert before - node.used_bytes == expected > 0
    assert node.inodes_free - inodes_before == inodes


async def test_snapshots_and_blobs_are_streamed_in_batches(tmp_path: Path, call: Caller) -> None:
    node = SimNode()
    for number in range(60):
        node.add_image(f"a:{number}", layers=[Layer("base", MIB), Layer(f"own {number}", MIB)])
    async with SimServer(node, tmp_path / "s") as server:
        snapshots = await call(
            server,
            f"{CONTAINERD}snapshots.v1.Snapshots/List",
            snapshots_pb2.ListSnapshotsRequest(snapshotter="overlayfs"),
            snapshots_pb2.ListSnapshotsResponse,
        )
        blobs = await call(
            server,
            f"{CONTAINERD}content.v1.Content/List",
            content_pb2.ListContentRequest(),
            content_pb2.ListContentResponse,
        )
    assert sum(len(part.info) for part in snapshots) == 61
    assert [len(part.info) for part in blobs] == [100, 81]


async def test_snapshot_with_children_is_not_removed(node: SimNode, server: SimServer, call: Caller) -> None:
    parent = next(each.parent for each in node.store.snapshots.values() if each.parent)
    method = f"{CONTAINERD}snapshots.v1.Snapshots/Remove"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(server, method, snapshots_pb2.RemoveSnapshotRequest(snapshotter="overlayfs", key=parent), Empty)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await call(server, method, snapshots_pb2.RemoveSnapshotRequest(snapshotter="zfs", key=parent), Empty)
    assert unknown.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_leased_resource_is_kept(node: SimNode, server: SimServer, call: Caller) -> None:
    image = node.images[node.resolve_image("registry.test/b:v1") or ""]
    leases = f"{CONTAINERD}leases.v1.Leases/"
    (created,) = await call(server, f"{leases}Create", leases_pb2.CreateRequest(id="pin"), leases_pb2.CreateResponse)
    resource = leases_pb2.Resource(id=image.id, type="content")
    added = leases_pb2.AddResourceRequest(id=created.lease.id, resource=resource)
    await call(server, f"{leases}AddResource", added, Empty)
    node.remove_image(image.id)
    assert image.id in node.store.blobs
    (listed,) = await call(server, f"{leases}List", leases_pb2.ListRequest(), leases_pb2.ListResponse)
    assert [lease.id for lease in listed.leases] == ["pin"]
    (resources,) = await call(
        server, f"{leases}ListResources", leases_pb2.ListResourcesRequest(id="pin"), leases_pb2.ListResourcesResponse
    )
    assert [each.id for each in resources.resources] == [image.id]
    await call(server, f"{leases}Delete", leases_pb2.DeleteRequest(id="pin", sync=True), Empty)
    assert image.id not in node.store.blobs


async def test_namespaces_are_separate_and_required(node: SimNode, server: SimServer, call: Caller) -> None:
    digest = next(iter(node.store.blobs))
    node.store.share("moby", digest)
    (spaces,) = await call(
        server,
        f"{CONTAINERD}namespaces.v1.Namespaces/List",
        namespaces_pb2.ListNamespacesRequest(),
        namespaces_pb2.ListNamespacesResponse,
        namespace="",
    )
    assert [each.name for each in spaces.namespaces] == ["k8s.io", "moby"]
    method, request = f"{CONTAINERD}content.v1.Content/List", content_pb2.ListContentRequest()
    (other,) = await call(server, method, request, content_pb2.ListContentResponse, namespace="moby")
    assert [info.digest for info in other.info] == [digest]
    with pytest.raises(grpc.aio.AioRpcError, match="namespace is required"):
        await call(server, method, request, content_pb2.ListContentResponse, namespace="")


async def test_containerd_container_list_includes_sandboxes(node: SimNode, server: SimServer, call: Caller) -> None:
    (listed,) = await call(
        server,
        f"{CONTAINERD}containers.v1.Containers/List",
        containers_pb2.ListContainersRequest(),
        containers_pb2.ListContainersResponse,
    )
    kinds = [each.labels["io.cri-containerd.kind"] for each in listed.containers]
    assert sorted(kinds) == ["container", "container", "sandbox"]
    assert {each.snapshot_key for each in listed.containers} <= node.store.snapshots.keys()


async def test_container_list_is_filtered(node: SimNode, server: SimServer, call: Caller) -> None:
    async def names(criteria: api.ContainerFilter) -> list[str]:
        request = api.ListContainersRequest(filter=criteria)
        method = "/runtime.v1.RuntimeService/ListContainers"
        (response,) = await call(server, method, request, api.ListContainersResponse)
        return [each.metadata.name for each in response.containers]

    exited = api.ContainerStateValue(state=api.CONTAINER_EXITED)
    assert await names(api.ContainerFilter(state=exited)) == ["once"]
    assert await names(api.ContainerFilter(label_selector={"io.kubernetes.container.name": "serve"})) == ["serve"]
    assert await names(api.ContainerFilter(id=next(iter(node.containers))[:10])) == ["serve"]
    assert await names(api.ContainerFilter(pod_sandbox_id="missing")) == []


async def test_garbage_is_collected_asynchronously_after_a_removal(node: SimNode, socket: Path) -> None:
    async with SimServer(node, socket, gc_delay_s=0) as server, RuntimeConnection(server.endpoint) as connection:
        cri = CriClient(connection)
        once = next(each for each in node.containers.values() if each.name == "once")
        await cri.remove_image(once.image_id)
        node.store.collections = 0
        await cri.remove_container(once.id)
        await cri.version()
        assert node.store.collections == 1
        assert not node.store.collection_due


def test_long_socket_path_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="107 bytes"):
        SimServer(SimNode(), tmp_path / ("x" * 108))
