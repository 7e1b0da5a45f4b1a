"""Status, pressure and pod usage of the node, for the control API and for commands that run without a daemon."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import structs

from nodeagent import __version__
from nodeagent.api.common import Filesystem
from nodeagent.daemon import documents
from nodeagent.daemon.health import not_ready
from nodeagent.daemon.node_filesystems import NodeFilesystemReader
from nodeagent.daemon.report_document import NodeReport
from nodeagent.errors import NodeAgentError, StoreError
from nodeagent.eviction.document_readings import preview_eviction
from nodeagent.eviction.documents import EvictionPreview, PodUsageDocument, Pressure, SignalDocument
from nodeagent.eviction.plan.planner import eviction_order, shortage_signal
from nodeagent.eviction.plan.state import Evaluation, EvictionState
from nodeagent.eviction.signals import EvictionSignalReader, LayoutCache, SignalLayout, SignalReadings
from nodeagent.gc.documents.holds import HoldFields
from nodeagent.gc.documents.readings import explain_items, preview_collection
from nodeagent.gc.hold_file import HoldFile
from nodeagent.gc.plan.image_protection import holds_in_force
from nodeagent.gc.plan.policy import Scope
from nodeagent.host.node import node_name
from nodeagent.loops import passes as loop_status
from nodeagent.model import pressure as model
from nodeagent.model.decision import ItemKind
from nodeagent.model.node import Role, RoleDecision
from nodeagent.trend.document_readings import KnownOutlook, grown_by, read_outlook
from nodeagent.trend.plan.readings import part_of_image, parts_of_pod

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.gc.agent import Agent
    from nodeagent.gc.documents.passes import ExplanationDocument
    from nodeagent.model.pods import PodInventory
    from nodeagent.pods.reader import PodReader
    from nodeagent.settings.settings import Settings

_RUNTIME_WITHIN_S: Final = 2.0
_READ_WITHIN_S: Final = 2.0
_POD_LIST_AGE_S: Final = 60.0
_HISTORY: Final = 8


class StatusReader:
    """Repeated readings of the node for one agent.

    A read that hangs, such as on a dead mount, blocks a thread forever. Readings therefore share one thread for each
    kind instead of starting one per call, because the number of threads is limited.

    Attributes:
        earlier: previous readings, with which trends are computed; ``None`` before the first readings.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._reader = EvictionSignalReader(
            agent.settings.eviction, agent.clock, pod_log_root=agent.settings.pod_log_root
        )
        find = agent.observer.images.find_filesystems
        self._layouts = LayoutCache(self._reader, agent.cri, agent.settings.imagefs_path, find)
        self._one_at_a_time = asyncio.Lock()
        self._filesystems = NodeFilesystemReader(agent)
        self._pods: PodReader | None = None
        self.earlier: SignalReadings | None = None

    async def read(self, state: EvictionState) -> tuple[SignalLayout, SignalReadings, Evaluation, tuple[str, ...]]:
        """Return the signal layout, the readings, the evaluated thresholds, and warnings.

        Without a runtime the image filesystem is omitted.
        """
        async with self._one_at_a_time:
            layout, problem = await self._layouts.read()
            found = await self._reader.evaluate(layout, state)
        warnings = (*((problem,) if problem else ()), *found.warnings)
        return layout, found.readings, found.evaluation, warnings

    async def outlook(self, context: DaemonContext | None) -> KnownOutlook:
        """Return the outlook of the daemon; without a daemon that of its record."""
        if context is not None:
            return KnownOutlook.of(context.trend, context.clock.now())
        async with self._one_at_a_time:
            layout, _ = await self._layouts.read()
        return await read_outlook(self._agent.settings, layout, self._agent.clock.now())

    async def pods(self) -> PodInventory:
        """Return the pods with their disk usage.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
        """
        agent = self._agent
        self._pods = self._pods or agent.make_pod_reader()
        return await self._pods.read(with_disk=True)

    async def filesystems(self, layout: SignalLayout) -> tuple[documents.FilesystemStatus, ...]:
        """Return the usage of each filesystem, or the cause of a missing reading."""
        settings, images = self._agent.settings, self._agent.settings.policy.images
        found = []
        for each in await self._filesystems.read(layout.paths):
            collected = model.FilesystemRole.IMAGEFS in each.roles and settings.image_interval_s is not None
            reading = {} if each.observed is None else structs.asdict(Filesystem.of(each.observed))
            values = {**reading, "path": each.path, **({"problem": each.problem} if each.problem else {})}
            found.append(
                documents.FilesystemStatus(
                    name=each.name,
                    roles=tuple(role.value for role in each.roles),
                    high_percent=images.high_threshold_percent if collected else None,
                    low_percent=images.low_threshold_percent if collected else None,
                    high_inodes_percent=images.high_threshold_inodes_percent if collected else None,
                    low_inodes_percent=images.low_threshold_inodes_percent if collected else None,
                    nearly_full=each.nearly_full,
                    **values,
                )
            )
        return tuple(found)


async def pressure_document(reader: StatusReader, context: DaemonContext) -> Pressure:
    """Return the signal readings with their thresholds; trends compare with the previous readings."""
    layout, readings, evaluation, warnings = await reader.read(context.eviction)
    known = await reader.outlook(context)
    document = Pressure.of(layout, readings, evaluation, (*warnings, *known.warnings), reader.earlier)
    reader.earlier = readings
    return structs.replace(document, outlook=known.resources)


async def explanation_document(
    agent: Agent, reader: StatusReader, context: DaemonContext | None, name: str
) -> ExplanationDocument:
    """Return the verdicts on the items that match a name, with the growth of the found pods and images.

    Raises:
        NodeAgentError: the node cannot be observed.
    """
    document = await explain_items(agent, name)
    known = await reader.outlook(context)
    warnings = (*document.warnings, *known.warnings)
    return structs.replace(document, outlook=grown_by(known.resources, _parts(document)), warnings=warnings)


def _parts(document: ExplanationDocument) -> frozenset[str]:
    """Return the names of the recorded parts of the explained pods and images."""
    found: set[str] = set()
    for each in document.explanations:
        if each.kind is ItemKind.IMAGE:
            found.update(map(part_of_image, each.names))
        elif each.kind in (ItemKind.CONTAINER, ItemKind.SANDBOX):
            found |= parts_of_pod("/".join(each.name.split("/")[:2]))
    return frozenset(found)


async def eviction_preview_document(
    agent: Agent, reader: StatusReader, context: DaemonContext | None, simulate: Sequence[str]
) -> EvictionPreview:
    """Return the preview of the next eviction, with the outlook unless readings are simulated.

    Raises:
        UsageError: a simulated amount is not valid, or its signal has no reading on this node.
        RuntimeUnavailableError: the runtime does not answer.
    """
    document = await preview_eviction(agent, simulate, None if context is None else context.eviction)
    if simulate:
        return document
    known = await reader.outlook(context)
    return structs.replace(document, outlook=known.resources, warnings=(*document.warnings, *known.warnings))


async def pods_document(agent: Agent, reader: StatusReader, state: EvictionState | None = None) -> PodUsageDocument:
    """Return the pods with their usage, in eviction order for the current shortage, else for memory pressure.

    Raises:
        RuntimeUnavailableError: the runtime does not answer.
    """
    role = await agent.evaluate_role()  # facts may be assumed only where no kubelet manages the node
    inventory = await reader.pods()
    layout, _, evaluation, _ = await reader.read(state or EvictionState())
    signal = shortage_signal(evaluation)
    order = eviction_order(
        evaluation,
        inventory.facts,
        agent.settings.eviction.policy,
        signal,
        layout=layout.layout,
        now=evaluation.at,
        others=layout.others,
        removes_volumes=role.role is Role.BESIDE_KUBELET,
    )
    return PodUsageDocument.of(
        order,
        signal=signal,
        observed_at=inventory.observed_at.at,
        warnings=inventory.warnings,
    )


async def status_document(agent: Agent, reader: StatusReader, context: DaemonContext | None) -> documents.Status:
    """Return the status of the node, and of the daemon unless ``context`` is ``None``."""
    state = context.eviction if context is not None else EvictionState()
    layout, readings, evaluation, warnings = await reader.read(state)
    runtime = await _runtime(agent)
    role = await agent.evaluate_role()
    problems = [*role_warnings(agent.settings, role), *warnings, *_health_problems(agent)]
    holds: tuple[HoldFields, ...] = ()
    at = agent.read_clocks()
    clock = agent.store.clock(at)
    now = at.wall
    try:
        stored = await asyncio.to_thread(HoldFile(agent.settings.state_directory).read)
        holds = tuple(HoldFields.of(each, now, clock) for each in holds_in_force(stored, clock, now))
    except StoreError as error:
        problems.append(str(error))
    last_passes = await asyncio.to_thread(_last_passes, agent, problems)
    outlook = await reader.outlook(context)
    problems += outlook.warnings
    return documents.Status(
        observed_at=now,
        agent=_agent(agent, context),
        paused=_pause(context),
        waiting=_grace(context),
        runtime=runtime,
        pod_lists=await _pod_lists(agent),
        filesystems=await reader.filesystems(layout),
        conditions=tuple(each.condition.value for each in evaluation.conditions if each.active),
        unrelieved=tuple(each.text for each in evaluation.state.unrelieved.values()),
        signals=tuple(SignalDocument.of(each, evaluation, reader.earlier) for each in readings.observations),
        image_use=_image_use(agent),
        clock=documents.ClockStatus.of(clock),
        loops=_loops(context),
        last_passes=last_passes,
        shutdown=documents.ShutdownSummary(
            off_because=agent.settings.shutdown_off_because(
                role.role, role.reason, "" if context is None else context.pass_lock.paused_by_operator
            ),
            lock_held=None if context is None else context.lock_held,
        ),
        holds=holds,
        outlook=outlook.resources,
        warnings=tuple(dict.fromkeys(problems)),
    )


def role_warnings(settings: Settings, role: RoleDecision) -> list[str]:
    """Return contradictions between the configuration and the role on this node."""
    found = [role.warning] if role.warning else []
    if settings.eviction.refused(role.role):
        found.append(f"eviction is disabled: {settings.eviction.off_because(role.role, role.reason)}")
    if settings.shutdown.refused(role.role):
        found.append(f"graceful shutdown is disabled: {settings.shutdown.off_because(role.role, role.reason)}")
    return found


def without_agent(context: DaemonContext) -> documents.Status:
    """Return the status of a daemon without a runtime connection; readings of the node are empty."""
    return documents.Status(
        observed_at=context.clock.now(),
        agent=_daemon(context, dry_run=context.dry_run, role=None, role_because=""),
        paused=_pause(context),
        waiting=_grace(context),
        runtime=documents.RuntimeStatusDocument(
            up=False if context.runtime_problem else None,
            name=None,
            version=None,
            endpoint=context.settings.endpoint or None,
            problem=context.runtime_problem,
        ),
        filesystems=(),
        conditions=tuple(each.value for each in sorted(context.eviction.reported)),
        signals=(),
        loops=_loops(context),
        last_passes=(),
        shutdown=documents.ShutdownSummary(off_because="", lock_held=context.lock_held),
        holds=(),
        warnings=(),
    )


def _agent(agent: Agent, context: DaemonContext | None) -> documents.AgentStatus:
    role, role_because = agent.role.value, agent.role_because
    if context is not None:
        return _daemon(context, dry_run=agent.dry_run, role=role, role_because=role_because)
    return documents.AgentStatus(
        running=False,
        version=__version__,
        dry_run=agent.settings.dry_run,
        role=role,
        role_because=role_because,
    )


def _daemon(context: DaemonContext, *, dry_run: bool, role: str | None, role_because: str) -> documents.AgentStatus:
    reasons = not_ready(context)
    path = context.settings.origin.path
    return documents.AgentStatus(
        running=True,
        version=__version__,
        pid=os.getpid(),
        started_at=context.started_at,
        ready=not reasons,
        not_ready_because=tuple(reasons),
        config=None if path is None else str(path),
        config_problem=context.config_problem,
        dry_run=dry_run,
        role=role,
        role_because=role_because,
    )


def _image_use(agent: Agent) -> documents.ImageUse:
    at, maximum_s = agent.read_clocks(), agent.settings.policy.images.maximum_unused_age_s
    return documents.ImageUse(
        observed_since=agent.store.observed_since(at),
        maximum_unused_age_s=maximum_s or None,
        gaps=tuple(documents.ObservationGapDocument.of(each) for each in reversed(agent.store.gaps(at))),
    )


def _pause(context: DaemonContext | None) -> documents.PauseStatus | None:
    pause = context.pass_lock.pause() if context is not None else None
    if context is None or pause is None:
        return None
    left_s = None if pause.until_s is None else max(0, round(pause.until_s - context.clock.monotonic_s()))
    return documents.PauseStatus(who=pause.by.value, why=pause.reason, seconds_left=left_s)


def _grace(context: DaemonContext | None) -> documents.WaitStatus | None:
    """Return the reload grace period in force; ``None`` without a pending period."""
    if context is None or not context.grace.pending:
        return None
    grace = context.grace
    return documents.WaitStatus(
        for_="reload-grace",
        why=grace.reason,
        period_s=grace.period_s,
        seconds_left=math.ceil(grace.left_s()),
        until=grace.until(),
    )


async def _runtime(agent: Agent) -> documents.RuntimeStatusDocument:
    endpoint = agent.settings.endpoint or None
    try:
        async with asyncio.timeout(_RUNTIME_WITHIN_S):
            info = await agent.cri.version()
    except (NodeAgentError, TimeoutError) as error:
        problem = str(error) or f"no answer within {_RUNTIME_WITHIN_S:g} s"
        return documents.RuntimeStatusDocument(up=False, name=None, version=None, endpoint=endpoint, problem=problem)
    return documents.RuntimeStatusDocument(
        up=True, name=info.name, version=info.version, endpoint=info.endpoint, problem=""
    )


async def _pod_lists(agent: Agent) -> tuple[documents.PodListStatus, ...]:
    """Return the states of the pod watch and of the kubelet's pod list; an old or failed list is read again."""
    watch = agent.watched_pods.reading()
    watched = () if watch is None else (documents.PodListStatus.of(watch),)
    before = agent.bound_pods.state
    if before is None:
        return watched
    try:
        async with asyncio.timeout(_READ_WITHIN_S):
            state = await agent.bound_pods.read(max_age_s=_READ_WITHIN_S if before.error else _POD_LIST_AGE_S)
    except TimeoutError:
        state = before.with_error(f"{before.address}: no answer within {_READ_WITHIN_S:g} s")
    return (*watched, documents.PodListStatus.of(state or before))


def _loops(context: DaemonContext | None) -> tuple[documents.LoopStatusDocument, ...]:
    if context is None:
        return ()
    statuses = sorted(context.loop_statuses.all, key=lambda each: each.name)  # the first reports arrive in any order
    return tuple(_loop(each, context) for each in statuses)


def _loop(line: loop_status.LoopStatus, context: DaemonContext) -> documents.LoopStatusDocument:
    now_s, pause = context.clock.monotonic_s(), context.pass_lock.pause()
    activity, why, next_s = line.activity, line.reason or _dry_run_reason(line, context), line.next_run_s
    if (
        pause is not None and line.removes and activity is loop_status.Activity.WAITING
    ):  # as its run at next_run_s would find
        activity, why, next_s = loop_status.Activity.PAUSED, pause.reason, None
    due_in_s = None if next_s is None else max(0, round(next_s - now_s))
    stuck = line.report_until_s is not None and line.report_until_s < now_s
    return documents.LoopStatusDocument.from_value(
        line, activity=activity.value, why=why, due_in_s=due_in_s, stuck=stuck
    )


def _dry_run_reason(line: loop_status.LoopStatus, context: DaemonContext) -> str:
    """Return the reason for the temporary dry run of a loop that removes; empty outside of a reload grace period."""
    if not context.grace.pending or line.next_run_s is None or not line.removes:
        return ""
    return f"dry run: reload grace period, {math.ceil(context.grace.left_s())}s left"


def _last_passes(agent: Agent, problems: list[str]) -> tuple[documents.PassSummary, ...]:
    """Return the newest passes that removed or planned items; a cause of failure is added to ``problems``."""
    try:
        return tuple(map(documents.PassSummary.of, agent.history.count(limit=_HISTORY)))
    except StoreError as error:
        problems.append(str(error))
        return ()


def _health_problems(agent: Agent) -> list[str]:
    dropped, lists = agent.history.dropped, agent.observer.list_problem
    return [
        each
        for each in (
            agent.store.problem,
            agent.history_writer.problem,
            f"{dropped} record(s) of the history could not be written and were dropped" if dropped else "",
            f"lists of the runtime contradict each other, nothing is removed: {lists}" if lists else "",
        )
        if each
    ]


async def report_document(agent: Agent, status: documents.Status) -> NodeReport:
    """Return the report of the node with its status; if the node cannot be observed, it has the cause and no plan.

    Only the enabled loops are planned, since the report predicts the removals of the daemon.
    """
    scope, preview, problem = _enabled_scope(agent.settings), None, ""
    try:
        preview = None if scope is None else await preview_collection(agent, scope)
    except NodeAgentError as error:
        problem = str(error)
    return NodeReport.of(node_name(agent.settings.kubelet.node_name), status, preview, problem)


def _enabled_scope(settings: Settings) -> Scope | None:
    """Return the scope of the enabled collection loops; ``None`` if the configuration disables both."""
    if settings.image_interval_s is None:
        return None if settings.container_interval_s is None else Scope.CONTAINERS
    return Scope.IMAGES if settings.container_interval_s is None else Scope.ALL
