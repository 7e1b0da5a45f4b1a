"""Documents of graceful shutdown: the timeline of a shutdown starting now, and the state of the inhibitor lock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.config.paths import RUNTIME_DIRECTORY
from nodeagent.errors import InhibitorError, NodeAgentError, StoreError
from nodeagent.gc.documents.history import NodeStopDocument
from nodeagent.host.logind_config import LogindDelay, read_delay
from nodeagent.host.node import node_name
from nodeagent.loops.clock_reading import read_clocks
from nodeagent.loops.pause_file import PauseFile
from nodeagent.model.pods import ENDED
from nodeagent.model.stops import StopEnd
from nodeagent.pods.reader import make_pod_reader
from nodeagent.pods.role import read_role
from nodeagent.pods.watched import read_watched_pods
from nodeagent.shutdown import documents
from nodeagent.shutdown.documents import Inhibitor, PhaseDocument, ShutdownPlanDocument, ShutdownStatus
from nodeagent.shutdown.plan.planner import UNLIMITED, DelayLimit, plan_shutdown, shutdown_budget
from nodeagent.shutdown.recorder import ShutdownFiles
from nodeagent.store.history import History
from nodeagent.units import USEC_INFINITY, SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.gc.agent import Agent
    from nodeagent.host.dbus import LogindFacts
    from nodeagent.model import stops as node_stop
    from nodeagent.model.pods import PodSpec
    from nodeagent.model.stops import ShutdownPod
    from nodeagent.settings.settings import Settings

_WHO: Final = "nodeagent"
_READ_WITHIN_S: Final = 5.0


async def rehearse_shutdown(agent: Agent) -> ShutdownPlanDocument:
    """Return the timeline of a shutdown that starts now; no pod is stopped.

    Raises:
        RuntimeUnavailableError: the runtime does not answer.
    """
    settings = agent.settings
    facts, problem = await query_logind()
    delay = await asyncio.to_thread(read_delay)
    budget = shutdown_budget(settings.shutdown.phases, delay_limit(facts, delay))
    delegated = budget.delegated_because
    # systemd sets the time limit of the stop hook only during a shutdown, so the configured phases are shown
    shown_budget = shutdown_budget(settings.shutdown.phases, UNLIMITED) if delegated else budget
    plan = plan_shutdown(shown_budget, await _pods(agent))
    warnings = [*((delegated,) if delegated else budget.notes), *delay.warnings]
    if problem:
        warnings.append(f"{problem}; the limit is read from logind's files")
    off = await asyncio.to_thread(off_because, settings)
    return ShutdownPlanDocument(
        enabled=not off,
        off_because=off,
        dry_run=True,
        limit=_limit(delay, facts),
        wanted_s=budget.requested_ms / 1000,
        granted_s=budget.granted_ms / 1000,
        scaled=budget.scaled,
        stops_at_signal=budget.suffices_at_signal,
        ends_s=plan.ends_ms / 1000,
        warnings=tuple(warnings),
        phases=tuple(map(PhaseDocument.of, plan.phases)),
    )


async def read_shutdown_status(settings: Settings, limit: int) -> ShutdownStatus:
    """Return the state of the inhibitor lock and the last ``limit`` stops of the node.

    Raises:
        StoreError: the history cannot be read.
    """
    facts, problem = await query_logind()
    return await asyncio.to_thread(_status, settings, facts, problem, limit)


def _status(settings: Settings, facts: LogindFacts | None, problem: str, limit: int) -> ShutdownStatus:
    delay = read_delay()
    off = off_because(settings)
    delegated = "" if off else shutdown_budget(settings.shutdown.phases, delay_limit(facts, delay)).delegated_because
    held, because = lock_held(facts, problem)
    stops: list[node_stop.NodeStop] = list(History(settings.state_directory).read_stops(limit=limit))
    try:
        last = ShutdownFiles(settings.state_directory, Path(RUNTIME_DIRECTORY)).read_stop()
    except StoreError as error:
        last, because = None, f"{because}; {error}"
    if last is not None and last.id not in {each.id for each in stops}:
        stops.insert(0, last)
    return ShutdownStatus(
        enabled=not off,
        off_because=off,
        inhibitor=Inhibitor(held=held, because=because, preparing=facts.preparing if facts is not None else None),
        limit=_limit(delay, facts),
        stops_at_signal=not off and not delegated,
        warnings=(*((delegated,) if delegated else ()), *delay.warnings),
        attached_volumes=attached_volumes(stops[0], _stored_pods(settings)) if stops else (),
        stops=tuple(map(NodeStopDocument.of, stops)),
    )


def _stored_pods(settings: Settings) -> Mapping[str, PodSpec] | None:
    """Return the last pods of the watch by UID; ``None`` without a readable record of them."""
    try:
        stored = read_watched_pods(settings.state_directory, node_name(settings.kubelet.node_name))
    except NodeAgentError:
        return None
    return None if stored is None else {each.uid: each for each in stored.pods}


def attached_volumes(
    last: node_stop.NodeStop, watched: Mapping[str, PodSpec] | None
) -> tuple[documents.AttachedVolumes, ...]:
    """Return the pods whose volumes may still be attached to the node after its last stop.

    The control plane detaches a volume once its pod is deleted or has ended.

    Args:
        last: the last stop of the node.
        watched: the last pods of the watch by UID; ``None`` without a watch.
    """
    if last.end not in (StopEnd.UNKNOWN, StopEnd.INCOMPLETE):
        return ()
    found = []
    for pod in last.pods:
        spec = None if watched is None else watched.get(pod.uid)
        has_ended = pod.outcome is not None and pod.outcome.ended
        if has_ended or (watched is not None and (spec is None or spec.phase in ENDED)):
            continue
        claims = None if spec is None or spec.malformed else spec.claims
        if claims != ():
            found.append(documents.AttachedVolumes.from_value(pod, claims=claims))
    return tuple(found)


async def query_logind() -> tuple[LogindFacts | None, str]:
    """Return logind's state, or ``None`` and the reason for a failed reading."""
    from nodeagent.host.dbus import read_logind  # noqa: PLC0415 - the bus client is imported only by this command

    try:
        return await read_logind(deadline_s=_READ_WITHIN_S), ""
    except InhibitorError as error:
        return None, f"cannot read logind: {error}"


def off_because(settings: Settings) -> str:
    """Return the reason that graceful shutdown is disabled on this node; empty if it is enabled."""
    role, paused = read_role(settings.role), PauseFile(settings.state_directory).in_force(read_clocks(SystemClock()))
    return settings.shutdown_off_because(role.role, role.reason, paused)


def lock_held(facts: LogindFacts | None, problem: str) -> tuple[bool, str]:
    """Return whether logind lists a shutdown delay lock of the agent, and the evidence as text."""
    if facts is None:
        return False, problem
    own_entries = [
        each
        for each in facts.inhibitors
        if each.who == _WHO and each.mode == "delay" and "shutdown" in each.what.split(":")
    ]
    if own_entries:
        return True, f"listed by logind (pid {own_entries[-1].pid})"
    return False, "not listed by logind; is the daemon running?"


def delay_limit(facts: LogindFacts | None, delay: LogindDelay) -> DelayLimit:
    """Return the delay limit reported by logind; without an answer, the limit in logind's configuration files."""
    return DelayLimit.of_logind(None if facts is None else facts.limit_us, delay.delay_us, delay.set_by)


async def _pods(agent: Agent) -> tuple[ShutdownPod, ...]:
    await agent.evaluate_role()
    reader = make_pod_reader(agent.cri, agent.settings, agent.clock, lambda: agent.role, watched=agent.watched_pods)
    try:
        return (await reader.read(with_usage=False)).shutdown
    finally:
        await reader.close()


def _limit(delay: LogindDelay, facts: LogindFacts | None) -> documents.DelayLimitDocument:
    limit_us = facts.limit_us if facts is not None else delay.delay_us
    return documents.DelayLimitDocument(
        seconds=_seconds(limit_us),
        reported_by="logind" if facts is not None else "files",
        set_by=str(delay.winner.path) if delay.winner is not None else None,
        in_files_s=_seconds(delay.delay_us),
        overridden=tuple(str(each.path) for each in delay.overridden),
    )


def _seconds(microseconds: int) -> float | None:
    return None if microseconds == USEC_INFINITY else microseconds / 1e6
