"""``nodeagent gc``: preview, confirm, remove, report; and its plans and reports as text.

``nodeagent gc leaks`` does the same for leaks.
"""

from __future__ import annotations

import asyncio
import json
import select
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.api.common import encode
from nodeagent.cli.control_client import ControlConnection, daemon_for_user
from nodeagent.cli.display import Line, say, standard_output, warn, warning_lines, working
from nodeagent.cli.du import breakdown_lines, usage_lines
from nodeagent.cli.exit_codes import ExitCode, pass_exit_code
from nodeagent.cli.groups import Group, in_groups, repository
from nodeagent.cli.options import CollectOptions, Source, duration_s
from nodeagent.cli.reading import OBSERVED_WITHIN_S, ask, load_settings, open_for_command, run_async
from nodeagent.cli.table import Heading, Table, short_id, short_reference, size, size_cell
from nodeagent.errors import NodeAgentError, StoreError, UsageError
from nodeagent.gc.documents import passes as documents
from nodeagent.gc.documents.passes import BreakdownFields, Report, decode_progress
from nodeagent.gc.executor import Outcome, PassEnd, PassReport, PassTrigger
from nodeagent.gc.pass_state import Preview, offered_window_s
from nodeagent.gc.plan.policy import LIMITS, ImageGCPolicy, Scope, SpaceGoal
from nodeagent.gc.plan.saved_plan import parse_plan
from nodeagent.model.decision import Accounting, Decision, ItemKind, Plan, ReasonCode, Verdict
from nodeagent.record import replace
from nodeagent.text import Cut, escape, shortened
from nodeagent.units import (
    SystemClock,
    format_bytes,
    format_duration,
    format_local_time,
    format_space,
    localize_times,
    parse_bytes,
)

if TYPE_CHECKING:
    from nodeagent.gc.agent import Agent
    from nodeagent.gc.agent_parts import Previews
    from nodeagent.gc.plan.breakdown import Breakdown
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.settings.settings import Settings

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


class _PlanRow(NamedTuple):
    """Row of a plan: one decision, or the removals of a repository.

    Attributes:
        number: position in the order of removal.
        group: the decisions of the row.
        total_bytes: bytes freed by this row and all preceding rows.
    """

    number: int
    group: Group[Decision]
    total_bytes: int

    @property
    def first(self) -> Decision:
        """The first decision, in a row without a group the only one."""
        return self.group.items[0]


class _PlanColumn(NamedTuple):
    heading: Heading
    cell: Callable[[_PlanRow], str]
    is_shown: bool = True


_MANY: Final = 10
"""Removals of a repository above which a plan on a terminal shows them as one row."""


def decision_lines(
    plan: Plan,
    decisions: Sequence[Decision],
    columns: int | None,
    *,
    numbered: bool,
    wide: bool = False,
    groups: bool = False,
) -> list[Line]:
    """Return a table of decisions, with freed inodes if the plan needs inodes.

    ``numbered`` adds the order of removal and the running total of the freed bytes, ``wide`` the ids and reason
    sentences. On a terminal the columns of kind, bytes and, if ``numbered``, reason are omitted if all cells are equal
    or empty, unless ``wide``; the line above the table has kind and reason. With ``groups``, many images of a
    repository are one row, and the table has neither order nor running total.
    """
    rows = _plan_rows(decisions, more_than=_MANY if groups else len(decisions))
    grouped = len(rows) < len(decisions)
    shown = _plan_columns(plan, decisions, columns, numbered=numbered, wide=wide, grouped=grouped)
    shown = [each for each in shown if each.is_shown]
    table = Table(*(each.heading for each in shown))
    for row in rows:
        style = "red" if row.first.verdict is Verdict.REMOVE and not numbered else ""
        table.add(*(each.cell(row) for each in shown), style=style)
    lines = table.lines(columns) if columns is None or wide or not decisions else table.fitted_lines(columns)
    if grouped:
        lines.append(Line(f"more than {_MANY} images of a repository are one row; -o wide lists each", "dim"))
    return lines


def _plan_columns(
    plan: Plan, decisions: Sequence[Decision], columns: int | None, *, numbered: bool, wide: bool, grouped: bool
) -> list[_PlanColumn]:
    """Return the columns of a table of decisions, each with whether it is shown; see :func:`decision_lines`."""
    brief = columns is not None and not wide
    shows_bytes = not brief or any(each.frees_bytes is not None for each in decisions)
    bound = "\u2264" if plan.accounting is Accounting.UPPER_BOUND else ""

    def name(row: _PlanRow) -> str:
        return item_name(row.first, columns) if len(row.group.items) == 1 else row.group.name

    def used(row: _PlanRow) -> str:
        return row.group.use_cell(plan.made_at, "none seen" if row.first.kind is ItemKind.IMAGE else "")

    def frees(row: _PlanRow) -> str:
        size_bytes = row.group.planned_bytes if numbered else row.first.frees_bytes
        return "" if size_bytes is None else f"{bound}{size_cell(size_bytes)}"

    def inodes(row: _PlanRow) -> str:
        known = [each.frees_inodes for each in row.group.items if each.frees_inodes is not None]
        return str(sum(known)) if known else ""

    def item_id(row: _PlanRow) -> str:
        shown_id = row.first.id if columns is None else short_id(row.first.id)
        return "" if row.first.id == row.first.name else shown_id

    return [
        _PlanColumn(Heading("#", right=True), lambda row: str(row.number), numbered and not grouped),
        _PlanColumn(Heading("VERDICT"), lambda row: row.group.verdict, not numbered),
        _PlanColumn(
            Heading("KIND"), lambda row: row.first.kind.value, not brief or len({each.kind for each in decisions}) > 1
        ),
        _PlanColumn(item_heading(), name),
        _PlanColumn(Heading("IMAGES", right=True), lambda row: str(len(row.group.items)), grouped),
        _PlanColumn(Heading("LAST USED"), used, any(each.kind is ItemKind.IMAGE for each in decisions)),
        _PlanColumn(Heading("FREES", right=True), frees, shows_bytes),
        _PlanColumn(
            Heading("TOTAL", right=True),
            lambda row: f"{bound}{size_cell(row.total_bytes)}",
            shows_bytes and numbered and not grouped,
        ),
        _PlanColumn(Heading("INODES", right=True), inodes, bool(plan.wanted_inodes)),
        _PlanColumn(
            Heading("REASON"),
            lambda row: row.group.reason,
            not (brief and numbered) or len(set(map(_reason, decisions))) > 1,
        ),
        _PlanColumn(Heading("ID"), item_id, wide),
        _PlanColumn(_MESSAGE, lambda row: localize_times(row.first.reason.sentence), wide),
    ]


def _plan_rows(decisions: Sequence[Decision], *, more_than: int) -> list[_PlanRow]:
    groups = in_groups(decisions, _group_key, more_than=more_than)
    totals = accumulate(sum(each.frees_bytes or 0 for each in group.items) for group in groups)
    return [_PlanRow(number, group, total) for number, (group, total) in enumerate(zip(groups, totals, strict=True), 1)]


def _group_key(decision: Decision) -> str:
    return repository(decision.name) if decision.kind is ItemKind.IMAGE else decision.id


def _reason(decision: Decision) -> str:
    return decision.reason.code.value


def _kept(plan: Plan, *, selected: bool = False) -> list[Decision]:
    """Return the kept items of a plan; with ``selected`` only those of the images that the user selected."""
    return [
        each
        for each in plan.decisions
        if each.verdict is not Verdict.REMOVE and not (selected and each.reason.code is ReasonCode.NOT_IN_PLAN)
    ]


def kept_summary(plan: Plan) -> Line:
    """Return the number of kept items by reason, in one line."""
    kept = _kept(plan)
    line = Line(f"Keeps {len(kept)} of {len(plan.decisions)} {plan.kind}")
    counted = Counter(decision.reason.code.value for decision in kept)
    if counted:
        line.append(": " + ", ".join(f"{count} {code}" for code, count in counted.most_common()), "dim")
    return line


def _removal_summary(plan: Plan) -> Line:
    """Return the number of removals with the freed space and its target, and the reason if all have the same."""
    removals = plan.removals
    line = Line(f"Removes {len(removals)} of {len(plan.decisions)} {plan.kind}", "bold")
    if plan.frees_bytes:
        line.append(f", frees {size(plan.frees_bytes, upper_bound=plan.accounting is Accounting.UPPER_BOUND)}")
    if plan.wanted_inodes:
        line.append(f", {plan.frees_inodes} inodes")
    if plan.wanted_bytes or plan.wanted_inodes:
        line.append(f" (target {format_space(plan.wanted_bytes, plan.wanted_inodes)})")
    reasons = {_reason(each) for each in removals}
    if len(reasons) == 1:
        line.append(f": {reasons.pop()}")
    return line


def plan_lines(
    plan: Plan, columns: int | None, *, show_kept: bool, wide: bool = False, selected: bool = False
) -> Iterator[Line]:
    """Yield a plan: the removals with their reasons, and the kept items as a summary or in full.

    With ``selected``, the kept images that the user selected are listed in addition to the summary.
    """
    removals = plan.removals
    if plan.blocked:
        yield Line(f"{plan.kind}: no decision: {plan.blocked}", "bold red")
    if removals:
        yield _removal_summary(plan)
        groups = columns is not None and not wide
        yield from decision_lines(plan, removals, columns, numbered=True, wide=wide, groups=groups)
    elif not plan.blocked:
        yield Line(f"Removes no {plan.kind}", "bold")
    if plan.shortfall_bytes or plan.shortfall_inodes:
        limited = sum(each.reason.code in LIMITS for each in plan.decisions)
        rest = f"{limited} more kept by the limit per pass" if limited else "no other image may be removed"
        short = format_space(plan.shortfall_bytes, plan.shortfall_inodes)
        yield Line(f"Short of the target by {short}; {rest}", "yellow")
    kept = _kept(plan, selected=not show_kept) if show_kept or selected else []
    if kept:
        yield from decision_lines(plan, kept, columns, numbered=False, wide=wide)
    if not show_kept:
        yield kept_summary(plan)
    yield from warning_lines(plan.warnings)
    yield Line()


def preview_lines(
    preview: Preview,
    policy: ImageGCPolicy | None,
    columns: int | None,
    *,
    show_kept: bool,
    wide: bool = False,
    selected: bool = False,
    undo_window_s: float = 0.0,
) -> Iterator[Line]:
    """Yield runtime, filesystem usage, warnings and plans of a preview; ``selected`` as in :func:`plan_lines`.

    ``undo_window_s`` is the undo window of the image removals if a user requests them.
    """
    snapshot = preview.snapshot
    info = snapshot.runtime
    yield Line(f"{info.name} {info.version} at {info.endpoint}, {snapshot.role.value}", "dim")
    if snapshot.image_filesystems:
        yield from _usage_lines(snapshot, columns, policy)
    elif snapshot.image_filesystem is not None:
        yield from usage_lines(snapshot.image_filesystem, columns, policy)
    elif snapshot.image_filesystem_error:
        yield Line(f"imagefs: {snapshot.image_filesystem_error}", "yellow")
    yield from warning_lines(snapshot.warnings)
    yield Line()
    for plan in preview.plans:
        yield from plan_lines(plan, columns, show_kept=show_kept, wide=wide, selected=selected)
    if selected:
        yield from _other_names(preview)
    if preview.acts and (text := effect_text(preview, undo_window_s)):
        yield Line(f"Total: {text}", "bold")
        yield Line()


def _other_names(preview: Preview) -> Iterator[Line]:
    """Yield the further names of the removed images, of which the user may have named only one."""
    tags = {each.id: each.repo_tags for each in preview.snapshot.images}
    for each in preview.removals:
        others = [tag for tag in tags.get(each.id, ()) if tag != each.name]
        if others:
            yield Line(f"{each.name} is removed with its other names: {', '.join(others)}", "yellow")


def _usage_lines(snapshot: NodeSnapshot, columns: int | None, policy: ImageGCPolicy | None) -> Iterator[Line]:
    """Yield the usage of each of several image filesystems."""
    for each in snapshot.image_filesystems:
        if each.observed is None:
            yield Line(f"imagefs {each.label}: {each.error}", "yellow")
        else:
            yield from usage_lines(each.observed, columns, policy, label=f"imagefs {each.label}")


def _usage_after(report: PassReport, columns: int | None, policy: ImageGCPolicy) -> Iterator[Line]:
    """Yield the usage of the image filesystems after a pass."""
    if report.filesystems:
        for each in report.filesystems:
            yield from usage_lines(each.after, columns, policy, label=f"imagefs {each.after.path}")
    elif report.after is not None:
        yield from usage_lines(report.after, columns, policy)


def undo_lines(size_bytes: int, until: datetime, pass_id: str, *, no_dry_run: bool) -> Iterator[Line]:
    """Yield the lines on images in their undo window: no space is freed before the first pass after it.

    ``no_dry_run`` is whether the pass ran with ``--no-dry-run``: a pass of a daemon in dry run frees nothing.
    """
    yield Line(f"Undo until {format_local_time(until)}: nodeagent gc undo {pass_id}")
    pass_, option = ("pass without dry_run", " --no-dry-run") if no_dry_run else ("pass", "")
    freed = f"The first {pass_} after that frees {format_bytes(size_bytes)}"
    yield Line(f"{freed}; without a daemon: nodeagent gc images --yes{option}")


def report_lines(
    report: PassReport, policy: ImageGCPolicy, columns: int | None, *, no_dry_run: bool = False
) -> Iterator[Line]:
    """Yield the results of a pass, the bytes freed and the filesystem usage after the pass.

    ``no_dry_run`` as in :func:`undo_lines`.
    """
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
        if report.before is not None and report.after is not None:
            line.append(f", imagefs {report.before.used_percent}% -> {report.after.used_percent}%")
    yield line
    if report.undo_until is not None:
        yield from undo_lines(report.undo_bytes, report.undo_until, report.id, no_dry_run=no_dry_run)
    yield from _usage_after(report, columns, policy)
    ended = report.end in (PassEnd.COMPLETE, PassEnd.NOTHING_TO_DO)
    if not ended or report.end_detail:
        style = "" if ended else "yellow" if report.end in (PassEnd.SHORTFALL, PassEnd.CANCELLED) else "bold red"
        yield Line(f"{report.end.value}: {report.end_detail}", style)
    yield from warning_lines(report.warnings)


_PLAN_LIFETIME_S: Final = 600.0


def space_goal(free: str | None, to: str | None) -> SpaceGoal | None:
    """Return the space requested with ``--free`` and ``--to``; ``None`` without either. An empty value is invalid.

    Raises:
        UsageError: both are given, or a value is invalid.
    """
    if free is not None and to is not None:
        raise UsageError("--free, --to: give one of them")
    if free is not None:
        try:
            size_bytes = parse_bytes(free)
        except ValueError as error:
            raise UsageError(f"--free: {error}") from error
        if not size_bytes:
            raise UsageError("--free: must be more than 0 bytes")
        number = free.strip().removeprefix("+")
        if number.replace(".", "").isdecimal():
            raise UsageError(f"--free: {number} has no unit: write {number}Mi or {number}Gi")
        return SpaceGoal(size_bytes)
    if to is None:
        return None
    number = to.strip().removesuffix("%").rstrip()
    if not (number.isascii() and number.isdecimal() and len(number) <= 2):
        raise UsageError(
            f"--to: {shortened(to, 40)!r} is not a usage: write a whole number of percent below 100, such as 70%"
        )
    return SpaceGoal(used_percent=int(number))


def collect(request: CollectOptions) -> None:
    """Print the planned removals, then remove the items unless the command is a dry run or the user declines.

    Raises:
        UsageError: neither ``--yes`` nor ``--dry-run`` is set, and a confirmation is impossible without a terminal; or
            a pattern selects no image.
        NodeAgentError: the node could not be observed.
    """
    if not (request.dry_run or request.yes) and not (sys.stdin.isatty() and request.is_table):
        raise UsageError(
            "nothing was removed: confirmation needs a terminal; add --yes to remove without confirmation, or "
            "--dry-run to list the removals"
        )
    root_too = bool(request.dry_run) and request.goal is None
    agent = daemon_for_user(request.config, request.overrides, root_too=root_too, direct=request.direct)
    if agent is not None:
        if request.goal is not None:
            raise UsageError(
                "nothing was removed: --free and --to remove images at any usage of imagefs; requires root"
            )
        if request.only and not request.dry_run:
            raise UsageError(
                "nothing was removed: the removal of selected images at any usage of imagefs requires root; --dry-run "
                "lists the removals"
            )
        sys.exit(_collect_through_agent(request, agent))
    loaded = load_settings(request.config, request.overrides)
    sys.exit(run_async(_collect(request, loaded)))


def _collect_through_agent(request: CollectOptions, agent: ControlConnection) -> ExitCode:
    """Print the preview of the daemon, then request the removals unless the user declines; return the exit code."""
    saved: str | None = None
    if not request.yes or request.dry_run:
        fields = {"scope": request.scope, "only": ",".join(request.only)}
        with working():
            document = agent.call("Plan", documents.PreviewDocument, fields, within_s=OBSERVED_WITHIN_S)
        preview = show_document(request, document)
        predicted = _predicted_exit_code(request, preview)
        if request.dry_run or (predicted is ExitCode.DONE and not preview.acts):
            return predicted
        from nodeagent.daemon.documents import Status  # noqa: PLC0415 - not needed for a dry run

        status = agent.call("Status", Status)
        if status.waiting is not None:
            raise UsageError(f"nothing was removed: reload grace period, {status.waiting.seconds_left} s left")
        if status.agent.dry_run and request.dry_run is None:
            note_dry_run()
            return predicted
        saved = agent.client.call("Plan", {"scope": request.scope, "lasts_seconds": _PLAN_LIFETIME_S})
        shown = {each.id for each in preview.removals}
        if {each.id for each in parse_plan(saved).removals} - shown:
            sys.stderr.write("nothing was removed: the node changed after the preview; run the command again\n")
            return ExitCode.PARTIAL
        if preview.acts and not confirm_removals(preview, document.undo_window_s):
            sys.stderr.write("nothing was removed\n")
            return ExitCode.DONE
    return _apply_on_daemon(request, agent, saved)


def _apply_on_daemon(request: CollectOptions, agent: ControlConnection, saved: str | None) -> ExitCode:
    """Let the daemon apply a saved plan, or run a pass if ``saved`` is ``None``; print the results."""
    from nodeagent.gc.collector import MAX_ROUNDS  # noqa: PLC0415 - not needed for a dry run

    apply: dict[str, object] = {"scope": request.scope, "rounds": MAX_ROUNDS}
    if saved is not None:
        apply = {"plan": json.dumps(json.loads(saved), ensure_ascii=False, separators=(",", ":"))}
    if request.dry_run is False:
        apply["no_dry_run"] = True
    report: Report | None = None
    done = 0
    try:
        for answer in agent.stream("Apply", decode_progress, apply):
            if isinstance(answer, Report):
                report = answer
                continue
            done += answer.outcome in (Outcome.DONE, Outcome.GONE)
            if request.is_table:
                say(f"{answer.outcome}: {answer.kind} {answer.name}: {localize_times(answer.reason.sentence)}")
    except KeyboardInterrupt:
        of_all = "" if saved is None else f" of {len(parse_plan(saved).removals)}"
        warn(f"interrupted: removed {done}{of_all}; the agent finishes the current item, see 'nodeagent history'")
        return ExitCode.INTERRUPTED
    if report is None:
        raise NodeAgentError("the agent sent no report; see its log")
    _show_report_of_daemon(request, report)
    return pass_exit_code(report.end, [each.outcome for each in report.results])


def _show_report_of_daemon(request: CollectOptions, report: Report) -> None:
    if not request.is_table:
        sys.stdout.write(encode(report, request.output))
        return
    removed = sum(each.outcome in (Outcome.DONE, Outcome.GONE) for each in report.results)
    freed = report.freed_bytes
    detail = f" ({report.end_detail})" if report.end_detail else ""
    say(
        f"{report.end}{detail}: removed {removed} of {len(report.results)}"
        f"{'' if freed is None else f', measured {format_bytes(freed)}'}"
    )
    if report.undo_until is not None:
        no_dry_run = request.dry_run is False
        lines = undo_lines(report.undo_bytes, report.undo_until, report.pass_id, no_dry_run=no_dry_run)
        standard_output().write(lines)
    if isinstance(report.breakdown, BreakdownFields):
        _print_breakdown(report.breakdown.to_model())


def _print_breakdown(breakdown: Breakdown) -> None:

    display = standard_output()
    display.write(breakdown_lines(breakdown, display.columns, details=False, coloured=display.colour))


def show_document(request: CollectOptions, document: documents.PreviewDocument) -> Preview:
    """Print the preview document of the daemon; return the preview."""
    preview = Preview(Scope(request.scope), document.snapshot(), tuple(each.to_model() for each in document.plans))
    if not request.is_table:
        sys.stdout.write(encode(document, request.output))
        return preview
    _print_preview(request, preview, document.thresholds(), document.undo_window_s)
    return preview


def _print_preview(
    request: CollectOptions, preview: Preview, policy: ImageGCPolicy | None, undo_window_s: float
) -> None:
    display = standard_output()
    display.write(
        preview_lines(
            preview,
            policy,
            display.columns,
            show_kept=request.show_kept,
            wide=request.output == "wide",
            selected=bool(request.only),
            undo_window_s=undo_window_s,
        )
    )


async def _collect(request: CollectOptions, settings: Settings) -> ExitCode:
    if request.dry_run or (settings.dry_run and request.dry_run is None):
        return await _preview(request, settings)
    from nodeagent.gc.collector import MAX_ROUNDS  # noqa: PLC0415 - not needed for a dry run

    warn_of_pause(settings)
    async with open_for_command(settings, record=True, dry_run=False) as agent:
        with working():
            preview = await agent.collector.prepare(Scope(request.scope), request.only, request.goal)
        if request.is_table:
            show_preview(request, agent, preview)
        window_s = offered_window_s(settings, preview)
        if preview.acts and not request.yes and not confirm_removals(preview, window_s):
            sys.stderr.write("nothing was removed\n")
            return ExitCode.FAILED if request.is_named else ExitCode.DONE
        if preview.acts:
            # a confirmation covers only the listed items, and further rounds plan without the selection
            rounds = MAX_ROUNDS if request.yes and not request.only else 1
            report = await run_interruptibly(
                agent, preview, trigger=PassTrigger.COMMAND, rounds=rounds, progress=request.is_table
            )
        else:  # a pass without removals is recorded too, for its shortfall
            report = await agent.run(preview, trigger=PassTrigger.COMMAND, stop=asyncio.Event())
        problems = (*agent.store.take_notices(), agent.store.problem)
        report = replace(report, warnings=(*report.warnings, *filter(None, problems)))
        breakdown = await agent.break_down_shortfall(report)
    if not request.is_table or report.end is not PassEnd.NOTHING_TO_DO:
        show_report(request, agent, report, breakdown)
    return _named_exit_code(request, exit_code(report), preview, len(report.removed))


def _named_exit_code(request: CollectOptions, code: ExitCode, preview: Preview, removed: int) -> ExitCode:
    """Return the exit code of a pass with ``removed`` images; print the reason of each kept image that was named.

    An image that was named and is kept is a failure, unlike an image that matches a pattern of ``--only``.
    """
    if not request.is_named:
        return code
    kept = [each for plan in preview.plans for each in _kept(plan, selected=True)]
    for each in kept:
        warn(f"nodeagent: {short_reference(each.name)} is kept: {each.reason.sentence}")
    if code is not ExitCode.DONE:
        return code
    if not removed:
        return ExitCode.FAILED
    return ExitCode.PARTIAL if kept or removed < len(preview.removals) else ExitCode.DONE


def _predicted_exit_code(request: CollectOptions, preview: Preview) -> ExitCode:
    return _named_exit_code(request, predicted_exit_code(preview), preview, len(preview.removals))


async def _preview(request: CollectOptions, settings: Settings) -> ExitCode:
    from nodeagent.gc.agent_parts import open_previewer  # noqa: PLC0415 - the runtime clients are slow to import

    async with open_previewer(settings) as previewer:
        with working():
            preview = await previewer.preview(Scope(request.scope), request.only, request.goal)
    show_preview(request, previewer, preview)
    code = _predicted_exit_code(request, preview)
    if not request.dry_run:
        note_dry_run()
        return ExitCode.FAILED if request.is_named else code
    return code


def note_dry_run() -> None:
    """Print a note that ``dry_run`` in the configuration prevented the removals, and how to remove once."""
    warn("nothing was removed: dry_run = true in the configuration; --no-dry-run removes once")


def warn_of_pause(settings: Settings) -> None:
    """Print a warning if the daemon is paused; the pause does not stop commands."""
    from nodeagent.loops.clock_reading import read_clocks  # noqa: PLC0415 - not needed for a dry run
    from nodeagent.loops.pause_file import PauseFile  # noqa: PLC0415

    try:
        pause = PauseFile(settings.state_directory).read()
    except StoreError as error:
        warn(f"nodeagent: {error}")
        return
    at = read_clocks(SystemClock())
    left_s = pause.left_in_boot_s(at) if pause is not None else None
    if pause is not None and (pause.until > at.wall if left_s is None else left_s > 0):
        until = format_local_time(pause.until)
        warn(f"nodeagent: daemon paused by {pause.by} until {until}: {pause.why}; this command continues")


async def run_interruptibly(
    agent: Agent, preview: Preview, *, trigger: str, rounds: int, progress: bool, plan_id: str = ""
) -> PassReport:
    """Apply the plans of a preview until SIGINT or SIGTERM, with an optional progress bar; return the report."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        if not progress:
            return await agent.run(preview, trigger=trigger, stop=stop, max_rounds=rounds, plan_id=plan_id)
        from nodeagent.cli.terminal import removal_progress  # noqa: PLC0415 - needed only on terminals

        with removal_progress(len(preview.removals)) as on_result:
            return await agent.run(
                preview, trigger=trigger, stop=stop, on_result=on_result, max_rounds=rounds, plan_id=plan_id
            )
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def confirm_removals(preview: Preview, undo_window_s: float) -> bool:
    """Prompt for confirmation of a preview, with its undo window; return whether the user confirmed."""
    if undo_window_s:
        window = format_duration(undo_window_s)
        say(f"Image space is freed after the undo window of {window}; now with --undo-window 0s (as root)")
    elif any(each.kind is ItemKind.IMAGE for each in preview.removals):
        say("Image space is freed at once; the removal of these images cannot be undone")
    text = effect_text(preview, undo_window_s)
    effect = f" ({text})" if text else ""
    if not preview.removals:
        return confirm(f"Remove unreferenced content through the runtime{effect}?")
    counted = Counter(each.kind for each in preview.removals)
    items = ", ".join(kind.counted(count) for kind, count in counted.items())
    return confirm(f"Remove {items}{effect}?")


def effect_text(preview: Preview, undo_window_s: float) -> str:
    """Return the predicted effect of a preview: usage of imagefs before and after, and the freed bytes.

    The space of images with an undo window is a step of its own, after the window. The text is empty if no bytes are
    predicted.
    """
    images = sum(each.frees_bytes or 0 for each in preview.removals if each.kind is ItemKind.IMAGE)
    later = images if undo_window_s else 0
    steps = [("", preview.frees_bytes - later), (f"after the undo window of {format_duration(undo_window_s)} ", later)]
    bound = "\u2265" if preview.is_upper_bound else ""
    before, freed, texts = preview.snapshot.image_filesystem, 0, []
    for when, size_bytes in steps:
        if not size_bytes:
            continue
        freed += size_bytes
        after = preview.filesystem_after(freed)
        used = f"imagefs {before.used_percent}% -> {bound}{after.used_percent}%, " if before and after else ""
        texts.append(f"{when}{used}frees {size(size_bytes, upper_bound=preview.is_upper_bound)}")
        before = after
    return "; ".join(texts)


_ANSWER_STEP_S: Final = 0.2


def confirm(question: str) -> bool:
    """Ask a question on the terminal; return whether the answer is yes. No answer (Ctrl-D) is no.

    Raises:
        KeyboardInterrupt: Ctrl-C, also on an event loop, whose own handler would wait for the answer.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stdout.write(escape(question))
        sys.stdout.write(" [y/N] ")
        sys.stdout.flush()
        while not select.select([sys.stdin], [], [], _ANSWER_STEP_S)[0]:
            pass  # a signal before the wait is handled between two waits, not after the next key
        answer = sys.stdin.readline()
        if not answer:
            say("")
        return answer.strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        sys.stderr.write("\nnothing was removed\n")
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def show_preview(request: CollectOptions, agent: Previews, preview: Preview) -> None:
    """Print the planned removals and the kept items."""
    policy, window_s = agent.settings.policy.images, offered_window_s(agent.settings, preview)
    if not request.is_table:
        document = documents.PreviewDocument.of(
            request.scope, preview.snapshot, preview.plans, policy, undo_window_s=window_s
        )
        sys.stdout.write(encode(document, request.output))
        return
    _print_preview(request, preview, policy, window_s)


def show_report(request: CollectOptions, agent: Agent, report: PassReport, breakdown: Breakdown | None = None) -> None:
    """Print the results of a pass, and after a shortfall the disk usage by category."""
    if not request.is_table:
        sys.stdout.write(encode(Report.of(report, breakdown=breakdown), request.output))
        return
    display = standard_output()
    policy, no_dry_run = agent.settings.policy.images, request.dry_run is False
    display.write(report_lines(report, policy, display.columns, no_dry_run=no_dry_run))
    if breakdown is not None:
        _print_breakdown(breakdown)


def exit_code(report: PassReport) -> ExitCode:
    """Return the exit code of a finished pass; only a signal to the command cancels its pass."""
    if report.end is PassEnd.CANCELLED:
        return ExitCode.INTERRUPTED
    return pass_exit_code(report.end, [each.outcome for each in report.results])


def predicted_exit_code(preview: Preview) -> ExitCode:
    """Return the exit code of a pass in which every previewed removal succeeds."""
    return pass_exit_code(preview.predicted_end[0])


def collect_leaks(request: CollectOptions, *, minimum_age: str, rooted: bool, include: Sequence[str]) -> None:
    """List leaks; delete them with ``--yes`` only.

    Raises:
        UsageError: the minimum age is not a duration.
        NodeAgentError: references cannot be read from the runtime.
    """
    minimum_age_s = duration_s("--minimum-age", minimum_age)
    if request.dry_run or not request.yes:
        fields: dict[str, float | str] = {"minimum_age_seconds": minimum_age_s, "rooted": rooted}
        if include:
            fields["include"] = ",".join(include)
        found = ask(
            "Leaks", documents.PreviewDocument, fields, Source(request.config, request.overrides, request.direct)
        )
        if found is not None:
            sys.exit(_listed(show_document(request, found)))
    settings = load_settings(request.config, request.overrides)
    sys.exit(run_async(_collect_leaks(request, settings, minimum_age_s, rooted=rooted, include=include)))


def _listed(preview: Preview) -> ExitCode:
    """Print a note that the listed leaks were not deleted; return the exit code of the preview."""
    if preview.removals:
        sys.stderr.write("nothing was deleted; add --yes to delete the items listed for removal\n")
    return predicted_exit_code(preview)


async def _collect_leaks(
    request: CollectOptions, settings: Settings, minimum_age_s: float, *, rooted: bool, include: Sequence[str]
) -> ExitCode:
    only_list = bool(request.dry_run) or not request.yes
    dry_run = only_list or (settings.dry_run and request.dry_run is None)
    async with open_for_command(settings, record=not dry_run, dry_run=dry_run) as agent:
        if not dry_run:
            await agent.recovery.run()
        preview = await agent.find_leaks(minimum_age_s, rooted=rooted, include=include)
        if dry_run or request.is_table:
            show_preview(request, agent, preview)
        if only_list:
            return _listed(preview)
        if dry_run:
            note_dry_run()
            return predicted_exit_code(preview)
        report = await run_interruptibly(agent, preview, trigger=PassTrigger.LEAKS, rounds=1, progress=request.is_table)
        show_report(request, agent, report)
        return exit_code(report)
