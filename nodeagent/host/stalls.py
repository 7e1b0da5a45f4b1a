"""Stall averages of the kernel (PSI), and the wait of low-priority work for an idle disk."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.host.meminfo import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT: Final = Path("/")
IDLE_BELOW_PERCENT: Final = 10.0
"""Share of the last ten seconds in which a task waited for a disk, from which low-priority work waits."""
_WITHIN_S: Final = 60.0
_POLL_S: Final = 2.0


def read_stall_averages(path: Path) -> Mapping[str, float]:
    """Return the ten-second averages of a pressure file in percent, by ``some`` and ``full``.

    Empty on a kernel without PSI. Source: kernel psi.rst.

    Raises:
        ObservationError: the file cannot be read, or a line has no average.
    """
    if not path.exists():
        return {}
    found = {}
    for line in read_text(path).splitlines():
        kind, *fields = line.split()
        values = dict(field.partition("=")[::2] for field in fields)
        try:
            found[kind] = float(values["avg10"])
        except (KeyError, ValueError) as error:
            raise ObservationError(f"{path}: {line!r} has no avg10") from error
    return found


class IdleDisk:
    """Waits of a pass for disks without stalls of tasks, a minute in total: a long pass would observe no image use."""

    def __init__(self, stop: asyncio.Event, root: Path = _ROOT) -> None:
        """Create the waits of a pass, which ``stop`` ends without success."""
        self._stop = stop
        self._path = root / "proc/pressure/io"
        self._waited_s = 0.0

    async def wait(self) -> str:
        """Wait for an idle disk; return the reason to postpone work, empty on success.

        Without PSI, or with an unreadable average, there is no wait.
        """
        while not self._stop.is_set():
            stalled = 0.0
            with suppress(ObservationError):
                stalled = read_stall_averages(self._path).get("some", 0.0)
            if stalled < IDLE_BELOW_PERCENT:
                return ""
            if self._waited_s >= _WITHIN_S:
                limit = f"limit {IDLE_BELOW_PERCENT:g}%"
                return f"postponed: tasks waited for a disk in {stalled:g}% of the last 10s, {limit}"
            self._waited_s += _POLL_S
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._stop.wait()
        return "pass stopped"
