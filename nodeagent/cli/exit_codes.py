"""Exit codes of the commands, and the conversion of errors to exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from typing import TYPE_CHECKING, Final, NoReturn

from nodeagent import errors
from nodeagent.text import escape, escape_lines
from nodeagent.units import localize_times

if TYPE_CHECKING:
    from nodeagent.gc.executor import Outcome, PassEnd


_FULL: Final = frozenset({EDQUOT, EFBIG, EIO, ENOSPC})


class ExitCode(IntEnum):
    """The exit codes of every command; scripts depend on them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    RUNTIME_UNREACHABLE = 4
    BUSY = 5
    INTERRUPTED = 130


EPILOG = (
    "Exit codes: 0 done (or nothing to do), 1 failed, 2 wrong usage, unknown name or invalid configuration, 3 partly "
    "done or short of the target, 4 runtime unreachable, 5 another pass is running, 130 interrupted."
)


def pass_exit_code(end: PassEnd, outcomes: Sequence[Outcome] = ()) -> ExitCode:
    """Return the exit code of a pass; a dry run has the exit code of the previewed pass."""
    from nodeagent.gc.executor import Outcome, PassEnd  # noqa: PLC0415 - not needed by every command

    if end is PassEnd.RUNTIME_LOST:
        return ExitCode.RUNTIME_UNREACHABLE
    if end is PassEnd.REFUSED:
        return ExitCode.FAILED
    failed = Outcome.FAILED in outcomes
    if failed and not any(each in (Outcome.DONE, Outcome.GONE) for each in outcomes):
        return ExitCode.FAILED
    if failed or end in (PassEnd.SHORTFALL, PassEnd.CANCELLED):
        return ExitCode.PARTIAL
    return ExitCode.DONE


def fail(message: str, code: ExitCode) -> NoReturn:
    """Exit with a code, and print a one-line message on standard error."""
    _fail_with_lines(escape(message), code)


def _fail_with_lines(message: str, code: ExitCode) -> NoReturn:
    sys.stderr.write(f"nodeagent: {escape_lines(localize_times(message))}\n")
    sys.exit(code)


@contextmanager
def _complete_output() -> Iterator[None]:
    """Flush standard output at the end of the block.

    Otherwise the interpreter flushes it after the command and reports a write error with a traceback and exit code 120.
    """
    if sys.stdout is None:
        raise errors.NodeAgentError("cannot write output: standard output is closed")
    try:
        yield
    finally:
        if not sys.stdout.closed:
            sys.stdout.flush()


@contextmanager
def guarded() -> Iterator[None]:
    """Convert an expected error to a message and its exit code, any other error to a traceback and ``FAILED``."""
    try:
        with _complete_output():
            yield
    except (errors.ConfigError, errors.UsageError) as error:
        _fail_with_lines(str(error), ExitCode.USAGE)  # one line per fault
    except (errors.RuntimeUnavailableError, errors.RuntimeTimeoutError) as error:
        fail(str(error), ExitCode.RUNTIME_UNREACHABLE)
    except errors.PassBusyError as error:
        fail(str(error), ExitCode.BUSY)
    except errors.NodeAgentError as error:
        fail(str(error), ExitCode.FAILED)
    except KeyboardInterrupt:
        fail("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        end_without_reader()
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            _fail_internal()
        _discard_output()
        fail(f"cannot write output: {error.strerror}", ExitCode.FAILED)
    except Exception:  # noqa: BLE001 - the interpreter would print the error unescaped
        _fail_internal()


def end_without_reader() -> NoReturn:
    """Exit with ``DONE`` after the reader of standard output has ended, such as ``head``."""
    _discard_output()
    sys.stderr.close()
    sys.exit(ExitCode.DONE)


def _discard_output() -> None:
    """Close standard output; otherwise the interpreter retries the failed write at exit."""
    with suppress(OSError):
        sys.stdout.close()


def _fail_internal() -> NoReturn:
    import traceback  # noqa: PLC0415 - needed only for an internal error

    _fail_with_lines(f"internal error\n{traceback.format_exc()}", ExitCode.FAILED)
