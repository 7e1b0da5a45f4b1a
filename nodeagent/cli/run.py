"""``nodeagent run``: the daemon, or one pass of every loop."""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from nodeagent.cli.exit_codes import ExitCode, pass_exit_code
from nodeagent.config.files import absolute_path
from nodeagent.daemon.supervisor import supervise
from nodeagent.errors import ConfigError, InhibitorError
from nodeagent.host.commands import WORKING_DIRECTORY
from nodeagent.host.systemd import DescriptorStore, Notifier, PodSlices, stored_descriptor
from nodeagent.loops.memory import configure_malloc
from nodeagent.loops.unix_signals import ignore_hangup
from nodeagent.pods.role import read_role
from nodeagent.settings.loading import checked, standby_settings
from nodeagent.settings.settings import Origin, Settings
from nodeagent.telemetry import logging as log

THREADS_END_WITHIN_S: Final = 3
GC_THRESHOLDS: Final = (50_000, 20, 20)
SWITCH_INTERVAL_S: Final = 0.001
"""Thread switch interval of the interpreter.

Plans and their JSON are computed in threads. After every wait the event loop resumes only after one interval per busy
thread; with the default of 5 ms, several large concurrent responses of the control API delay the tasks by a second.
Source: Python, ``sys.setswitchinterval``.
"""


def run_daemon(path: Path | None, overrides: Mapping[str, str | int], *, dry_run: bool, once: bool) -> NoReturn:
    """Check the configuration, then run the daemon in ``/``; with ``once`` run one pass of every loop and exit.

    Raises:
        ConfigError: the configuration is invalid, and no stored settings enable graceful shutdown. An inhibitor lock in
            systemd's file descriptor store is released, so that the lock delays no shutdown.
    """
    # Absolute path: the daemon runs in / and reads the file again at each reload.
    origin = Origin(None if path is None else absolute_path(path), tuple(overrides.items()), dry_run)
    try:
        settings = checked(origin)
    except ConfigError as error:
        standby = None if once else _standby(origin, error)
        if standby is None:
            raise
        settings = standby
    os.chdir(WORKING_DIRECTORY)
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    sys.exit(_serve(settings, once=once))


def _standby(origin: Origin, error: ConfigError) -> Settings | None:
    """Return settings for graceful shutdown only; otherwise undo the preparations of an earlier run for a shutdown."""
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
    logger = log.configure(settings.log_format, settings.log_level)
    configure_malloc()

    async def serve() -> ExitCode:
        code = pass_exit_code(await supervise(settings, logger, once=once))
        # The interpreter waits for threads, and a call on a dead mount never returns.
        signal.signal(signal.SIGALRM, lambda *_: os._exit(code))
        signal.alarm(THREADS_END_WITHIN_S)
        atexit.register(signal.alarm, 0)  # called after the threads: SIGALRM would kill an interpreter without handlers
        return code

    with ignore_hangup():
        return asyncio.run(serve())
