"""Default paths as text, and the path of the control socket, from a configuration that may be invalid.

A client of the daemon requires no other setting. If the file becomes invalid, the daemon continues with its previous
configuration and remains controllable; faults in the file are therefore ignored here.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping

from nodeagent.errors import ConfigError

CONFIG_FILE = "/etc/nodeagent/config.toml"
RUNTIME_DIRECTORY = "/run/nodeagent"
CONTROL_SOCKET = "/run/nodeagent/control.sock"


VARIABLE = "NODEAGENT_CONTROL__SOCKET"
ENVIRONMENT_PREFIX = "NODEAGENT_"
FOREIGN_PREFIXES = ("NODEAGENT_TEST_", "NODEAGENT_SERVICE_", "NODEAGENT_PORT", "NODEAGENT_PAGER")
"""Prefixes of other variables: of the tests and the pager, and those that Kubernetes derives from a Service."""
_NO_SETTINGS = (VARIABLE, *FOREIGN_PREFIXES)
_SECTION = "control"
_KEY = "socket"


def read_socket_path(config: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of the control socket; ``None`` if the control API is disabled.

    The environment variable takes precedence over the drop-ins of the configuration file, which override the file
    itself. If none of them sets the path, the default path is returned.

    Args:
        config: configuration file; ``None`` for the default file, which may be missing or unreadable.
        environment: variables of this process.

    Raises:
        ConfigError: the variable is not an absolute path, or the file ``config`` cannot be read.
    """
    found = environment.get(VARIABLE)
    if found is None:
        found = _in_files(config)
    elif found and not found.startswith("/"):
        raise ConfigError(f"environment: {VARIABLE} = {found!r}: must be an absolute path")
    return found or None


def has_settings(environment: Mapping[str, str]) -> bool:
    """Return whether environment variables set more than the control socket."""
    return any(name.startswith(ENVIRONMENT_PREFIX) and not name.startswith(_NO_SETTINGS) for name in environment)


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
    # O_NONBLOCK: a named pipe in place of the file must not block the command.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    with open(descriptor, encoding="utf-8") as file:  # noqa: PTH123 - pathlib does not open a descriptor
        return file.read()


def _dropins(path: str) -> list[str]:
    """Return the drop-ins of a configuration file, in order; empty if the directory is unreadable."""
    directory = f"{os.path.splitext(path)[0]}.d"  # noqa: PTH122 - pathlib is slow to import
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208
    except OSError:
        return []
    return [f"{directory}/{name}" for name in names if name.endswith(".toml") and not name.startswith(".")]


def _in_text(text: str, default: str) -> str:
    """Return the socket path set by a file; ``default`` if the file sets no path or a relative path."""
    import tomllib  # noqa: PLC0415 - needed only for a file with a socket path

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
    """Yield each valid line of an invalid TOML file, parsed below the header of its table."""
    import tomllib  # noqa: PLC0415 - needed only for a file with a socket path

    header = ""
    for line in text.splitlines():
        if line.lstrip().startswith("["):
            header = line
            continue
        try:
            yield tomllib.loads(f"{header}\n{line}")
        except (ValueError, RecursionError):
            continue
