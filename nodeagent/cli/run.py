"""``nodeagent run``: the daemon, or one pass of it.

The libraries that parse a command line and a configuration are a third of what the daemon would keep in memory, for
work done once in its life. So the command checks everything, then the process starts over as the bare daemon
(``python -I -m nodeagent.cli.run``, same process id) and gets its settings through a file without a name.
"""

from __future__ import annotations

import gc
import os
import pickle  # from this process to itself
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from nodeagent.cli.exit_codes import ExitCode, fail, guarded, pass_exit_code

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
    from nodeagent.config.handoff import checked  # noqa: PLC0415 - not for the bare daemon
    from nodeagent.config.settings import Origin  # noqa: PLC0415
    from nodeagent.host.processes import become_python  # noqa: PLC0415

    # The daemon runs in /, and reads the file again at each reload.
    origin = Origin(None if path is None else absolute_path(path), tuple(overrides.items()), dry_run)
    settings = checked(origin)
    handed = os.memfd_create("settings")
    os.write(handed, pickle.dumps(settings))
    os.set_inheritable(handed, True)
    sys.stdout.flush()
    sys.stderr.flush()
    become_python("-m", "nodeagent.cli.run", str(handed), *(["--once"] if once else []))


def absolute_path(path: Path) -> Path:
    """Return a path that stays valid in another working directory; symbolic links and ``..`` are left in it.

    Raises:
        ConfigError: the path is relative and the current directory does not exist any more.
    """
    from nodeagent.errors import ConfigError  # noqa: PLC0415 - not for the bare daemon

    try:
        return path.absolute()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be resolved: the current directory is not available: {error}") from error


def _serve(settings: Settings, *, once: bool) -> ExitCode:
    from nodeagent.daemon.memory import limit_arenas, without_openssl  # noqa: PLC0415 - not before errors are handled

    with without_openssl():
        import asyncio  # noqa: PLC0415

        from nodeagent.daemon.supervisor import supervise  # noqa: PLC0415
        from nodeagent.daemon.unix_signals import hangup_survived  # noqa: PLC0415
        from nodeagent.telemetry import logging as log  # noqa: PLC0415

    logger = log.configure(settings.log_format, settings.log_level)
    limit_arenas()

    with hangup_survived():
        return pass_exit_code(asyncio.run(supervise(settings, logger, once=once)))


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
