"""``nodeagent shutdown``: preview of a node shutdown, state of the inhibitor lock, and past node stops."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.cli.display import Line, warning_lines
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.history import stop_headline
from nodeagent.cli.reading import ask, load_settings, read, run_async, show_document
from nodeagent.cli.table import Heading, Table
from nodeagent.shutdown.documents import DelayLimitDocument, ShutdownPlanDocument, ShutdownStatus
from nodeagent.text import Cut
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from nodeagent.cli.options import Source
    from nodeagent.gc.agent import Agent


_SYSTEMD_DEFAULT: Final = "systemd's default"


def rehearse(source: Source, form: str) -> None:
    """Print the timeline of a node shutdown that would start now; no pod is stopped.

    Raises:
        RuntimeUnavailableError: the runtime does not answer.
    """
    plan = read("ShutdownPlan", ShutdownPlanDocument, {}, source, _plan)
    show_document(plan, form, shutdown_lines)


def status(source: Source, form: str, *, limit: int) -> None:
    """Print the state of the inhibitor lock and past node stops; exit with code 1 if shutdown is not delayed.

    Raises:
        StoreError: the history cannot be read.
    """
    found = ask("ShutdownStatus", ShutdownStatus, {"limit": limit}, source) or _read_status(source.config, limit)
    show_document(found, form, status_lines)
    useful = not found.enabled or (found.inhibitor.held and found.stops_at_signal)
    sys.exit(ExitCode.DONE if useful else ExitCode.FAILED)


def run_stop_hook(config: Path | None, unit: str) -> None:
    """Run the stop hook of the unit: if the node is shutting down, stop the pods or wait until the daemon stopped them.

    If the configuration is invalid, the last valid settings are used.

    Raises:
        ConfigError: the configuration is invalid, and no last valid settings are stored.
        NodeAgentError: no runtime is configured and none is found.
    """
    from nodeagent.errors import ConfigError  # noqa: PLC0415
    from nodeagent.host.processes import started_s  # noqa: PLC0415
    from nodeagent.host.systemd import read_unit_stop  # noqa: PLC0415
    from nodeagent.loops.unix_signals import ignore_hangup  # noqa: PLC0415
    from nodeagent.settings.loading import standby_settings  # noqa: PLC0415
    from nodeagent.settings.settings import Origin  # noqa: PLC0415
    from nodeagent.shutdown.stop_hook import stop_pods_at_unit_stop  # noqa: PLC0415
    from nodeagent.telemetry import logging as log  # noqa: PLC0415 - not needed by every command

    with ignore_hangup():  # a SIGHUP to all processes of the unit must not end this process
        unit_stop = read_unit_stop(unit)
        if not (unit_stop.is_node_stopping or unit_stop.is_announced):
            return
        try:
            settings = load_settings(config, {})
        except ConfigError as error:
            standby = standby_settings(Origin(config), error, has_lock=False)
            if standby is None:
                raise
            settings = standby
        logger = log.configure(settings.log_format, settings.log_level)
        began_s, pid = started_s() or None, os.environ.get("MAINPID", "")
        main_pid = int(pid) if pid.isdecimal() else None
        run_async(stop_pods_at_unit_stop(settings, logger, unit_stop, began_s=began_s, main_pid=main_pid))


async def _plan(agent: Agent) -> ShutdownPlanDocument:
    from nodeagent.shutdown.document_readings import (  # noqa: PLC0415 - not needed if the daemon responds
        rehearse_shutdown,
    )

    return await rehearse_shutdown(agent)


def _read_status(config: Path | None, limit: int) -> ShutdownStatus:
    from nodeagent.shutdown.document_readings import read_shutdown_status  # noqa: PLC0415

    settings = load_settings(config, {})
    return run_async(read_shutdown_status(settings, limit))


def shutdown_lines(plan: ShutdownPlanDocument, columns: int | None) -> Iterator[Line]:
    """Yield the lines of a shutdown plan: the phases with their pods, and the warnings."""
    if plan.off_because:
        yield Line(f"disabled: {plan.off_because}; plan if graceful shutdown were enabled", "yellow")
    granted = f"{plan.granted_s:g} s granted"
    share = granted if plan.stops_at_signal else "delegated to the unit's stop hook"
    yield Line(f"logind limit {_limit_text(plan.limit)}; phases: {plan.wanted_s:g} s requested, {share}")
    for phase in plan.phases:
        when = f"from {phase.starts_s:g} s to {phase.deadline_s:g} s at most"
        yield Line(f"{phase.name}: {_count(phase.pods)}, {when}", "bold")
        table = Table(
            Heading("POD", cut=Cut.MIDDLE, name=True, at_least=16),
            Heading("PRIORITY", right=True),
            Heading("GRACE", right=True),
            Heading("REASON", cut=Cut.END, at_least=16),
        )
        for each in phase.pods:
            table.add(
                f"{each.namespace}/{each.name}",
                "" if each.priority is None else str(each.priority),
                f"{each.grace_s:g} s{' (capped)' if each.capped else ''}",
                each.why,
            )
        yield from table.lines(columns) if phase.pods else ()
    yield Line(f"all pods stopped after {plan.ends_s:g} s at most", "bold")
    yield from warning_lines(plan.warnings)


def status_lines(found: ShutdownStatus, columns: int | None) -> Iterator[Line]:
    """Yield the lines of the status: inhibitor lock, delay limit, warnings, volumes, and the last stops."""
    if found.off_because:
        yield Line(f"disabled: {found.off_because}", "yellow")
    inhibitor = found.inhibitor
    yield Line(f"inhibitor lock: {'held' if inhibitor.held else 'not held'}: {inhibitor.because}")
    yield Line(f"delay limit: {_limit_text(found.limit)}")
    yield from warning_lines(found.warnings)
    if found.attached_volumes:
        yield Line("volumes that may still be attached after the last stop:", "yellow")
        table = Table(
            Heading("POD", cut=Cut.MIDDLE, name=True, at_least=16), Heading("CLAIMS", cut=Cut.END, at_least=16)
        )
        for each in found.attached_volumes:
            table.add(f"{each.namespace}/{each.name}", "unknown" if each.claims is None else ", ".join(each.claims))
        yield from table.lines(columns)
    if not found.stops:
        yield Line("no node stops recorded")
    for stop in found.stops:
        yield Line(stop_headline(stop), "bold" if stop.end == "complete" else "bold red")
        table = Table(
            Heading("POD", cut=Cut.MIDDLE, name=True, at_least=16),
            "PHASE",
            "OUTCOME",
            Heading("TOOK", right=True),
            Heading("DETAIL", cut=Cut.END, at_least=16),
        )
        for pod in stop.pods:
            table.add(
                f"{pod.namespace}/{pod.name}",
                pod.phase,
                pod.outcome or "was running",
                "" if pod.took_s is None else f"{pod.took_s:g} s",
                pod.detail,
            )
        yield from table.lines(columns) if stop.pods else ()


def _limit_text(limit: DelayLimitDocument) -> str:
    text = f"{_duration(limit.seconds)}, set by {limit.set_by or _SYSTEMD_DEFAULT}"
    if limit.reported_by == "logind" and limit.seconds != limit.in_files_s:
        text += f" (configured: {_duration(limit.in_files_s)}; reload logind to apply its files)"
    return text


def _count(pods: Sequence[object]) -> str:
    return "1 pod" if len(pods) == 1 else f"{len(pods)} pods"


def _duration(seconds: float | None) -> str:
    return "no limit" if seconds is None else format_duration(seconds)
