"""``nodeagent run``: the daemon, or one pass of every loop.

The libraries for the command line and the configuration would be a third of the daemon's memory, although only the
start requires them. The command therefore checks the configuration, then the process executes itself again as the bare
daemon (``python -I -m nodeagent.cli.run``, same process id) and receives its settings through a memfd.
"""

from __future__ import annotations

import gc
import os
import pickle  # pickles are read only by this process, after its exec
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from nodeagent.cli.exit_codes import ExitCode, fail, guarded, pass_exit_code

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodeagent.config.settings import Origin, Settings
    from nodeagent.errors import ConfigError

THREADS_END_WITHIN_S: Final = 3
GC_THRESHOLDS: Final = (50_000, 20, 20)
SWITCH_INTERVAL_S: Final = 0.001
"""Thread switch interval of the interpreter.

Plans and their JSON are computed in threads. After every wait the event loop resumes only after one interval per busy
thread; with the default of 5 ms, several large concurrent responses of the control API delay the tasks by a second.
Source: Python, ``sys.setswitchinterval``.
"""


def run_daemon(path: Path | None, overrides: Mapping[str, str | int], *, dry_run: bool, once: bool) -> NoReturn:
    """Check the configuration, then execute the daemon; with ``once`` run one pass of every loop and exit.

    Raises:
        ConfigError: the configuration is invalid, and no stored settings enable graceful shutdown. An inhibitor lock in
            systemd's file descriptor store is released, so that the lock delays no shutdown.
    """
    from nodeagent.config.file_trust import absolute_path  # noqa: PLC0415 - not needed by the bare daemon
    from nodeagent.config.loading import checked  # noqa: PLC0415
    from nodeagent.config.settings import Origin  # noqa: PLC0415
    from nodeagent.errors import ConfigError  # noqa: PLC0415
    from nodeagent.host.processes import become_python  # noqa: PLC0415

    # Absolute path: the daemon runs in / and reads the file again at each reload.
    origin = Origin(None if path is None else absolute_path(path), tuple(overrides.items()), dry_run)
    try:
        settings = checked(origin)
    except ConfigError as error:
        standby = None if once else _standby(origin, error)
        if standby is None:
            raise
        settings = standby
    descriptor = os.memfd_create("settings")
    os.write(descriptor, pickle.dumps(settings))
    os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    become_python("-m", "nodeagent.cli.run", str(descriptor), *(["--once"] if once else []))


def _standby(origin: Origin, error: ConfigError) -> Settings | None:
    """Return settings for graceful shutdown only; otherwise undo the preparations of an earlier run for a shutdown."""
    from nodeagent.config.standby import standby_settings  # noqa: PLC0415 - needed only for an invalid configuration
    from nodeagent.errors import InhibitorError  # noqa: PLC0415
    from nodeagent.host.fdstore import DescriptorStore, stored_descriptor  # noqa: PLC0415
    from nodeagent.host.notify import Notifier  # noqa: PLC0415
    from nodeagent.host.systemd import PodSlices  # noqa: PLC0415
    from nodeagent.observe.node_role import read_role  # noqa: PLC0415

    if not Notifier().present:  # started by a user, who reads the error, not by systemd
        return None
    lock = stored_descriptor()
    settings = standby_settings(origin, error, has_lock=lock is not None)
    if settings is not None:
        role = read_role(settings.role)
        if not settings.shutdown_off_because(role.role, role.reason):
            return settings
    with suppress(InhibitorError):  # no process stops the pods at a shutdown
        PodSlices().restore()
    if lock is not None:
        os.close(lock)
        DescriptorStore().forget()
    return None


def _serve(settings: Settings, *, once: bool) -> ExitCode:
    import asyncio  # noqa: PLC0415 - import errors are handled by guarded()

    from nodeagent.daemon.memory import configure_malloc  # noqa: PLC0415
    from nodeagent.daemon.supervisor import supervise  # noqa: PLC0415
    from nodeagent.daemon.unix_signals import ignore_hangup  # noqa: PLC0415
    from nodeagent.telemetry import logging as log  # noqa: PLC0415

    logger = log.configure(settings.log_format, settings.log_level)
    configure_malloc()

    async def serve() -> ExitCode:
        code = pass_exit_code(await supervise(settings, logger, once=once))
        # The interpreter waits for threads, and a call on a dead mount never returns.
        signal.signal(signal.SIGALRM, lambda *_: os._exit(code))
        signal.alarm(THREADS_END_WITHIN_S)
        return code

    with ignore_hangup():
        return asyncio.run(serve())


def main() -> None:
    """Run the daemon with the settings in an inherited file descriptor; the descriptor number is the first argument."""
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    match sys.argv[1:]:
        case [number, *flags] if number.isdecimal() and flags in ([], ["--once"]):
            pass
        case _:
            fail("internal entry point; use 'nodeagent run'", ExitCode.USAGE)
    with os.fdopen(int(number), "rb") as source:
        source.seek(0)
        settings: Settings = pickle.load(source)  # noqa: S301 - written by run_daemon
    with guarded():
        sys.exit(_serve(settings, once=bool(flags)))


if __name__ == "__main__":
    main()
