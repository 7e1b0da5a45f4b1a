"""Bytes, durations and times: parsing and formatting; the clocks.

Quantities have the form of Kubernetes (``100Mi``, ``1.5Gi``, ``2G``, ``500k``), durations the form of Go (``2h45m``,
``1m30s``, ``500ms``) plus ``d`` and ``w``, because image ages and holds are configured in days and weeks.

Ages use aware UTC wall time, as the timestamps of the runtime are wall time; timeouts and intervals use the monotonic
clock. Planners receive the time of their pass as an argument and never read a clock.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Context, Decimal
from typing import Final, Protocol

USEC_INFINITY: Final = 2**64 - 1
"""Value for "no limit" of systemd properties in microseconds. Source: systemd.time(7), ``infinity``."""
_QUANTITY: Final = re.compile(
    r"\+?(?P<number>\d+(?:\.\d*)?|\.\d+)(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<power>[+-]?\d{1,9}))?", re.ASCII
)
_DECIMAL_SUFFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SUFFIXES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(_DECIMAL_SUFFIXES)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(_BINARY_SUFFIXES)},
}
_NANO: Final = Decimal("1e-9")
_MAX_QUANTITY_CHARACTERS: Final = 64
_MAX_POWER: Final = 128
"""Bound of decimal exponents: beyond it, a number of 64 characters is above any limit or below a billionth."""
_EXACT: Final = Context(prec=256)
"""The default context rounds to 28 digits, fewer than a quantity can have."""
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ns|us|µs|ms|s|m|h|d|w)", re.ASCII)
_DURATION_UNITS_S: Final[dict[str, Decimal]] = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
    "w": Decimal(604800),
}

QUANTITY_FORM: Final = "a number of bytes with an optional suffix k M G T P E or Ki Mi Gi Ti Pi Ei, such as 500Mi"
DURATION_FORM: Final = "numbers with the units w d h m s ms, such as 2m, 1h30m or 7d; 0 for none"


def parse_quantity(text: str) -> Decimal:
    """Return the number of a resource quantity, rounded up to whole billionths.

    Kubernetes caps a quantity at 2^63-1. This function returns the quantity as written, and callers reject numbers
    above their own maximum, since a silently capped limit would be compared with usage.

    Raises:
        ValueError: the text is not a quantity, is negative, or is longer than 64 characters.

    Source: Kubernetes ``resource.Quantity``: decimal suffixes n to E, binary suffixes Ki to Ei, or a decimal exponent.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_QUANTITY_CHARACTERS else None
    if match is None:
        raise ValueError(f"{text[:_MAX_QUANTITY_CHARACTERS]!r} is not a quantity such as 500Mi")
    power = max(-_MAX_POWER, min(_MAX_POWER, int(match["power"] or 0)))
    scale = Decimal(10) ** power if power else _SUFFIXES[match["suffix"] or ""]
    number = _EXACT.multiply(Decimal(match["number"]), scale)
    return number.quantize(_NANO, ROUND_CEILING, _EXACT)


def parse_bytes(text: str) -> int:
    """Return the bytes of a configured quantity; fractions are rounded up to whole bytes.

    Surrounding spaces are ignored. A fraction of a byte written with a suffix (``500m``) is rejected although
    ``resource.Quantity`` allows it: the operator probably meant ``500M``.

    Raises:
        ValueError: the text is not a quantity; the message states the allowed form.
    """
    stripped = text.strip()
    try:
        number = parse_quantity(stripped)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a size: write {QUANTITY_FORM}") from error
    if 0 < number < 1 and stripped[-1] in "num":
        raise ValueError(f"{text!r} is less than a byte: write {QUANTITY_FORM}")
    return int(number.to_integral_value(ROUND_CEILING))


def parse_duration_s(text: str) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: the text is not a duration, or is negative; the message states the allowed form.

    Source: Go ``time.ParseDuration``, plus ``d`` and ``w``.
    """
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    if stripped.startswith("-"):
        raise ValueError(f"{text!r} is negative: write {DURATION_FORM}")
    total, position = Decimal(0), 0
    while position < len(stripped):
        part = _DURATION_PART.match(stripped, position)
        if part is None:
            raise ValueError(f"{text!r} is not a duration: write {DURATION_FORM}")
        total += Decimal(part[1]) * _DURATION_UNITS_S[part[2]]
        position = part.end()
    if position == 0:
        raise ValueError(f"an empty text is not a duration: write {DURATION_FORM}")
    return float(total)


_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}.*)?", re.ASCII)
SINCE_FORM: Final = "a duration such as 2h, today, yesterday, a date such as 2026-03-01, or a date with a time"


def parse_since(text: str, now: datetime) -> datetime:
    """Return the start of a period that ends ``now``, aware, in UTC.

    The text is a duration before ``now``, ``today`` or ``yesterday`` (since midnight), a date, or an ISO 8601 time.
    Days begin at local midnight; a time without a zone is local.

    Raises:
        ValueError: the text has another form, or the time does not exist; the message states the allowed forms.
    """
    stripped = text.strip()
    try:
        if stripped in ("today", "yesterday"):
            day = now.astimezone().date() - timedelta(days=stripped == "yesterday")
            return datetime.combine(day, datetime.min.time()).astimezone(UTC)
        if _DATE.fullmatch(stripped):
            return datetime.fromisoformat(stripped).astimezone(UTC)
        return now - timedelta(seconds=parse_duration_s(stripped))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a time: write {SINCE_FORM}") from error


def format_quantity(number: int, like: str = "") -> str:
    """Return an exact number as a quantity with the largest suffix without a fraction, such as ``24684084Ki``.

    Args:
        number: bytes or a count.
        like: quantity in the form of the result: decimal (``1G``, ``5000``), with an exponent (``1e9``) or binary; also
            binary for any other text.

    Source: Kubernetes ``resource.Quantity``, ``CanonicalizeBytes``.
    """
    match = _QUANTITY.fullmatch(like)
    binary = match is None or (match["suffix"] or "").endswith("i")
    base, suffixes = (1024, _BINARY_SUFFIXES) if binary else (1000, _DECIMAL_SUFFIXES)
    power = 0
    while number and number % base == 0 and power < len(suffixes) - 1:
        number //= base
        power += 1
    return f"{number}e{3 * power}" if power and match and match["power"] else f"{number}{suffixes[power]}"


def format_space(size_bytes: int, inodes: int) -> str:
    """Return bytes and inodes for display, without a resource of 0, such as ``1.46 GiB and 12 inodes``."""
    return " and ".join(
        [format_bytes(size_bytes)] * bool(size_bytes or not inodes) + [f"{inodes} inodes"] * bool(inodes)
    )


def format_bytes(size_bytes: int) -> str:
    """Return a size for display, in binary units with about three digits, such as ``1.46 GiB``."""
    sign, rest = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    if rest < 1024:
        return f"{sign}{rest} B"
    value = float(rest)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        value /= 1024
        if value < 999.5 or unit == "EiB":
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{sign}{value:.{digits}f} {unit}"


def format_time(moment: datetime) -> str:
    """Return an aware UTC time as RFC 3339 with milliseconds, the form in documents and records."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_local_time(moment: datetime) -> str:
    """Return an aware time for people, in the local time zone and with its name, such as ``2026-03-01 13:00:05 CET``.

    The variable ``TZ`` sets the zone. Source: localtime(3).
    """
    try:
        return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z").rstrip()
    except (OverflowError, ValueError, OSError):  # of a year that the C library cannot represent
        return format_time(moment)


_TIME_IN_TEXT: Final = re.compile(r"\b\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?Z", re.ASCII)


def localize_times(text: str) -> str:
    """Return a sentence of a document for people: each time of :func:`format_time` as by :func:`format_local_time`."""

    def localized(found: re.Match[str]) -> str:
        try:
            return format_local_time(datetime.fromisoformat(found[0]))
        except ValueError:  # such as month 13
            return found[0]

    return _TIME_IN_TEXT.sub(localized, text)


def format_duration(seconds: float) -> str:
    """Return a duration for display with its two largest units, such as ``2h45m``; below a minute with ``s``."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms" if seconds else "0s"
    whole = round(seconds)
    parts = []
    for unit, unit_s in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, unit_s)
        parts.append((count, unit))
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return "".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


class Clock(Protocol):
    """Source of time outside the planners."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""

    def monotonic_s(self) -> float:
        """Return monotonic seconds, suspend included (CLOCK_BOOTTIME)."""


class SystemClock:
    """Clocks of the machine."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return seconds since boot, suspend included. Source: clock_gettime(2), CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
