"""Looking at the node without a running agent: the same answers, from a command's own look."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nodeagent.cli.session import load_settings, open_for_command
from nodeagent.daemon.status import StatusReader, pods_document, status_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def looking(config: Path | None) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Return what answers ``Status`` and ``Pods``.

    Raises:
        ConfigError: the configuration cannot be used.
        RuntimeUnavailableError: no runtime is configured, and none is found.
    """
    settings = load_settings(config, {})
    with asyncio.Runner() as runner:
        opened = open_for_command(settings, record=False)
        agent = runner.run(opened.__aenter__())
        look = StatusReader(agent)

        def answer(method: str) -> dict[str, Any]:
            if method == "Pods":
                return runner.run(pods_document(agent, look))
            return runner.run(status_document(agent, look, None))

        try:
            yield answer
        finally:
            runner.run(opened.__aexit__(None, None, None))
