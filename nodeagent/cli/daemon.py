"""``nodeagent run``: the daemon, or one pass of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent.act.outcomes import PassEnd
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.session import load_config, run_async
from nodeagent.daemon import log
from nodeagent.daemon.agent import open_agent
from nodeagent.daemon.memory import limit_arenas
from nodeagent.daemon.supervisor import supervise

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_EXIT_CODES = {
    PassEnd.COMPLETE: ExitCode.DONE,
    PassEnd.NOTHING_TO_DO: ExitCode.DONE,
    PassEnd.SHORTFALL: ExitCode.PARTIAL,
    PassEnd.CANCELLED: ExitCode.PARTIAL,
    PassEnd.REFUSED: ExitCode.FAILED,
    PassEnd.RUNTIME_LOST: ExitCode.RUNTIME_UNREACHABLE,
}


def run_daemon(path: Path | None, overrides: Mapping[str, str | int], *, dry_run: bool, once: bool) -> None:
    """Run until told to stop; with ``once`` make one pass and exit with its code.

    Raises:
        ConfigError: the configuration cannot be used; nothing was started.
        RuntimeUnavailableError: with ``once``, no runtime answers.
    """
    config = load_config(path, overrides)
    logger = log.configure(config.log.format, config.log.level)

    limit_arenas()

    async def work() -> PassEnd:
        async with open_agent(config, record=True, dry_run=dry_run or config.dry_run) as agent:
            return await supervise(agent, logger, once=once)

    sys.exit(_EXIT_CODES[run_async(work())])
