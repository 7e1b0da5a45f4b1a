"""How the node and the agent are, for whoever asks: the running daemon, or a command that looks by itself."""

from __future__ import annotations

import asyncio
import math
import os
from typing import TYPE_CHECKING, Any, Final

from nodeagent import __version__
from nodeagent.api import documents as document
from nodeagent.api.eviction_document import describe_facts
from nodeagent.daemon.health import not_ready
from nodeagent.errors import NodeAgentError, ObservationError, StoreError
from nodeagent.host.filesystems import read_filesystem
from nodeagent.host.node import boot_id
from nodeagent.model.pressure import FilesystemLayout, Signal
from nodeagent.observe.eviction_signals import EvictionSignalReader
from nodeagent.observe.pods import make_pod_reader
from nodeagent.plan.eviction.protection import Protection
from nodeagent.plan.eviction.ranking import rank_pods
from nodeagent.plan.eviction.state import EvictionState
from nodeagent.store import ClockReading, HoldFile

if TYPE_CHECKING:
    from nodeagent.act.agent import Agent
    from nodeagent.api.documents import Json
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.loop_status import LoopStatus
    from nodeagent.model import RoleDecision
    from nodeagent.model.pods import PodInventory
    from nodeagent.observe.eviction_signals import SignalLayout, SignalReadings
    from nodeagent.observe.pods import PodReader
    from nodeagent.plan.eviction.ranking import RankedPod
    from nodeagent.plan.eviction.state import Evaluation

_RUNTIME_WITHIN_S: Final = 2.0
_READ_WITHIN_S: Final = 2.0
_HISTORY: Final = 8


class StatusReader:
    """Reads the node for one agent, look after look.

    What hangs, as a dead mount does, takes one thread for ever and not one for each look: there are few for all of
    the agent.

    Attributes:
        earlier: the look before, from which trends are told.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._reader = EvictionSignalReader(agent.settings.eviction, agent.clock)
        self._ground: SignalLayout | None = None
        self._one_at_a_time = asyncio.Lock()
        self._filesystems: asyncio.Future[list[Json]] | None = None
        self._pods: PodReader | None = None
        self.earlier: SignalReadings | None = None

    async def look(self, state: EvictionState) -> tuple[SignalLayout, SignalReadings, Evaluation, tuple[str, ...]]:
        """Return where thresholds stand, the signals, how they compare, and warnings.

        Without a runtime the image filesystem is left out.
        """
        async with self._one_at_a_time:
            ground, problem = await self._read_layout()
            found = await self._reader.evaluate(ground, state)
        warnings = (*((problem,) if problem else ()), *found.warnings)
        return ground, found.readings, found.evaluation, warnings

    async def pods(self) -> PodInventory:
        """Return the pods and what they keep on disk; one look at a time.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
        """
        agent = self._agent
        self._pods = self._pods or make_pod_reader(agent.cri, agent.settings, agent.clock, lambda: agent.role)
        return await self._pods.read(with_disk=True)

    async def filesystems(self, ground: SignalLayout) -> list[Json]:
        """Return how full each filesystem is, or why that is not known."""
        places = _places(self._agent, ground)
        if self._filesystems is None or self._filesystems.done():
            self._filesystems = asyncio.ensure_future(asyncio.to_thread(_read_places, self._agent, places))
        reading = self._filesystems
        done, _ = await asyncio.wait({reading}, timeout=_READ_WITHIN_S)
        if done:
            return await reading
        late = f"not read: a filesystem does not answer within {_READ_WITHIN_S:g} s"
        return [{**each, "problem": late} for each in places]

    async def _read_layout(self) -> tuple[SignalLayout, str]:
        """Return the layout, and a warning as long as the runtime did not report it."""
        if self._ground is not None:
            return self._ground, ""
        layout, problem = await self._reader.read_layout_or_nodefs(self._agent.cri, self._agent.settings.imagefs_path)
        self._ground = None if problem else layout
        return layout, problem


async def pressure_document(look: StatusReader, state: EvictionState | None = None) -> dict[str, Json]:
    """Return the signals against their thresholds; the trend is against the look before."""
    ground, seen, found, warnings = await look.look(state or EvictionState())
    shown = document.pressure(ground, seen, found, warnings, look.earlier)
    look.earlier = seen
    return shown


async def pods_document(agent: Agent, look: StatusReader, state: EvictionState | None = None) -> dict[str, Json]:
    """Return the pods with what they use, in the order in which they would go for want of memory.

    Schema ``nodeagent/pods/v1``. What is not known is ``null``.

    Raises:
        RuntimeUnavailableError: the runtime does not answer.
    """
    ground, _, _, _ = await look.look(state or EvictionState())
    await agent.evaluate_role()  # what may be assumed of pods follows from it
    seen = await look.pods()
    protection = Protection(seen.facts, agent.settings.eviction.policy)
    ranked = rank_pods(seen.facts, Signal.MEMORY_AVAILABLE, ground.layout)
    return {
        "schema": "nodeagent/pods/v1",
        "observed_at": document.time_text(seen.observed_at.at),
        "pods": [_pod(each, protection) for each in ranked],
        "warnings": list(seen.warnings),
    }


def _pod(each: RankedPod, protection: Protection) -> dict[str, Json]:
    pod, usage = each.pod, each.pod.usage
    kept = protection.why_kept(pod)
    facts: dict[str, Any] = describe_facts(pod)
    return {
        "rank": each.rank,
        "uid": pod.uid,
        "namespace": pod.namespace,
        "name": pod.name,
        "memory_bytes": usage.memory_bytes if usage else None,
        "memory_request_bytes": pod.memory_request_bytes.value,
        "pids": usage.pids if usage else None,
        "writable_bytes": usage.writable.used_bytes if usage else None,
        "logs_bytes": usage.logs.used_bytes if usage else None,
        "volumes_bytes": usage.volumes.used_bytes if usage else None,
        "kept_because": document.reason(kept) if kept is not None else None,
        "facts": facts,
    }


async def status_document(agent: Agent, look: StatusReader, context: DaemonContext | None) -> dict[str, Json]:
    """Return how the node is, and the daemon if ``context`` is its: schema ``nodeagent/status/v1``."""
    ground, seen, found, warnings = await look.look(context.eviction if context is not None else EvictionState())
    runtime = await _runtime(agent)
    role = await agent.evaluate_role()
    told = [*role_warnings(agent.settings, role), *warnings, *_memory_problems(agent)]
    holds: Json = []
    now = agent.clock.now()
    try:
        kept = await asyncio.to_thread(HoldFile(agent.settings.state_directory).read)
        holds = [document.hold(each, now) for each in kept if each.until > now]
    except StoreError as error:
        told.append(str(error))
    signals = document.pressure(ground, seen, found, (), look.earlier)["signals"]
    return {
        "schema": "nodeagent/status/v1",
        "observed_at": document.time_text(now),
        "agent": _agent(agent, context),
        "paused": _pause(context),
        "waiting": _grace(context),
        "runtime": runtime,
        "filesystems": await look.filesystems(ground),
        "conditions": [each.condition.value for each in found.conditions if each.active],
        "signals": signals,
        "image_use": _image_use(agent),
        "loops": [] if context is None else [_loop(each, context) for each in context.loop_statuses.all],
        "last_passes": await asyncio.to_thread(_last_passes, agent, told),
        "shutdown": {
            "off_because": agent.settings.shutdown.off_because(role.role, role.reason),
            "lock_held": None if context is None else context.lock_held,
        },
        "holds": holds,
        "warnings": list(dict.fromkeys(told)),
    }


def role_warnings(settings: Settings, role: RoleDecision) -> list[str]:
    """Return contradictions between the configuration and the role on this node."""
    found = [role.warning] if role.warning else []
    if settings.eviction.refused(role.role):
        found.append(f"eviction is disabled: {settings.eviction.off_because(role.role, role.reason)}")
    if settings.shutdown.refused(role.role):
        found.append(f"graceful shutdown is disabled: {settings.shutdown.off_because(role.role, role.reason)}")
    return found


def without_agent(context: DaemonContext) -> dict[str, Json]:
    """Return how the daemon is while no agent is composed: schema ``nodeagent/status/v1``, with less in it."""
    endpoint = context.settings.endpoint or None
    return {
        "schema": "nodeagent/status/v1",
        "observed_at": document.time_text(context.clock.now()),
        "agent": {
            **_daemon(context),
            "dry_run": context.dry_run,
            "role": None,
            "role_because": "",
        },
        "paused": _pause(context),
        "waiting": _grace(context),
        "runtime": {"up": False, "name": None, "version": None, "endpoint": endpoint, "problem": ""},
        "filesystems": [],
        "conditions": [each.value for each in sorted(context.eviction.reported)],
        "signals": [],
        "image_use": {"observed_since": None, "maximum_unused_age_s": None},
        "loops": [_loop(each, context) for each in context.loop_statuses.all],
        "last_passes": [],
        "shutdown": {"off_because": "", "lock_held": context.lock_held},
        "holds": [],
        "warnings": ["no agent is composed: the daemon starts, reloads, or waits for a container runtime"],
    }


def _agent(agent: Agent, context: DaemonContext | None) -> dict[str, Json]:
    about: dict[str, Json] = {
        "dry_run": agent.dry_run if context is not None else agent.settings.dry_run,
        "role": agent.role.value,
        "role_because": agent.role_because,
    }
    if context is None:
        return {"running": False, "version": __version__, **about}
    return {**_daemon(context), **about}


def _daemon(context: DaemonContext) -> dict[str, Json]:
    reasons = not_ready(context)
    return {
        "running": True,
        "version": __version__,
        "pid": os.getpid(),
        "started_at": document.time_text(context.started_at),
        "ready": not reasons,
        "not_ready_because": list(reasons),
        "config": str(context.settings.origin.path) if context.settings.origin.path is not None else None,
        "config_problem": context.config_problem,
    }


def _image_use(agent: Agent) -> Json:
    """Return since when image use has been observed, and the age by which images are removed; ``None`` for neither."""
    clock, maximum_s = agent.clock, agent.settings.policy.images.maximum_unused_age_s
    since = agent.store.observed_since(ClockReading(boot_id(), clock.monotonic_s(), clock.now()))
    return {"observed_since": document.time_text(since), "maximum_unused_age_s": maximum_s or None}


def _pause(context: DaemonContext | None) -> Json:
    pause = context.pass_lock.pause() if context is not None else None
    if context is None or pause is None:
        return None
    left_s = None if pause.until_s is None else max(0, round(pause.until_s - context.clock.monotonic_s()))
    return {"who": pause.by.value, "why": pause.reason, "seconds_left": left_s}


def _grace(context: DaemonContext | None) -> Json:
    """Return the reload grace period that passes wait for; ``None`` if they do not."""
    if context is None or not context.grace.pending:
        return None
    grace = context.grace
    return {
        "for": "reload-grace",
        "why": grace.reason,
        "period_s": grace.period_s,
        "seconds_left": math.ceil(grace.left_s()),
        "until": document.time_text(grace.until()),
    }


async def _runtime(agent: Agent) -> dict[str, Json]:
    endpoint = agent.settings.endpoint or None
    try:
        async with asyncio.timeout(_RUNTIME_WITHIN_S):
            info = await agent.cri.version()
    except (NodeAgentError, TimeoutError) as error:
        problem = str(error) or f"no answer within {_RUNTIME_WITHIN_S:g} s"
        return {"up": False, "name": None, "version": None, "endpoint": endpoint, "problem": problem}
    return {"up": True, "name": info.name, "version": info.version, "endpoint": info.endpoint, "problem": ""}


def _places(agent: Agent, ground: SignalLayout) -> list[dict[str, Json]]:
    """Return the filesystems with their names, thresholds and paths."""
    paths, images = ground.paths, agent.settings.policy.images
    single = ground.layout is FilesystemLayout.SINGLE
    shown: list[dict[str, Json]] = []
    for name, path in (("imagefs", paths.imagefs), ("nodefs", paths.nodefs), ("containerfs", paths.containerfs)):
        if path is None or (name == "nodefs" and single and paths.imagefs is not None):
            continue
        if name == "containerfs" and ground.layout is not FilesystemLayout.SPLIT:
            continue
        collected = name == "imagefs" and agent.settings.image_interval_s is not None
        shown.append(
            {
                "name": f"{name} = nodefs" if name == "imagefs" and single else name,
                "high_percent": images.high_threshold_percent if collected else None,
                "low_percent": images.low_threshold_percent if collected else None,
                "path": path,
            }
        )
    return shown


def _read_places(agent: Agent, places: list[dict[str, Json]]) -> list[Json]:
    return [{**each, **_reading(agent, str(each["path"]))} for each in places]


def _reading(agent: Agent, path: str) -> dict[str, Json]:
    try:
        shown = document.filesystem(read_filesystem(path, agent.clock))
    except ObservationError as error:
        return {"problem": str(error)}
    return shown if isinstance(shown, dict) else {}


def _loop(line: LoopStatus, context: DaemonContext) -> dict[str, Json]:
    now_s = context.clock.monotonic_s()
    return {
        "name": line.name,
        "activity": line.activity.value,
        "why": line.reason or _why_dry(context),
        "started_at": document.time_text(line.started_at),
        "ended_at": document.time_text(line.ended_at),
        "result": line.result,
        "detail": line.detail,
        "runs": line.runs,
        "failures": line.failures,
        "due_in_s": None if line.next_run_s is None else max(0, round(line.next_run_s - now_s)),
        "stuck": line.report_until_s is not None and line.report_until_s < now_s,
    }


def _why_dry(context: DaemonContext) -> str:
    """Return why a loop runs dry for now; empty if it does not wait."""
    if not context.grace.pending:
        return ""
    return f"dry run: reload grace period, {math.ceil(context.grace.left_s())}s left"


def _last_passes(agent: Agent, told: list[str]) -> list[Json]:
    """Return the newest passes that did something, a line each."""
    try:
        passes = agent.history.read(limit=_HISTORY)
    except StoreError as error:
        told.append(str(error))
        return []
    return [
        {
            "id": past.id,
            "started_at": document.time_text(past.started_at),
            "trigger": past.trigger,
            "scope": past.scope,
            "dry_run": past.dry_run,
            "end": past.result,
            "removed": sum(each.outcome in ("done", "gone") for each in past.actions),
            "planned": len(past.actions),
            "freed_bytes": past.freed_bytes,
        }
        for past in passes
    ]


def _memory_problems(agent: Agent) -> list[str]:
    return [each for each in (agent.store.health.problem, agent.history.problem) if each]
