"""Formatting of eviction signals: values as text, and used shares for bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.cli.table import size_cell
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from nodeagent.eviction.pressure_documents import Signal


def signal_name(signal: Signal) -> str:
    """Return the name of a signal, with the mount point for each image filesystem after the first."""
    return f"{signal.signal!s} on {signal.mountpoint}" if signal.mountpoint else str(signal.signal)


def is_stall(signal: Signal) -> bool:
    """Return whether a signal is a stall percentage; its thresholds are upper limits."""
    return ".psi." in signal.signal


def used_share(signal: Signal) -> float:
    """Return the used share of a resource or the stalled share of time, from 0 to 1; 0 if it is unknown."""
    share = signal.available / signal.capacity if signal.capacity else 1.0
    return min(1.0, max(0.0, signal.available / 100 if is_stall(signal) else 1.0 - share))


def amount(signal: Signal, value: float) -> str:
    """Return a quantity of a signal as text: bytes, percent, inodes or process ids."""
    if is_stall(signal):
        return f"{value:g}%"
    return f"{int(value):,}" if _is_count(signal) else format_bytes(int(value))


def short_amount(signal: Signal, value: float) -> str:
    """Return a quantity of a signal as one word; inodes and process ids with about three digits, such as ``16.3M``."""
    if is_stall(signal):
        return f"{value:g}%"
    if not _is_count(signal):
        return size_cell(int(value))
    number, suffixes = float(int(value)), iter(("", "k", "M", "G"))
    suffix = next(suffixes)
    while number >= 999.5:
        number, suffix = number / 1000, next(suffixes, "T")
    return f"{number:.3g}{suffix}"


def _is_count(signal: Signal) -> bool:
    name = str(signal.signal)
    return name.startswith("pid") or name.endswith("inodesFree")
