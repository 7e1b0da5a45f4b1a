"""Structured logging: a fixed event name and keys, rendered for a console, for the journal or as JSON lines.

Event names and keys are constant, so that operators can search for them. Tenants control values such as container
names; each renderer escapes control characters and text that cannot be encoded.
"""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from nodeagent.host.journal import Journal, is_connected_to_stderr
from nodeagent.telemetry.event_bus import publish
from nodeagent.telemetry.event_catalogue import journal_fields
from nodeagent.text import escape, escape_lines, to_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import TextIO

    from structlog.typing import FilteringBoundLogger

    from nodeagent.clock import Clock


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
    """Processor that publishes each event on the bus, then drops repetitions and events below the configured level."""

    def __init__(self, level: int) -> None:
        self._level = level

    def __call__(self, logger: object, name: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
        del logger
        publish(values)
        level = "debug" if values.get(REPEATED) else "error" if name == "exception" else name
        if _LEVELS[level] < self._level:
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


REPEATED: Final = "repeated"
STATE_REPEAT_S: Final = 3600.0
_MAX_STATES: Final = 500
_NUMBERS: Final = re.compile(r"[0-9.]+")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class StateLog:
    """Logs lasting states: a state at its change, and at most once an hour while it lasts. Not thread-safe.

    A state is identified by its event and subject; further occurrences of the same state are repetitions. All loops of
    the daemon log their lasting states through this class.

    Attributes:
        logger: logger of all other events.
    """

    def __init__(self, logger: FilteringBoundLogger, clock: Clock) -> None:
        self.logger = logger
        self._clock = clock
        self._logged: dict[tuple[str, ...], tuple[str, float]] = {}

    def log_once(  # noqa: PLR0913 - identity, state and form of an event
        self,
        event: str,
        fields: Mapping[str, object],
        *,
        about: Iterable[str] = (),
        state: str = "",
        level: str = "warning",
        counted: bool = False,
    ) -> bool:
        """Log a state unless it is a repetition; return whether it was logged.

        Args:
            event: name of the event.
            fields: fields of the event.
            about: subject of the state, such as a threshold and a step.
            state: text that changes with the state, without values that change with every reading; see ``stable``.
            level: name of the logger's method.
            counted: whether repetitions are published on the event bus, for counters and Events, with ``repeated``.
        """
        key, now_s = (event, *about), self._clock.monotonic_s()
        before = self._logged.get(key)
        is_repeated = before is not None and before[0] == state and now_s - before[1] < STATE_REPEAT_S
        if not is_repeated:
            self._logged.pop(key, None)
            self._logged[key] = state, now_s
            if len(self._logged) > _MAX_STATES:
                del self._logged[next(iter(self._logged))]
        if counted or not is_repeated:
            getattr(self.logger, level)(event, **fields, **({REPEATED: True} if is_repeated else {}))
        return not is_repeated

    def end(self, event: str, *about: str) -> bool:
        """Forget the states of an event whose subject starts with ``about``; return whether there was one."""
        ended = [key for key in self._logged if key[: len(about) + 1] == (event, *about)]
        for key in ended:
            del self._logged[key]
        return bool(ended)

    def end_others(self, event: str, lasting: Collection[str]) -> None:
        """Forget the states of an event whose subject, of one text, is not in ``lasting``."""
        for key in [key for key in self._logged if key[0] == event and key[1] not in lasting]:
            del self._logged[key]


def stable(text: str) -> str:
    """Return a text without its numbers, such as amounts and durations, for comparison with a later text."""
    return _NUMBERS.sub("", text)


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
