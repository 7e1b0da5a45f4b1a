"""Plans and reports of passes as text: the removals, the kept items, the usage of the image filesystem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.cli.display import Line, warning_lines
from nodeagent.cli.table import Heading, Table, short_id, short_reference, size, size_cell
from nodeagent.gc.executor import Outcome, PassEnd, PassReport
from nodeagent.gc.plan.policy import LIMITS, ImageGCPolicy
from nodeagent.model.decision import Accounting, Decision, ItemKind, Plan, Verdict
from nodeagent.text import Cut
from nodeagent.units import format_bytes, format_duration, format_time

if TYPE_CHECKING:
    from nodeagent.model import FsObservation, NodeSnapshot

_BAR: Final = 30
_SHORT_BAR: Final = 16
_WIDE: Final = 120
_MESSAGE: Final = Heading("MESSAGE", cut=Cut.END, at_least=24)
_OUTCOME_STYLES: Final = {
    Outcome.DONE: "green",
    Outcome.GONE: "green",
    Outcome.CHANGED: "yellow",
    Outcome.FAILED: "bold red",
    Outcome.DRY_RUN: "cyan",
    Outcome.NOT_NEEDED: "dim",
    Outcome.NOT_ATTEMPTED: "yellow",
}


def item_heading() -> Heading:
    """Return the heading of the column with item names."""
    return Heading("NAME", cut=Cut.PATH, name=True, at_least=16)


def item_name(decision: Decision, columns: int | None) -> str:
    """Return the name of an item; on a terminal with short digests."""
    shorten = columns is not None and decision.kind is ItemKind.IMAGE
    return short_reference(decision.name) if shorten else decision.name


def usage_line(
    observed: FsObservation, columns: int | None, policy: ImageGCPolicy | None = None, *, label: str = "imagefs"
) -> Line:
    """Return the usage of a filesystem as a line with bar, percentage and thresholds; if wide also with its path."""
    wide = columns is None or columns >= _WIDE
    used = observed.used_percent
    over = policy is not None and used >= policy.high_threshold_percent
    line = Line(f"{label} ").append_bar(used / 100, _BAR if wide else _SHORT_BAR, bad=over).append(f" {used}%", "bold")
    used_bytes = observed.capacity_bytes - observed.available_bytes
    line.append(f" {format_bytes(used_bytes)} of {format_bytes(observed.capacity_bytes)}")
    if policy is not None:
        line.append(f" (high {policy.high_threshold_percent}%, low {policy.low_threshold_percent}%)", "dim")
    return line.append(f" {observed.path}", "dim") if wide else line


def decision_lines(
    plan: Plan, decisions: Sequence[Decision], columns: int | None, *, numbered: bool, wide: bool = False
) -> list[Line]:
    """Return a table of decisions; ``numbered`` adds the order of removal, ``wide`` the ids and reason sentences."""
    first = Heading("#", right=True) if numbered else Heading("VERDICT")
    more = (Heading("ID"), _MESSAGE) if wide else ()
    table = Table(first, "KIND", item_heading(), Heading("FREES", right=True), "REASON", *more)
    bound = "\u2264" if plan.accounting is Accounting.UPPER_BOUND else ""
    for number, decision in enumerate(decisions, 1):
        frees = "" if decision.frees_bytes is None else f"{bound}{size_cell(decision.frees_bytes)}"
        own_id = "" if decision.id == decision.name else short_id(decision.id) if columns is not None else decision.id
        table.add(
            str(number) if numbered else decision.verdict.value,
            decision.kind.value,
            item_name(decision, columns),
            frees,
            decision.reason.code.value,
            *((own_id, decision.reason.sentence) if wide else ()),
            style="red" if decision.verdict is Verdict.REMOVE and not numbered else "",
        )
    return table.lines(columns)


def kept_summary(plan: Plan) -> Line:
    """Return the number of kept items by reason, in one line."""
    kept = [decision for decision in plan.decisions if decision.verdict is not Verdict.REMOVE]
    line = Line(f"Keeps {len(kept)} of {len(plan.decisions)} {plan.kind}")
    counted = Counter(decision.reason.code.value for decision in kept)
    if counted:
        line.append(": " + ", ".join(f"{count} {code}" for code, count in counted.most_common()), "dim")
    return line


def plan_lines(plan: Plan, columns: int | None, *, show_kept: bool, wide: bool = False) -> Iterator[Line]:
    """Yield a plan: the removals with their reasons, and the kept items as a summary or in full."""
    removals = plan.removals
    if plan.blocked:
        yield Line(f"{plan.kind}: no decision: {plan.blocked}", "bold red")
    if removals:
        total = size(plan.frees_bytes, upper_bound=plan.accounting is Accounting.UPPER_BOUND)
        head = Line(f"Removes {len(removals)} of {len(plan.decisions)} {plan.kind}", "bold")
        if plan.frees_bytes:
            head.append(f", frees {total}")
        if plan.wanted_bytes:
            head.append(f" (target {format_bytes(plan.wanted_bytes)})")
        yield head
        yield from decision_lines(plan, removals, columns, numbered=True, wide=wide)
    elif not plan.blocked:
        yield Line(f"Removes no {plan.kind}", "bold")
    if plan.shortfall_bytes:
        limited = sum(each.reason.code in LIMITS for each in plan.decisions)
        rest = f"{limited} more kept by the limit per pass" if limited else "no other image may be removed"
        yield Line(f"Shortfall to the low threshold: {format_bytes(plan.shortfall_bytes)}; {rest}", "yellow")
    if show_kept:
        kept = [decision for decision in plan.decisions if decision.verdict is not Verdict.REMOVE]
        if kept:
            yield from decision_lines(plan, kept, columns, numbered=False, wide=wide)
    else:
        yield kept_summary(plan)
    yield from warning_lines(plan.warnings)
    yield Line()


def preview_lines(
    snapshot: NodeSnapshot,
    plans: Sequence[Plan],
    policy: ImageGCPolicy | None,
    columns: int | None,
    *,
    show_kept: bool,
    wide: bool = False,
) -> Iterator[Line]:
    """Yield runtime, filesystem usage, warnings and plans of a preview."""
    info = snapshot.runtime
    yield Line(f"{info.name} {info.version} at {info.endpoint}, {snapshot.role.value}", "dim")
    if snapshot.image_filesystems:
        yield from _usage_lines(snapshot, columns, policy)
    elif snapshot.image_filesystem is not None:
        yield usage_line(snapshot.image_filesystem, columns, policy)
    elif snapshot.image_filesystem_error:
        yield Line(f"imagefs: {snapshot.image_filesystem_error}", "yellow")
    yield from warning_lines(snapshot.warnings)
    yield Line()
    for plan in plans:
        yield from plan_lines(plan, columns, show_kept=show_kept, wide=wide)


def _usage_lines(snapshot: NodeSnapshot, columns: int | None, policy: ImageGCPolicy | None) -> Iterator[Line]:
    """Yield the usage of each of several image filesystems."""
    for each in snapshot.image_filesystems:
        if each.observed is None:
            yield Line(f"imagefs {each.label}: {each.error}", "yellow")
        else:
            yield usage_line(each.observed, columns, policy, label=f"imagefs {each.label}")


def _usage_after(report: PassReport, columns: int | None, policy: ImageGCPolicy) -> Iterator[Line]:
    """Yield the usage of the image filesystems after a pass."""
    if report.filesystems:
        for each in report.filesystems:
            yield usage_line(each.after, columns, policy, label=f"imagefs {each.after.path}")
    elif report.after is not None:
        yield usage_line(report.after, columns, policy)


def undo_text(size_bytes: int, until: datetime, pass_id: str) -> str:
    """Return the text on images in their undo window: no space is freed before the first pass after it."""
    return (
        f"{format_bytes(size_bytes)} are kept for 'nodeagent gc undo {pass_id}' until {format_time(until)}; the first "
        "pass after that frees them, without a daemon: nodeagent gc images --yes"
    )


def report_lines(report: PassReport, policy: ImageGCPolicy, columns: int | None) -> Iterator[Line]:
    """Yield the results of a pass, the bytes freed and the filesystem usage after the pass."""
    exceptions = [result for result in report.results if result.outcome not in (Outcome.DONE, Outcome.DRY_RUN)]
    if exceptions:
        table = Table("KIND", item_heading(), "OUTCOME")
        for result in exceptions:
            style = _OUTCOME_STYLES[result.outcome]
            table.add(
                result.decision.kind.value, item_name(result.decision, columns), result.outcome.value, style=style
            )
        yield from table.lines(columns)
        for result in exceptions:
            if result.detail:
                yield Line(f"{result.outcome.value}: {item_name(result.decision, columns)}: {result.detail}")
    counted = Counter(result.decision.kind for result in report.removed)
    removed = ", ".join(kind.counted(count) for kind, count in counted.items()) or "nothing"
    settled = f" ({format_duration(report.settled_s)} waiting for container creations)" if report.settled_s else ""
    line = Line(f"Removed {removed} in {format_duration(report.duration_s)}{settled}", "bold")
    if report.freed_bytes is not None:
        line.append(f"; predicted {format_bytes(report.predicted_bytes)}, measured {format_bytes(report.freed_bytes)}")
    yield line
    if report.undo_until is not None:
        yield Line(undo_text(report.undo_bytes, report.undo_until, report.id))
    yield from _usage_after(report, columns, policy)
    ended = report.end in (PassEnd.COMPLETE, PassEnd.NOTHING_TO_DO)
    if not ended or report.end_detail:
        style = "" if ended else "yellow" if report.end in (PassEnd.SHORTFALL, PassEnd.CANCELLED) else "bold red"
        yield Line(f"{report.end.value}: {report.end_detail}", style)
    yield from warning_lines(report.warnings)
