"""Structured logging: a fixed event name and keys, rendered for a console, for the journal or as JSON lines.

Event names and keys are constant, so that operators can search for them. Tenants control values such as container
names; each renderer escapes control characters and text that cannot be encoded.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from nodeagent.host.journal import Journal, is_connected_to_stderr
from nodeagent.telemetry.event_bus import publish
from nodeagent.telemetry.event_catalogue import journal_fields
from nodeagent.text import escape, escape_lines, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import TextIO

    from structlog.typing import FilteringBoundLogger


@contextmanager
def _without_rich() -> Iterator[None]:
    """Hide rich from structlog: the import takes 5 MiB, and the agent logs tracebacks without colours."""
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = cast("ModuleType", None)  # makes import statements raise ImportError
    try:
        yield
    finally:
        del sys.modules["rich"]


with _without_rich():
    import structlog


class _JournalRenderer:
    """Renderer that sends events to journald; an entry that journald rejects is written as a JSON line."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._line = structlog.processors.JSONRenderer(serializer=to_json)

    def __call__(
        self, logger: object, name: str, values: structlog.typing.EventDict
    ) -> str | bytes | structlog.typing.EventDict:
        if self._journal.send(journal_fields(values)):
            raise structlog.DropEvent
        return self._line(logger, name, values)


class _EventPublisher:
    """Processor that publishes each event on the bus, then drops events below the configured level."""

    def __init__(self, level: int) -> None:
        self._level = level

    def __call__(self, logger: object, name: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
        del logger
        publish(values)
        if _LEVELS["error" if name == "exception" else name] < self._level:
            raise structlog.DropEvent
        return values


def _escape_values(logger: object, name: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Return an event with escaped values; called before the renderer, whose colour codes must not be escaped."""
    del logger, name
    return {key: value if key == "exc_info" else _escaped(value) for key, value in values.items()}


def _escaped(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        return {str(_escaped(key)): _escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(each) for each in value]
    return escape(value if isinstance(value, str) else repr(value))


def _write_traceback(stream: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    stream.write(escape_lines(text.getvalue()))


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(form: str, level: str, stream: TextIO | None = None) -> FilteringBoundLogger:
    """Configure logging and return the agent's logger.

    Args:
        form: ``console``, ``json``, ``journal``, or ``auto``: console on a terminal, journal if standard error is
            connected to the journal, otherwise JSON.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        stream: output of the log; standard error by default.
    """
    out = stream if stream is not None else sys.stderr
    console = form == "console" or (form == "auto" and out.isatty())
    renderer: structlog.typing.Processor
    if form == "journal" or (form == "auto" and stream is None and is_connected_to_stderr()):
        renderer = _JournalRenderer(Journal())
    elif console:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=_write_traceback)
    else:
        renderer = structlog.processors.JSONRenderer(serializer=to_json)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if console else [structlog.processors.format_exc_info]),
            _EventPublisher(_LEVELS[level]),
            *([_escape_values] if console else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(min(_LEVELS[level], logging.INFO)),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger
