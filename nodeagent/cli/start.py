"""Entry point of the command line.

The import of the command-line parser takes longer than most commands. So ``--version`` and ``--help`` are matched here
without it, and common forms of common commands by ``nodeagent.cli.quick``.
"""

from __future__ import annotations

import sys

from nodeagent import __version__


def main() -> None:
    """Run the command; an expected error becomes one message and an exit code."""
    words = sys.argv[1:]
    if words[:1] == ["run"]:  # before slow imports: a SIGHUP can arrive at any moment
        from nodeagent.daemon.unix_signals import block_signals  # noqa: PLC0415 - only for the daemon

        block_signals()
    elif words[:1] == ["__complete"]:
        from nodeagent.cli.completion import main as complete  # noqa: PLC0415 - without the parser

        complete(words[1:])
        return
    elif _answered(words):
        return
    else:
        from nodeagent.cli.quick import run  # noqa: PLC0415 - not for help and version

        if run(words):
            return
    from nodeagent.cli.main import main as run_parsed  # noqa: PLC0415 - with the parser

    run_parsed()


def _answered(arguments: list[str]) -> bool:
    """Print version or top-level help if it is the only option; return whether it was printed."""
    if arguments == ["--version"]:
        sys.stdout.write(f"nodeagent {__version__}\n")
        return True
    if arguments not in (["--help"], ["-h"]):
        return False
    with open(f"{__file__.rpartition('/')[0]}/help.txt", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow
        sys.stdout.write(file.read())
    return True
