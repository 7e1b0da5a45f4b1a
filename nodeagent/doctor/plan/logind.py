"""Lines in logind's configuration files, and in files that look like them, that look effective and are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from nodeagent.doctor.plan.node import Finding
from nodeagent.text import shortened

if TYPE_CHECKING:
    from nodeagent.model.node import LogindLine

_SECTION, _KEY = "Login", "InhibitDelayMaxSec"
_SIMILARITY: Final = 0.8
"""Accepts ``InhibitDelayMaxUSec``, ``InhibitorDelayMaxSec`` and ``InhibitDelayMax``; every other key of logind differs
more: ``InhibitorsMax`` has 0.65."""
_MAX_LENGTH: Final = 40


def check_logind_lines(
    read: Sequence[LogindLine], unread: Sequence[LogindLine], *, too_short: bool
) -> Iterator[Finding]:
    """Yield a warning for each line that is meant to set logind's delay limit and has no effect.

    Args:
        read: assignments in the files that logind reads, in the order in which they are read.
        unread: assignments in other files.
        too_short: whether the limit does not permit the configured time of the shutdown phases. Only then a line that
            a later line overrides is reported, if it sets a higher limit: to override a vendor's file is usual.

    Source: logind.conf(5); systemd.syntax(7): names of sections and keys are case-sensitive.
    """
    winner = next((each for each in reversed(read) if each.delay_us is not None), None)
    for line in (*read, *unread):
        if not get_close_matches(line.key.lower(), [_KEY.lower()], cutoff=_SIMILARITY):
            continue
        reason, fix = _reason_and_fix(line, winner if too_short else None)
        if reason:
            assignment = f"{line.key}={shortened(line.value, _MAX_LENGTH)}"
            yield Finding.warning("logind-files", f"{line.place}: {assignment} has no effect: {reason}", fix)


def _reason_and_fix(line: LogindLine, winner: LogindLine | None) -> tuple[str, str]:
    """Return the reason why a line has no effect, empty for a line with an effect, and the fix."""
    if line.unread:
        return line.unread, f"move it to /etc/systemd/logind.conf.d/NAME.conf, below [{_SECTION}], and reload logind"
    if line.key != _KEY:
        return "unknown key", f"write {_KEY}= (case-sensitive) and reload logind"
    if line.section != _SECTION:
        place = f"in the section [{shortened(line.section, _MAX_LENGTH)}]" if line.section else "outside of a section"
        return f"{place}, logind reads only [{_SECTION}]", f"move it below a line [{_SECTION}] and reload logind"
    if winner and winner.delay_us is not None and line.delay_us is not None and line.delay_us > winner.delay_us:
        return (
            f"{winner.place}, read later, sets {shortened(winner.value, _MAX_LENGTH)}",
            "remove one of the lines and reload logind; drop-ins are read in the order of their names",
        )
    return "", ""
