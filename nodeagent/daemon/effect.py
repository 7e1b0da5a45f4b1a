"""What a reload changes at once: told before the first pass under the new settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.act.collect import plans_for
from nodeagent.daemon.pressure import PressureReader
from nodeagent.errors import NodeAgentError
from nodeagent.plan.eviction.state import EvictionState, evaluate
from nodeagent.plan.scope import Scope

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.config.settings import Settings
    from nodeagent.daemon.agent import Agent
    from nodeagent.plan.eviction.state import Standing

_NAMED: Final = 10
_WITHIN_S: Final = 10.0


async def tell_effect(agent: Agent, earlier: Settings, logger: FilteringBoundLogger, stop: asyncio.Event) -> None:
    """Log what the next passes remove or evict that they would not have under the settings before a reload.

    Nobody watches the node meanwhile, so it takes a bounded while, and ends with the agent.
    """
    telling, stopped = asyncio.ensure_future(_tell(agent, earlier, logger)), asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({telling, stopped}, timeout=_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        if telling in done:
            await telling
        elif not done:
            logger.warning("reload_effect_unknown", error=f"the node was not read within {_WITHIN_S:g} s")
    finally:
        telling.cancel()
        stopped.cancel()
        await asyncio.wait({telling, stopped})


async def _tell(agent: Agent, earlier: Settings, logger: FilteringBoundLogger) -> None:
    try:
        await _tell_removals(agent, earlier, logger)
        await _tell_evictions(agent, earlier, logger)
    except NodeAgentError as error:
        logger.warning("reload_effect_unknown", error=str(error))


async def _tell_removals(agent: Agent, earlier: Settings, logger: FilteringBoundLogger) -> None:
    preview = await agent.collector.preview(Scope.ALL)
    before = set()
    if agent.dry_run or not earlier.dry_run:
        plans = plans_for(Scope.ALL, preview.snapshot, earlier.policy)
        before = {each.id for plan in plans for each in plan.removals}
    more = [each for each in preview.removals if each.id not in before]
    if more:
        logger.warning(
            "reload_removes_more",
            items=len(more),
            frees_bytes=sum(each.frees_bytes or 0 for each in more),
            names=[each.name for each in more[:_NAMED]],
            dry_run=agent.dry_run,
        )


async def _tell_evictions(agent: Agent, earlier: Settings, logger: FilteringBoundLogger) -> None:
    if agent.settings.eviction.off_because(agent.role):
        return
    met = await _met(agent, agent.settings)
    if not earlier.eviction.off_because(agent.role) and (agent.dry_run or not earlier.dry_run):
        known = {each.threshold.text: each.threshold.grace_s for each in await _met(agent, earlier)}
        met = [each for each in met if each.threshold.grace_s < known.get(each.threshold.text, float("inf"))]
    if met:
        logger.warning("reload_evicts_more", thresholds=[_told(each) for each in met], dry_run=agent.dry_run)


async def _met(agent: Agent, settings: Settings) -> list[Standing]:
    """Return the thresholds of some settings that are met now."""
    reader = PressureReader(settings.eviction, agent.clock)
    ground = await reader.survey(agent.cri, settings.imagefs_path)
    seen = await reader.look(ground)
    found = evaluate(EvictionState(), seen.observations, ground.thresholds, settings.eviction.policy, now=seen.at)
    return list(found.met)


def _told(standing: Standing) -> str:
    grace_s = standing.threshold.grace_s
    return f"{standing.threshold.text} ({f'after {grace_s:g} s' if grace_s else 'at once'})"
