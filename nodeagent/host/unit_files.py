"""Files of systemd's configuration: drop-ins in order of precedence, and the command line that a unit starts.

The command line of a running process can be hidden: k3s replaces it. ``systemctl show`` has the command line of a unit
with unexpanded variables, and nothing without systemd; a stopped unit may have changed since it was loaded.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Final, NamedTuple

from nodeagent.files import read_text
from nodeagent.record import Record

_DIRECTORIES: Final = (
    *("etc/systemd/system.control", "run/systemd/system.control", "run/systemd/transient"),
    *("run/systemd/generator.early", "etc/systemd/system", "etc/systemd/system.attached", "run/systemd/system"),
    *("run/systemd/system.attached", "run/systemd/generator", "usr/local/lib/systemd/system"),
    *("lib/systemd/system", "usr/lib/systemd/system", "run/systemd/generator.late"),
)
"""Directories of the system's units, highest precedence first. Source: ``systemd-analyze unit-paths``."""
_MAX_WORDS: Final = 4096
_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")
_LINE_END: Final = re.compile(r"\r\n|[\n\r\0]")
_WORD: Final = re.compile(r"\$(\w+)")
_IN_WORD: Final = re.compile(r"\$(?:\$|\{(\w+)\})")
_SPECIFIER: Final = re.compile(r"%([%nNp])")


class UnitCommand(Record):
    """The command line that a unit starts.

    Attributes:
        words: the program and its arguments, with variables replaced; empty if they cannot be read.
        environment: variables that the unit sets.
        sources: paths of the files that were read: the unit, its drop-ins and environment files.
        unread: files that cannot be read or parsed, each with the cause.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    sources: tuple[str, ...]
    unread: tuple[str, ...] = ()


def find_drop_ins(root: Path, directories: Iterable[str], warnings: list[str]) -> dict[str, Path]:
    """Return the drop-ins by name, including masks, each from the first directory that contains it."""
    drop_ins: dict[str, Path] = {}
    for directory in directories:
        drop_in_directory = root / directory
        try:
            entries = list(drop_in_directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            warnings.append(f"cannot read {drop_in_directory}: {error.strerror or error}")
            continue
        for path in entries:
            if path.suffix == ".conf" and not path.name.startswith(".") and is_file_or_mask(path):
                drop_ins.setdefault(path.name, path)
    return drop_ins


def is_file_or_mask(path: Path) -> bool:
    """Return whether a path is a regular file, or a character device: the target of a mask is ``/dev/null``."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISCHR(mode)


def is_mask(path: Path) -> bool:
    """Return whether a file is empty, or a link to ``/dev/null``, and so disables files of its name."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode) or (stat.S_ISREG(status.st_mode) and not status.st_size)


class Assignment(NamedTuple):
    """One assignment in a file of systemd's configuration.

    Attributes:
        number: number of its first line, from 1.
        section: name of the section; empty outside of a section.
        key: the name; without an equals sign, the whole line.
        value: the value; ``None`` without an equals sign, in a line that systemd ignores.
    """

    number: int
    section: str
    key: str
    value: str | None


def read_assignments(path: Path) -> Iterator[Assignment]:
    """Yield the assignments of a unit, a configuration file or a drop-in; nothing for a mask. Blocks.

    Raises:
        OSError: the file cannot be read.
        ValueError: systemd cannot parse a line, and reads nothing after it; the message has file and line.

    Source: systemd.syntax(7); systemd ``config_parse``.
    """
    if stat.S_ISCHR(path.stat().st_mode):
        return
    section = ""
    for number, line in numbered_lines(read_text(path, errors="surrogateescape").removeprefix("\ufeff")):
        if _NOT_UTF8.search(line):
            raise ValueError(f"{path}:{number}: not UTF-8 text; systemd reads nothing after this line")
        if line.startswith("["):
            if not line.endswith("]"):
                raise ValueError(f"{path}:{number}: invalid section header; systemd reads nothing after this line")
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        yield Assignment(number, section, key.strip(), value.strip() if equals else None)


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield stripped lines without comments, continued lines joined, each with the number of its first line, from 1.

    Source: systemd.syntax(7); systemd ``read_line`` and ``config_parse``: a backslash continues a line only as the last
    character, and if no backslash precedes it.
    """
    continued, first = "", 0
    for number, raw in enumerate(_LINE_END.split(text), start=1):
        line = raw.strip()
        if line.startswith(("#", ";")) or (not line and not continued):
            continue
        first = first if continued else number
        if (len(raw) - len(raw.rstrip("\\"))) % 2:
            continued += line[:-1] + " "
            continue
        yield first, (continued + line).strip()
        continued = ""
    if continued:
        yield first, continued.strip()


def has_unit(root: Path, name: str) -> bool:
    """Return whether a directory of the system's units has a service of this name, such as ``kubelet``."""
    return any(os.path.lexists(root / each / f"{name}.service") for each in _DIRECTORIES)


def read_unit_command(root: Path, name: str) -> UnitCommand:
    """Return the command line of a service, such as ``kubelet``. Blocks.

    Source: systemd.unit(5), unit load path and drop-ins; systemd.service(5), command lines; systemd.exec(5),
    ``Environment=`` and ``EnvironmentFile=``; systemd.unit(5), specifiers.
    """
    return _UnitReader(root, name).read()


def _drop_in_directories(name: str) -> Iterator[str]:
    """Yield the directories of a service's drop-ins, highest precedence first.

    The drop-ins of a service come before those of services with the same start of the name up to a dash; those of all
    services come last, from any directory.

    Source: systemd.unit(5); systemd ``unit_file_find_dropin_paths``.
    """
    parts = name.split("-")
    names = [name, *("-".join(parts[:count]) + "-" for count in range(len(parts) - 1, 0, -1))]
    for directory in _DIRECTORIES:
        yield from (f"{directory}/{each}.service.d" for each in names)
    yield from (f"{directory}/service.d" for directory in _DIRECTORIES)


class _UnitReader:
    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._name = name
        self._sources: list[str] = []
        self._unread: list[str] = []

    def read(self) -> UnitCommand:
        service = f"{self._name}.service"
        found = (self._root / each / service for each in _DIRECTORIES)
        main = next(filter(os.path.lexists, found), self._root / _DIRECTORIES[-1] / service)
        if is_mask(main):
            return UnitCommand((), {}, (), (f"{self._shown(main)} masks the unit",))
        drop_ins = find_drop_ins(self._root, _drop_in_directories(self._name), self._unread)
        paths = [main, *(drop_ins[each] for each in sorted(drop_ins, key=os.fsencode))]
        settings: dict[str, list[str]] = {"ExecStart": [], "Environment": [], "EnvironmentFile": []}
        for path in paths:
            for _, section, key, value in self._assignments(path):
                if section == "Service" and key in settings and value:
                    settings[key].append(self._specified(value))
                elif section == "Service" and key in settings and value is not None:
                    settings[key].clear()  # an empty value resets the list
        environment: dict[str, str] = {}
        for each in settings["Environment"]:
            environment |= dict(word.split("=", 1) for word in self._words(each) if "=" in word)
        for each in settings["EnvironmentFile"]:
            environment |= self._variables(each)
        commands = settings["ExecStart"]
        command = commands[-1].lstrip("-@:+!|") if commands else ""
        words = tuple(self._expanded(self._words(command), environment))[:_MAX_WORDS]
        return UnitCommand(words, environment, tuple(self._sources), tuple(self._unread))

    def _specified(self, value: str) -> str:
        """Return a value with its specifiers replaced; an unknown specifier is kept, such as in ``5%,``."""
        names = {"%": "%", "n": f"{self._name}.service", "N": self._name, "p": self._name}
        return _SPECIFIER.sub(lambda match: names[match[1]], value)

    def _variables(self, value: str) -> dict[str, str]:
        """Return the variables of environment files; a path or pattern after a dash may name no file.

        Source: systemd.exec(5), ``EnvironmentFile=``; glob(3).
        """
        pattern = value.removeprefix("-")
        # As glob(3), unlike Path.glob: no names with a leading dot, and no recursion by two asterisks.
        found = sorted(glob(pattern.lstrip("/"), root_dir=self._root), key=os.fsencode)  # noqa: PTH207
        if not found and not value.startswith("-"):
            self._unread.append(f"cannot read {pattern}: {os.strerror(errno.ENOENT)}")
        variables: dict[str, str] = {}
        for path in (self._root / each for each in found):
            try:
                lines = list(numbered_lines(read_text(path)))
            except OSError as error:
                self._fail(path, error)
                continue
            self._sources.append(self._shown(path))
            pairs = (line.partition("=")[::2] for _, line in lines if "=" in line)
            variables |= {key.strip(): _unquoted(each.strip()) for key, each in pairs}
        return variables

    def _expanded(self, words: Iterable[str], environment: Mapping[str, str]) -> Iterator[str]:
        for word in words:
            if match := _WORD.fullmatch(word):
                yield from self._words(environment.get(match[1], ""))
            else:
                yield _IN_WORD.sub(lambda match: environment.get(match[1], "") if match[1] else "$", word)

    def _words(self, text: str) -> list[str]:
        return split_words(text, f"{self._name}.service", self._unread)

    def _assignments(self, path: Path) -> Iterator[Assignment]:
        """Yield the assignments of a unit or drop-in; an error is recorded, since systemd does not load the unit."""
        try:
            yield from read_assignments(path)
        except (OSError, ValueError) as error:
            self._fail(path, error)
        else:
            self._sources.append(self._shown(path))

    def _fail(self, path: Path, error: OSError | ValueError) -> None:
        if isinstance(error, OSError):
            self._unread.append(f"cannot read {self._shown(path)}: {error.strerror or error}")
        else:
            self._unread.append(str(error).replace(str(path), self._shown(path)))

    def _shown(self, path: Path) -> str:
        return f"/{path.relative_to(self._root)}"


def split_words(text: str, where: str, problems: list[str]) -> list[str]:
    """Return the words of a command line; none after an error, which is appended to ``problems``."""
    try:
        return shlex.split(text)
    except ValueError as error:
        problems.append(f"{where}: {str(error).lower()}")
        return []


def _unquoted(value: str) -> str:
    """Return the value of a variable in an environment file without the quotes around it."""
    if len(value) > 1 and value[0] in "\"'" and value.endswith(value[0]):
        return value[1:-1].replace('\\"', '"')
    return value
