"""Garbage collection previews for commands without a daemon, from the reading and planning parts of an agent.

The other parts of an agent (removers, recovery, undo and history) are not imported: their import takes as long as an
observation of the node.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from nodeagent.clock import SystemClock
from nodeagent.gc.agent_parts import open_parts
from nodeagent.gc.pass_state import preview_pass
from nodeagent.pods.role import RoleWatch
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.gc.pass_state import Preview
    from nodeagent.gc.plan.policy import Scope
    from nodeagent.gc.snapshot.node import Observer
    from nodeagent.settings.settings import Settings


class Previews(Protocol):
    """Source of previews of this node: a :class:`Previewer`, or the daemon's agent."""

    @property
    def settings(self) -> Settings:
        """The settings with the policies of the plans."""

    async def preview(self, scope: Scope) -> Preview:
        """Observe and plan a pass without any change to the node."""


class Previewer(Record):
    """Observer and planner of a node, with the settings; writes no state files."""

    settings: Settings
    observer: Observer

    async def preview(self, scope: Scope) -> Preview:
        """Observe and plan a pass without any change to the node."""
        return await preview_pass(self.observer, self.settings.policy, scope)


@asynccontextmanager
async def open_previewer(settings: Settings) -> AsyncIterator[Previewer]:
    """Compose a previewer from validated settings; the connection to the runtime is closed on exit.

    Raises:
        RuntimeUnavailableError: no endpoint is configured and no well-known socket exists.
    """
    clock = SystemClock()
    async with open_parts(settings, record=False, clock=clock, roles=RoleWatch(clock), reuses_lists=False) as parts:
        yield Previewer(settings, parts.make_observer())
