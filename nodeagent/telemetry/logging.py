"""Structured logging: a fixed event name and keys, rendered for a console, for the journal or as JSON lines.

Event names and keys are constant, so that operators can search for them. Tenants control values such as container
names; each renderer escapes control characters and text that cannot be encoded. An entry for journald is sent in its
native protocol, as a set of named fields.

Source: systemd's documentation of the native journal protocol; memfd_create(2), sealing.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import io
import logging
import os
import re
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TextIO

import structlog

from nodeagent.errors import UsageError
from nodeagent.telemetry.event_catalogue import journal_fields
from nodeagent.text import encodable, escape, escape_lines, to_json

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.units import Clock

SOCKET: Final = "/run/systemd/journal/socket"
_NAME: Final = re.compile(r"[^A-Z0-9_]")
_LONGEST_NAME: Final = 64
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Journal:
    """A connection to journald. Sending never blocks; ``send`` returns false for an entry that cannot be sent."""

    def __init__(self, path: str = SOCKET) -> None:
        """Prepare a socket for entries to ``path``."""
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send one entry; return false if it was dropped."""
        data = encode(fields)
        try:
            self._socket.sendto(data, self._path)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                return False
            return self._send_large(data)
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send_large(self, data: bytes) -> bool:
        """Send an entry that is too large for a datagram as a sealed file; return false if it was dropped."""
        memory_file = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(memory_file, view) :]
            fcntl.fcntl(memory_file, fcntl.F_ADD_SEALS, _SEALS)
            rights = struct.pack("i", memory_file)
            self._socket.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0, self._path)
        except OSError:
            return False
        finally:
            os.close(memory_file)
        return True


def encode(fields: Mapping[str, str]) -> bytes:
    """Return the serialised entry; a value with line breaks is preceded by its length."""
    parts = []
    for name, value in fields.items():
        raw = encodable(value).encode()
        key = field_name(name).encode()
        parts.append(
            key + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n" if b"\n" in raw else key + b"=" + raw + b"\n"
        )
    return b"".join(parts)


def field_name(key: str) -> str:
    """Return a valid field name: at most 64 capitals, digits and underscores, starting with a capital."""
    return _NAME.sub("_", key.upper()).lstrip("_0123456789")[:_LONGEST_NAME] or "UNNAMED"


def is_connected_to_stderr(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether standard error is connected to journald. Source: systemd.exec(5), ``JOURNAL_STREAM``."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


Subscriber = Callable[[Mapping[str, object]], None]
"""Receives an event with its name (``event``), ``level``, ``timestamp`` and values. It runs inside the logging call, so
it must return at once; a subscriber that raises is unsubscribed."""

MAX_SUBSCRIBERS: Final = 64

_subscribers: list[Subscriber] = []


def subscribe(subscriber: Subscriber) -> None:
    """Deliver all further events to ``subscriber``, at any configured log level; debug events only if logged.

    Raises:
        UsageError: the bus already has ``MAX_SUBSCRIBERS`` subscribers.
    """
    if len(_subscribers) >= MAX_SUBSCRIBERS:
        raise UsageError(f"limit of {MAX_SUBSCRIBERS} event subscribers reached; retry after one has disconnected")
    _subscribers.append(subscriber)


def unsubscribe(subscriber: Subscriber) -> None:
    """Remove a subscriber; an unknown subscriber is ignored."""
    if subscriber in _subscribers:
        _subscribers.remove(subscriber)


def publish(values: Mapping[str, object]) -> None:
    """Deliver an event to all subscribers. A subscriber that raises an exception is unsubscribed."""
    if not _subscribers:
        return
    event = {key: value for key, value in values.items() if key != "exc_info"}
    for subscriber in tuple(_subscribers):
        try:
            subscriber(event)
        except Exception:  # noqa: BLE001 - logging must not fail, and this failure cannot be logged
            unsubscribe(subscriber)


class Subscription:
    """Queue of the events since ``__enter__``. A full queue drops its oldest event.

    A subscription is for use in one event loop only.

    Attributes:
        missed: number of dropped events.
    """

    def __init__(self, size: int = 1000) -> None:
        """Create a queue of at most ``size`` events, without a subscription."""
        self._size = size
        self._events: deque[Mapping[str, object]] = deque()
        self._available = asyncio.Event()
        self.missed = 0

    def __enter__(self) -> Self:
        subscribe(self._append)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unsubscribe(self._append)

    async def next(self) -> Mapping[str, object]:
        """Wait for the next event and return it."""
        while not self._events:
            self._available.clear()
            await self._available.wait()
        return self._events.popleft()

    def _append(self, event: Mapping[str, object]) -> None:
        if len(self._events) >= self._size:
            self._events.popleft()
            self.missed += 1
        self._events.append(event)
        self._available.set()


def _journal_renderer(journal: Journal) -> structlog.typing.Processor:
    """Return a renderer that sends events to journald, and returns a JSON line for an entry that journald rejects."""
    line = structlog.processors.JSONRenderer(serializer=to_json)

    def render(logger: object, name: str, values: structlog.typing.EventDict) -> str | bytes:
        if journal.send(journal_fields(values)):
            raise structlog.DropEvent
        return line(logger, name, values)

    return render


def _event_publisher(least: int) -> structlog.typing.Processor:
    """Return a processor that publishes each event, then drops repetitions and events below a level."""

    def published(_: object, name: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
        publish(values)
        level = "debug" if values.get(REPEATED) else "error" if name == "exception" else name
        if _LEVELS[level] < least:
            raise structlog.DropEvent
        return values

    return published


def _escape_values(_: object, __: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Return an event with escaped values; called before the renderer, whose colour codes must not be escaped."""
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
        renderer = _journal_renderer(Journal())
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
            _event_publisher(_LEVELS[level]),
            *([_escape_values] if console else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(min(_LEVELS[level], logging.INFO)),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger
