"""Preview of a reload: its additional removals and evictions, computed before the first pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nodeagent.api.common import ReasonDocument
from nodeagent.daemon import control_documents as reload
from nodeagent.daemon.context import SHOWN, DaemonContext, Reloaded, ReloadEffect, threshold_text
from nodeagent.daemon.control_documents import EvictedPod, Grace, KindCount, MetThreshold, Reload
from nodeagent.errors import NodeAgentError
from nodeagent.eviction.plan.preview import PreviewedEviction, first_victim, pods_over_limits
from nodeagent.eviction.plan.ranking import has_limit
from nodeagent.eviction.plan.state import Evaluation, EvictionState
from nodeagent.eviction.plan.thresholds import MEANINGS, ThresholdStatus
from nodeagent.eviction.signals import EvictionSignalReader, SignalLayout
from nodeagent.gc.agent import Agent, open_agent
from nodeagent.gc.documents import passes as gc
from nodeagent.gc.pass_state import plans_for
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.decision import Decision, ItemKind, Plan
from nodeagent.model.node import Role

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.settings.settings import Settings

WITHIN_S: Final = 10.0
"""Time limit of a preview in seconds; a preview delays the start of the loops under new settings."""


@dataclass(slots=True)
class _PartialEffect:
    """Parts of an effect, filled in one after the other, so that a timeout loses only the later parts."""

    removals: tuple[Decision, ...] = ()
    thresholds: tuple[ThresholdStatus, ...] = ()
    pods: tuple[PreviewedEviction, ...] = ()
    problems: list[str] = field(default_factory=list)


async def preview_effect(settings: Settings, earlier: Settings, context: DaemonContext) -> ReloadEffect:
    """Return the effect of settings that are not in force, from a separate agent; a failure becomes its ``problem``."""

    async def find(partial: _PartialEffect) -> None:
        opened = open_agent(
            settings,
            record=False,
            dry_run=True,
            clock=context.clock,
            observer_of_calls=context.counters.call,
            roles=context.roles.detached(),
        )
        async with opened as agent:
            await _find(agent, earlier, partial)

    return await _bounded(settings, find, WITHIN_S)


async def log_reload_effect(
    agent: Agent,
    earlier: Settings,
    logger: FilteringBoundLogger,
    stop: asyncio.Event,
    *,
    within_s: float = WITHIN_S,
) -> ReloadEffect | None:
    """Log the removals and evictions of the next passes that the earlier settings did not cause.

    The computation is limited to ``within_s`` seconds, since no loop runs meanwhile.

    Returns:
        The effect; ``None`` if ``stop`` was set first.
    """
    search = _bounded(agent.settings, lambda partial: _find(agent, earlier, partial), within_s)
    effect = await until_stopped(search, stop)
    if effect is not None:
        log_effect(effect, logger)
    return effect


async def until_stopped(search: Awaitable[ReloadEffect], stop: asyncio.Event) -> ReloadEffect | None:
    """Return the result of ``search``; ``None`` if ``stop`` is set first."""
    work, stopped = asyncio.ensure_future(search), asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work in done else None
    finally:
        work.cancel()
        stopped.cancel()
        await asyncio.wait({work, stopped})


def log_effect(effect: ReloadEffect, logger: FilteringBoundLogger) -> None:
    """Log an effect: its removals, its evictions, and the reason if part of the effect is unknown."""
    if effect.removals:
        logger.warning(
            "reload_removes_more",
            items=len(effect.removals),
            frees_bytes=effect.frees_bytes,
            names=[each.name for each in effect.removals[:SHOWN]],
            dry_run=effect.dry_run,
        )
    if effect.thresholds or effect.pods:
        logger.warning(
            "reload_evicts_more",
            thresholds=[threshold_text(each) for each in effect.thresholds],
            pods=[f"{each.namespace}/{each.name}" for each in effect.pods[:SHOWN]],
            dry_run=effect.dry_run,
        )
    if effect.problem:
        logger.warning("reload_effect_unknown", error=effect.problem)


def reload_document(value: Reloaded) -> Reload:
    """Return the document of a reload's outcome."""
    waits = value.grace_s > 0
    return Reload(
        applied=value.applied,
        changes=value.changes,
        dry_run=value.dry_run,
        effect=None if value.effect is None else _effect_document(value.effect),
        grace=Grace(seconds=round(value.grace_s, 3), until=value.until) if waits else None,
    )


def _effect_document(effect: ReloadEffect) -> reload.ReloadEffectDocument:
    by_kind: dict[ItemKind, list[Decision]] = {}
    for each in effect.removals:
        by_kind.setdefault(each.kind, []).append(each)
    return reload.ReloadEffectDocument(
        known=not effect.problem,
        problem=effect.problem,
        items=len(effect.removals),
        frees_bytes=effect.frees_bytes,
        kinds=tuple(
            KindCount(kind=kind, items=len(found), frees_bytes=sum(each.frees_bytes or 0 for each in found))
            for kind, found in by_kind.items()
        ),
        first=tuple(gc.DecisionDocument.of(each) for each in effect.removals[:SHOWN]),
        thresholds=tuple(
            MetThreshold(text=each.threshold.text, hard=each.threshold.hard, grace_s=each.threshold.grace_s)
            for each in effect.thresholds
        ),
        pods=tuple(
            EvictedPod(uid=each.uid, namespace=each.namespace, name=each.name, reason=ReasonDocument.of(each.reason))
            for each in effect.pods
        ),
    )


async def _bounded(
    settings: Settings, find: Callable[[_PartialEffect], Awaitable[None]], within_s: float
) -> ReloadEffect:
    """Return the effect with the parts determined in time, and the reason for each missing part."""
    partial = _PartialEffect()
    try:
        async with asyncio.timeout(within_s):
            await find(partial)
    except TimeoutError:
        partial.problems.append(f"cannot read the node: timeout after {within_s:g} s")
    except NodeAgentError as error:
        partial.problems.append(str(error))
    except Exception as error:  # noqa: BLE001 - an unexpected error in a preview must not end the daemon
        partial.problems.append(f"internal error: {error!r}")
    return ReloadEffect(
        settings.dry_run, partial.removals, partial.thresholds, partial.pods, "; ".join(partial.problems)
    )


async def _find(agent: Agent, earlier: Settings, partial: _PartialEffect) -> None:
    """Fill in every part of the effect; after a switch from dry run, all removals and evictions are additional."""
    activated = earlier.dry_run and not agent.settings.dry_run
    preview = await agent.collector.preview(Scope.ALL)
    partial.problems += [f"{plan.kind}: {plan.blocked}" for plan in preview.plans if plan.blocked]
    before = set()
    if not activated:
        plans = await asyncio.to_thread(plans_for, Scope.ALL, preview.snapshot, earlier.policy)
        before = {each.id for each in _removals(plans, earlier)}
    partial.removals = tuple(each for each in _removals(preview.plans, agent.settings) if each.id not in before)
    await _find_evictions(agent, None if activated else earlier, partial)


def _removals(plans: Iterable[Plan], settings: Settings) -> Iterable[Decision]:
    """Yield the removals of the enabled loops."""
    for plan in plans:
        for each in plan.removals:
            interval_s = settings.image_interval_s if each.kind is ItemKind.IMAGE else settings.container_interval_s
            if interval_s is not None:
                yield each


async def _find_evictions(agent: Agent, earlier: Settings | None, partial: _PartialEffect) -> None:
    """Fill in thresholds and pods; ``earlier`` is ``None`` if the earlier settings evicted no pod."""
    settings = agent.settings.eviction
    if settings.off_because(agent.role):
        return
    if earlier is not None and earlier.eviction.off_because(agent.role):
        earlier = None
    layout, evaluation = await _evaluated(agent, agent.settings)
    met = evaluation.met
    if earlier is not None:
        _, before = await _evaluated(agent, earlier)
        known = {each.threshold.text: each.threshold.grace_s for each in before.met}
        met = tuple(each for each in met if each.threshold.grace_s < known.get(each.threshold.text, float("inf")))
    partial.thresholds = met
    limits = settings.policy.local_storage_isolation
    if earlier is not None and earlier.eviction.policy.local_storage_isolation:
        limits = False
    if not met and not limits:
        return
    pod_reader = agent.make_pod_reader()
    try:
        pods = await pod_reader.read(with_disk=False)
        on_disk = any(MEANINGS[each.threshold.signal].filesystem is not None for each in met)
        if on_disk or (limits and any(map(has_limit, pods.facts))):
            pods = await pod_reader.read(with_disk=True)
    finally:
        await pod_reader.close()
    over = pods_over_limits(pods.facts, settings.policy) if limits else ()
    first = (
        first_victim(
            evaluation,
            pods.facts,
            settings.policy,
            layout.layout,
            layout.others,
            removes_volumes=agent.role is Role.BESIDE_KUBELET,
        )
        if met
        else None
    )
    partial.pods = over if first is None else (*over, first)


async def _evaluated(agent: Agent, settings: Settings) -> tuple[SignalLayout, Evaluation]:
    """Return the signal layout, and the thresholds of ``settings`` evaluated now."""
    reader = EvictionSignalReader(settings.eviction, agent.clock, pod_log_root=settings.pod_log_root)
    found = await reader.evaluate(
        await reader.read_layout(agent.cri, settings.imagefs_path, agent.observer.images.find_filesystems),
        EvictionState(),
    )
    return found.layout, found.evaluation
