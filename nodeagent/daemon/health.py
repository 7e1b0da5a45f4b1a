"""Liveness and readiness of the agent, with reasons, for probes, metrics and the status document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.loops.passes import PausedBy

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext


def not_alive(context: DaemonContext) -> tuple[str, ...]:
    """Return the reasons for a restart of the agent: tasks without progress, not an unavailable runtime."""
    return tuple(f"no progress: {name}" for name in context.loop_statuses.stuck())


def not_ready(context: DaemonContext) -> tuple[str, ...]:
    """Return the reasons why the agent is not ready; empty if the agent is ready."""
    reasons = list(not_alive(context))
    if context.stop.is_set():
        reasons.append("agent is stopping")
    if context.agent is None:
        reasons.append(not_composed(context))
    elif context.counters.runtime_down:
        reasons.append("container runtime unavailable")
    elif not context.runtime_answered and _calls_runtime(context):
        reasons.append("container runtime has not answered yet")
    if context.agent is not None and context.agent.history_writer.problem:
        reasons.append(f"removals are not recorded: {context.agent.history_writer.problem}")
    shutdown = context.pass_lock.pause_of(PausedBy.SHUTDOWN)
    if shutdown is not None:
        reasons.append(shutdown.reason)
    return tuple(reasons)


def not_composed(context: DaemonContext) -> str:
    """Return the reason why no agent is composed."""
    if context.settings.invalid_because:
        return "configuration invalid: only graceful shutdown runs"
    if context.runtime_problem:
        return f"waiting for a container runtime: {context.runtime_problem}"
    return "starting or reloading"


def status_line(context: DaemonContext) -> str:
    """Return the state of the daemon, for the status line of the service manager."""
    if context.agent is None:
        state = not_composed(context)
    elif context.grace.pending:
        state = f"dry run during the reload grace period of {context.grace.period_s:g} s"
    else:
        state = "dry run: removals are logged, not executed" if context.dry_run else "running"
    problem = context.config_problem
    return f"{state}; configuration file not in force: {problem}" if problem else state


def _calls_runtime(context: DaemonContext) -> bool:
    """Return whether a loop is enabled and not paused by the operator, so that it calls the runtime soon.

    The settings decide, not the loop statuses: a loop has no status before its first pass.
    """
    if context.pass_lock.pause_of(PausedBy.OPERATOR) is not None:
        return False
    settings = context.settings
    return (
        settings.image_interval_s is not None
        or settings.container_interval_s is not None
        or not settings.eviction.off_because(context.roles.current.role)
    )
