"""Whether the agent is alive and ready, in sentences: for probes, for metrics and for the service manager's status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.daemon.pause import OPERATOR

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext


def not_alive(context: DaemonContext) -> tuple[str, ...]:
    """Return why the agent had better be started anew: duties without progress. A runtime that is away is no reason."""
    return tuple(f"no progress: {name}" for name in context.loop_statuses.stuck())


def not_ready(context: DaemonContext) -> tuple[str, ...]:
    """Return why the agent cannot do its work now."""
    found = list(not_alive(context))
    if context.stop.is_set():
        found.append("the agent is stopping")
    if context.agent is None:
        found.append("the agent is not composed: it starts, reloads, or there is no container runtime")
    elif context.counters.runtime_down:
        found.append("the container runtime does not answer")
    elif not context.runtime_answered and _calls_runtime(context):
        found.append("the container runtime has not answered yet")
    pause = context.pass_lock.pause_of("shutdown")
    if pause is not None:
        found.append(pause.text)
    return tuple(found)


def _calls_runtime(context: DaemonContext) -> bool:
    """Return whether a loop is enabled and not paused by the operator, so that it calls the runtime soon.

    The settings decide, not the loop statuses: a loop has no status before its first pass.
    """
    if context.pass_lock.pause_of(OPERATOR) is not None:
        return False
    settings = context.settings
    return (
        settings.image_interval_s is not None
        or settings.container_interval_s is not None
        or not settings.eviction.off_because(context.roles.current.role)
    )
