"""Configuration files of containerd: the main file, its imports in the order of their merge, and unimported files.

The CRI status reports a part of the running configuration, without the files that set it; a running containerd may have
read older files. The rules of the merge differ between releases: see ``nodeagent.doctor.plan.containerd``.
"""

from __future__ import annotations

import errno
import math
import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path, PurePath
from typing import Final

import psutil

from nodeagent.files import read_text
from nodeagent.host.sockets import read_listener
from nodeagent.host.unit_files import has_unit, read_unit_command
from nodeagent.model.node import ContainerdConfig, ContainerdLine
from nodeagent.record import Record, replace
from nodeagent.text import shortened

_ROOT = Path("/")
_DEFAULT: Final = "/etc/containerd/config.toml"
_DROP_INS: Final = "conf.d"
_START_TOLERANCE_S: Final = 1.0
"""The start of a process is known in ticks since the boot, whose time is rounded to seconds."""
_MAX_FILES: Final = 200
_MAX_LENGTH: Final = 60
_MAX_BYTES: Final = 128 << 10
_MAX_PARSED: Final = 2 << 20
"""Maximum number of characters that are parsed for one file: each line of a value requires another attempt to parse it.
"""
_NOT_OF_CONTAINERD: Final = frozenset({errno.EACCES, errno.EPERM, errno.EFBIG})
"""Errors of this reader on files that containerd can read."""


class ContainerdFiles(Record):
    """Location of containerd's configuration.

    Attributes:
        main: absolute path of the main file.
        is_named: whether the file must exist: the command line names it, and the root is that of containerd.
        directory: working directory of containerd.
        root: directory that the absolute paths are below: the root of the process, which can be in another mount
            namespace.
        is_running: whether the files are those of a running process.
        started_s: start of the process in seconds since the epoch; infinite without a process.
    """

    main: str = _DEFAULT
    is_named: bool = False
    directory: str = "/"
    root: Path = _ROOT
    is_running: bool = False
    started_s: float = math.inf


def find_containerd_files(socket: str, root: Path = _ROOT) -> ContainerdFiles:
    """Return the location of the configuration of the containerd that listens on a socket. Blocks.

    Without access to the process, the location in ``containerd.service`` is returned, else the default.

    Source: containerd(8), ``--config``.
    """
    found = ContainerdFiles(root=root)
    words: Sequence[str] = ()
    with suppress(OSError, psutil.Error):
        process = psutil.Process(read_listener(socket))
        words = process.cmdline()
        own_root = Path(f"/proc/{process.pid}/root")
        own_root.stat()
        directory, started_s = process.cwd(), process.create_time()
        found = ContainerdFiles(directory=directory, root=own_root, is_running=True, started_s=started_s)
    own_unit = not words and has_unit(root, "containerd")
    if own_unit:
        words = read_unit_command(root, "containerd").words
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.lstrip("-") in ("c", "config") and name.startswith("-"):
            path = value if equals else "".join(words[position + 1 : position + 2])
            return replace(found, main=str(PurePath(found.directory, path)), is_named=own_unit or found.is_running)
    return found


def read_containerd_config(files: ContainerdFiles, *, patterns_in_directory: bool = False) -> ContainerdConfig | None:
    """Return the values in the files of containerd's configuration; ``None`` if it is unknown whether files exist.

    Blocks.

    Args:
        files: location of the files.
        patterns_in_directory: whether a relative pattern is relative to the working directory of containerd, and not to
            its file.

    Source: containerd ``LoadConfig`` and ``resolveImports``: a path with an asterisk is a pattern, and may match
    nothing; another path must exist. Imports of imported files follow the imports of the main file.
    """
    reader = _Reader(files, patterns_in_directory)
    if files.is_named or reader.has_main():
        return reader.read()
    return ContainerdConfig() if files.is_running else None


class _Reader:
    def __init__(self, files: ContainerdFiles, patterns_in_directory: bool) -> None:  # noqa: FBT001
        self._main = PurePath(files.main)
        self._files = files
        self._patterns_in_directory = patterns_in_directory
        self._faults: list[str] = []
        self._unknown: list[str] = []
        self._changed: list[str] = []

    def has_main(self) -> bool:
        return os.path.lexists(self._on_disk(self._main))

    def read(self) -> ContainerdConfig:
        found: dict[PurePath, tuple[ContainerdLine, ...]] = {}
        pending = [(self._main, "")]
        while pending:
            path, named_by = pending.pop(0)
            if path in found:
                continue
            if len(found) == _MAX_FILES:
                self._unknown.append(f"{self._main}: more than {_MAX_FILES} files are imported")
                break
            try:
                found[path] = tuple(_read_lines(path, self._on_disk(path)))
                if self._on_disk(path).stat().st_mtime > self._files.started_s + _START_TOLERANCE_S:
                    self._changed.append(str(path))
            except OSError as error:
                problems = self._unknown if error.errno in _NOT_OF_CONTAINERD else self._faults
                problems.append(f"{named_by}cannot read {path}: {error.strerror or error}")
                continue
            except ValueError as error:
                self._faults.append(f"{path}: {error}")
                continue
            for line in found[path]:
                if line.keys == ("imports",):
                    pending += ((each, f"{line.place}: ") for each in self._imported(line))
        unread = (self._lines_of_unread(path) for path in self._beside() if path not in found)
        files, faults, changed = tuple(found.values()), tuple(self._faults), tuple(self._changed)
        return ContainerdConfig(files, tuple(filter(None, unread)), faults, changed, tuple(self._unknown))

    def _imported(self, line: ContainerdLine) -> Iterator[PurePath]:
        """Yield the absolute paths of the files that an assignment of ``imports`` names."""
        if not isinstance(line.value, list) or not all(isinstance(each, str) for each in line.value):
            self._faults.append(f"{line.place}: imports is no list of paths")
            return
        for each in line.value:
            if "*" not in each:
                yield PurePath(os.path.normpath(line.path.parent / each))
            elif any(special in each for special in "[\\\0"):
                self._unknown.append(f"{line.place}: pattern {each} is not understood")
            else:
                base = self._files.directory if self._patterns_in_directory else line.path.parent
                yield from self._matches(PurePath(os.path.normpath(base / PurePath(each))))

    def _matches(self, pattern: PurePath) -> list[PurePath]:
        """Return the paths that match a pattern, ascending. Source: Go ``filepath.Glob``; ``**`` is no recursion."""
        found = glob(str(pattern).lstrip("/"), root_dir=self._files.root, include_hidden=True)  # noqa: PTH207
        return sorted(
            (PurePath("/", each) for each in found), key=lambda path: [os.fsencode(each) for each in path.parts]
        )

    def _beside(self) -> list[PurePath]:
        """Return the paths of the files in the directory of drop-ins beside the main file."""
        directory = self._main.parent / _DROP_INS
        try:
            names = sorted(os.listdir(self._on_disk(directory)))  # noqa: PTH208 - only names are needed
        except OSError:
            return []
        return [directory / each for each in names if not each.startswith(".") and not each.endswith(("~", ".bak"))]

    def _lines_of_unread(self, path: PurePath) -> tuple[ContainerdLine, ...]:
        try:
            return tuple(_read_lines(path, self._on_disk(path)))
        except (OSError, ValueError):
            return ()

    def _on_disk(self, path: PurePath) -> Path:
        return self._files.root / str(path).lstrip("/")


def _read_lines(path: PurePath, on_disk: Path) -> Iterator[ContainerdLine]:
    """Yield the values of a TOML file with their lines.

    The parser of the standard library reports no lines. An assignment or a table header is the shortest text from its
    first line on that the parser accepts.

    Raises:
        OSError: the file cannot be read, or is too large to find the lines of its values.
        ValueError: the file is not valid TOML.
    """
    text = read_text(on_disk, _MAX_BYTES).replace("\r\n", "\n")
    table: tuple[str, ...] = ()
    pending: list[str] = []
    parsed_chars = 0
    try:
        tomllib.loads(text)
        for number, line in enumerate(text.split("\n"), start=1):
            pending.append(line)
            parsed_chars += sum(map(len, pending))
            if parsed_chars > _MAX_PARSED:
                raise OSError(errno.EFBIG, f"the value in line {number - len(pending) + 1} has too many lines")
            with suppress(tomllib.TOMLDecodeError):
                first, parsed = number - len(pending) + 1, tomllib.loads("\n".join(pending))
                if parsed and pending[0].lstrip().startswith("["):
                    table = _keys_of_header(parsed)
                    yield ContainerdLine(path, first, table, {})
                elif parsed:
                    yield from (ContainerdLine(path, first, keys, value) for keys, value in _flattened(parsed, table))
                pending.clear()
    except RecursionError as error:
        raise ValueError("cannot parse: nested too deeply") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"cannot parse: {error}") from error


def _keys_of_header(parsed: object) -> tuple[str, ...]:
    """Return the keys of a table header, which is parsed as nested tables with one key, or lists of one table."""
    keys: list[str] = []
    while parsed:
        if isinstance(parsed, dict):
            key, parsed = next(iter(parsed.items()))
            keys.append(key)
        elif isinstance(parsed, list):
            parsed = parsed[0]
    return tuple(keys)


def _flattened(value: object, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the values in a table with their keys; an empty table is a value.

    Raises:
        ValueError: a number is out of the range of TOML.
    """
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _flattened(each, (*keys, key))
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{shortened(keys[-1], _MAX_LENGTH)}: number out of range")
    else:
        yield keys, value
