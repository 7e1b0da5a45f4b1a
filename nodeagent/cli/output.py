"""Escaped lines on standard output and standard error: tenants choose the item names in the lines."""

from __future__ import annotations

import sys

from nodeagent.text import escape


def say(line: str) -> None:
    """Write one escaped line to standard output."""
    sys.stdout.write(f"{escape(line)}\n")


def warn(line: str) -> None:
    """Write one escaped line to standard error."""
    sys.stderr.write(f"{escape(line)}\n")
