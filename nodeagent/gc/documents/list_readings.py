"""Documents of the images, containers and pods of the node, each with its verdict.

Documents are created in a thread, since documents of large nodes would delay the other tasks of the daemon.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.errors import ObservationError
from nodeagent.gc.documents import lists
from nodeagent.gc.documents.lists import LayerStack
from nodeagent.gc.plan.image_protection import describe_origins
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.decision import ItemKind
from nodeagent.pods.plan.deletion import check_pods

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.gc.agent_parts import Previews
    from nodeagent.gc.pass_state import Preview
    from nodeagent.model import Container, NodeSnapshot, Sandbox


async def list_images(agent: Previews) -> lists.Images:
    """Return every image with its verdict, sorted by name.

    Raises:
        NodeAgentError: the node cannot be observed.
    """
    unreachable = agent.settings.policy.images.protection.unreachable_registries
    return await asyncio.to_thread(_images, await agent.preview(Scope.IMAGES), unreachable)


def _images(preview: Preview, unreachable: Sequence[str]) -> lists.Images:
    (plan,) = preview.plans
    origins = describe_origins(preview.snapshot, unreachable)
    decisions = {decision.id: decision for decision in plan.decisions}
    images = sorted(preview.snapshot.images, key=lambda image: (image.name, image.id))
    usage = preview.snapshot.image_usage
    rows = tuple(
        lists.Image.of(each, decisions[each.id], usage.get(each.id), plan.accounting, origins[each.id])
        for each in images
    )
    return lists.Images.of_snapshot(preview.snapshot, images=rows)


async def list_image_layers(agent: Previews) -> lists.ImageTree:
    """Return the images by shared layers; images without unpacked layers are last.

    Raises:
        ObservationError: the layers of the images are unknown.
        NodeAgentError: the node cannot be observed.
    """
    return await asyncio.to_thread(_image_tree, (await agent.preview(Scope.IMAGES)).snapshot)


def _image_tree(snapshot: NodeSnapshot) -> lists.ImageTree:
    from nodeagent.gc.plan.breakdown import Stack, sharing_tree  # noqa: PLC0415 - needed only for --tree

    if snapshot.storage is None:
        why = "; ".join(snapshot.warnings) or "runtime.containerd_api is off, or the runtime is not containerd"
        raise ObservationError(f"cannot show image layers: {why}")
    stacks, unknown = sharing_tree(snapshot.images, snapshot.storage)
    rows = tuple(LayerStack.of(each) for each in (*stacks, *(Stack([image]) for image in unknown)))
    return lists.ImageTree.of_snapshot(snapshot, image_tree=rows)


async def list_containers(agent: Previews) -> lists.Containers:
    """Return every container with its verdict, sorted by pod, name and attempt, newest attempt first.

    Raises:
        NodeAgentError: the node cannot be observed.
    """
    return await asyncio.to_thread(_containers, await agent.preview(Scope.CONTAINERS))


def _containers(preview: Preview) -> lists.Containers:
    decisions = {
        decision.id: decision
        for plan in preview.plans
        for decision in plan.decisions
        if decision.kind is ItemKind.CONTAINER
    }
    containers = sorted(
        preview.snapshot.containers, key=lambda each: (each.pod_namespace, each.pod_name, each.name, -each.attempt)
    )
    rows = tuple(lists.Container.of(each, decisions[each.id]) for each in containers)
    return lists.Containers.of_snapshot(preview.snapshot, containers=rows)


async def list_pods(agent: Previews) -> lists.Pods:
    """Return every pod of the runtime, sorted by namespace, name and UID.

    Raises:
        NodeAgentError: the node cannot be observed.
    """
    snapshot = (await agent.preview(Scope.CONTAINERS)).snapshot
    return await asyncio.to_thread(_pods, snapshot, agent.settings.policy.containers.deleted_pod_grace_s)


def _pods(snapshot: NodeSnapshot, deleted_pod_grace_s: float) -> lists.Pods:
    statuses = check_pods(snapshot, deleted_pod_grace_s)
    grouped: dict[str, list[Sandbox]] = {}
    for sandbox in snapshot.sandboxes:
        grouped.setdefault(sandbox.uid, []).append(sandbox)
    pods = sorted(grouped.items(), key=lambda item: (item[1][0].namespace, item[1][0].name, item[0]))
    containers: dict[str, list[Container]] = {}
    for container in snapshot.containers:
        containers.setdefault(container.sandbox_id, []).append(container)
    rows = tuple(lists.Pod.of(uid, sandboxes, containers, statuses.get(uid)) for uid, sandboxes in pods)
    return lists.Pods.of_snapshot(snapshot, pods=rows)
