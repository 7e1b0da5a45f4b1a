"""Path of the control socket, from a configuration that may be invalid.

A client of the daemon requires no other setting. With a file that became invalid the daemon continues with its earlier
configuration and remains controllable; faults of the file are therefore ignored here.
"""

from __future__ import annotations

import errno
import os
import stat

from nodeagent.config.paths import CONFIG_FILE, CONTROL_SOCKET
from nodeagent.errors import ConfigError

TYPE_CHECKING = False  # a command sends its request before the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE = "NODEAGENT_CONTROL__SOCKET"
_PREFIX = "NODEAGENT_"
_NO_SETTINGS = (VARIABLE, "NODEAGENT_TEST_", "NODEAGENT_SERVICE_", "NODEAGENT_PORT")
_SECTION = "control"
_KEY = "socket"


def read_socket_path(config: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of the control socket; ``None`` if the control API is disabled.

    The variable takes precedence over the drop-ins of the configuration file, which override the file itself. Without a
    readable setting it is the default path.

    Args:
        config: configuration file; ``None`` for the default one, which may be missing or unreadable.
        environment: variables of this process.

    Raises:
        ConfigError: the variable is no absolute path, or the given ``config`` cannot be read.
    """
    found = environment.get(VARIABLE)
    if found is None:
        found = _in_files(config)
    elif found and not found.startswith("/"):
        raise ConfigError(f"environment: {VARIABLE} = {found!r}: must be an absolute path")
    return found or None


def has_settings(environment: Mapping[str, str]) -> bool:
    """Return whether environment variables set more than the control socket."""
    return any(name.startswith(_PREFIX) and not name.startswith(_NO_SETTINGS) for name in environment)


def _in_files(config: str | None) -> str:
    found = CONTROL_SOCKET
    try:
        texts = [_read(config or CONFIG_FILE)]
    except (OSError, UnicodeDecodeError) as error:
        if config is not None:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(f"{config}: cannot read file: {reason or error}") from error
        texts = []
    for each in _dropins(config or CONFIG_FILE):
        try:
            texts.append(_read(each))
        except (OSError, UnicodeDecodeError):
            continue
    for text in texts:
        for line in text.splitlines():
            if _KEY in line and not line.lstrip().startswith("#"):
                found = _in_text(text, found)
                break
    return found


def _read(path: str) -> str:
    # A named pipe in the place of a file blocks neither the opening nor the command.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    with open(descriptor, encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        return file.read()


def _dropins(path: str) -> list[str]:
    """Return the drop-ins of a configuration file, in order; none if their directory is unreadable."""
    directory = f"{os.path.splitext(path)[0]}.d"  # noqa: PTH122 - pathlib is slow
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208
    except OSError:
        return []
    return [f"{directory}/{name}" for name in names if name.endswith(".toml") and not name.startswith(".")]


def _in_text(text: str, default: str) -> str:
    """Return the socket path set by a file; ``default`` without one, or for a relative path."""
    import tomllib  # noqa: PLC0415 - imported only for a file with a socket path

    try:
        documents: Iterator[Mapping[str, object]] = iter([tomllib.loads(text)])
    except (ValueError, RecursionError):
        documents = _valid_lines(text)
    for document in documents:
        section = document.get(_SECTION)
        path = section.get(_KEY) if isinstance(section, dict) else None
        if isinstance(path, str) and (not path or path.startswith("/")):
            default = path
    return default


def _valid_lines(text: str) -> Iterator[Mapping[str, object]]:
    """Yield the document of each valid line of an invalid file, within its table."""
    import tomllib  # noqa: PLC0415 - as above

    header = ""
    for line in text.splitlines():
        if line.lstrip().startswith("["):
            header = line
            continue
        try:
            yield tomllib.loads(f"{header}\n{line}")
        except (ValueError, RecursionError):
            continue
