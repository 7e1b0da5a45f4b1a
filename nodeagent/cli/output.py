"""Lines for people outside tables. What is in them may come from whoever runs containers."""

from __future__ import annotations

import sys

from nodeagent.text import escape


def say(line: str) -> None:
    """Write one line to standard output."""
    sys.stdout.write(f"{escape(line)}\n")


def warn(line: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"{escape(line)}\n")
