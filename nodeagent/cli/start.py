"""Entry point of the command line.

Importing the command-line parser takes longer than running most commands. Therefore ``--version`` and ``--help`` are
matched here without the parser, and common command lines by ``nodeagent.cli.quick``.
"""

from __future__ import annotations

import os
import sys

from nodeagent import __version__

_TARGETS = {
    "containers": "/v1/containers",
    "images": "/v1/images",
    "pods": "/v1/pods",
    "pressure": "/v1/pressure",
    "status": "/v1/status",
    "version": "/v1/version",
}
"""HTTP targets of the commands that send their request before importing their implementation."""
_OUTPUT_OPTIONS = ("-o", "--output", "-q", "--quiet", "--no-headers", "--no-trunc", "--sort-by", "--filter")


def program() -> None:
    """Run the command, then exit without finalizing the interpreter; the daemon returns normally.

    The finalization would only delete all modules, which takes 1 to 3 % of the run time of a command that reads the
    node.
    """
    main()
    if sys.argv[1:2] == ["run"]:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(0)


def main() -> None:
    """Run the command line; convert an expected error to a message and an exit code."""
    words = sys.argv[1:]
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _occupy_closed_descriptors()
    if words[:1] == ["run"]:  # before slow imports: a SIGHUP can arrive at any moment
        from nodeagent.daemon.unix_signals import block_signals  # noqa: PLC0415 - needed only for the daemon

        block_signals()
    elif words[:1] == ["__probe"]:  # of a container
        from nodeagent.api.early_request import probe  # noqa: PLC0415 - runs without the parser

        sys.exit(probe("".join(words[1:])))
    elif words[:1] == ["__complete"]:
        from nodeagent.cli.completion import main as complete  # noqa: PLC0415 - runs without the parser

        complete(words[1:])
        return
    elif sys.stdout is not None and _answered(words):
        return
    else:
        if target := early_target(words):
            from nodeagent.api.early_request import send  # noqa: PLC0415 - not needed for help and version

            send(target)
        from nodeagent.cli.quick import run  # noqa: PLC0415 - not needed for help and version

        if run(words):
            return
    from nodeagent.cli.main import main as run_parsed  # noqa: PLC0415 - imports the parser

    run_parsed()


def early_target(words: list[str]) -> str:
    """Return the target of the early request; empty if the command has none or an option may select another source."""
    options = [each.partition("=")[0] for each in words[1:] if each.startswith("-")]
    if not words or any(each not in _OUTPUT_OPTIONS for each in options):
        return ""
    return _TARGETS.get(words[0], "")


def _answered(arguments: list[str]) -> bool:
    """Print the version or the top-level help if it is the only option; return whether a text was printed."""
    if arguments == ["--version"]:
        text = f"nodeagent {__version__}\n"
    elif arguments in (["--help"], ["-h"]):
        with open(f"{__file__.rpartition('/')[0]}/help.txt", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
            text = file.read()
    else:
        return False
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        from nodeagent.cli.exit_codes import guarded  # noqa: PLC0415 - needed only after a write error

        with guarded():
            raise
    return True


def _occupy_closed_descriptors() -> None:
    """Open ``/dev/null`` for closed standard streams; otherwise files opened later would reuse their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the process exits
