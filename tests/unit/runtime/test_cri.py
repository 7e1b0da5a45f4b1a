from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import grpc
import pytest

from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.model.node import RuntimeInfo
from nodeagent.model.pods import ContainerTraits
from nodeagent.model.runtime import ContainerState, Image
from nodeagent.runtime.cri import CriClient, DecodedLists, FilesystemUsage
from tests.unit.runtime.conftest import Fake, cri_handlers, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.runtime.connection import RuntimeConnection

NS = 1_700_000_000_123_456_789
AT = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
GO_ZERO_NS = -6795364578871345152

# Verbose Status and PodSandboxStatus responses of each runtime, reduced to decoded and adjacent fields.
STATUS_1_6 = {
    "containerd": {"snapshotter": "overlayfs", "defaultRuntimeName": "runc", "discardUnpackedLayers": False},
    "sandboxImage": "registry.k8s.io/pause:3.6",
    "containerdRootDir": "/var/lib/containerd",
    "rootDir": "/var/lib/containerd/io.containerd.grpc.v1.cri",
    "stateDir": "/run/containerd/io.containerd.grpc.v1.cri",
}
STATUS_1_7 = {**STATUS_1_6, "sandboxImage": "registry.k8s.io/pause:3.8", "cdiSpecDirs": ["/etc/cdi"]}
STATUS_2 = {
    "containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"snapshotter": "", "sandboxer": "podsandbox"}}},
    "containerdRootDir": "/var/lib/containerd",
    "containerdEndpoint": "/run/containerd/containerd.sock",
    "stateDir": "/run/containerd/io.containerd.grpc.v1.cri",
}
STATUS_CRIO = {"sandboxImage": "registry.k8s.io/pause:3.10", "crio": {"DefaultRuntime": "crun"}}

SANDBOX_CONFIG = {
    "metadata": {"name": "web", "uid": "u", "namespace": "default"},
    "log_directory": "/var/log/pods/default_web_u",
    "linux": {"cgroup_parent": "/kubepods/burstable/podu"},
}
SANDBOX_1_6 = {
    "pid": 1,
    "processStatus": "running",
    "image": "registry.k8s.io/pause:3.6",
    "snapshotKey": "s",
    "snapshotter": "overlayfs",
    "runtimeHandler": "kata",
    "config": SANDBOX_CONFIG,
}
SANDBOX_2 = {**SANDBOX_1_6, "sandboxMetadata": {"ID": "s"}}
SANDBOX_2_SHIM_GONE = {"pid": 0, "processStatus": "deleted", "image": "", "snapshotKey": "", "config": SANDBOX_CONFIG}
SANDBOX_CRIO = {"image": "registry.k8s.io/pause:3.10", "pid": 1, "runtimeSpec": {"ociVersion": "1.0.0"}}
SANDBOX_CRIO_NO_INFRA = {"runtimeSpec": {"ociVersion": "1.0.0"}}


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
async def cri(socket: Path, fake: Fake, connection: RuntimeConnection) -> AsyncIterator[CriClient]:
    # The server resolves handlers when it starts, so that all methods replaced by tests must exist before.
    for method in ("Version", "Status", "ListImages", "ImageStatus", "ImageFsInfo", "RemoveImage"):
        fake.answers[method] = (grpc.StatusCode.UNIMPLEMENTED, f"unknown method {method}")
    for method in ("ListPodSandbox", "PodSandboxStatus", "StopPodSandbox", "RemovePodSandbox", "ListContainers"):
        fake.answers[method] = (grpc.StatusCode.NOT_FOUND, "not found")
    for method in ("ContainerStatus", "StopContainer", "RemoveContainer", "ListContainerStats"):
        fake.answers[method] = (grpc.StatusCode.NOT_FOUND, "not found")
    async with serving(socket, *cri_handlers(fake)):
        yield CriClient(connection)


async def test_version_includes_the_endpoint(cri: CriClient, fake: Fake, socket: Path) -> None:
    fake.answers["Version"] = api.VersionResponse(
        runtime_name="containerd", runtime_version="1.6.20", runtime_api_version="v1"
    )
    assert await cri.version() == RuntimeInfo("containerd", "1.6.20", "v1", f"unix://{socket}")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (STATUS_1_6, ("registry.k8s.io/pause:3.6", "overlayfs", "/run/containerd")),
        (STATUS_1_7, ("registry.k8s.io/pause:3.8", "overlayfs", "/run/containerd")),
        (STATUS_2, (None, None, "/run/containerd")),
        (STATUS_CRIO, ("registry.k8s.io/pause:3.10", None, "")),
        ({"containerd": None, "sandboxImage": 7, "stateDir": 7}, (None, None, "")),
        ([], (None, None, "")),
    ],
    ids=["1.6", "1.7", "2.x", "cri-o", "senseless", "list"],
)
async def test_sandbox_image_snapshotter_and_state_are_read_from_the_status_of_each_runtime(
    cri: CriClient, fake: Fake, config: object, expected: tuple[str | None, ...]
) -> None:
    fake.answers["Status"] = api.StatusResponse(info={"config": json.dumps(config), "golang": '"go1.19"'})
    status = await cri.status()
    assert (status.sandbox_image, status.snapshotter, status.state_directory) == expected


@pytest.mark.parametrize("info", [{}, {"config": "{"}, {"config": ""}], ids=["none", "broken", "empty"])
async def test_status_without_config_still_has_conditions(cri: CriClient, fake: Fake, info: dict[str, str]) -> None:
    good = api.RuntimeCondition(type="RuntimeReady", status=True)
    bad = api.RuntimeCondition(type="NetworkReady", reason="NetworkPluginNotReady", message="cni")
    fake.answers["Status"] = api.StatusResponse(status=api.RuntimeStatus(conditions=[good, bad]), info=info)
    status = await cri.status()
    assert status.ready
    assert status.problems == ("NetworkReady: NetworkPluginNotReady: cni",)
    assert status.sandbox_image is None


async def test_image_entries_of_one_id_are_merged(cri: CriClient, fake: Fake) -> None:
    fake.answers["ListImages"] = api.ListImagesResponse(
        images=[
            api.Image(id="a", repo_tags=["x:1"], repo_digests=["x@d"], size=7),
            api.Image(id="b", pinned=True),
            api.Image(id="a", repo_tags=["x:1", "y:1"], size=7),
        ]
    )
    assert await cri.list_images() == (
        Image("a", ("x:1", "y:1"), ("x@d",), 7),
        Image("b", size_bytes=None, pinned=True),
    )


async def test_absent_image_is_none(cri: CriClient, fake: Fake) -> None:
    fake.answers["ImageStatus"] = api.ImageStatusResponse()
    assert await cri.image_status("x") is None
    fake.answers["ImageStatus"] = api.ImageStatusResponse(image=api.Image(id="a"))
    assert await cri.image_status("x") == Image("a")


async def test_filesystem_usage_distinguishes_zero_from_absent(cri: CriClient, fake: Fake) -> None:
    reported = api.FilesystemUsage(
        timestamp=NS,
        fs_id=api.FilesystemIdentifier(mountpoint="/i"),
        used_bytes=api.UInt64Value(value=5),
        inodes_used=api.UInt64Value(),
    )
    fake.answers["ImageFsInfo"] = api.ImageFsInfoResponse(
        image_filesystems=[reported, reported],
        container_filesystems=[api.FilesystemUsage(fs_id=api.FilesystemIdentifier(mountpoint="/c"))],
    )
    info = await cri.image_fs_info()
    assert info.image_mountpoints == ("/i",)
    assert info.images[0] == FilesystemUsage("/i", 5, 0, AT)
    assert info.containers == (FilesystemUsage("/c"),)
    assert info.container_mountpoints == ("/c",)


@pytest.mark.parametrize(
    ("info", "image", "log_directory", "cgroup_parent"),
    [
        (SANDBOX_1_6, "registry.k8s.io/pause:3.6", "/var/log/pods/default_web_u", "/kubepods/burstable/podu"),
        (SANDBOX_2, "registry.k8s.io/pause:3.6", "/var/log/pods/default_web_u", "/kubepods/burstable/podu"),
        (SANDBOX_2_SHIM_GONE, "", "/var/log/pods/default_web_u", "/kubepods/burstable/podu"),
        (SANDBOX_CRIO, "registry.k8s.io/pause:3.10", None, ""),
        (SANDBOX_CRIO_NO_INFRA, "", None, ""),
        (None, "", None, ""),
    ],
    ids=["1.x", "2.x", "2.x-shim-gone", "cri-o", "cri-o-no-infra", "no-info"],
)
async def test_sandbox_details_of_each_runtime_are_decoded(  # noqa: PLR0917 - parametrized
    cri: CriClient, fake: Fake, info: object, image: str, log_directory: str | None, cgroup_parent: str
) -> None:
    fake.answers["PodSandboxStatus"] = api.PodSandboxStatusResponse(
        status=api.PodSandboxStatus(
            id="s",
            metadata=api.PodSandboxMetadata(name="web", uid="u", namespace="default", attempt=2),
            state=api.SANDBOX_NOTREADY,
            created_at=GO_ZERO_NS,
            labels={"a": "b"},
        ),
        info={"info": json.dumps(info)} if info else {},
    )
    details = await cri.sandbox_details("s")
    sandbox = details.sandbox
    assert (sandbox.id, sandbox.name, sandbox.uid, sandbox.namespace, sandbox.attempt) == (
        "s",
        "web",
        "u",
        "default",
        2,
    )
    assert (sandbox.ready, sandbox.created_at, sandbox.labels) == (False, None, {"a": "b"})
    assert (sandbox.image, sandbox.log_directory, details.cgroup_parent) == (image, log_directory, cgroup_parent)
    assert await cri.sandbox_status("s") == sandbox


@pytest.mark.parametrize(
    ("wire", "state"),
    [
        (api.CONTAINER_CREATED, ContainerState.CREATED),
        (api.CONTAINER_RUNNING, ContainerState.RUNNING),
        (api.CONTAINER_EXITED, ContainerState.EXITED),
        (api.CONTAINER_UNKNOWN, ContainerState.UNKNOWN),
    ],
)
async def test_container_state_is_decoded(
    cri: CriClient, fake: Fake, wire: api.ContainerState.ValueType, state: ContainerState
) -> None:
    fake.answers["ListContainers"] = api.ListContainersResponse(
        containers=[
            api.Container(
                id="c",
                pod_sandbox_id="s",
                metadata=api.ContainerMetadata(name="web", attempt=3),
                image=api.ImageSpec(image="x:1"),
                image_ref="sha256:a",
                image_id="sha256:b",
                state=wire,
                created_at=NS,
                labels={"l": "1"},
                annotations={"n": "2"},
            )
        ]
    )
    (container,) = await cri.list_containers()
    assert container.state is state
    assert (container.id, container.name, container.sandbox_id, container.attempt) == ("c", "web", "s", 3)
    assert (container.image_ref, container.image_id, container.image_name) == ("sha256:a", "sha256:b", "x:1")
    assert (container.created_at, container.labels, container.annotations) == (AT, {"l": "1"}, {"n": "2"})


async def test_clients_with_the_same_lists_share_the_decoded_values(
    cri: CriClient, fake: Fake, connection: RuntimeConnection
) -> None:
    del cri  # serves
    fake.answers["ListContainers"] = api.ListContainersResponse(
        containers=[api.Container(id=f"{number:064x}", labels={"l": "1"}) for number in range(20)]
    )
    lists = DecodedLists()
    first, second = CriClient(connection, lists), CriClient(connection, lists)
    listed = await first.list_containers()
    assert await second.list_containers() is listed
    assert await CriClient(connection).list_containers() == listed


async def test_container_status_is_decoded_with_all_fields(cri: CriClient, fake: Fake) -> None:
    volume = api.Mount(container_path="/m", image=api.ImageSpec(image="models:1", image_ref="models@d"))
    fake.answers["ContainerStatus"] = api.ContainerStatusResponse(
        status=api.ContainerStatus(
            id="c",
            state=api.CONTAINER_EXITED,
            finished_at=NS,
            exit_code=137,
            log_path="/var/log/pods/p/web/0.log",
            mounts=[volume, volume, api.Mount(host_path="/etc/hosts")],
        )
    )
    details = await cri.container_details("c")
    container = details.container
    assert (container.finished_at, container.exit_code, container.log_path) == (AT, 137, "/var/log/pods/p/web/0.log")
    assert container.volume_images == ("models:1", "models@d")


async def test_running_container_has_no_finish_time_exit_code_or_log_path(cri: CriClient, fake: Fake) -> None:
    fake.answers["ContainerStatus"] = api.ContainerStatusResponse(
        status=api.ContainerStatus(id="c", state=api.CONTAINER_RUNNING)
    )
    details = await cri.container_details("c")
    assert (details.container.finished_at, details.container.exit_code, details.container.log_path) == (None,) * 3


ASKED = {"oom_score_adj": 968, "memory_limit_in_bytes": 64 << 20}
SPEC = {
    "process": {"oomScoreAdj": 100},
    "linux": {"cgroupsPath": "/kubepods/burstable/podu/c", "resources": {"memory": {"limit": 32 << 20}}},
}
REPORTED = api.LinuxContainerResources(memory_limit_in_bytes=16 << 20, oom_score_adj=5)
PATH = "/kubepods/burstable/podu/c"


@pytest.mark.parametrize(
    ("info", "reported", "traits"),
    [
        pytest.param(
            {"pid": 7, "config": {"linux": {"resources": ASKED}}, "runtimeSpec": SPEC},
            None,
            ContainerTraits(968, 32 << 20, PATH, 7),
            id="containerd 1.6",
        ),
        pytest.param(
            {"pid": 7, "config": {"linux": {"resources": ASKED}}, "runtimeSpec": SPEC},
            REPORTED,
            ContainerTraits(968, 16 << 20, PATH, 7),
            id="containerd 1.7",
        ),
        pytest.param({"config": {"linux": {"resources": {}}}}, None, ContainerTraits(0, 0), id="zeros are omitted"),
        pytest.param({"config": {}}, None, ContainerTraits(), id="configuration without resources"),
        pytest.param({"pid": 7, "runtimeSpec": SPEC}, REPORTED, ContainerTraits(100, 16 << 20, PATH, 7), id="CRI-O"),
        pytest.param({"pid": 0}, REPORTED, ContainerTraits(5, 16 << 20), id="status without configuration"),
        pytest.param(
            {"runtimeSpec": {"process": {"oomScoreAdj": -1}, "linux": {"resources": {}}}},
            None,
            ContainerTraits(-1, 0),
            id="no limit",
        ),
        pytest.param({"pid": "7", "runtimeSpec": []}, None, ContainerTraits(), id="another shape"),
        pytest.param(
            {
                "sandboxID": "s1",
                "runtimeSpec": {
                    "mounts": [
                        {"destination": "/etc/hosts", "source": "/var/lib/kubelet/pods/u/etc-hosts"},
                        {"destination": "/etc/hostname", "source": "/c/sandboxes/s1/hostname"},
                        {"destination": "/etc/mtab", "source": "/c/sandboxes/s1/hostname"},
                        {"destination": "/etc/resolv.conf", "source": "/c/sandboxes/s2/resolv.conf"},
                        {"destination": "/proc", "source": 5},
                        "tmpfs",
                    ]
                },
            },
            None,
            ContainerTraits(sandbox_files=("/c/sandboxes/s1/hostname",)),
            id="files of the sandbox",
        ),
        pytest.param(
            {
                "runtimeSpec": {
                    "mounts": [
                        {"destination": "/data", "source": "/c/containers/c/volumes/0f1e"},
                        {"destination": "/mine", "source": "/c/containers/d/volumes/0f1e"},
                        {"destination": "/host", "source": "/c/containers/c/0f1e"},
                    ]
                },
            },
            None,
            ContainerTraits(image_volumes=("/c/containers/c/volumes/0f1e",)),
            id="volumes of the image",
        ),
        pytest.param([], REPORTED, ContainerTraits(), id="no object"),
    ],
)
async def test_traits_are_read_from_the_configuration(
    cri: CriClient, fake: Fake, info: object, reported: api.LinuxContainerResources | None, traits: ContainerTraits
) -> None:
    fake.answers["ContainerStatus"] = api.ContainerStatusResponse(
        status=api.ContainerStatus(
            id="c",
            state=api.CONTAINER_RUNNING,
            resources=None if reported is None else api.ContainerResources(linux=reported),
        ),
        info={"info": json.dumps(info)},
    )
    assert (await cri.container_details("c", verbose=True)).traits == traits
    assert fake.requests[0][1] == api.ContainerStatusRequest(container_id="c", verbose=True)


async def test_status_without_verbose_info_has_no_traits(cri: CriClient, fake: Fake) -> None:
    fake.answers["ContainerStatus"] = api.ContainerStatusResponse(status=api.ContainerStatus(id="c"))
    assert (await cri.container_details("c")).traits == ContainerTraits()


async def test_get_container_joins_listing_and_status(cri: CriClient, fake: Fake) -> None:
    listed = api.Container(id="c", pod_sandbox_id="s", image_ref="sha256:a", state=api.CONTAINER_RUNNING)
    fake.answers["ListContainers"] = api.ListContainersResponse(containers=[listed])
    fake.answers["ContainerStatus"] = api.ContainerStatusResponse(
        status=api.ContainerStatus(id="c", image_ref="x@d", state=api.CONTAINER_EXITED, finished_at=NS)
    )
    container = await cri.get_container("c")
    assert container is not None
    assert (container.sandbox_id, container.image_ref, container.state) == ("s", "sha256:a", ContainerState.EXITED)
    assert container.finished_at == AT
    assert fake.requests[0][1] == api.ListContainersRequest(filter=api.ContainerFilter(id="c"))
    fake.answers["ListContainers"] = api.ListContainersResponse()
    assert await cri.get_container("c") is None


async def test_removing_an_absent_object_succeeds(cri: CriClient, fake: Fake) -> None:
    fake.answers["RemoveImage"] = (grpc.StatusCode.NOT_FOUND, "no such image")
    await cri.remove_image("x")
    await cri.remove_container("c")
    await cri.stop_container("c", 5)
    await cri.stop_sandbox("s")
    await cri.remove_sandbox("s")
    assert [request for name, request in fake.requests if name == "StopContainer"] == [
        api.StopContainerRequest(container_id="c", timeout=5)
    ]


@pytest.mark.parametrize(("timestamp", "measured"), [(0, None), (1, 0)])
async def test_layer_of_zero_bytes_without_a_time_is_unmeasured(
    cri: CriClient, fake: Fake, timestamp: int, measured: int | None
) -> None:
    layer = api.FilesystemUsage(
        timestamp=timestamp, used_bytes=api.UInt64Value(value=0), inodes_used=api.UInt64Value(value=0)
    )
    stats = api.ContainerStats(attributes=api.ContainerAttributes(id="c"), writable_layer=layer)
    fake.answers["ListContainerStats"] = api.ListContainerStatsResponse(stats=[stats])
    (found,) = await cri.list_container_stats()
    assert (found.writable_bytes, found.writable_inodes) == (measured, measured)


async def test_stats_distinguish_zero_from_absent(cri: CriClient, fake: Fake) -> None:
    running = api.ContainerStats(
        attributes=api.ContainerAttributes(id="c"),
        memory=api.MemoryUsage(working_set_bytes=api.UInt64Value(value=9)),
        writable_layer=api.FilesystemUsage(used_bytes=api.UInt64Value(value=4096)),
    )
    exited = api.ContainerStats(attributes=api.ContainerAttributes(id="d"))
    fake.answers["ListContainerStats"] = api.ListContainerStatsResponse(stats=[running, exited])
    first, second = await cri.list_container_stats()
    assert (first.writable_bytes, first.writable_inodes, first.working_set_bytes) == (4096, None, 9)
    assert (second.writable_bytes, second.working_set_bytes) == (None, None)
