"""The metrics file task: writes all metrics for the textfile collector of node_exporter.

The daemon writes as root, so the file is written only into a directory that no other user can change, as required of
configuration files too: another user could place a symbolic link there and make the agent replace a file of root.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.config.files import open_trusted
from nodeagent.daemon.http.metrics_task import load_exposition
from nodeagent.errors import ConfigError
from nodeagent.files import replace_file

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.http.metrics import Exposition
    from nodeagent.settings.endpoints import MetricsSettings

NAME: Final = "metrics-file"
_MODE: Final = 0o644
_SLACK_S: Final = 60.0
_LONG_S: Final = 3600.0
_HINTS: Final = {
    errno.EROFS: "; allow the directory in the unit: ReadWritePaths=, by systemctl edit nodeagent",
    errno.ENOENT: "; create the directory, owned by root",
}


class TextfileTask:
    """Writes the configured metrics file, across reloads, and removes the file at the end.

    A write that fails is retried at the next interval; its cause is logged once.
    """

    def __init__(self, context: DaemonContext) -> None:
        """Compose the task; :meth:`run` writes the file."""
        self._context = context
        self._loop_statuses = context.loop_statuses
        self._logger = context.logger.bind(task=NAME)
        self._exposition: Exposition | None = None
        self._reported: str | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Write the metrics file at each interval until stopped."""
        while not stop.is_set():
            settings = self._settings
            if not settings.textfile:
                await self._wait(_LONG_S, settings, stop)
                continue
            path = Path(settings.textfile)
            self._reported = None
            try:
                while not stop.is_set() and self._settings == settings:
                    await self._write(path, settings)
                    await self._wait(settings.textfile_interval_s, settings, stop)
            finally:
                await asyncio.to_thread(_remove, path)
            if not stop.is_set() and not self._settings.textfile:
                self._loop_statuses.disabled(NAME, 'metrics.textfile = ""')

    @property
    def _settings(self) -> MetricsSettings:
        return self._context.settings.metrics

    async def _write(self, path: Path, settings: MetricsSettings) -> None:
        self._loop_statuses.running(NAME, _SLACK_S)
        problem = ""
        try:
            self._exposition = self._exposition or await load_exposition(self._context)
            text = await self._exposition.render_textfile()
            await asyncio.to_thread(_write_trusted, path, text)
        except ConfigError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.strerror or error}{_HINTS.get(error.errno or 0, '')}"
        if problem != self._reported:
            if problem:
                self._logger.warning("metrics_file_unavailable", path=str(path), error=problem)
            else:
                self._logger.info("metrics_file_written", path=str(path), interval_s=settings.textfile_interval_s)
        self._reported = problem
        self._loop_statuses.ended(NAME, "failed" if problem else "complete", detail=problem, failed=bool(problem))
        self._loop_statuses.waiting(NAME, settings.textfile_interval_s, _SLACK_S)

    async def _wait(self, seconds: float, settings: MetricsSettings, stop: asyncio.Event) -> None:
        await self._context.wait_while(lambda: self._settings == settings, seconds, stop)


def _write_trusted(path: Path, text: str) -> None:
    """Replace the file, if no user other than root can change its directory.

    Raises:
        ConfigError: the directory is not trusted; the message contains the correction.
        OSError: the file cannot be written.
    """
    os.close(open_trusted(path.parent, directory=True))
    replace_file(path, text, mode=_MODE)


def _remove(path: Path) -> None:
    """Remove the file, so that its values do not outlive the daemon; skip an untrusted directory."""
    with suppress(ConfigError, OSError):
        os.close(open_trusted(path.parent, directory=True))
        path.unlink()
