"""Entry point of the command line."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the command line; convert an expected error to a message and an exit code."""
    words = sys.argv[1:]
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _occupy_closed_descriptors()
    if words[:1] == ["run"]:  # before slow imports: a SIGHUP can arrive at any moment
        from nodeagent.loops.unix_signals import block_signals  # noqa: PLC0415 - needed only for the daemon

        block_signals()
    elif words[:1] == ["__probe"]:  # of a container
        from nodeagent.api.client import probe  # noqa: PLC0415 - runs without the parser

        sys.exit(probe("".join(words[1:])))
    elif words[:1] == ["__complete"]:
        from nodeagent.cli.completion import main as complete  # noqa: PLC0415 - limits the time of its imports

        complete(words[1:])
        return
    else:
        _encode_for_locale()
    from nodeagent.cli.main import main as run_parsed  # noqa: PLC0415 - imports the parser

    run_parsed()


def _encode_for_locale() -> None:
    """Encode the outputs of a command in ASCII if the locale is C or POSIX, where Python selects UTF-8.

    Without any setting of a locale the encoding is UTF-8. In its UTF-8 mode, Python has replaced LC_CTYPE.
    """
    names = ["LC_ALL", *([] if sys.flags.utf8_mode else ["LC_CTYPE"]), "LANG"]
    if next(filter(None, map(os.environ.get, names)), "") in {"C", "POSIX"}:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="ascii", errors="backslashreplace")


def _occupy_closed_descriptors() -> None:
    """Open ``/dev/null`` for closed standard streams; otherwise files opened later would reuse their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the process exits
