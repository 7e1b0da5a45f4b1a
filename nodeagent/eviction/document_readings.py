"""Preview of an eviction, now or with simulated signals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.errors import StoreError, UsageError
from nodeagent.eviction.documents import EvictionPreview
from nodeagent.eviction.effects import EvictionFile
from nodeagent.eviction.plan.api_eviction import LEAST_GRACE_S
from nodeagent.eviction.plan.effects import SAMPLE_EVERY_S, UsageSample
from nodeagent.eviction.plan.planner import plan_eviction
from nodeagent.eviction.plan.preview import plans_around_reclaim
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.plan.thresholds import MEANINGS, Amount, parse_thresholds
from nodeagent.eviction.signals import EvictionSignalReader
from nodeagent.host.node import boot_id
from nodeagent.model.decision import ReasonCode
from nodeagent.model.node import Role
from nodeagent.model.pressure import Measurand, Signal, SignalReading
from nodeagent.record import replace

if TYPE_CHECKING:
    from nodeagent.gc.agent import Agent
    from nodeagent.settings.settings import Settings

_LONG_AGO_S = 10.0 * 365 * 86_400


def parse_simulated(texts: Sequence[str]) -> dict[Measurand, Amount]:
    """Return the simulated amount of each signal.

    Raises:
        UsageError: a text is not ``SIGNAL=AMOUNT`` or ``SIGNAL@PATH=AMOUNT``.
    """
    found = {}
    for text in texts:
        subject, equals, value = text.rpartition("=")
        name, _, path = subject.partition("@")
        signal = next((each for each in Signal if each.value == name.strip()), None)
        if signal is None or not equals:
            known = ", ".join(Signal)
            raise UsageError(
                f"--simulate {text!r}: expected SIGNAL=AMOUNT, such as memory.available=50Mi; signals: {known}"
            )
        try:
            (threshold, *_) = parse_thresholds(
                hard=f"{signal}{MEANINGS[signal].operator}{value.strip()}", allocatable=False
            ) or (None,)
        except ValueError as error:
            raise UsageError(f"--simulate {text!r}: {error}") from error
        if threshold is None:
            raise UsageError(f"--simulate {text!r}: 0% and 100% disable a threshold; write an amount")
        found[Measurand(signal, path.strip())] = threshold.amount
    return found


async def preview_eviction(
    agent: Agent, simulate: Sequence[str], daemon: EvictionState | None = None
) -> EvictionPreview:
    """Return the preview of the next eviction: the pod to evict, the eviction order and the reasons.

    If the growth of the pods decides and the state has no samples, the node is read twice.

    Args:
        agent: agent of the node.
        daemon: state of the eviction loop: grace periods, recent evictions, outstanding effects, samples; ``None``
            without a daemon, whose outstanding effects are then read from its file.
        simulate: simulated readings, each ``SIGNAL=AMOUNT``; ``SIGNAL@PATH=AMOUNT`` for another image filesystem.

    Raises:
        UsageError: a simulated amount is not valid, or its signal has no reading on this node.
        RuntimeUnavailableError: the runtime does not answer.
    """
    amounts, settings = parse_simulated(simulate), agent.settings
    eviction = settings.eviction
    reader = EvictionSignalReader(eviction, agent.clock, pod_log_root=settings.pod_log_root)
    layout = await reader.read_layout(agent.cri, settings.imagefs_path, agent.observer.images.find_filesystems)
    # Simulated amounts count as met for ten years, so that the grace period of every soft threshold has expired.
    first_met_s = {each: -_LONG_AGO_S for each in layout.thresholds if each.measurand in amounts}
    before, unread = (daemon, ()) if daemon is not None else await asyncio.to_thread(_stored_state, settings)
    before = replace(before, first_met_s={**before.first_met_s, **first_met_s})
    samples = before.samples
    role = await agent.evaluate_role()
    removes_volumes = role.role is Role.BESIDE_KUBELET
    policy = replace(eviction.policy, max_observation_age_s=_LONG_AGO_S)
    if role.role is Role.BESIDE_KUBELET:
        policy = replace(policy, hard_grace_s=max(policy.hard_grace_s, LEAST_GRACE_S))
    pod_reader = agent.make_pod_reader()
    try:
        while True:
            pods = await pod_reader.read(with_disk=True)
            measured = await reader.read(layout)
            readings = replace(measured, observations=_simulated(measured.observations, amounts))
            state = replace(before, samples=samples)
            evaluation = reader.evaluate_readings(layout, readings, state).evaluation
            found = readings.observations
            plan = partial(plan_eviction, evaluation, pods.facts, policy, layout=layout.layout, now=evaluation.at)
            first, then = plans_around_reclaim(
                partial(plan, observations=found, others=layout.others, removes_volumes=removes_volumes)
            )
            if samples or not then.is_hindered_by(ReasonCode.GROWTH_UNKNOWN):
                break
            samples = (UsageSample.of(pods.facts, found, readings.at, with_disk=True),)
            await asyncio.sleep(2 * SAMPLE_EVERY_S)
    finally:
        await pod_reader.close()
    warnings = (*layout.warnings, *readings.unread, *pods.warnings, *unread)
    off = eviction.off_because(role.role, role.reason)
    return EvictionPreview.of(
        evaluation, first, then, pods.facts, simulated=simulate, disabled_because=off, warnings=warnings
    )


def _stored_state(settings: Settings) -> tuple[EvictionState, tuple[str, ...]]:
    """Return a state with the effects that a daemon still awaits, and a warning if their file is unreadable."""
    try:
        return EvictionState(outstanding=EvictionFile(settings.state_directory).read(boot_id())[0]), ()
    except StoreError as error:
        return EvictionState(), (str(error),)


def _simulated(
    observations: tuple[SignalReading, ...], amounts: Mapping[Measurand, Amount]
) -> tuple[SignalReading, ...]:
    """Return the observations, with simulated amounts in place of the readings.

    Raises:
        UsageError: this node has no reading of a simulated signal.
    """
    read = {each.measurand for each in observations}
    for measurand in amounts:
        if measurand not in read:
            on = f"@{measurand.path}" if measurand.path else ""
            raise UsageError(f"--simulate {measurand.signal}{on}: this node has no reading of the signal")
    return tuple(
        replace(each, available=amounts[each.measurand].of(each.capacity), memory=None)
        if each.measurand in amounts
        else each
        for each in observations
    )
