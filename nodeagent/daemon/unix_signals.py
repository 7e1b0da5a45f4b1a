"""Unix signals of the daemon, from the first line of Python to the exit.

Until the handlers are installed, and again while the interpreter shuts down, the default action of SIGHUP would kill
a daemon that was only asked to reload. Therefore the signals below are blocked first of all, which keeps them pending
over the exec of the daemon, and are delivered once there are handlers; after the last task SIGHUP is ignored.

Not covered: the milliseconds between exec and the first line of Python. systemd does not reload a unit of
``Type=notify`` before it is ready, so they matter only to whoever signals the process directly.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

HELD: Final = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


def hold_signals() -> None:
    """Block the daemon's signals until ``handled`` installs their handlers; an exec keeps them blocked and pending."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)


@contextmanager
def hangup_survived() -> Iterator[None]:
    """Survive SIGHUP within the block wherever ``handled`` is not active, and ignore it from its end to the exit.

    A SIGHUP that is pending stays pending: to ignore it at once would discard it. One that the parent process had
    ignored, as nohup(1) does, stays ignored.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _do_nothing)
    try:
        yield
    finally:
        # Not a handler of ours: the interpreter resets those to the default action before it exits.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextmanager
def handled(
    loop: asyncio.AbstractEventLoop, *, end: Callable[[], None], hangup: Callable[[], None], once: bool
) -> Iterator[None]:
    """Install the handlers for the block and deliver what was held; both callbacks run in the loop.

    The handler of SIGHUP is not the loop's: the loop can only replace it by the default action, which would kill the
    process. Children get the default actions and an empty mask.

    Args:
        loop: the running loop of the main thread.
        end: called on SIGTERM and SIGINT.
        hangup: called on SIGHUP.
        once: a single pass: SIGHUP means that the terminal is gone, and is left alone if the parent ignored it.
    """
    before = signal.getsignal(signal.SIGHUP)
    hears_hangup = not (once and before is signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if hears_hangup:
        signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(hangup))
    came = signal.sigpending()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
    if came & {signal.SIGTERM, signal.SIGINT}:
        end()  # the loop would call it only after the caller's next steps
    if hears_hangup and signal.SIGHUP in came:
        hangup()
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _do_nothing(*_: object) -> None:
    pass
