"""Documents of garbage collection previews, explanations and disk usage, created in a thread (see ``lists``)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.gc.documents.explanation import Explained, Explanation, PastRemoval
from nodeagent.gc.documents.passes import DiskUsage, Preview
from nodeagent.gc.documents.undo import UndoList
from nodeagent.gc.pass_state import offered_window_s, plans_by_loop
from nodeagent.gc.plan.explanation import explain
from nodeagent.gc.plan.policy import Scope

if TYPE_CHECKING:
    import threading

    from nodeagent.gc import pass_state as gc_preview
    from nodeagent.gc.agent import Agent
    from nodeagent.model import NodeSnapshot

_PAST_PASSES: Final = 5
_MAX_SIMILAR: Final = 3


async def preview_collection(agent: Agent, scope: Scope) -> Preview:
    """Return the preview of a pass that starts now.

    Raises:
        NodeAgentError: the node cannot be observed.
    """
    preview = await agent.collector.preview(scope)
    return await _document(scope, preview, agent)


async def list_leaks(agent: Agent, minimum_age_s: float, *, rooted: bool) -> Preview:
    """Return the preview of a removal of unreferenced blobs and snapshots.

    Args:
        agent: agent of the node.
        minimum_age_s: age in seconds below which an item is kept.
        rooted: whether to include items referenced only by containerd.io/gc.root.

    Raises:
        NodeAgentError: references cannot be read from the runtime.
    """
    preview = await agent.find_leaks(minimum_age_s, rooted=rooted)
    return await _document(Scope.LEAKS, preview, agent)


async def _document(scope: Scope, preview: gc_preview.Preview, agent: Agent) -> Preview:
    policy, window_s = agent.settings.policy.images, offered_window_s(agent.settings, preview)
    make = partial(Preview.of, undo_window_s=window_s)
    return await asyncio.to_thread(make, scope.value, preview.snapshot, preview.plans, policy)


async def list_undoable(agent: Agent) -> UndoList:
    """Return the passes with image removals that can be undone.

    Raises:
        NodeAgentError: the runtime cannot list the leases of the removed images.
    """
    return UndoList.of(await agent.undo.list_undoable())


async def explain_items(agent: Agent, name: str) -> Explanation:
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
    tags = [each for image in preview.snapshot.images for each in image.repo_tags if each.endswith(f"/{name}")]
    return Explanation(
        asked=name,
        observed_at=preview.snapshot.observed_at,
        explanations=tuple(map(Explained.of_explanation, found)),
        past=tuple(PastRemoval.of(each, action) for each in past for action in each.actions),
        similar=() if found or past else tuple(tags[:_MAX_SIMILAR]),
        warnings=(problem,) if problem else (),
    )


async def measure_disk_usage(agent: Agent, within_s: float) -> DiskUsage:
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
) -> DiskUsage:
    """Return the usage of the image filesystem by share.

    ``cancelled`` ends the walk of directories when set; ``private`` as in ``read_breakdown``.
    """
    return DiskUsage.of(await agent.break_down(snapshot, within_s=within_s, cancelled=cancelled, private=private))
