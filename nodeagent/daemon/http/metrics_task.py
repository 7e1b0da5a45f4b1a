"""The metrics task, which serves ``/metrics``, ``/healthz`` and ``/readyz``, and the metrics file task.

The metrics file is for the textfile collector of node_exporter. The daemon writes as root, so the file is written only
into a directory that no other user can change, as required of configuration files too: another user could place a
symbolic link there and make the agent replace a file of root.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.config.files import open_trusted
from nodeagent.daemon.http import connection
from nodeagent.daemon.http.connection import Deadlines, Router, Service
from nodeagent.daemon.http.server import ConnectionLimits, HttpServer, Tls, bind
from nodeagent.errors import ConfigError
from nodeagent.files import replace_file
from nodeagent.guarded_call import GuardedCall, HangingCallError
from nodeagent.host.server_certificate import Stamp, read_stamp, server_context

if TYPE_CHECKING:
    import ssl

    from structlog.typing import FilteringBoundLogger

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.http.metrics import Exposition
    from nodeagent.model.kubernetes import TlsFiles
    from nodeagent.settings.settings import Listen, MetricsSettings

    Endpoint = tuple[Listen | None, TlsFiles | None]

_WITHIN_S: Final = 5.0
_MOST_CAUSES: Final = 16
"""Maximum number of logged causes of failed handshakes, since remote clients determine the causes."""


class MetricsCertificate:
    """Certificate of one listener. A read that hangs, such as on a dead mount, occupies one thread at most."""

    def __init__(self, files: TlsFiles, logger: FilteringBoundLogger) -> None:
        """Create the source without reading the files."""
        self._files = files
        self._logger = logger
        self._guard = GuardedCall[tuple["Stamp", "ssl.SSLContext | ConfigError | None"]]()
        self._stamp: Stamp | None = None
        self._problem = ""
        self._causes: set[str] = set()

    async def load(self) -> Tls:
        """Read the files and return their certificate.

        Raises:
            ConfigError: a file is missing, malformed or not trusted, or cannot be read in time.
        """
        self._stamp = None
        made = await self._read()
        if isinstance(made, ConfigError):
            raise made
        if made is None:
            raise ConfigError(f"{self._files.certificate}: not read")
        return Tls(made, self._report)

    async def renewed(self) -> Tls | None:
        """Return the certificate if a file has changed since the last call, else ``None``.

        Files that cannot be used are logged once for each cause, and the certificate in force is kept.
        """
        made = await self._read()
        if isinstance(made, ConfigError):
            if self._problem != str(made):
                self._logger.warning("metrics_certificate_not_renewed", error=str(made))
            self._problem = str(made)
            return None
        if made is None:
            return None
        self._problem = ""
        self._logger.info("metrics_certificate_renewed", path=self._files.certificate)
        return Tls(made, self._report)

    async def _read(self) -> ssl.SSLContext | ConfigError | None:
        """Return the TLS context of changed files, or the error; ``None`` for unchanged files."""
        try:
            stamp, made = await self._guard.run(partial(_read_changed, self._files, self._stamp), within_s=_WITHIN_S)
        except HangingCallError as error:
            return ConfigError(f"{self._files.certificate} {error}")
        self._stamp = None if isinstance(made, ConfigError) else stamp  # reread: a corrected mode keeps the stamp
        return made

    def _report(self, error: OSError) -> None:
        """Log the cause of a failed handshake once."""
        cause = getattr(error, "verify_message", None) or getattr(error, "reason", None)
        if cause is None or cause in self._causes or len(self._causes) >= _MOST_CAUSES:
            return
        self._causes.add(cause)
        self._logger.info("metrics_client_refused", error=str(cause).replace("_", " ").lower())


def _read_changed(files: TlsFiles, known: Stamp | None) -> tuple[Stamp, ssl.SSLContext | ConfigError | None]:
    """Return the stamp of the files, read before their content, and the TLS context or error of changed files."""
    stamp = read_stamp(files)
    if stamp == known:
        return stamp, None
    try:
        return stamp, server_context(files)
    except ConfigError as error:
        return stamp, error


NAME: Final = "metrics"
_OFF: Final = 'metrics.listen = "off"'
LIMITS: Final = ConnectionLimits(total=512, per_user=512, root=16)
"""Several times the connections accepted at once (64): a connection is not shed before its request was read."""
_HINT: Final = "correct metrics.listen, or the file named by the error"
_POLL_S: Final = 5.0
_SLACK_S: Final = 60.0
_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 60.0


class MetricsTask:
    """Serves metrics and health at the configured address, across reloads; retries an unavailable address."""

    def __init__(self, context: DaemonContext, *, deadlines: Deadlines | None = None) -> None:
        """Compose the task; :meth:`run` opens the socket.

        Args:
            context: shared state of the daemon.
            deadlines: time limits of a connection.
        """
        self._context = context
        self._loop_statuses = context.loop_statuses
        self._logger = context.logger.bind(task=NAME)
        self._exposition: Exposition | None = None
        self._loading = asyncio.Lock()
        self._retry_s = _FIRST_RETRY_S
        self._reported = ""
        router = Router({"/metrics": connection.Route({"GET": self._metrics}), **connection.probe_routes(context)})
        self._service = Service(router, self._check_host, self._fail, deadlines or Deadlines())

    async def run(self, stop: asyncio.Event) -> None:
        """Serve metrics and health until stopped."""
        while not stop.is_set():
            endpoint = listen, files = self._endpoint
            if listen is None:
                self._loop_statuses.disabled(NAME, _OFF)
                self._logger.info("loop_disabled", loop=NAME, because=_OFF)
                await self._while_configured(endpoint, stop)
                continue
            server = HttpServer(self._service, LIMITS)
            certificate = None if files is None else MetricsCertificate(files, self._logger)
            try:
                if certificate is not None:
                    server.use_tls(await certificate.load())
                await server.start(await asyncio.to_thread(bind, listen))
            except (OSError, ConfigError) as error:
                await self._retry(endpoint, _cause(listen, error), stop)
                continue
            self._retry_s, self._reported = _FIRST_RETRY_S, ""
            self._logger.info("metrics_listening", listen=listen.text)
            try:
                await self._while_configured(endpoint, stop, server, certificate)
            finally:
                await server.close()
                if listen.path:
                    await asyncio.to_thread(_remove, listen.path)

    @property
    def _endpoint(self) -> Endpoint:
        return self._context.settings.metrics.endpoint

    async def _while_configured(
        self,
        endpoint: Endpoint,
        stop: asyncio.Event,
        server: HttpServer | None = None,
        certificate: MetricsCertificate | None = None,
    ) -> None:
        """Wait until the daemon stops or another address is in force; replace a renewed certificate meanwhile."""
        if server is not None:
            self._loop_statuses.running(NAME, _SLACK_S)
        while not stop.is_set() and self._endpoint == endpoint:
            if server is not None:
                self._loop_statuses.beat(NAME, _SLACK_S)
                if certificate is not None and (renewed := await certificate.renewed()) is not None:
                    server.use_tls(renewed)
            await self._context.wait_while(lambda: self._endpoint == endpoint, _POLL_S, stop)

    async def _retry(self, endpoint: Endpoint, cause: str, stop: asyncio.Event) -> None:
        """Log an unavailable address, once per address and cause, and wait before the next attempt."""
        shown = "" if endpoint[0] is None else endpoint[0].text
        if (reported := f"{shown} {cause}") != self._reported:
            self._logger.warning("metrics_unavailable", listen=shown, error=cause, hint=_HINT)
            self._reported, self._retry_s = reported, _FIRST_RETRY_S
        self._loop_statuses.paused(NAME, cause, self._retry_s + _SLACK_S)
        wait_s, self._retry_s = self._retry_s, min(_LAST_RETRY_S, self._retry_s * 2)
        await self._context.wait_while(lambda: self._endpoint == endpoint, wait_s, stop)

    async def _check_host(self, request: connection.Request) -> None:
        """Reject requests with a foreign ``Host`` header; every other client of the address has access.

        Raises:
            RefusedRequestError: the ``Host`` header does not name this node.
        """
        (listen, _), host = self._endpoint, request.headers.get("host", "")
        if listen is not None and not connection.is_own_host(host, listen):
            hint = f"address the agent by {listen.text}, localhost, or the name of the node"
            raise connection.RefusedRequestError(
                connection.text(HTTPStatus.MISDIRECTED_REQUEST, f"unknown host {host}; {hint}")
            )

    async def _metrics(self, request: connection.Request) -> connection.Response:
        async with self._loading:
            if self._exposition is None:
                self._exposition = await load_exposition(self._context)
        kind, body = await self._exposition.render(request.headers.get("accept", ""))
        return connection.Response(HTTPStatus.OK, body, kind)

    def _fail(self, request: connection.Request, error: Exception) -> connection.Response:
        self._logger.error("metrics_crashed", path=request.path, exc_info=error)
        return connection.text(HTTPStatus.INTERNAL_SERVER_ERROR, "this is a bug; the daemon's log has the traceback")


def _remove(path: str) -> None:
    with suppress(OSError):
        Path(path).unlink()


async def load_exposition(context: DaemonContext) -> Exposition:
    """Return the metrics; the first call imports the Prometheus library, in a thread."""
    module = await asyncio.to_thread(import_module, "nodeagent.daemon.http.metrics")
    made: Exposition = module.Exposition(context)
    return made


def _cause(listen: Listen, error: OSError | ConfigError) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    if error.errno == errno.EADDRINUSE:
        return "the path is in use" if listen.path else "the address is in use by another process"
    return error.strerror or str(error)


TEXTFILE_TASK: Final = "metrics-file"
_MODE: Final = 0o644
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
        self._logger = context.logger.bind(task=TEXTFILE_TASK)
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
                await asyncio.to_thread(_remove_trusted, path)
            if not stop.is_set() and not self._settings.textfile:
                self._loop_statuses.disabled(TEXTFILE_TASK, 'metrics.textfile = ""')

    @property
    def _settings(self) -> MetricsSettings:
        return self._context.settings.metrics

    async def _write(self, path: Path, settings: MetricsSettings) -> None:
        self._loop_statuses.running(TEXTFILE_TASK, _SLACK_S)
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
        self._loop_statuses.ended(
            TEXTFILE_TASK, "failed" if problem else "complete", detail=problem, failed=bool(problem)
        )
        self._loop_statuses.waiting(TEXTFILE_TASK, settings.textfile_interval_s, _SLACK_S)

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


def _remove_trusted(path: Path) -> None:
    """Remove the file, so that its values do not outlive the daemon; skip an untrusted directory."""
    with suppress(ConfigError, OSError):
        os.close(open_trusted(path.parent, directory=True))
        path.unlink()
