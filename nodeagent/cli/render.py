"""Tables, bars and sentences for terminals.

The JSON output has all values shown here. Colours appear only on a terminal, and
``NO_COLOR`` is respected.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table

from nodeagent.act.gc.outcomes import Outcome, PassEnd
from nodeagent.cli.terminal import SafeConsole, Text
from nodeagent.cli.values import short_id, short_reference, size
from nodeagent.plan.decision import Accounting, ItemKind, Verdict
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType

    from nodeagent.act.gc.outcomes import PassReport
    from nodeagent.model import FsObservation, NodeSnapshot
    from nodeagent.plan.decision import Decision, Plan
    from nodeagent.plan.gc.images import ImageGCPolicy

_PIPE_WIDTH = 180
_OUTCOME_STYLES = {
    Outcome.DONE: "green",
    Outcome.GONE: "green",
    Outcome.CHANGED: "yellow",
    Outcome.FAILED: "bold red",
    Outcome.DRY_RUN: "cyan",
    Outcome.NOT_NEEDED: "dim",
    Outcome.NOT_ATTEMPTED: "yellow",
}


def make_console(*, stderr: bool = False) -> Console:
    """Return a console with colours only on a terminal, and with sufficient width for whole ids in a pipe."""
    probe = SafeConsole(stderr=stderr)
    if probe.is_terminal or os.environ.get("COLUMNS"):
        return probe
    return SafeConsole(stderr=stderr, width=_PIPE_WIDTH)


def usage_line(observed: FsObservation, policy: ImageGCPolicy | None = None, *, label: str = "imagefs") -> Text:
    """Return a filesystem's usage as a proportional bar against its thresholds."""
    width = 40
    used = observed.used_percent
    full = min(width, round(width * used / 100))
    over = policy is not None and used >= policy.high_threshold_percent
    line = Text(f"{label} {observed.path}  ")
    line.append("█" * full, style="red" if over else "green")
    line.append("░" * (width - full), style="dim")
    used_bytes = observed.capacity_bytes - observed.available_bytes
    line.append(f"  {used}%", style="bold red" if over else "bold")
    line.append(f"  {format_bytes(used_bytes)} of {format_bytes(observed.capacity_bytes)}")
    if policy is not None:
        line.append(f"  (high {policy.high_threshold_percent}%, low {policy.low_threshold_percent}%)", style="dim")
    return line


def table(*columns: str, right: Iterable[str] = (), wrap: Iterable[str] = ()) -> Table:
    """Return an empty table; columns in ``right`` are aligned right, columns in ``wrap`` may use several lines."""
    empty_table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        empty_table.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold",
            no_wrap=name not in wrap,
            ratio=None,
        )
    return empty_table


def _name(decision: Decision) -> str:
    return decision.name if decision.kind is not ItemKind.IMAGE else short_reference(decision.name)


def decisions_table(plan: Plan, decisions: Sequence[Decision], *, numbered: bool) -> Table:
    """Return decisions as rows; ``numbered`` where their order is the order of removal."""
    first = ("#",) if numbered else ("verdict",)
    rows = table(*first, "kind", "name", "id", "frees", "reason", right=("#", "frees"), wrap=("name", "reason"))
    bound = plan.accounting is Accounting.UPPER_BOUND
    for number, decision in enumerate(decisions, 1):
        verdict = Text(decision.verdict.value, style="" if decision.verdict is Verdict.KEEP else "red")
        rows.add_row(
            str(number) if numbered else verdict,
            decision.kind.value,
            _name(decision),
            short_id(decision.id) if decision.id != decision.name else "",
            size(decision.frees_bytes, upper_bound=bound) if decision.frees_bytes is not None else "",
            decision.reason.sentence,
        )
    return rows


def kept_summary(plan: Plan) -> Text:
    """Return the number of kept items by reason, in one line."""
    kept = [decision for decision in plan.decisions if decision.verdict is not Verdict.REMOVE]
    line = Text(f"Keeps {len(kept)} of {len(plan.decisions)} {plan.kind}")
    counted = Counter(decision.reason.code.value for decision in kept)
    if counted:
        line.append(": " + ", ".join(f"{count} {code}" for code, count in counted.most_common()), style="dim")
    return line


def plan_view(plan: Plan, *, show_kept: bool) -> RenderableType:
    """Return a plan: the removals with their reasons, and the kept items as a summary or in full."""
    parts: list[RenderableType] = []
    removals = plan.removals
    if plan.blocked:
        parts.append(Text(f"{plan.kind}: no decision: {plan.blocked}", style="bold red"))
    if removals:
        total = size(plan.frees_bytes, upper_bound=plan.accounting is Accounting.UPPER_BOUND)
        head = Text(f"Removes {len(removals)} of {len(plan.decisions)} {plan.kind}", style="bold")
        if plan.frees_bytes:
            head.append(f", frees {total}")
        if plan.wanted_bytes:
            head.append(f" (target {format_bytes(plan.wanted_bytes)})")
        parts += [head, decisions_table(plan, removals, numbered=True)]
    elif not plan.blocked:
        parts.append(Text(f"Removes no {plan.kind}", style="bold"))
    if plan.shortfall_bytes:
        shortfall = format_bytes(plan.shortfall_bytes)
        parts.append(Text(f"Shortfall to the low threshold: {shortfall}; nothing else may be removed", style="yellow"))
    if show_kept:
        kept = [decision for decision in plan.decisions if decision.verdict is not Verdict.REMOVE]
        if kept:
            parts.append(decisions_table(plan, kept, numbered=False))
    else:
        parts.append(kept_summary(plan))
    parts += [Text(f"warning: {warning}", style="yellow") for warning in plan.warnings]
    parts.append(Text(""))
    return Group(*parts)


def preview_view(
    snapshot: NodeSnapshot, plans: Sequence[Plan], policy: ImageGCPolicy | None, *, show_kept: bool
) -> RenderableType:
    """Return runtime, filesystem usage, warnings and plans of a preview."""
    info = snapshot.runtime
    parts: list[RenderableType] = [
        Text(f"{info.name} {info.version} at {info.endpoint}, {snapshot.role.value}", style="dim")
    ]
    if snapshot.image_filesystem is not None:
        parts.append(usage_line(snapshot.image_filesystem, policy))
    elif snapshot.image_filesystem_error:
        parts.append(Text(f"imagefs: {snapshot.image_filesystem_error}", style="yellow"))
    parts += [Text(f"warning: {warning}", style="yellow") for warning in snapshot.warnings]
    parts.append(Text(""))
    parts += [plan_view(plan, show_kept=show_kept) for plan in plans]
    return Group(*parts)


def report_view(report: PassReport, policy: ImageGCPolicy) -> RenderableType:
    """Return the results of a run, the bytes freed and the usage afterwards."""
    parts: list[RenderableType] = []
    exceptions = [result for result in report.results if result.outcome not in (Outcome.DONE, Outcome.DRY_RUN)]
    if exceptions:
        rows = table("kind", "name", "outcome", "detail", wrap=("name", "detail"))
        for result in exceptions:
            outcome = Text(result.outcome.value, style=_OUTCOME_STYLES[result.outcome])
            rows.add_row(result.decision.kind.value, _name(result.decision), outcome, result.detail)
        parts.append(rows)
    counted = Counter(result.decision.kind for result in report.removed)
    removed = ", ".join(kind.counted(count) for kind, count in counted.items()) or "nothing"
    line = Text(f"Removed {removed} in {format_duration(report.duration_s)}", style="bold")
    if report.freed_bytes is not None and counted:
        line.append(f"; predicted {format_bytes(report.predicted_bytes)}, measured {format_bytes(report.freed_bytes)}")
    parts.append(line)
    if report.after is not None:
        parts.append(usage_line(report.after, policy))
    if report.end not in (PassEnd.COMPLETE, PassEnd.NOTHING_TO_DO) or report.end_detail:
        style = "yellow" if report.end in (PassEnd.SHORTFALL, PassEnd.CANCELLED) else "bold red"
        style = "" if report.end in (PassEnd.COMPLETE, PassEnd.NOTHING_TO_DO) else style
        parts.append(Text(f"{report.end.value}: {report.end_detail}", style=style))
    parts += [Text(f"warning: {warning}", style="yellow") for warning in report.warnings]
    return Group(*parts)
