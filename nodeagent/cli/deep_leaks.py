"""``nodeagent gc leaks --deep``: runtime objects on the host without a containerd record."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent.act.gc.deep_audit import audit_leaks
from nodeagent.api.codec import encode
from nodeagent.api.deep_leaks import DeepLeaks
from nodeagent.cli.display import Line, standard_output
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.cli.table import Heading, Table
from nodeagent.cli.values import size_cell
from nodeagent.errors import UsageError
from nodeagent.plan.gc.deep_leaks import ADVICE
from nodeagent.text import Cut
from nodeagent.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.cli import gc


def audit(request: gc.Request, *, minimum_age: str) -> None:
    """Print the leaks found by a comparison of the host with containerd; remove nothing.

    Raises:
        UsageError: the minimum age is not a duration, or ``--yes`` is set.
        NodeAgentError: the records of the runtime cannot be read.
    """
    if request.yes:
        raise UsageError("--deep only lists: omit --yes; the removal procedure of each kind is printed")
    try:
        minimum_age_s = parse_duration_s(minimum_age)
    except ValueError as error:
        raise UsageError(f"--minimum-age: {error}") from error
    run_async(_audit(request, minimum_age_s))


async def _audit(request: gc.Request, minimum_age_s: float) -> None:
    settings = load_settings(request.config, request.overrides)
    async with open_for_command(settings, record=False, dry_run=True) as agent:
        socket = (await agent.cri.version()).endpoint.removeprefix("unix://")
        found = await audit_leaks(agent.cri, agent.storage, agent.clock, socket, minimum_age_s=minimum_age_s)
    document = DeepLeaks.of(found, minimum_age_s)
    if not request.is_table:
        sys.stdout.write(encode(document, request.output))
        return
    display = standard_output()
    display.write(_lines(document, display.columns))


def _lines(document: DeepLeaks, columns: int | None) -> Iterator[Line]:
    """Yield the leaks as a table, then the advice for each kind."""
    if document.leaks:
        name = Heading("NAME", cut=Cut.PATH, name=True, at_least=16)
        table = Table("KIND", name, Heading("SIZE", right=True), Heading("REASON", cut=Cut.END, at_least=24))
        for each in document.leaks:
            table.add(
                each.kind.value, each.name, "" if each.size_bytes is None else size_cell(each.size_bytes), each.why
            )
        yield from table.lines(columns)
        yield Line()
    yield Line(f"{len(document.leaks)} leaks, {document.compared} objects compared", "bold")
    for kind in dict.fromkeys(each.kind for each in document.leaks):
        advice = ADVICE[kind]
        yield Line(f"{kind.value}: {'safe to remove' if advice.safe else 'not safe without a check'}: {advice.how}")
    for warning in document.warnings:
        yield Line(f"warning: {warning}", "yellow")
