"""Unix signals of the daemon, from the first line of Python to the exit.

Until the handlers are installed, and again while the interpreter shuts down, the default action of SIGHUP would kill
the daemon instead of reloading it. Therefore the signals below are blocked first of all, which keeps them pending, and
are delivered once the handlers are installed; after the last task SIGHUP is ignored.

Not covered: the milliseconds between exec and the first line of Python. systemd does not reload a unit of
``Type=notify`` before it is ready, so this gap matters only to a process that sends the signal directly.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

BLOCKED: Final = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


def block_signals() -> None:
    """Block the daemon's signals until ``handled`` installs their handlers; they remain pending."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)


@contextmanager
def ignore_hangup() -> Iterator[None]:
    """Survive SIGHUP within the block while ``handled`` is not active; ignore SIGHUP after the block until exit.

    A pending SIGHUP remains pending: SIG_IGN would discard it. A SIGHUP ignored by the parent process, such as
    nohup(1), remains ignored.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _do_nothing)
    try:
        yield
    finally:
        # Not a Python handler: the interpreter resets handlers to the default action before it exits.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextmanager
def handled(
    loop: asyncio.AbstractEventLoop, *, end: Callable[[], None], hangup: Callable[[], None], once: bool
) -> Iterator[None]:
    """Install the handlers for the block and deliver pending signals; both callbacks run in the event loop.

    The handler of SIGHUP is not installed through the event loop: on removal the loop would restore the default action,
    which would kill the process. Child processes start with the default actions and an empty mask.

    Args:
        loop: running event loop of the main thread.
        end: called on SIGTERM and SIGINT.
        hangup: called on SIGHUP.
        once: whether the process runs a single pass: SIGHUP then means a closed terminal, and remains ignored if the
            parent ignored it.
    """
    before = signal.getsignal(signal.SIGHUP)
    handles_hangup = not (once and before is signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if handles_hangup:
        signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(hangup))
    pending = signal.sigpending()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
    if pending & {signal.SIGTERM, signal.SIGINT}:
        end()  # called directly, since the event loop would call it only after the caller's next steps
    if handles_hangup and signal.SIGHUP in pending:
        hangup()
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _do_nothing(*_: object) -> None:
    pass
