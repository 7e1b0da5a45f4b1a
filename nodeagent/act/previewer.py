"""Previews of garbage collection for commands without a daemon: an agent's parts that read and plan.

An agent has more parts: removers, recovery, undo and history. Their import takes as long as the reading of a node.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from nodeagent.act.agent_parts import open_parts
from nodeagent.act.gc.preview import preview_pass
from nodeagent.clock import SystemClock
from nodeagent.observe.node_role import RoleWatch
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.act.gc.preview import Observer, Preview
    from nodeagent.config.settings import Settings
    from nodeagent.plan.gc.scope import Scope


class Previews(Protocol):
    """Plans passes of this node: a previewer, or the daemon's agent."""

    @property
    def settings(self) -> Settings:
        """The settings with the policies of the plans."""

    async def preview(self, scope: Scope) -> Preview:
        """Observe and plan a pass without any change to the node."""


class Previewer(Record):
    """Reader of a node with its settings; it writes nothing."""

    settings: Settings
    observer: Observer

    async def preview(self, scope: Scope) -> Preview:
        """Observe and plan a pass without any change to the node."""
        return await preview_pass(self.observer, self.settings.policy, scope)


@asynccontextmanager
async def open_previewer(settings: Settings) -> AsyncIterator[Previewer]:
    """Compose a previewer from validated settings; its connection is closed on exit.

    Raises:
        RuntimeUnavailableError: no endpoint is configured and no well-known socket exists.
    """
    clock = SystemClock()
    async with open_parts(settings, record=False, clock=clock, roles=RoleWatch(clock), reuses_lists=False) as parts:
        yield Previewer(settings, parts.make_observer())
