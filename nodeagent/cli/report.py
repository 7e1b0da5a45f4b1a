"""``nodeagent report``: the state of this node as one line of JSON, or the summary of many such lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from nodeagent.api.codec import decode, encode, encode_line
from nodeagent.api.diagnostics import Finding
from nodeagent.api.document_error import DocumentError
from nodeagent.api.fleet import Fleet
from nodeagent.api.node_report import NodeReport
from nodeagent.api.status import Status
from nodeagent.cli.display import standard_output
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.fleet_view import fleet_lines
from nodeagent.cli.output import warn
from nodeagent.cli.reading import ask, print_document, read_node
from nodeagent.errors import NodeAgentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from os import PathLike
    from typing import BinaryIO

    from nodeagent.act.agent import Agent
    from nodeagent.cli.source import Source

_MAX_LINE_BYTES: Final = 4 << 20
"""Maximum length of a report line; a report has a few kilobytes, with many warnings some tens of kilobytes."""
_MAX_REPORTED: Final = 20
_ROOT: Final = Path("/")


class Merged(NamedTuple):
    """Parsed lines of the input files.

    Attributes:
        reports: the valid reports in line order.
        faults: file, line number and cause for each line that is not a report.
    """

    reports: list[NodeReport]
    faults: list[str]


def show_report(source: Source, form: str, *, doctor: bool) -> None:
    """Print the report of this node; exit with code 1 if the report has no plan because the observation failed.

    Args:
        source: configuration and options that select the daemon or the node.
        form: ``json`` (one line), ``yaml``, or ``table`` for the summary of this node alone.
        doctor: whether the checks of ``doctor`` are included; they run in this process, never in the daemon.

    Raises:
        NodeAgentError: the daemon refuses the request or returns an error, or no runtime is found without a daemon.
    """
    document = ask("NodeReport", NodeReport, {}, source)
    if document is None:
        document = _with_daemon(read_node(source, _read_report), source.config)
    if doctor:
        document = structs.replace(document, checks=_checks(source))
    if form == "table":
        _show_fleet(Fleet.of([document]), form, most=1)
    elif form == "json":
        sys.stdout.write(encode_line(document))
    else:
        print_document(document, form)
    sys.exit(ExitCode.DONE if document.planned is not None else ExitCode.FAILED)


def merge_reports(files: Sequence[Path], form: str, *, most: int) -> None:
    """Print the summary of the reports in files, or on standard input without files.

    The exit code is 3 if some lines are not reports; these lines are listed on standard error.

    Raises:
        UsageError: a file cannot be read; nothing is printed.
        NodeAgentError: no line is a report.
    """
    merged = _merge(files)
    for each in merged.faults[:_MAX_REPORTED]:
        warn(f"nodeagent: {each}")
    if len(merged.faults) > _MAX_REPORTED:
        warn(f"nodeagent: and {len(merged.faults) - _MAX_REPORTED} more lines that are not reports")
    if not merged.reports:
        count = len(merged.faults)
        raise NodeAgentError(f"no report in {count} line{'' if count == 1 else 's'}; nothing to merge")
    _show_fleet(Fleet.of(merged.reports, malformed=len(merged.faults)), form, most=most)
    sys.exit(ExitCode.PARTIAL if merged.faults else ExitCode.DONE)


def _show_fleet(fleet: Fleet, form: str, *, most: int) -> None:
    if form != "table":
        sys.stdout.write(encode(fleet, form))
        return
    display = standard_output()
    display.write(fleet_lines(fleet, display.columns, most=most))


async def _read_report(agent: Agent) -> NodeReport:
    from nodeagent.cli.local_status import read_report  # noqa: PLC0415 - not needed if the daemon responds

    return await read_report(agent)


def _with_daemon(document: NodeReport, config: str | PathLike[str] | None) -> NodeReport:
    """Return the report of a node that this process read, with the state of the daemon that runs meanwhile."""
    from nodeagent.api.client import DaemonAbsentError  # noqa: PLC0415 - not needed if the daemon responds
    from nodeagent.cli.control_client import connected  # noqa: PLC0415

    try:
        with connected(config) as daemon:
            status = daemon.call("Status", Status)
    except DaemonAbsentError:
        return document
    except NodeAgentError as error:  # the state of a daemon that refuses the user or does not answer is unknown
        return structs.replace(document, warnings=(str(error), *document.warnings))
    return structs.replace(document, agent=status.agent, paused=status.paused)


def _checks(source: Source) -> tuple[Finding, ...]:
    """Run the checks of ``doctor`` and return the problems and warnings."""
    from nodeagent.cli.doctor_checks import run_checks  # noqa: PLC0415 - needed only with --doctor
    from nodeagent.cli.session import load_settings  # noqa: PLC0415
    from nodeagent.plan.node_checks import Verdict  # noqa: PLC0415

    settings = load_settings(None if source.config is None else Path(source.config), source.overrides)
    return tuple(
        Finding(check=each.check, verdict=each.verdict.value, evidence=each.evidence, fix=each.fix)
        for each in run_checks(settings, _ROOT, is_root=os.geteuid() == 0)
        if each.verdict in (Verdict.PROBLEM, Verdict.WARNING)
    )


def _merge(files: Sequence[Path]) -> Merged:
    """Parse the report in each line of the files; blank lines are skipped.

    Raises:
        UsageError: a file cannot be read.
    """
    merged = Merged([], [])
    for name, lines in _inputs(files):
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                merged.reports.append(_report(line))
            except DocumentError as error:
                merged.faults.append(f"{name}: line {number}: {error}")
    return merged


def _report(line: bytes) -> NodeReport:
    """Parse the report in one line.

    Raises:
        DocumentError: the line is too long or not a report.
    """
    if len(line) > _MAX_LINE_BYTES:
        raise DocumentError(f"longer than {_MAX_LINE_BYTES} bytes")
    return decode(line, NodeReport)


def _inputs(files: Iterable[Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
    names = list(files)
    if not names:
        yield "standard input", _lines(sys.stdin.buffer)
    for each in names:
        if str(each) == "-":
            yield "standard input", _lines(sys.stdin.buffer)
            continue
        try:
            with each.open("rb") as file:
                yield str(each), _lines(file)
        except OSError as error:
            raise UsageError(f"cannot read {each}: {error.strerror or error}; nothing was merged") from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; a line that is too long is truncated to one byte more than the maximum."""
    while line := file.readline(_MAX_LINE_BYTES + 1):
        rest = line
        while len(rest) > _MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(_MAX_LINE_BYTES + 1)
        yield line
