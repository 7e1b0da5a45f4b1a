"""The certificate of the metrics listener: read at its start, and again when one of its files changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.http.server import Tls
from nodeagent.errors import ConfigError
from nodeagent.guarded_call import GuardedCall, HangingCallError
from nodeagent.host.server_certificate import read_stamp, server_context

if TYPE_CHECKING:
    import ssl

    from structlog.typing import FilteringBoundLogger

    from nodeagent.config.metrics import TlsFiles
    from nodeagent.host.server_certificate import Stamp

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
