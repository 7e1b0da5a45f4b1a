"""logind's configured delay (``InhibitDelayMaxSec``), the file that sets it, and the agent's own drop-in.

logind merges one main file and drop-ins of four directories. A distribution's drop-in with a shorter delay is easily
overlooked, since the order of drop-ins depends on their names and not on their directories.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Final

from nodeagent.errors import InhibitorError
from nodeagent.files import replace_file
from nodeagent.host.unit_files import find_drop_ins, is_file_or_mask, is_mask, read_assignments
from nodeagent.model.node import LogindLine
from nodeagent.record import Record, replace
from nodeagent.units import USEC_INFINITY

_ROOT = Path("/")

DEFAULT_DELAY_US: Final = 5_000_000
"""logind's default. Source: logind.conf(5), ``InhibitDelayMaxSec=``."""

_DIRECTORIES = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")
_DROP_INS = tuple(f"{each}/logind.conf.d" for each in _DIRECTORIES)
_SECTION, _KEY = "Login", "InhibitDelayMaxSec"
_UNREAD = (
    *("etc/logind.conf", "etc/logind.conf.d", "etc/systemd/logind.d"),
    *("etc/systemd/login.conf", "etc/systemd/login.conf.d"),
    *("etc/systemd/systemd-logind.conf", "etc/systemd/systemd-logind.conf.d"),
    *("etc/systemd/system.conf", "etc/systemd/system.conf.d"),
    *("etc/systemd/system/logind.conf", "etc/systemd/system/logind.conf.d"),
    "etc/systemd/system/systemd-logind.service.d",
)
"""Files and directories that are easily taken for logind's, and that logind does not read."""

_OWN_SUFFIX = "nodeagent.conf"
_OWN_NAME = f"zz-{_OWN_SUFFIX}"

_UNITS_US: Final[dict[str, int]] = {
    **dict.fromkeys(("", "seconds", "second", "sec", "s"), 10**6),
    **dict.fromkeys(("minutes", "minute", "min", "m"), 60 * 10**6),
    **dict.fromkeys(("hours", "hour", "hr", "h"), 3600 * 10**6),
    **dict.fromkeys(("days", "day", "d"), 86_400 * 10**6),
    **dict.fromkeys(("weeks", "week", "w"), 7 * 86_400 * 10**6),
    **dict.fromkeys(("months", "month", "M"), 2_629_800 * 10**6),
    **dict.fromkeys(("years", "year", "y"), 31_557_600 * 10**6),
    **dict.fromkeys(("msec", "ms"), 1000),
    **dict.fromkeys(("usec", "us", "\u00b5s", "\u03bcs"), 1),
}
_SPAN_PART = re.compile(r"\+?(?P<number>\d+(?:\.\d+)?|\.\d+)(?:\s*(?P<unit>[A-Za-z\u00b5\u03bc]+)|\s+|$)", re.ASCII)


class LogindDelay(Record):
    """The delay according to logind's files.

    Attributes:
        winner: the effective setting; ``None`` for systemd's default.
        overridden: valid settings without effect, in the order in which they are read.
        warnings: unreadable files and invalid values, as sentences.
        lines: all assignments, in the order in which they are read.
    """

    winner: LogindLine | None
    overridden: tuple[LogindLine, ...] = ()
    warnings: tuple[str, ...] = ()
    lines: tuple[LogindLine, ...] = ()

    @property
    def set_by(self) -> str:
        """The file that sets the delay, or systemd's default."""
        return "systemd's default" if self.winner is None else str(self.winner.path)

    @property
    def delay_us(self) -> int:
        """Delay in microseconds that applies once logind has read these files."""
        delay_us = None if self.winner is None else self.winner.delay_us
        return DEFAULT_DELAY_US if delay_us is None else delay_us


class DropIn(Record):
    """A configuration file to write."""

    path: Path
    text: str


def read_delay(root: Path = _ROOT) -> LogindDelay:
    """Return all settings of ``InhibitDelayMaxSec``, with the effective setting.

    The main file is read first, from the first directory that contains it, then the drop-ins of all directories in the
    order of their names. Of several drop-ins with the same name, only the drop-in in the first directory is read (/etc,
    /run, /usr/local/lib, /usr/lib); an empty file, or a link to /dev/null, masks the later drop-ins. The last valid
    value wins.

    Source: logind.conf(5), configuration directories and precedence; systemd.syntax(7).
    """
    warnings: list[str] = []
    lines: list[LogindLine] = []
    for path in _files(root, warnings):
        try:
            for line in _lines_of(path, warnings):
                lines.append(line)  # noqa: PERF402 - the lines before an error count
        except OSError as error:
            warnings.append(f"cannot read {path}: {error.strerror or error}")
        except ValueError as error:
            warnings.append(f"{error}, nor any later file of logind")
            break
    settings = [each for each in lines if each.delay_us is not None]
    return LogindDelay(settings[-1] if settings else None, tuple(settings[:-1]), tuple(warnings), tuple(lines))


def read_unread_lines(root: Path = _ROOT) -> tuple[LogindLine, ...]:
    """Return the assignments in files that logind does not read: hidden, in a wrong directory, or without ``.conf``.

    Hidden files are main files and drop-ins of which another directory has a file of the same name; only their lines
    have a delay. Files whose name starts with a dot, copies such as ``x.conf.bak`` or ``x.conf~``, and unreadable files
    are skipped.
    """
    unread = {path: f"logind does not read /{place}" for place in _UNREAD for path in _entries(root / place)}
    for place in _DROP_INS:
        unread |= {
            path: "the name of the file does not end with .conf"
            for path in _entries(root / place)
            if ".conf" not in path.name and not path.name.startswith(".") and not path.name.endswith("~")
        }
    files = list(_files(root, []))
    read = {path.resolve() for path in files}  # a link can lead from a wrong directory to a file that is read
    by_name = {(path.parent.name, path.name): path for path in files}
    candidates = [root / each / "logind.conf" for each in _DIRECTORIES]
    candidates += [path for place in _DROP_INS for path in _entries(root / place)]
    hidden = {
        path: f"{first} {'masks' if is_mask(first) else 'replaces'} the file"
        for path in candidates
        if (first := by_name.get((path.parent.name, path.name)))
    }
    found: list[LogindLine] = []
    for path, because in (unread | hidden).items():
        if path.is_file() and path.resolve() not in read:
            with suppress(OSError, ValueError):
                for line in _lines_of(path, []):
                    delay_us = line.delay_us if path in hidden else None
                    found.append(replace(line, delay_us=delay_us, unread=because))
    return tuple(found)


def own_drop_in(delay_s: int, root: Path = _ROOT) -> DropIn:
    """Return the drop-in that sets a delay of ``delay_s`` seconds, under a name that sorts after all other drop-ins.

    Nothing is written, see :func:`write_drop_in`. logind reads the file when it is reloaded.
    """
    others = [name for name in find_drop_ins(root, _DROP_INS, []) if not name.endswith(_OWN_SUFFIX)]
    last = max(others, key=os.fsencode, default="")
    name = _OWN_NAME
    if os.fsencode(last) > os.fsencode(name):
        name = f"{last.removesuffix('.conf')}~{_OWN_SUFFIX}"
    text = (
        "# Written by nodeagent on request, so that pods have time to stop during a node shutdown.\n"
        "# Remove this file and reload systemd-logind to undo it.\n"
        f"[{_SECTION}]\n{_KEY}={delay_s}\n"
    )
    return DropIn(root / _DIRECTORIES[0] / "logind.conf.d" / name, text)


def write_drop_in(drop_in: DropIn) -> None:
    """Write the drop-in atomically; a missing directory is created.

    Raises:
        InhibitorError: the file cannot be written; the previous file is kept.
    """
    try:
        drop_in.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(drop_in.path, drop_in.text, mode=0o644)
    except OSError as error:
        raise InhibitorError(f"cannot write {drop_in.path}: {error.strerror or error}") from error


def parse_span_us(text: str) -> int:
    """Return a time span in microseconds; ``USEC_INFINITY`` for ``infinity``.

    Raises:
        ValueError: the text is not a time span; the message quotes it.

    Source: systemd.time(7), parsing time spans.
    """
    stripped = text.strip()
    if stripped == "infinity":
        return USEC_INFINITY
    total, position = Decimal(0), 0
    while position < len(stripped):
        part = _SPAN_PART.match(stripped, position)
        unit_us = _UNITS_US.get(part["unit"] or "") if part is not None else None
        if part is None or unit_us is None:
            raise ValueError(f"{text!r} is not a time span")
        total += Decimal(part["number"]) * unit_us
        position = part.end()
        while position < len(stripped) and stripped[position].isspace():
            position += 1
    if position == 0 or total >= USEC_INFINITY:
        raise ValueError(f"{text!r} is not a time span")
    return int(total)


def _files(root: Path, warnings: list[str]) -> Iterator[Path]:
    for directory in _DIRECTORIES:
        main = root / directory / "logind.conf"
        if is_file_or_mask(main):
            yield main
            break
    drop_ins = find_drop_ins(root, _DROP_INS, warnings)
    for name in sorted(drop_ins, key=os.fsencode):
        yield drop_ins[name]


def _entries(place: Path) -> list[Path]:
    """Return a file, or the files of a directory in the order of their names."""
    try:
        return sorted(place.iterdir()) if place.is_dir() else [place]
    except OSError:
        return []


def _lines_of(path: Path, warnings: list[str]) -> Iterator[LogindLine]:
    for number, section, key, value in read_assignments(path):
        delay_us = None
        if (section, key) == (_SECTION, _KEY) and value is not None:
            try:
                delay_us = parse_span_us(value)
            except ValueError:
                warnings.append(f"{path}:{number}: {_KEY}={value} is not a time span; logind ignores it")
        yield LogindLine(path, number, section, key, value, delay_us)
