"""What systemd says of itself and of our unit."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Final

from nodeagent.host.logind_config import INFINITY_US, parse_span_us

STOPPING: Final = "stopping"
_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class UnitStop:
    """The stop of a unit that is under way.

    Attributes:
        system_state: as ``systemctl is-system-running`` says it; empty where that is not known.
        timeout_us: how long systemd waits for the unit's stop command; ``None`` for no limit or where not known.
    """

    system_state: str
    timeout_us: int | None = None

    @property
    def node_goes_down(self) -> bool:
        """Whether the whole machine is being stopped, not just the unit."""
        return self.system_state == STOPPING


def read_unit_stop(unit: str) -> UnitStop:
    """Return why a unit is being stopped and how long it may take; what systemd does not tell is left out.

    Source: systemctl(1), ``is-system-running``; systemd.service(5), ``TimeoutStopSec=``.
    """
    state = _ask("is-system-running")
    if state != STOPPING or not unit:
        return UnitStop(state)
    try:
        timeout_us = parse_span_us(_ask("show", "--property=TimeoutStopUSec", "--value", unit))
    except ValueError:
        return UnitStop(state)
    return UnitStop(state, None if timeout_us == INFINITY_US else timeout_us)


def _ask(*words: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["systemctl", *words],  # noqa: S607 - found by the unit's own path
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
