"""``nodeagent shutdown``: rehearsal of a node shutdown, state of the inhibitor lock, and the last stops."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from nodeagent.api import shutdown as documents
from nodeagent.api.codec import encode
from nodeagent.api.history import NodeStop
from nodeagent.api.shutdown import Inhibitor, Phase, ShutdownStatus
from nodeagent.api.shutdown import ShutdownPlan as ShutdownPlanDocument
from nodeagent.cli.display import Line, standard_output
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.history import stop_headline
from nodeagent.cli.session import load_settings, run_async
from nodeagent.cli.table import Heading, Table
from nodeagent.errors import InhibitorError, StoreError
from nodeagent.host.logind_config import LogindDelay, read_delay
from nodeagent.text import Cut
from nodeagent.units import USEC_INFINITY, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nodeagent.act.shutdown.executor import RunningPod
    from nodeagent.config.settings import Settings
    from nodeagent.host.login1 import LogindFacts
    from nodeagent.plan.shutdown.budget import DelayLimit
    from nodeagent.plan.shutdown.planner import ShutdownPlan

_WHO = "nodeagent"
_READ_WITHIN_S = 5.0


def rehearse(config: Path | None, overrides: Mapping[str, str | int], form: str) -> None:
    """Print the timeline of a shutdown that begins now; no pod is stopped.

    Raises:
        RuntimeUnavailableError: the runtime does not answer.
    """
    from nodeagent.plan.shutdown.budget import UNLIMITED, shutdown_budget  # noqa: PLC0415 - not for every command
    from nodeagent.plan.shutdown.planner import plan_shutdown  # noqa: PLC0415

    settings = load_settings(config, overrides)
    facts, problem = query_logind()
    delay = read_delay()
    budget = shutdown_budget(settings.shutdown.phases, delay_limit(facts, delay))
    delegated = budget.delegated_because
    # only systemd has the time limit of the stop hook during a shutdown; the configured phases are shown
    shown_budget = shutdown_budget(settings.shutdown.phases, UNLIMITED) if delegated else budget
    plan = plan_shutdown(shown_budget, [each.pod for each in run_async(_pods(settings))])
    warnings = [*((delegated,) if delegated else budget.notes), *delay.warnings]
    if problem:
        warnings.append(f"{problem}; the limit is read from logind's files")
    off = off_because(settings)
    if form != "table":
        document = ShutdownPlanDocument(
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
            phases=tuple(map(Phase.of, plan.phases)),
        )
        sys.stdout.write(encode(document, form))
        return
    _print_plan(plan, off, _limit_text(delay, facts), warnings, at_signal=budget.suffices_at_signal)


def status(config: Path | None, form: str, *, limit: int) -> None:
    """Print the state of the inhibitor lock and the last stops of the node; exit code 1 without an effective lock.

    Raises:
        StoreError: the history cannot be read.
    """
    from nodeagent.plan.shutdown.budget import shutdown_budget  # noqa: PLC0415 - not for every command
    from nodeagent.store.history import History  # noqa: PLC0415
    from nodeagent.store.shutdown import ShutdownFiles  # noqa: PLC0415

    settings = load_settings(config, {})
    facts, problem = query_logind()
    delay = read_delay()
    off = off_because(settings)
    delegated = "" if off else shutdown_budget(settings.shutdown.phases, delay_limit(facts, delay)).delegated_because
    warnings = [*((delegated,) if delegated else ()), *delay.warnings]
    held, because = lock_held(facts, problem)
    stops = list(History(settings.state_directory).read_stops(limit=limit))
    try:
        last = ShutdownFiles(settings.state_directory).read_stop()
    except StoreError as error:
        last, because = None, f"{because}; {error}"
    if last is not None and last.id not in {each.id for each in stops}:
        stops.insert(0, last)
    preparing = facts.preparing if facts is not None else None
    document = ShutdownStatus(
        enabled=not off,
        off_because=off,
        inhibitor=Inhibitor(held=held, because=because, preparing=preparing),
        limit=_limit(delay, facts),
        stops_at_signal=not off and not delegated,
        warnings=tuple(warnings),
        stops=tuple(map(NodeStop.of, stops)),
    )
    if form != "table":
        sys.stdout.write(encode(document, form))
    else:
        _print_status(document, _limit_text(delay, facts))
    sys.exit(ExitCode.DONE if off or (held and not delegated) else ExitCode.FAILED)


def run_stop_hook(config: Path | None, unit: str) -> None:
    """Stop the pods if the whole node is shutting down; the stop hook of the unit.

    Raises:
        NodeAgentError: no runtime is configured and none is found.
    """
    from nodeagent.daemon.shutdown.stop_hook import stop_pods_at_unit_stop  # noqa: PLC0415
    from nodeagent.daemon.unix_signals import ignore_hangup  # noqa: PLC0415
    from nodeagent.host.systemd import read_unit_stop  # noqa: PLC0415
    from nodeagent.telemetry import logging as log  # noqa: PLC0415 - not for every command

    with ignore_hangup():  # a reload signal to all processes of the unit must not end this one
        unit_stop = read_unit_stop(unit)
        if not unit_stop.is_node_stopping:
            return
        settings = load_settings(config, {})
        logger = log.configure(settings.log_format, settings.log_level)
        run_async(stop_pods_at_unit_stop(settings, logger, unit_stop))


def query_logind() -> tuple[LogindFacts | None, str]:
    """Return logind's state, or ``None`` and the reason for a failed reading."""
    from nodeagent.host.login1 import read_logind  # noqa: PLC0415 - the bus is not for every command

    try:
        return run_async(read_logind(deadline_s=_READ_WITHIN_S)), ""
    except InhibitorError as error:
        return None, f"cannot read logind: {error}"


async def _pods(settings: Settings) -> tuple[RunningPod, ...]:
    from nodeagent.clock import SystemClock  # noqa: PLC0415 - the runtime clients are not for every command
    from nodeagent.daemon.shutdown.pod_cache import PodCache  # noqa: PLC0415
    from nodeagent.observe.node_role import read_role  # noqa: PLC0415
    from nodeagent.runtime.configured_connection import configured_connection  # noqa: PLC0415
    from nodeagent.runtime.cri import CriClient  # noqa: PLC0415

    async with await asyncio.to_thread(configured_connection, settings) as connection:
        role = await asyncio.to_thread(read_role, settings.role)
        pods = PodCache(CriClient(connection), settings, SystemClock(), lambda: role.role)
        try:
            return await pods.refresh()
        finally:
            await pods.close()


def off_because(settings: Settings) -> str:
    """Return the reason for disabled graceful shutdown on this node; empty if it is enabled."""
    from nodeagent.observe.node_role import read_role  # noqa: PLC0415 - not for every command

    role = read_role(settings.role)
    return settings.shutdown.off_because(role.role, role.reason)


def lock_held(facts: LogindFacts | None, problem: str) -> tuple[bool, str]:
    """Return whether logind lists a lock of the agent, with the evidence."""
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
    """Return the limit reported by logind; without an answer that of its files."""
    from nodeagent.plan.shutdown.budget import DelayLimit  # noqa: PLC0415 - not for every command

    return DelayLimit.of_logind(None if facts is None else facts.limit_us, delay.delay_us, delay.set_by)


def _limit(delay: LogindDelay, facts: LogindFacts | None) -> documents.DelayLimit:
    limit_us = facts.limit_us if facts is not None else delay.delay_us
    return documents.DelayLimit(
        seconds=_seconds(limit_us),
        reported_by="logind" if facts is not None else "files",
        set_by=str(delay.winner.path) if delay.winner is not None else None,
        in_files_s=_seconds(delay.delay_us),
        overridden=tuple(str(each.path) for each in delay.overridden),
    )


def _seconds(microseconds: int) -> float | None:
    return None if microseconds == USEC_INFINITY else microseconds / 1e6


def _limit_text(delay: LogindDelay, facts: LogindFacts | None) -> str:
    seconds = _seconds(facts.limit_us if facts is not None else delay.delay_us)
    text = f"{'no limit' if seconds is None else format_duration(seconds)}, set by {delay.set_by}"
    if facts is not None and facts.limit_us != delay.delay_us:
        configured_s = _seconds(delay.delay_us)
        configured = "no limit" if configured_s is None else format_duration(configured_s)
        text += f" (configured: {configured}; reload logind to apply its files)"
    return text


def _print_plan(plan: ShutdownPlan, off: str, limit: str, warnings: Sequence[str], *, at_signal: bool) -> None:
    display = standard_output()
    lines: list[Line] = []
    if off:
        lines.append(Line(f"disabled: {off}; plan if it were enabled", "yellow"))
    requested, granted = (format_duration(each / 1000) for each in (plan.budget.requested_ms, plan.budget.granted_ms))
    share = f"{granted} granted" if at_signal else "delegated to the unit's stop hook"
    lines.append(Line(f"logind limit {limit}; phases: {requested} requested, {share}"))
    for phase in plan.phases:
        when = f"from {phase.starts_ms / 1000:g} s to {phase.budget.deadline_ms / 1000:g} s at most"
        title = f"{phase.budget.phase.name}: {len(phase.stops)} pods, {when}"
        lines.append(Line(title, "bold"))
        if not phase.stops:
            continue
        table = Table(
            _pod_heading(), Heading("PRIORITY", right=True), Heading("GRACE", right=True), _text_heading("REASON")
        )
        for each in phase.stops:
            table.add(
                f"{each.pod.namespace}/{each.pod.name}",
                "" if each.pod.priority is None else str(each.pod.priority),
                f"{each.grace_ms / 1000:g} s{' (capped)' if each.capped else ''}",
                each.placement.why,
            )
        lines += table.lines(display.columns)
    lines.append(Line(f"all pods stopped after {plan.ends_ms / 1000:g} s at most", "bold"))
    display.write([*lines, *_warning_lines(warnings)])


def _print_status(status: ShutdownStatus, limit: str) -> None:
    display = standard_output()
    lines: list[Line] = []
    if status.off_because:
        lines.append(Line(f"disabled: {status.off_because}", "yellow"))
    inhibitor = status.inhibitor
    lines.append(Line(f"inhibitor lock: {'held' if inhibitor.held else 'not held'}: {inhibitor.because}"))
    lines.append(Line(f"delay limit: {limit}"))
    lines += _warning_lines(status.warnings)
    if not status.stops:
        lines.append(Line("no node stops recorded"))
    for stop in status.stops:
        lines.append(Line(stop_headline(stop), "bold" if stop.end == "complete" else "bold red"))
        table = Table(_pod_heading(), "PHASE", "OUTCOME", Heading("TOOK", right=True), _text_heading("DETAIL"))
        for pod in stop.pods:
            table.add(
                f"{pod.namespace}/{pod.name}",
                pod.phase,
                pod.outcome or "was running",
                "" if pod.took_s is None else f"{pod.took_s:g} s",
                pod.detail,
            )
        if stop.pods:
            lines += table.lines(display.columns)
    display.write(lines)


def _pod_heading() -> Heading:
    return Heading("POD", cut=Cut.MIDDLE, name=True, at_least=16)


def _text_heading(title: str) -> Heading:
    return Heading(title, cut=Cut.END, at_least=16)


def _warning_lines(warnings: Sequence[str]) -> list[Line]:
    return [Line(f"warning: {warning}", "yellow") for warning in warnings]
