"""``nodeagent version``: the versions of the agent and the runtime."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent import __version__
from nodeagent.api.codec import encode
from nodeagent.api.diagnostics import RuntimeVersion, Version
from nodeagent.cli.output import say
from nodeagent.cli.session import load_settings, open_for_command, run_async

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodeagent.model import RuntimeInfo


def show_version(path: Path | None, overrides: Mapping[str, str | int], form: str) -> None:
    """Print the agent's version, then the runtime's.

    Raises:
        RuntimeUnavailableError: no runtime answers; with a table the agent's version is printed before.
    """
    settings = load_settings(path, overrides)
    if form == "table":
        say(f"nodeagent {__version__}")
        sys.stdout.flush()

    async def read_version() -> RuntimeInfo:
        async with open_for_command(settings, record=False) as agent:
            return await agent.cri.version()

    info = run_async(read_version())
    if form == "table":
        say(f"{info.name} {info.version} (CRI {info.api_version}) at {info.endpoint}")
        return
    runtime = RuntimeVersion(name=info.name, version=info.version, api_version=info.api_version, endpoint=info.endpoint)
    sys.stdout.write(encode(Version(nodeagent=__version__, runtime=runtime), form))
