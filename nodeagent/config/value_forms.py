"""Validators of single values: each returns the value as stored, and raises ``ValueError`` for an invalid value."""

from __future__ import annotations

from typing import Final

from nodeagent.config.metrics import parse_listen, parse_textfile
from nodeagent.plan.gc.image_protection import parse_rule
from nodeagent.plan.gc.linear_expression import glob_search
from nodeagent.text import encodable
from nodeagent.units import DURATION_FORM, QUANTITY_FORM, parse_bytes, parse_duration_s

_MAX_TEXT_LENGTH: Final = 64
_MAX_DURATION_S: Final = 100 * 365 * 86_400.0
_MAX_SIZE_BYTES: Final = 2**63 - 1
_MAX_SOCKET_PATH_BYTES: Final = 107
"""Maximum length of a socket path, without the final zero byte. Source: unix(7), ``sun_path``."""


def duration(value: object) -> object:
    """Return a valid duration as text; a plain 0 is returned as ``0s``."""
    if value == 0 and not isinstance(value, bool):
        return "0s"
    if not isinstance(value, str):
        raise ValueError(f"a duration needs a unit: write {DURATION_FORM}")  # noqa: TRY004 - pydantic reports only ValueError
    if len(value) > _MAX_TEXT_LENGTH or parse_duration_s(value) > _MAX_DURATION_S:
        raise ValueError("longer than 100 years")
    return value.strip()


def period(value: object) -> object:
    """Check that a duration is at least 1 s, and return it as text."""
    text = duration(value)
    if parse_duration_s(str(text)) < 1:
        raise ValueError("must be at least 1s")
    return text


def size(value: object) -> object:
    """Return a valid size as text; a plain number is a number of bytes."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"not a size: write {QUANTITY_FORM}")  # noqa: TRY004 - pydantic reports only ValueError
    text = str(value)
    if len(text) > _MAX_TEXT_LENGTH or parse_bytes(text) > _MAX_SIZE_BYTES:
        raise ValueError("larger than 8Ei")
    return text.strip()


def absolute(value: str) -> str:
    """Check that a path is absolute, and return it."""
    if not value.startswith("/") or "\0" in value:
        raise ValueError("must be an absolute path, such as /var/log/pods")
    return value


def absolute_or_empty(value: str) -> str:
    """Check that a path is absolute or empty, and return it."""
    return absolute(value) if value else value


def socket_path(value: str) -> str:
    """Check that a path is short enough for the address of a unix socket, and return it."""
    if len(value.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"longer than the maximum of a socket path ({_MAX_SOCKET_PATH_BYTES} bytes)")
    return value


def endpoint(value: str) -> str:
    """Check that a runtime endpoint is a unix socket or empty, and return it."""
    if encodable(value) != value:
        raise ValueError("not UTF-8 text")
    if value and not value.removeprefix("unix://").startswith("/"):
        raise ValueError("must be a unix socket, such as unix:///run/containerd/containerd.sock, or empty to detect it")
    return value


def listen(value: str) -> str:
    """Check the listen address of the metrics endpoint, and return it."""
    parse_listen(value)
    return value


def textfile(value: str) -> str:
    """Check that the path of the metrics file is valid or empty, and return it."""
    return parse_textfile(value)


def rule(value: str) -> str:
    """Check an image protection rule, and return it."""
    parse_rule(value)
    return value


def registry(value: str) -> str:
    """Check that a registry has the form ``HOST`` or ``HOST:PORT``, and return it."""
    if not value or not value.isprintable() or any(each in value for each in "/@ "):
        raise ValueError(f"{value!r} is not a registry: write HOST or HOST:PORT, without scheme and path")
    glob_search(value)
    return value


def check_thresholds(low_percent: int, high_percent: int) -> None:
    """Check that the low threshold of image GC is below the high threshold."""
    if low_percent >= high_percent:
        raise ValueError(f"must be below high_threshold_percent = {high_percent}")


def check_unused_age(unused: str, minimum: str) -> None:
    """Check that the maximum unused age of images is longer than their minimum age, or 0."""
    if 0 < parse_duration_s(unused) <= parse_duration_s(minimum):
        raise ValueError(f"must be longer than minimum_age = {minimum}, or 0")
