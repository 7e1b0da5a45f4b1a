"""Lines in logind's configuration files, and in files that look like them, that look effective and are not."""

from __future__ import annotations

import re
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
_NAME_END: Final = re.compile(r"[\s:]")


def check_logind_lines(
    read: Sequence[LogindLine], unread: Sequence[LogindLine], *, too_short: bool
) -> Iterator[Finding]:
    """Yield a warning for each line that is meant to set logind's delay limit and has no effect.

    Args:
        read: assignments in the files that logind reads, in the order in which they are read.
        unread: assignments in other files.
        too_short: whether the limit does not permit the configured time of the shutdown phases. Only then a line that
            a later line overrides, or a line in a hidden file, is reported, if it sets a higher limit: to override or
            hide a vendor's file is usual.

    Source: logind.conf(5); systemd.syntax(7): names of sections and keys are case-sensitive.
    """
    winner = next((each for each in reversed(read) if each.delay_us is not None), None)
    for line in (*read, *unread):
        if not get_close_matches(_name(line).lower(), [_KEY.lower()], cutoff=_SIMILARITY):
            continue
        if line.delay_us is not None and not (too_short and _is_higher(line, winner)):
            continue  # in effect, overridden or hidden
        reason, fix = _reason_and_fix(line, winner)
        if reason:
            text = line.key if line.value is None else f"{line.key}={shortened(line.value, _MAX_LENGTH)}"
            yield Finding.warning(
                "logind-files", f"{line.place}: {shortened(text, 2 * _MAX_LENGTH)} has no effect: {reason}", fix
            )


def _name(line: LogindLine) -> str:
    """Return the name of a setting; without an equals sign, the first word of the line."""
    return line.key if line.value is not None else _NAME_END.split(line.key, maxsplit=1)[0]


def _is_higher(line: LogindLine, winner: LogindLine | None) -> bool:
    limit_us = None if winner is None else winner.delay_us
    return line is not winner and line.delay_us is not None and (limit_us is None or line.delay_us > limit_us)


def _reason_and_fix(line: LogindLine, winner: LogindLine | None) -> tuple[str, str]:
    """Return the reason why a line has no effect, empty for an invalid value, and the fix."""
    if line.unread:
        moved = f"move it to /etc/systemd/logind.conf.d/NAME.conf, below [{_SECTION}], and reload logind"
        is_hidden = line.delay_us is not None
        return line.unread, "set the limit in the other file, or remove it, and reload logind" if is_hidden else moved
    if line.value is None:
        return "it has no equals sign", f"write {_KEY}=SECONDS and reload logind"
    if line.key != _KEY:
        return "unknown key", f"write {_KEY}= (case-sensitive) and reload logind"
    if line.section != _SECTION:
        place = f"in the section [{shortened(line.section, _MAX_LENGTH)}]" if line.section else "outside of a section"
        return f"{place}, logind reads only [{_SECTION}]", f"move it below a line [{_SECTION}] and reload logind"
    if winner and winner.value is not None and line.delay_us is not None:
        return (
            f"{winner.place}, read later, sets {shortened(winner.value, _MAX_LENGTH)}",
            "remove one of the lines and reload logind; drop-ins are read in the order of their names",
        )
    return "", ""
