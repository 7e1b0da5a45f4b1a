"""Identity of a process across restarts of the node."""

from __future__ import annotations

from nodeagent.record import Record


class ProcessIdentity(Record):
    """A process, distinguished from later processes with the same PID and from processes of other boots.

    Attributes:
        boot_id: id of the boot; empty if unknown.
        started_ticks: start time in clock ticks since boot; 0 if unknown.
    """

    pid: int
    boot_id: str
    started_ticks: int
