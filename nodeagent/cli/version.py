"""``nodeagent version``: the versions of the agent and the runtime."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent import __version__
from nodeagent.cli.display import say
from nodeagent.cli.reading import print_document, read
from nodeagent.daemon.control_documents import Version

if TYPE_CHECKING:
    from nodeagent.cli.options import Source
    from nodeagent.gc.agent import Agent


def show_version(source: Source, form: str) -> None:
    """Print the version of the agent, then the version of the runtime.

    Raises:
        RuntimeUnavailableError: the runtime does not respond; with ``table`` the version of the agent is printed first.
    """
    if form == "table":
        say(f"nodeagent {__version__}")
        sys.stdout.flush()
    found = read("Version", Version, {}, source, _read_version)
    if form != "table":
        print_document(found, form)
        return
    if found.nodeagent != __version__:
        say(f"daemon {found.nodeagent}")
    runtime = found.runtime
    say(f"{runtime.name} {runtime.version} (CRI {runtime.api_version}) at {runtime.endpoint}")


async def _read_version(agent: Agent) -> Version:
    return Version.of(await agent.cri.version())
