"""Forms of single values: each function returns the value as stored, and raises ``ValueError`` for an invalid one."""

from __future__ import annotations

from typing import Final

from nodeagent.config.metrics import parse_listen, parse_textfile
from nodeagent.plan.gc.image_protection import parse_rule
from nodeagent.text import encodable
from nodeagent.units import DURATION_FORM, QUANTITY_FORM, parse_bytes, parse_duration_s

_MAX_TEXT_LENGTH: Final = 64
_MAX_DURATION_S: Final = 100 * 365 * 86_400.0
_MAX_SIZE_BYTES: Final = 2**63 - 1
_MAX_SOCKET_PATH_BYTES: Final = 107
"""Source: unix(7), ``sun_path`` with its final zero."""


def duration(value: object) -> object:
    """Return the text of a duration; a plain 0 counts as ``0s``."""
    if value == 0 and not isinstance(value, bool):
        return "0s"
    if not isinstance(value, str):
        raise ValueError(f"a duration needs a unit: write {DURATION_FORM}")  # noqa: TRY004 - pydantic's contract
    if len(value) > _MAX_TEXT_LENGTH or parse_duration_s(value) > _MAX_DURATION_S:
        raise ValueError("longer than 100 years")
    return value.strip()


def period(value: object) -> object:
    """Return the text of a duration of at least 1 s."""
    text = duration(value)
    if parse_duration_s(str(text)) < 1:
        raise ValueError("must be at least 1s")
    return text


def size(value: object) -> object:
    """Return the text of a size; a plain number counts as bytes."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"not a size: write {QUANTITY_FORM}")  # noqa: TRY004 - pydantic's contract
    text = str(value)
    if len(text) > _MAX_TEXT_LENGTH or parse_bytes(text) > _MAX_SIZE_BYTES:
        raise ValueError("larger than 8Ei")
    return text.strip()


def absolute(value: str) -> str:
    """Return an absolute path."""
    if not value.startswith("/") or "\0" in value:
        raise ValueError("must be an absolute path, such as /var/log/pods")
    return value


def absolute_or_empty(value: str) -> str:
    """Return an absolute path or an empty text."""
    return absolute(value) if value else value


def socket_path(value: str) -> str:
    """Return a path that fits into the address of a unix socket."""
    if len(value.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"longer than the maximum of a socket path ({_MAX_SOCKET_PATH_BYTES} bytes)")
    return value


def endpoint(value: str) -> str:
    """Return the endpoint of a runtime, or an empty text."""
    if encodable(value) != value:
        raise ValueError("not UTF-8 text")
    if value and not value.removeprefix("unix://").startswith("/"):
        raise ValueError("must be a unix socket, such as unix:///run/containerd/containerd.sock, or empty to detect it")
    return value


def listen(value: str) -> str:
    """Return a listen address."""
    parse_listen(value)
    return value


def textfile(value: str) -> str:
    """Return the path of a metrics file, or an empty text."""
    return parse_textfile(value)


def rule(value: str) -> str:
    """Return a protection rule of images."""
    parse_rule(value)
    return value


def registry(value: str) -> str:
    """Return the host, with its port if any, of a registry."""
    if not value or not value.isprintable() or any(each in value for each in "/@ "):
        raise ValueError(f"{value!r} is not a registry: write HOST or HOST:PORT, without scheme and path")
    return value


def check_thresholds(low_percent: int, high_percent: int) -> None:
    """Check that the low threshold of image GC is below the high one."""
    if low_percent >= high_percent:
        raise ValueError(f"must be below high_threshold_percent = {high_percent}")


def check_unused_age(unused: str, minimum: str) -> None:
    """Check that the maximum unused age of images is longer than their minimum age, or 0."""
    if 0 < parse_duration_s(unused) <= parse_duration_s(minimum):
        raise ValueError(f"must be longer than minimum_age = {minimum}, or 0")
