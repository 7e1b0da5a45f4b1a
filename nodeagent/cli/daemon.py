"""``nodeagent run``: the daemon, or one pass of it.

The libraries that parse a command line and a configuration are a third of what the daemon would keep in memory, for
work done once in its life. So the command checks everything, then the process starts over as the bare daemon
(``python -m nodeagent.cli.daemon``, same process id) and gets its settings through a file without a name.
"""

from __future__ import annotations

import gc
import os
import pickle  # from this process to itself
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from nodeagent.cli.exit_codes import ExitCode, fail, guarded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodeagent.config.settings import Settings

GC_THRESHOLDS: Final = (50_000, 20, 20)


def run_daemon(path: Path | None, overrides: Mapping[str, str | int], *, dry_run: bool, once: bool) -> NoReturn:
    """Check the configuration, then become the daemon; with ``once`` make one pass and exit with its code.

    Raises:
        ConfigError: the configuration cannot be used; nothing was started.
    """
    from nodeagent.config.handing import checked  # noqa: PLC0415 - not for the bare daemon
    from nodeagent.config.settings import Origin  # noqa: PLC0415

    settings = checked(Origin(path, tuple(overrides.items()), dry_run))
    handed = os.memfd_create("settings")
    os.write(handed, pickle.dumps(settings))
    os.set_inheritable(handed, True)
    sys.stdout.flush()
    sys.stderr.flush()
    words = [sys.executable, "-m", "nodeagent.cli.daemon", str(handed), *(["--once"] if once else [])]
    os.execv(sys.executable, words)  # noqa: S606 - this very program


def _serve(settings: Settings, *, once: bool) -> ExitCode:
    from nodeagent.daemon.memory import limit_arenas, without_openssl  # noqa: PLC0415 - not before errors are handled

    with without_openssl():
        import asyncio  # noqa: PLC0415

        from nodeagent.act.outcomes import PassEnd  # noqa: PLC0415
        from nodeagent.daemon import log  # noqa: PLC0415
        from nodeagent.daemon.supervisor import supervise  # noqa: PLC0415

    logger = log.configure(settings.log_format, settings.log_level)
    limit_arenas()

    return {
        PassEnd.COMPLETE: ExitCode.DONE,
        PassEnd.NOTHING_TO_DO: ExitCode.DONE,
        PassEnd.SHORTFALL: ExitCode.PARTIAL,
        PassEnd.CANCELLED: ExitCode.PARTIAL,
        PassEnd.REFUSED: ExitCode.FAILED,
        PassEnd.RUNTIME_LOST: ExitCode.RUNTIME_UNREACHABLE,
    }[asyncio.run(supervise(settings, logger, once=once))]


def main() -> None:
    """Be the daemon with the settings in the file that was handed over."""
    gc.set_threshold(*GC_THRESHOLDS)
    match sys.argv[1:]:
        case [number, *flags] if number.isdecimal() and flags in ([], ["--once"]):
            pass
        case _:
            fail("this is the inside of 'nodeagent run'", ExitCode.USAGE)
    with os.fdopen(int(number), "rb") as handed:
        handed.seek(0)
        settings: Settings = pickle.load(handed)  # noqa: S301 - written by run_daemon
    with guarded():
        sys.exit(_serve(settings, once=bool(flags)))


if __name__ == "__main__":
    main()
