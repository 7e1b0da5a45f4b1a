"""CRI services of a simulated node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from nodeagent._proto.runtime.v1 import api_pb2 as api
from tests.sim.messages import Memo, Messages, nanoseconds
from tests.sim.store import SNAPSHOTTER, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from google.protobuf.message import Message

    from tests.sim.node import SimNode
    from tests.sim.profiles import Profile
    from tests.sim.workload import SimContainer, SimImage, SimSandbox

PART_ITEMS: Final = 5000
"""Number of items in one response message of a streamed list. Source: containerd ``defaultStreamBatchSize``."""

_RUNTIME_TYPE: Final = "io.containerd.runc.v2"


class RuntimeService:
    """``runtime.v1.RuntimeService``; a method handles one request and raises RefusedError for a gRPC error."""

    def __init__(self, node: SimNode, profile: Profile, messages: Messages) -> None:
        self._node = node
        self._profile = profile
        self._messages = messages
        self._container_items = Memo(messages.container)
        self._sandbox_items = Memo(messages.sandbox)
        self._containers_response: tuple[int, api.ListContainersResponse] = (-1, api.ListContainersResponse())
        self._stats_response: tuple[int, datetime, api.ListContainerStatsResponse] | None = None

    def version(self, _request: api.VersionRequest) -> api.VersionResponse:
        """Return the name and version of the runtime."""
        return api.VersionResponse(
            version="0.1.0",
            runtime_name=self._profile.runtime_name,
            runtime_version=self._profile.runtime_version,
            runtime_api_version="v1",
        )

    def status(self, request: api.StatusRequest) -> api.StatusResponse:
        """Return the runtime status, always ready; in verbose form with the runtime configuration."""
        conditions = [api.RuntimeCondition(type=name, status=True) for name in ("RuntimeReady", "NetworkReady")]
        response = api.StatusResponse(status=api.RuntimeStatus(conditions=conditions))
        if self._profile.reports_handlers:
            response.runtime_handlers.extend(api.RuntimeHandler(name=name) for name in ("", "runc"))
            response.features.supplemental_groups_policy = True
        if request.verbose:
            response.info["config"] = json.dumps(self._config(), separators=(",", ":"))
        return response

    def list_sandboxes(self, request: api.ListPodSandboxRequest) -> api.ListPodSandboxResponse:
        """List the sandboxes that match the filter of the request."""
        criteria = request.filter
        known = self._node.find_sandbox(criteria.id)
        matching = {
            key: sandbox
            for key, sandbox in self._node.sandboxes.items()
            if (not criteria.id or sandbox is known)
            and (not criteria.HasField("state") or sandbox.ready == (criteria.state.state == api.SANDBOX_READY))
            and _labelled(sandbox.labels, criteria.label_selector)
        }
        if len(matching) < len(self._node.sandboxes):
            return api.ListPodSandboxResponse(items=map(self._messages.sandbox, matching.values()))
        return api.ListPodSandboxResponse(items=self._sandbox_items.all(matching))

    def sandbox_status(self, request: api.PodSandboxStatusRequest) -> api.PodSandboxStatusResponse:
        """Return the status of a sandbox; in verbose form with image, log directory and cgroup parent."""
        sandbox = self._node.find_sandbox(request.pod_sandbox_id)
        if sandbox is None:
            raise _unknown("sandbox", request.pod_sandbox_id, self._node.sandboxes)
        response = api.PodSandboxStatusResponse(status=self._messages.sandbox_status(sandbox))
        if request.verbose:
            response.info["info"] = json.dumps(self._sandbox_info(sandbox), separators=(",", ":"))
        return response

    def stop_sandbox(self, request: api.StopPodSandboxRequest) -> api.StopPodSandboxResponse:
        """Stop a sandbox and its containers."""
        name = request.pod_sandbox_id
        if not self._node.stop_sandbox(name) and not self._profile.stops_missing:
            raise RefusedError("NOT_FOUND", f'an error occurred when try to find sandbox "{name}": not found')
        return api.StopPodSandboxResponse()

    def remove_sandbox(self, request: api.RemovePodSandboxRequest) -> api.RemovePodSandboxResponse:
        """Remove a sandbox and its containers."""
        self._node.remove_sandbox(request.pod_sandbox_id)
        return api.RemovePodSandboxResponse()

    def list_containers(self, request: api.ListContainersRequest) -> api.ListContainersResponse:
        """List the containers that match the filter of the request, by default in any state."""
        if request.filter.ByteSize():
            items = filter(_container_filter(request.filter), map(self._messages.container, self._candidates(request)))
            return api.ListContainersResponse(containers=items)
        revision, response = self._containers_response
        if revision != self._node.revision:
            response = api.ListContainersResponse(containers=self._container_items.all(self._node.containers))
            self._containers_response = self._node.revision, response
        return response

    def container_status(self, request: api.ContainerStatusRequest) -> api.ContainerStatusResponse:
        """Return the status of a container."""
        container = self._node.find_container(request.container_id)
        if container is None:
            name = f'container "{request.container_id}"'
            raise _unknown(name, request.container_id, self._node.containers)
        response = api.ContainerStatusResponse(status=self._messages.container_status(container))
        if request.verbose:
            response.info["info"] = json.dumps(self._container_info(container), separators=(",", ":"))
        return response

    def stop_container(self, request: api.StopContainerRequest) -> api.StopContainerResponse:
        """Stop a container, which exits immediately on SIGTERM."""
        if not self._node.stop_container(request.container_id) and not self._profile.stops_missing:
            raise _not_found(f'container "{request.container_id}"')
        return api.StopContainerResponse()

    def remove_container(self, request: api.RemoveContainerRequest) -> api.RemoveContainerResponse:
        """Remove a container, even if it is running."""
        self._node.remove_container(request.container_id)
        return api.RemoveContainerResponse()

    def list_container_stats(self, request: api.ListContainerStatsRequest) -> api.ListContainerStatsResponse:
        """Return the CPU, memory and writable layer usage of the containers."""
        criteria = request.filter
        known, moment = self._stats_response, (self._node.revision, self._node.now)
        if known is not None and known[:2] == moment and not criteria.ByteSize():
            return known[2]
        response = api.ListContainerStatsResponse(
            stats=[
                self._messages.container_stats(container)
                for container in self._node.containers.values()
                if container.id.startswith(criteria.id)
                and criteria.pod_sandbox_id in ("", container.sandbox_id)
                and _labelled(container.labels, criteria.label_selector)
            ]
        )
        if not criteria.ByteSize():
            self._stats_response = (*moment, response)
        return response

    def _candidates(self, request: api.ListContainersRequest) -> list[SimContainer]:
        if not request.filter.id:
            return list(self._node.containers.values())
        known = self._node.find_container(request.filter.id)
        return [] if known is None else [known]

    def _config(self) -> dict[str, object]:
        """Return the runtime configuration in the verbose status, in the form of the simulated runtime."""
        config: dict[str, object] = {}
        if self._profile.reports_sandbox_image:
            config["sandboxImage"] = self._node.sandbox_image
        if not self._profile.containerd_api:
            return config
        runtime: dict[str, object] = {
            "defaultRuntimeName": "runc",
            "runtimes": {"runc": {"runtimeType": _RUNTIME_TYPE}},
        }
        if self._profile.reports_snapshotter:
            runtime["snapshotter"] = SNAPSHOTTER
        return {
            **config,
            "containerd": runtime,
            "containerdRootDir": self._node.root_path,
            "rootDir": f"{self._node.root_path}/io.containerd.grpc.v1.cri",
        }

    def _sandbox_info(self, sandbox: SimSandbox) -> dict[str, object]:
        spec = {"linux": {"cgroupsPath": _cgroups_path(sandbox.cgroup_parent, sandbox.id)}}
        if not self._profile.containerd_api:
            return {"image": sandbox.image, "pid": 4711 if sandbox.ready else 0, "runtimeSpec": spec}
        return {
            "pid": 4711 if sandbox.ready else 0,
            "processStatus": "running" if sandbox.ready else "deleted",
            "netNamespaceClosed": not sandbox.ready,
            "image": sandbox.image,
            "snapshotKey": sandbox.id,
            "snapshotter": SNAPSHOTTER,
            "runtimeHandler": sandbox.runtime_handler,
            "runtimeType": _RUNTIME_TYPE,
            "config": {
                "metadata": {"name": sandbox.name, "uid": sandbox.uid, "namespace": sandbox.namespace},
                "log_directory": self._node.log_directory(sandbox),
                "labels": dict(sandbox.labels),
                "annotations": dict(sandbox.annotations),
                "linux": {"cgroup_parent": sandbox.cgroup_parent},
            },
            "runtimeSpec": spec,
        }

    def _container_info(self, container: SimContainer) -> dict[str, object]:
        parent = self._node.sandboxes[container.sandbox_id].cgroup_parent
        limit, score = container.memory_limit_bytes, container.oom_score_adj
        spec = {
            "process": {"oomScoreAdj": score},
            "linux": {
                "resources": {"memory": {"limit": limit} if limit else {}},
                "cgroupsPath": _cgroups_path(parent, container.id),
            },
        }
        info: dict[str, object] = {
            "sandboxID": container.sandbox_id,
            "pid": container.pid if container.running else 0,
            "runtimeSpec": spec,
        }
        if not self._profile.containerd_api:
            return {**info, "privileged": False}
        resources = {"oom_score_adj": score, "memory_limit_in_bytes": limit}
        return {
            **info,
            "removing": False,
            "snapshotKey": container.id,
            "snapshotter": SNAPSHOTTER,
            "runtimeType": _RUNTIME_TYPE,
            "config": {
                "metadata": {"name": container.name, "attempt": container.attempt},
                "image": {"image": container.image_id},
                "labels": dict(container.labels),
                "annotations": dict(container.annotations),
                "log_path": f"{container.name}/{container.attempt}.log",
                "linux": {"resources": {name: value for name, value in resources.items() if value}},
            },
            "createdAt": nanoseconds(container.created_at),
        }


class ImageService:
    """``runtime.v1.ImageService``."""

    def __init__(self, node: SimNode, profile: Profile, messages: Messages) -> None:
        self._node = node
        self._profile = profile
        self._messages = messages
        self._image_items = Memo(messages.image)

    def list_images(self, request: api.ListImagesRequest) -> api.ListImagesResponse:
        """List the images that match the filter of the request; CRI does not list artifacts."""
        if request.filter.image.image:
            found = self._node.resolve_image(request.filter.image.image)
            return api.ListImagesResponse(images=[self._messages.image(self._node.images[found])] if found else [])
        return api.ListImagesResponse(images=self._image_items.all(self._node.images))

    def image_status(self, request: api.ImageStatusRequest) -> api.ImageStatusResponse:
        """Return an image; an empty response for an unknown image."""
        image = self._node.images.get(self._node.resolve_image(request.image.image) or "")
        if image is None:  # unknown, or removed from ``images`` by a test although its names exist
            return api.ImageStatusResponse()
        response = api.ImageStatusResponse(image=self._messages.image(image))
        if request.verbose:
            config = self._node.store.blobs.get(image.id)
            info = _image_info(image, config.data if config is not None and config.data else b"{}")
            response.info["info"] = json.dumps(info, separators=(",", ":"))
        return response

    def fs_info(self, _request: api.ImageFsInfoRequest) -> api.ImageFsInfoResponse:
        """Return the mount point of the image filesystem and the disk usage of snapshots; blobs are not counted."""
        store = self._node.store
        used = self._messages.usage(
            self._node.imagefs_path,
            store.snapshot_bytes,
            sum(snapshot.inodes for snapshot in store.snapshots.values()),
        )
        both = self._profile.reports_container_filesystems
        return api.ImageFsInfoResponse(image_filesystems=[used], container_filesystems=[used] if both else [])

    def remove_image(self, request: api.RemoveImageRequest) -> api.RemoveImageResponse:
        """Remove an image with all its names; CRI-O only untags one of several names."""
        reference = request.image.image
        if self._profile.refuses_used_images:
            self._remove_as_cri_o(reference)
        else:
            self._node.remove_image(reference)
        return api.RemoveImageResponse()

    def _remove_as_cri_o(self, reference: str) -> None:
        image_id = self._node.resolve_image(reference)
        if image_id is None:
            return
        names = [name for name in self._node.names_of(image_id) if not name.startswith("sha256:")]
        if reference in names and len(names) > 1:
            self._node.delete_image_name(reference)
            return
        users = self._node.users_of(image_id)
        if users:
            raise RefusedError("UNKNOWN", f"image used by {users[0].id}: image is in use by a container")
        self._node.remove_image(image_id)


def runtime_methods(service: RuntimeService, *, streams: bool) -> dict[str, Callable[..., object]]:
    """Return the methods of the runtime service by RPC name."""
    streamed: dict[str, Callable[..., object]] = {
        "StreamPodSandboxes": in_parts(service.list_sandboxes, api.ListPodSandboxResponse, "items"),
        "StreamContainers": in_parts(service.list_containers, api.ListContainersResponse, "containers"),
    }
    return (streamed if streams else {}) | {
        "Version": service.version,
        "Status": service.status,
        "ListPodSandbox": service.list_sandboxes,
        "PodSandboxStatus": service.sandbox_status,
        "StopPodSandbox": service.stop_sandbox,
        "RemovePodSandbox": service.remove_sandbox,
        "ListContainers": service.list_containers,
        "ContainerStatus": service.container_status,
        "StopContainer": service.stop_container,
        "RemoveContainer": service.remove_container,
        "ListContainerStats": service.list_container_stats,
    }


def image_methods(service: ImageService, *, streams: bool) -> dict[str, Callable[..., object]]:
    """Return the methods of the image service by RPC name."""
    streamed: dict[str, Callable[..., object]] = {
        "StreamImages": in_parts(service.list_images, api.ListImagesResponse, "images")
    }
    return (streamed if streams else {}) | {
        "ListImages": service.list_images,
        "ImageStatus": service.image_status,
        "ImageFsInfo": service.fs_info,
        "RemoveImage": service.remove_image,
    }


def in_parts(
    listed: Callable[..., Message], part: Callable[..., Message], field: str
) -> Callable[..., Iterator[Message]]:
    """Return a method that streams the items of a list method, ``PART_ITEMS`` in each response message."""

    def stream(*arguments: object) -> Iterator[Message]:
        items = getattr(listed(*arguments), field)
        for start in range(0, len(items), PART_ITEMS):
            yield part(**{field: items[start : start + PART_ITEMS]})

    return stream


def _unknown(name: str, prefix: str, records: Iterable[str]) -> RefusedError:
    """Return containerd's error for the prefix of no id or of several ids."""
    if any(each.startswith(prefix) for each in records):
        detail = f"an error occurred when try to find {name}: Multiple IDs found with provided prefix: {prefix}"
        return RefusedError("UNKNOWN", detail)
    return _not_found(name)


def _not_found(name: str) -> RefusedError:
    return RefusedError("NOT_FOUND", f"an error occurred when try to find {name}: not found")


def _labelled(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def _container_filter(criteria: api.ContainerFilter) -> Callable[[api.Container], bool]:
    def matches(item: api.Container) -> bool:
        return (
            item.id.startswith(criteria.id)
            and (not criteria.HasField("state") or item.state == criteria.state.state)
            and criteria.pod_sandbox_id in ("", item.pod_sandbox_id)
            and _labelled(item.labels, criteria.label_selector)
        )

    return matches


def _cgroups_path(cgroup_parent: str, name: str) -> str:
    """Return the cgroup path of a container in the OCI runtime spec.

    Source: containerd's CRI plugin, ``getCgroupsPath``.
    """
    last = cgroup_parent.rpartition("/")[2]
    return f"{last}:cri-containerd:{name}" if last.endswith(".slice") else f"{cgroup_parent or '/k8s.io'}/{name}"


def _image_info(image: SimImage, config: bytes) -> dict[str, object]:
    labels = json.loads(config).get("config", {}).get("Labels", {})
    return {
        "chainID": image.chain_id,
        "imageSpec": {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": labels} | ({"StopSignal": image.stop_signal} if image.stop_signal else {}),
            "rootfs": {"type": "layers", "diff_ids": list(image.diff_ids)},
        },
    }
