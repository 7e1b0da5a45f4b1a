"""Outstanding effects: recorded before an eviction, measured in every pass, logged when they end, and their file.

The state is part of the daemon context, so that it outlives a reload. The file preserves it over a restart, which must
not evict a second pod. It is valid for one boot: its times are of the monotonic clock, and a reboot ends all pods.
Containers of evicted pods are removed in the background, since the runtime may take minutes and the signals must be
read meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from nodeagent.errors import NodeAgentError, StoreError
from nodeagent.eviction.plan.effects import (
    FREED_WITHIN_S,
    UNVERIFIED_VICTIM_S,
    VICTIM_KEPT_S,
    EffectEnd,
    EndedEffect,
    OutstandingEffect,
    Victim,
    confirm,
    pod_fields,
    restarted,
    update_effects,
)
from nodeagent.eviction.plan.reclaim import DISKS, Shortage
from nodeagent.eviction.plan.state import begin_eviction, drop_eviction, update_victim
from nodeagent.guarded_call import call_kernel
from nodeagent.host.node import boot_id
from nodeagent.record import Record, replace
from nodeagent.schemas import SchemaId
from nodeagent.store.json_file import JsonFile

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.eviction.container_removal import CleanupResult, ContainerCleaner
    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.eviction.signals import SignalReadings
    from nodeagent.model.pods import PodHandle
    from nodeagent.model.pressure import Moment


T = TypeVar("T", OutstandingEffect, Victim)


class EvictionStateWriter:
    """Writes the outstanding effects and victims of the daemon context, one write at a time."""

    def __init__(self, context: DaemonContext, file: EvictionFile | None, logger: FilteringBoundLogger) -> None:
        """Create a writer; ``None`` for ``file`` disables writing."""
        self._context = context
        self._file = file
        self._logger = logger
        self._writing: asyncio.Future[None] | None = None
        self._unwritten = False
        self._problem = ""

    async def write(self, within_s: float) -> None:
        """Start a write of the latest state, and wait up to ``within_s`` seconds for its end."""
        if self._file is None:
            return
        self._unwritten = True
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_latest(self._file))
        if within_s:
            await asyncio.wait({self._writing}, timeout=within_s)

    async def _write_latest(self, file: EvictionFile) -> None:
        # The state may change during a write; one more write covers all changes since.
        while self._unwritten:
            self._unwritten = False
            state = self._context.eviction
            try:
                await asyncio.to_thread(file.write, boot_id(), state.outstanding, state.victims)
            except StoreError as error:
                if self._problem != str(error):
                    warning = f"{error}; unfinished evictions are lost in a restart"
                    self._logger.warning("eviction_warning", warning=warning)
                self._problem = str(error)
            else:
                self._problem = ""


_RECORD_WITHIN_S: Final = 0.2
_CLOSE_WITHIN_S: Final = 2.0
_RETRY_S: Final = 2.0
_LAST_RETRY_S: Final = 10.0
_URGENT_DELAY_S: Final = 3.0
_FREED_WITH_PROCESSES: Final = (Shortage.MEMORY, Shortage.MEMORY_STALL, Shortage.PIDS)


class _Retry(Record):
    """Retry of the removal of a victim's containers.

    Attributes:
        at_s: monotonic time of the next attempt, in seconds.
        wait_s: delay after that attempt, in seconds.
        detail: text of the last failure; empty without one.
    """

    at_s: float = 0.0
    wait_s: float = _RETRY_S
    detail: str = ""


@dataclass(eq=False)
class OutstandingEffects:
    """Outstanding effects of one agent; used by the eviction loop only.

    Attributes:
        context: daemon context with the eviction state.
        cleaner: removes the containers of victims.
        find_layers: returns the known directories of writable layers by container id; blocking.
        file: file that preserves the state over a restart; ``None`` disables it.
        logger: logger of the eviction loop.
    """

    context: DaemonContext
    cleaner: ContainerCleaner
    _: KW_ONLY
    find_layers: Callable[[Collection[str]], Mapping[str, str]]
    file: EvictionFile | None
    logger: FilteringBoundLogger
    _cleanups: dict[str, asyncio.Future[CleanupResult]] = field(default_factory=dict, init=False)
    _retries: dict[str, _Retry] = field(default_factory=dict, init=False)
    _restored: frozenset[str] = field(default_factory=frozenset, init=False)

    def __post_init__(self) -> None:
        self._writer = EvictionStateWriter(self.context, self.file, self.logger)

    async def restore(self) -> None:
        """Restore the outstanding effects recorded by an earlier process, once per process."""
        if self.context.evictions_restored or self.file is None:
            return
        self.context.evictions_restored = True
        now_s = self.context.clock.monotonic_s()
        try:
            effects, victims = await asyncio.to_thread(self.file.read, boot_id())
        except StoreError as error:
            self.logger.warning("eviction_warning", warning=str(error))
            effects, victims = tuple(_unknown_effects(now_s)), ()
        victims = tuple(each for each in victims if _is_tracked(each, now_s))
        self._restored = frozenset(each.uid for each in victims)
        effects = tuple(
            each
            if each.ineffective
            else replace(each, until_s=min(now_s + FREED_WITHIN_S, max(each.until_s, now_s)))
            if each.confirmed
            else replace(each, until_s=now_s + FREED_WITHIN_S)
            for each in effects
            if each.ineffective or (each.uid in {"", *self._restored} and each.shortage in DISKS)
        )
        self.context.eviction = replace(self.context.eviction, outstanding=effects, victims=victims)
        for each in victims:
            if not each.cleared:
                self.logger.warning("eviction_resumed", **pod_fields(each))

    async def begin(
        self, eviction: Eviction, handle: PodHandle, effects: Iterable[OutstandingEffect], *, with_logs: bool = False
    ) -> None:
        """Record an eviction before it starts; with ``with_logs`` the pod's logs are removed with its containers."""
        pod = eviction.pod
        layers = await call_kernel(self.find_layers, handle.container_ids)
        victim = Victim(
            pod.uid,
            pod.namespace,
            pod.name,
            handle.sandbox_ids,
            tuple(sorted(layers.values())),
            self.context.clock.monotonic_s(),
            sandbox_files=handle.sandbox_files,
            log_directory=f"{pod.namespace}_{pod.name}_{pod.uid}" if with_logs else "",
        )
        self.context.eviction = begin_eviction(self.context.eviction, victim, effects)
        self._restored -= {pod.uid}
        await self._writer.write(0 if eviction.is_urgent else _RECORD_WITHIN_S)

    async def drop(self, uid: str) -> None:
        """Discard an eviction that was not carried out."""
        self.context.eviction = drop_eviction(self.context.eviction, uid)
        await self._writer.write(0)

    async def unverified(self, uid: str, now: Moment) -> None:
        """Record a failed eviction whose processes may still end."""
        state = self.context.eviction
        victims = tuple(replace(each, at_s=now.monotonic_s) if each.uid == uid else each for each in state.victims)
        self.context.eviction = replace(state, outstanding=restarted(state.outstanding, uid, now), victims=victims)
        await self._writer.write(0)

    async def stopped(self, uid: str, now: Moment, *, is_urgent: bool = False) -> None:
        """Record that the processes of a pod ended, and start the removal of its containers.

        After an urgent eviction the removal starts three seconds later, by :meth:`update`: the runtime may not know yet
        that the processes ended, and another eviction may need its time.
        """
        state = self.context.eviction
        effects = confirm(restarted(state.outstanding, uid, now), uid, _FREED_WITH_PROCESSES, now)
        self.context.eviction = replace(state, outstanding=effects)
        for victim in state.victims:
            if victim.uid == uid:
                self.context.eviction = update_victim(self.context.eviction, replace(victim, verified=True))
                if is_urgent:
                    self._retries[uid] = _Retry(now.monotonic_s + _URGENT_DELAY_S)
                else:
                    self._begin_cleanup(replace(victim, verified=True))
        await self._writer.write(0)

    async def add(self, effect: OutstandingEffect) -> None:
        """Record the effect of a reclaim step."""
        state = self.context.eviction
        self.context.eviction = replace(state, outstanding=(*state.outstanding, effect))
        await self._writer.write(0)

    async def update(self, readings: SignalReadings, *, may_act: bool) -> None:
        """Update all effects from current readings; with ``may_act`` retry failed removals of containers."""
        before = self.context.eviction
        for uid in [each for each, work in self._cleanups.items() if work.done()]:
            self._end_cleanup(uid, self._cleanups.pop(uid), readings.at)
        state = self.context.eviction
        verified = {each.uid for each in state.victims if each.verified}
        remaining, ended = update_effects(state.outstanding, readings.observations, readings.at, verified=verified)
        now_s = readings.at.monotonic_s
        victims = tuple(each for each in state.victims if _is_tracked(each, now_s))
        self.context.eviction = replace(state, outstanding=remaining, victims=victims)
        for each in ended:
            self._log_end(each)
        self._retries = {uid: each for uid, each in self._retries.items() if uid in {one.uid for one in victims}}
        if may_act:
            for victim in victims:
                if not victim.cleared and victim.uid not in self._cleanups and now_s >= self._retry_of(victim.uid).at_s:
                    self._begin_cleanup(victim)
        if self.context.eviction != before:
            await self._writer.write(0)

    def is_outstanding(self, shortage: Shortage | None, path: str = "") -> bool:
        """Return whether an outstanding effect withholds all actions for a shortage.

        ``path`` is the path of an additional filesystem; empty for any other filesystem.
        """
        effects = self.context.eviction.outstanding
        return any(each.relieves(shortage, path) and not each.ineffective for each in effects)

    def end_cleared(self, shortage: Shortage | None) -> None:
        """End the outstanding effects of a cleared memory or PID threshold: both are freed with the processes."""
        if shortage in {Shortage.MEMORY, Shortage.PIDS}:
            state = self.context.eviction
            remaining = tuple(each for each in state.outstanding if each.shortage is not shortage)
            self.context.eviction = replace(state, outstanding=remaining)

    async def close(self) -> None:
        """Cancel removals in progress and write the state, which remains recorded."""
        for work in self._cleanups.values():
            work.cancel()
        self._cleanups.clear()
        await self._writer.write(_CLOSE_WITHIN_S)

    # ---- removal of containers

    def _begin_cleanup(self, victim: Victim) -> None:
        earlier = self._cleanups.pop(victim.uid, None)
        if earlier is not None:
            earlier.cancel()
        self._cleanups[victim.uid] = asyncio.ensure_future(self.cleaner.clean_up(victim))

    def _end_cleanup(self, uid: str, work: asyncio.Future[CleanupResult], now: Moment) -> None:
        victim = next((each for each in self.context.eviction.victims if each.uid == uid), None)
        error = None if work.cancelled() else work.exception()
        if victim is None or work.cancelled():
            return
        detail = ""
        if error is not None:
            if not isinstance(error, NodeAgentError):
                raise error
            detail = str(error)
        else:
            cleanup = work.result()
            if cleanup.running and uid in self._restored:  # the previous agent was killed before it stopped the pod
                self.context.eviction = drop_eviction(self.context.eviction, uid)
                return
            detail = "" if cleanup.running else cleanup.detail  # the eviction reports a pod that did not stop
            if cleanup.confirmed:
                state = update_victim(self.context.eviction, replace(victim, verified=True, cleared=True))
                effects = confirm(state.outstanding, uid, Shortage, now)
                self.context.eviction = replace(state, outstanding=effects)
        before = self._retry_of(uid)
        wait_s = min(_LAST_RETRY_S, 2 * before.wait_s)
        self._retries[uid] = _Retry(now.monotonic_s + before.wait_s, wait_s, detail)
        if detail and before.detail != detail:
            self.logger.warning("eviction_cleanup_failed", **pod_fields(victim), detail=detail)

    def _retry_of(self, uid: str) -> _Retry:
        return self._retries.get(uid, _Retry())

    def _log_end(self, ended: EndedEffect) -> None:
        effect = ended.effect
        if effect.shortage not in DISKS and not ended.ineffective:
            return
        fields = {
            **effect.details,
            "gained": ended.gained,
            "change": ended.change,
            "waited_s": round(ended.waited_s, 3),
            "end": ended.end.value,
            "pod_uid": effect.uid,
        }
        if ended.ineffective:
            self.logger.error("eviction_ineffective", **fields)
        elif ended.end is not EffectEnd.MISSING:
            self.logger.info("effect_measured", **fields)
        else:
            self.logger.warning("effect_missing", **fields)


def _is_tracked(victim: Victim, now_s: float) -> bool:
    """Return whether a victim is still tracked; an unverified victim is tracked for ``UNVERIFIED_VICTIM_S`` only."""
    age_s = now_s - victim.at_s
    return 0 <= age_s < (VICTIM_KEPT_S if victim.verified else UNVERIFIED_VICTIM_S)


def _unknown_effects(now_s: float) -> Iterable[OutstandingEffect]:
    """Return effects that pause evictions for disk pressure after an unreadable record."""
    for shortage, signal in DISKS.items():
        until_s = now_s + FREED_WITHIN_S
        yield OutstandingEffect(
            "an eviction before the restart", shortage, signal, None, None, now_s, until_s, ineffective=True
        )


FILE_NAME: Final = "evictions.json"


class _Evictions(Record):
    boot_id: str
    effects: tuple[OutstandingEffect, ...]
    victims: tuple[Victim, ...]


class EvictionFile:
    """File of the outstanding evictions of this node. Its methods block."""

    def __init__(self, directory: Path) -> None:
        """Use a file in ``directory``, which is created by the first write."""
        hint = "outstanding evictions unknown"
        self._file = JsonFile(directory / FILE_NAME, SchemaId.EVICTIONS_FILE, _Evictions, hint=hint)

    def read(self, boot_id: str) -> tuple[tuple[OutstandingEffect, ...], tuple[Victim, ...]]:
        """Return the expected effects and the victims of the evictions in a boot; empty if none are stored for it.

        Raises:
            StoreError: the file cannot be read or is not valid.
        """
        found = self._file.read()
        return ((), ()) if found is None or not boot_id or found.boot_id != boot_id else (found.effects, found.victims)

    def write(self, boot_id: str, effects: Iterable[OutstandingEffect], victims: Iterable[Victim]) -> None:
        """Store the effects and victims of a boot, replacing the file.

        Raises:
            StoreError: the file cannot be written; its content is unchanged.
        """
        self._file.write(_Evictions(boot_id, tuple(effects), tuple(victims)))
