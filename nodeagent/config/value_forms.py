"""Rules of values: each raises ``ValueError`` for an invalid value, those of any type return the value as stored."""

from __future__ import annotations

from typing import Final

from nodeagent.linear_expression import glob_search
from nodeagent.text import encodable
from nodeagent.units import DURATION_FORM, QUANTITY_FORM, parse_bytes, parse_duration_s

_MAX_TEXT_LENGTH: Final = 64
_MAX_DURATION_S: Final = 100 * 365 * 86_400.0
_MAX_SIZE_BYTES: Final = 2**63 - 1
_MAX_PROVIDER_ID: Final = 512
_MAX_SOCKET_PATH_BYTES: Final = 107
"""Maximum length of a socket path, without the final zero byte. Source: unix(7), ``sun_path``."""


def duration(value: object) -> object:
    """Return a valid duration as text; a plain 0 is returned as ``0s``."""
    if value == 0 and not isinstance(value, bool):
        return "0s"
    if not isinstance(value, str):
        raise ValueError(f"a duration needs a unit: write {DURATION_FORM}")  # noqa: TRY004 - faults of values are ValueError
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
        raise ValueError(f"not a size: write {QUANTITY_FORM}")  # noqa: TRY004 - faults of values are ValueError
    text = str(value)
    if len(text) > _MAX_TEXT_LENGTH or parse_bytes(text) > _MAX_SIZE_BYTES:
        raise ValueError("larger than 8Ei")
    return text.strip()


def absolute(value: str) -> None:
    """Check that a path is absolute."""
    if not value.startswith("/") or "\0" in value:
        raise ValueError("must be an absolute path, such as /var/log/pods")


def absolute_or_empty(value: str) -> None:
    """Check that a path is absolute or empty."""
    if value:
        absolute(value)


def socket_path(value: str) -> None:
    """Check that a path is short enough for the address of a unix socket."""
    if len(value.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"longer than the maximum of a socket path ({_MAX_SOCKET_PATH_BYTES} bytes)")


def endpoint(value: str) -> None:
    """Check that a runtime endpoint is a unix socket or empty."""
    if encodable(value) != value:
        raise ValueError("not UTF-8 text")
    if value and not value.removeprefix("unix://").startswith("/"):
        raise ValueError("must be a unix socket, such as unix:///run/containerd/containerd.sock, or empty to detect it")


def registry(value: str) -> None:
    """Check that a registry has the form ``HOST`` or ``HOST:PORT``."""
    if not value or not value.isprintable() or any(each in value for each in "/@ "):
        raise ValueError(f"{value!r} is not a registry: write HOST or HOST:PORT, without scheme and path")
    glob_search(value)


def below_high_threshold(low_percent: int, high_percent: int) -> None:
    """Check that the low threshold of image GC is below the high threshold."""
    if low_percent >= high_percent:
        raise ValueError(f"must be below high_threshold_percent = {high_percent}")


def beyond_minimum_age(unused: str, minimum: str) -> None:
    """Check that the maximum unused age of images is longer than their minimum age, or 0."""
    if 0 < parse_duration_s(unused) <= parse_duration_s(minimum):
        raise ValueError(f"must be longer than minimum_age = {minimum}, or 0")


def stall_window(value: str) -> None:
    """Check that a PSI window is within the limits of the kernel."""
    if not 0.5 <= parse_duration_s(value) <= 10:
        raise ValueError("must be from 500ms to 10s (kernel limit)")


def provider_id(value: str) -> None:
    """Check the id of a machine at its provider."""
    if len(value) > _MAX_PROVIDER_ID or not value.isprintable() or (value and "://" not in value):
        raise ValueError("must be PROVIDER://ID, such as example://machine-7")
