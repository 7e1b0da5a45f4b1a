"""Documents of previews, explanations, disk usage, and of the images, containers and pods with their verdicts.

Documents are created in a thread, since documents of large nodes would delay the other tasks of the daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError, StoreError
from nodeagent.gc.documents import lists
from nodeagent.gc.documents.lists import LayerStack
from nodeagent.gc.documents.passes import (
    DiskUsageDocument,
    Explained,
    ExplanationDocument,
    PastRemoval,
    PreviewDocument,
)
from nodeagent.gc.documents.undo import UndoList
from nodeagent.gc.pass_state import offered_window_s, plans_by_loop
from nodeagent.gc.plan.explanation import explain
from nodeagent.gc.plan.image_protection import describe_origins
from nodeagent.gc.plan.image_users import similar_names
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.decision import ItemKind
from nodeagent.pods.plan.deletion import check_pods
from nodeagent.pods.plan.status import container_statuses

if TYPE_CHECKING:
    import threading

    from nodeagent.gc import pass_state, pass_state as gc_preview
    from nodeagent.gc.agent import Agent
    from nodeagent.gc.agent_parts import Previews
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import Container, Sandbox
    from nodeagent.pods.plan.status import StatusWord

_PAST_PASSES: Final = 5


async def preview_collection(agent: Agent, scope: Scope, patterns: Sequence[str] = ()) -> PreviewDocument:
    """Return the preview of a pass that starts now; ``patterns`` select images as in ``plans_for``.

    Raises:
        UsageError: a pattern selects no image, or is invalid.
        NodeAgentError: the node cannot be observed.
    """
    preview = await agent.collector.preview(scope, patterns)
    return await _document(scope, preview, agent)


async def list_leaks(
    agent: Agent, minimum_age_s: float, *, rooted: bool, include: Collection[str] = ()
) -> PreviewDocument:
    """Return the preview of a removal of leaks; the arguments are those of ``plan_leaks``.

    Raises:
        NodeAgentError: references cannot be read from the runtime.
    """
    preview = await agent.find_leaks(minimum_age_s, rooted=rooted, include=include)
    return await _document(Scope.LEAKS, preview, agent)


async def _document(scope: Scope, preview: gc_preview.Preview, agent: Agent) -> PreviewDocument:
    policy, window_s = agent.settings.policy.images, offered_window_s(agent.settings, preview)
    make = partial(PreviewDocument.of, undo_window_s=window_s)
    return await asyncio.to_thread(make, scope.value, preview.snapshot, preview.plans, policy)


async def list_undoable(agent: Agent) -> UndoList:
    """Return the passes with image removals that can be undone.

    Raises:
        NodeAgentError: the runtime cannot list the leases of the removed images.
    """
    return UndoList.of(await agent.undo.list_undoable())


async def explain_items(agent: Agent, name: str) -> ExplanationDocument:
    """Return the verdicts on the images, containers and pods that match a name, and their past removals.

    Raises:
        NodeAgentError: the node cannot be observed.
    """
    preview = await agent.collector.preview(Scope.ALL)
    policy = agent.settings.policy
    plans = await asyncio.to_thread(plans_by_loop, preview.snapshot, policy)
    found = await asyncio.to_thread(explain, preview.snapshot, policy, plans, name)
    try:
        past = await asyncio.to_thread(agent.history.read, image=name, limit=_PAST_PASSES)
        problem = ""
    except StoreError as error:
        past, problem = (), str(error)
    return ExplanationDocument(
        asked=name,
        observed_at=preview.snapshot.observed_at,
        explanations=tuple(map(Explained.of_explanation, found)),
        past=tuple(PastRemoval.of(each, action) for each in past for action in each.actions),
        similar=() if found or past else similar_names(preview.snapshot.images, name),
        warnings=(problem,) if problem else (),
    )


async def measure_disk_usage(agent: Agent, within_s: float) -> DiskUsageDocument:
    """Return the usage of the image filesystem by share; directories are measured for ``within_s`` s at most.

    Raises:
        NodeAgentError: the node cannot be observed.
    """
    return await break_down_usage(agent, await read_for_usage(agent), within_s, private=True)


async def read_for_usage(agent: Agent) -> NodeSnapshot:
    """Return a snapshot for ``break_down_usage``.

    Raises:
        NodeAgentError: the node cannot be observed.
    """
    return (await agent.collector.preview(Scope.ALL)).snapshot


async def break_down_usage(
    agent: Agent,
    snapshot: NodeSnapshot,
    within_s: float,
    cancelled: threading.Event | None = None,
    *,
    private: bool,
) -> DiskUsageDocument:
    """Return the usage of the image filesystem by share.

    ``cancelled`` ends the walk of directories when set; ``private`` as in ``read_breakdown``.
    """
    return DiskUsageDocument.of(
        await agent.break_down(snapshot, within_s=within_s, cancelled=cancelled, private=private)
    )


async def list_images(agent: Previews) -> lists.Images:
    """Return every image with its verdict, sorted by name.

    Raises:
        NodeAgentError: the node cannot be observed.
    """
    unreachable = agent.settings.policy.images.protection.unreachable_registries
    return await asyncio.to_thread(_images, await agent.preview(Scope.IMAGES), unreachable)


def _images(preview: pass_state.Preview, unreachable: Sequence[str]) -> lists.Images:
    (plan,) = preview.plans
    origins = describe_origins(preview.snapshot, unreachable)
    decisions = {decision.id: decision for decision in plan.decisions}
    images = sorted(preview.snapshot.images, key=lists.image_order)
    usage = preview.snapshot.image_usage
    rows = tuple(
        lists.ImageDocument.of(each, decisions[each.id], usage.get(each.id), plan.accounting, origins[each.id])
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
    preview = await agent.preview(Scope.CONTAINERS)
    return await asyncio.to_thread(_containers, preview, await agent.read_exits(preview.snapshot.containers))


def _containers(preview: pass_state.Preview, exits: Sequence[Container]) -> lists.Containers:
    decisions = {
        decision.id: decision
        for plan in preview.plans
        for decision in plan.decisions
        if decision.kind is ItemKind.CONTAINER
    }
    words = _statuses(preview.snapshot, exits)
    containers = sorted(exits, key=lists.container_order)
    rows = tuple(lists.ContainerDocument.of(each, decisions[each.id], words[each.id]) for each in containers)
    return lists.Containers.of_snapshot(preview.snapshot, containers=rows)


async def list_pods(agent: Previews) -> lists.Pods:
    """Return every pod of the runtime, sorted by namespace, name and UID.

    Raises:
        NodeAgentError: the node cannot be observed.
    """
    snapshot = (await agent.preview(Scope.CONTAINERS)).snapshot
    exits = await agent.read_exits(snapshot.containers)
    return await asyncio.to_thread(_pods, snapshot, exits, agent.settings.policy.containers.deleted_pod_grace_s)


def _statuses(snapshot: NodeSnapshot, exits: Sequence[Container]) -> dict[str, StatusWord]:
    ready = {each.id for each in snapshot.sandboxes if each.ready}
    return container_statuses(exits, ready, snapshot.observed_at)


def _pods(snapshot: NodeSnapshot, exits: Sequence[Container], deleted_pod_grace_s: float) -> lists.Pods:
    words = _statuses(snapshot, exits)
    statuses = check_pods(snapshot, deleted_pod_grace_s)
    grouped: dict[str, list[Sandbox]] = {}
    for sandbox in snapshot.sandboxes:
        grouped.setdefault(sandbox.uid, []).append(sandbox)
    pods = sorted(grouped.items(), key=lambda item: lists.pod_order(item[1][0]))
    containers: dict[str, list[Container]] = {}
    for container in exits:
        containers.setdefault(container.sandbox_id, []).append(container)
    rows = tuple(lists.Pod.of(uid, sandboxes, containers, words, statuses.get(uid)) for uid, sandboxes in pods)
    return lists.Pods.of_snapshot(snapshot, pods=rows)
