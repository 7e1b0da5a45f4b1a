"""Live views on a terminal: a screen that is drawn again after each reading, each key and each change of its size.

The document is read by another thread, so that a slow reading delays no key. The terminal is restored at every end of
the view: a key, Ctrl-C, a signal, an error. A failed reading is stated below the last document, and is repeated.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from rich.live import Live

from nodeagent.api.common import Document
from nodeagent.cli.display import Line
from nodeagent.cli.terminal import SafeConsole, text_of
from nodeagent.errors import NodeAgentError
from nodeagent.text import fit
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from types import FrameType

D = TypeVar("D", bound=Document)
R = TypeVar("R")
Shown_contra = TypeVar("Shown_contra", bound=Document, contravariant=True)

Lines = Iterable[Line]
_KEY: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[ -~])|.", re.DOTALL)
_PARTIAL: Final = re.compile(r"\x1b(?:\[[0-9;?]*|O)?\Z")
_NAMES: Final = {
    **dict.fromkeys(("\x1b[A", "\x1bOA", "k"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB", "j"), "down"),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "g"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "G"), "end"),
    **dict.fromkeys(("\x1b[5~", "\x02"), "page-up"),
    **dict.fromkeys(("\x1b[6~", "\x06", " "), "page-down"),
    **dict.fromkeys(("\r", "\n"), "enter"),
    **dict.fromkeys(("\x1b", "\x7f", "\x08"), "back"),
}
_REST_OF_KEY_S: Final = 0.05
"""Longest time between the bytes of one key."""
_LATE_S: Final = 5.0
"""Seconds of a reading after which the age of the shown document is stated."""
_REDRAWN_S: Final = 1.0
"""Interval of the drawings during a reading, in seconds."""


class Keys(NamedTuple):
    """Help on keys: the keys and their effect; ``hint`` is the short form in the last line, empty for none."""

    keys: str
    effect: str
    hint: str = ""


class Screen(Protocol[Shown_contra]):
    """Content of a live view, with the state that its keys change."""

    @property
    def keys(self) -> Sequence[Keys]:
        """The keys of the view."""

    def lines(self, document: Shown_contra, columns: int, rows: int) -> Lines:
        """Return the lines for a document; lines beyond ``rows`` are not shown."""

    def press(self, key: str, document: Shown_contra) -> Callable[[int], Lines] | None:
        """Apply a key; return the reading of a page to open, which gets the columns, or ``None``."""


class Scrolled(Generic[D]):
    """Lines of a view, of which the keys select the shown part."""

    keys = (Keys("up, down, page up, page down, home, end", "scroll"),)

    def __init__(self, view: Callable[[D, int], Lines]) -> None:
        self._view = view
        self._first = 0
        self._shown = 1

    def lines(self, document: D, columns: int, rows: int) -> Lines:
        """Return the shown part; its last line states the number of further lines."""
        found = wrapped(self._view(document, columns), columns)
        self._shown = max(1, rows - 1)
        self._first = max(0, min(self._first, len(found) - rows))
        rest = len(found) - self._first - rows
        if rest <= 0:
            return found[self._first :]
        return [*found[self._first :][: rows - 1], Line(f"and {rest + 1} more lines", "dim")]

    def press(self, key: str, document: D) -> None:  # noqa: ARG002 - as in Screen
        """Scroll."""
        steps = {"up": -1, "down": 1, "page-up": -self._shown, "page-down": self._shown, "home": -self._first}
        self._first = max(0, self._first + steps.get(key, 1 << 16 if key == "end" else 0))


class Page(NamedTuple):
    """Lines that are shown in place of the screen until a key closes them."""

    scrolled: Scrolled[Document]

    @classmethod
    def of(cls, lines: Lines) -> Page:
        """Return a page with lines."""
        shown = tuple(lines)
        return cls(Scrolled(lambda *_: shown))


def wrapped(lines: Lines, columns: int) -> list[Line]:
    """Return lines wrapped between words to the width of the terminal."""
    return [part for line in lines for part in line.wrapped(columns)]


def help_lines(keys: Iterable[Keys]) -> Iterator[Line]:
    """Yield one line for each key of a view."""
    yield Line("keys", "bold")
    for each in (*keys, Keys("?", "show the keys"), Keys("q, Ctrl-C", "quit, or close this page")):
        yield Line(f"  {each.keys:<16}", hang=18).append(each.effect)


def keys_of(text: str) -> list[str]:
    """Return the keys of the bytes read from a terminal; unknown sequences are omitted."""
    found = (_NAMES.get(each, each) for each in _KEY.findall(text))
    return [each for each in found if not each.startswith("\x1b")]


def show_live(first: D, read: Callable[[], D], every_s: float, screen: Screen[D]) -> D:
    """Show a document and read it again every ``every_s`` seconds, until a key ends the view.

    Args:
        first: the first document.
        read: returns the current document; it is called by another thread.
        every_s: seconds between the end of a reading and the next reading.
        screen: content of the view.

    Returns:
        The last document.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        SystemExit: SIGTERM, SIGQUIT or SIGHUP, with 128 and the number of the signal.
    """
    with _Terminal() as terminal, _Background(terminal.wake) as background:
        return _View(first, read, every_s, screen, terminal, background).run()


class _View(Generic[D]):
    """State of a live view."""

    def __init__(
        self,
        first: D,
        read: Callable[[], D],
        every_s: float,
        screen: Screen[D],
        terminal: _Terminal,
        background: _Background,
    ) -> None:
        self._document, self._read, self._every_s, self._screen = first, read, every_s, screen
        self._terminal, self._background = terminal, background
        self._page: Page | None = None
        self._problem = ""
        self._read_at_s = time.monotonic()
        self._begun_s = self._read_at_s
        self._due_s: float | None = self._read_at_s + every_s

    def run(self) -> D:
        while True:
            self._draw()
            self._terminal.wait(_REDRAWN_S if self._due_s is None else max(0.0, self._due_s - time.monotonic()))
            if not all(map(self._press, self._terminal.keys())):
                return self._document
            for receive in self._background.finished():
                receive()
            if self._due_s is not None and time.monotonic() >= self._due_s:
                self._due_s, self._begun_s = None, time.monotonic()
                self._background.start(self._read, self._receive)

    def _press(self, key: str) -> bool:
        """Apply a key; return whether the view continues."""
        page = self._page
        if page is not None:
            if key in ("q", "back", "enter", "?"):
                self._page = None
            page.scrolled.press(key, self._document)
        elif key == "q":
            return False
        elif key == "?":
            self._page = Page.of(help_lines(self._screen.keys))
        else:
            opened = self._screen.press(key, self._document)
            if opened is not None:
                self._open(opened)
        return True

    def _open(self, read_page: Callable[[int], Lines]) -> None:
        """Show a page once it is read, unless it has been closed before."""
        reading = self._page = Page.of([Line("reading", "dim")])
        columns = self._terminal.size()[0]

        def receive(lines: Lines | None, error: NodeAgentError | None) -> None:
            if self._page is reading:
                self._page = Page.of(lines or [Line(str(error), "bold red")])

        self._background.start(lambda: tuple(read_page(columns)), receive)

    def _receive(self, document: D | None, error: NodeAgentError | None) -> None:
        now_s = time.monotonic()
        self._due_s = now_s + self._every_s
        if document is not None:
            self._document, self._problem, self._read_at_s = document, "", now_s
        else:
            self._problem = str(error)

    def _draw(self) -> None:
        columns, rows = self._terminal.size()
        last, now_s = [self._last_line(columns)], time.monotonic()
        is_late = self._due_s is None and now_s - self._begun_s > _LATE_S
        if self._problem or is_late:
            problem = f"trying again: {Line(self._problem).text}" if self._problem else "waiting for an answer"
            old = format_duration(round(now_s - self._read_at_s))
            last.insert(0, Line(fit(f"{old} old, {problem}", columns), "bold red"))
        space = max(1, rows - len(last))
        content = self._screen if self._page is None else self._page.scrolled
        shown = wrapped(content.lines(self._document, columns, space), columns)[:space]
        self._terminal.draw([*shown, *[Line()] * (space - len(shown)), *last])

    def _last_line(self, columns: int) -> Line:
        closing = Keys("q", "", "q close")
        own = () if self._page else self._screen.keys
        hints = [each.hint for each in (*own, closing if self._page else Keys("q", "", "q quit")) if each.hint]
        keys = "  ".join([*hints, *([] if self._page else ["? keys"])])
        return Line(fit(keys, columns), "dim")


class _Background:
    """A thread that makes calls one after the other."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._jobs = SimpleQueue[Callable[[], Callable[[], None]] | None]()
        self._finished = SimpleQueue[Callable[[], None]]()
        # A daemon thread: a call that does not end, such as to a daemon that does not answer, must not delay the exit.
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        self._thread.join(0)

    def start(self, call: Callable[[], R], receive: Callable[[R | None, NodeAgentError | None], None]) -> None:
        """Start a call; ``receive`` gets its result or its error in :meth:`finished`."""

        def job() -> Callable[[], None]:
            try:
                result = call()
            except NodeAgentError as error:
                failure = error
                return lambda: receive(None, failure)
            except BaseException as error:  # noqa: BLE001 - raised in the main thread
                unexpected = error
                return lambda: _raise(unexpected)
            return lambda: receive(result, None)

        self._jobs.put(job)

    def finished(self) -> Iterator[Callable[[], None]]:
        """Yield a function for each finished call, which passes its result on."""
        with suppress(Empty):
            while True:
                yield self._finished.get_nowait()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._finished.put(job())
            self._wake()


def _raise(error: BaseException) -> None:
    raise error


class _Terminal:
    """The terminal during a live view: the alternate screen without echo, keys, and signals that wake the view.

    A signal that ends the command ends the view first. A stopped command leaves the terminal to the shell.
    """

    def __init__(self) -> None:
        self._console = SafeConsole()
        self._live: Live | None = None
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._mode = None if self._input is None else termios.tcgetattr(self._input)
        self._woken, self._wake = os.pipe()  # never closed: a call of the background thread may end later
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> Self:
        own = {
            signal.SIGWINCH: lambda *_: self.wake(),
            signal.SIGTSTP: self._stop,
            signal.SIGTERM: _end,
            signal.SIGQUIT: _end,
            signal.SIGHUP: _end,
        }
        for number, handler in own.items():
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, handler)
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._restore()
        finally:
            for number in self._handlers:
                signal.signal(number, signal.SIG_DFL)

    def _begin(self) -> None:
        if self._input is not None:
            tty.setcbreak(self._input)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def _restore(self) -> None:
        live, self._live = self._live, None
        try:
            if live is not None:
                live.stop()
        finally:
            if self._input is not None and self._mode is not None:
                with suppress(termios.error):  # the terminal is closed
                    termios.tcsetattr(self._input, termios.TCSAFLUSH, self._mode)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._begin()
        self.wake()

    def wake(self) -> None:
        """End :meth:`wait`; also called by handlers of signals and other threads."""
        with suppress(BlockingIOError):  # it is woken already
            os.write(self._wake, b"\0")

    def wait(self, within_s: float | None) -> None:
        """Wait for a key or for :meth:`wake`."""
        inputs = [self._woken, *([] if self._input is None else [self._input])]
        select.select(inputs, [], [], within_s)
        with suppress(BlockingIOError):
            os.read(self._woken, 1 << 12)

    def keys(self) -> list[str]:
        """Return the pressed keys; ``q`` at the end of the input, when the terminal is closed."""
        if self._input is None or not self._is_readable(0):
            return []
        data = os.read(self._input, 1 << 10)
        if not data:
            return ["q"]
        while _PARTIAL.search(data.decode("latin-1")) and self._is_readable(_REST_OF_KEY_S):
            data += os.read(self._input, 1 << 10)
        return keys_of(data.decode(errors="replace"))

    def _is_readable(self, within_s: float) -> bool:
        return self._input is not None and bool(select.select([self._input], [], [], within_s)[0])

    def size(self) -> tuple[int, int]:
        """Return columns and rows."""
        return self._console.size.width, self._console.size.height

    def draw(self, lines: Lines) -> None:
        """Draw the screen."""
        if self._live is not None:
            self._live.update(text_of(lines), refresh=True)


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)
