"""``nodeagent plan`` and ``nodeagent apply``: save, compare and apply plans."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent import __version__
from nodeagent.api.common import encode
from nodeagent.cli import gc
from nodeagent.cli.display import Line, standard_output, warn
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.reading import load_settings, open_for_command, run_async, run_with_agent, show_document
from nodeagent.cli.table import Heading, Table, short_reference
from nodeagent.errors import UsageError
from nodeagent.files import replace_file
from nodeagent.gc.documents.passes import DriftDocument, PreviewDocument, Report
from nodeagent.gc.documents.undo import Apply, PlanDiff, SavedItemDocument, encode_saved_plan
from nodeagent.gc.executor import PassTrigger
from nodeagent.gc.pass_state import Preview, offered_window_s, plans_for
from nodeagent.gc.plan.policy import Scope
from nodeagent.gc.plan.saved_plan import SavedPlan, compare, parse_plan, refusal_of
from nodeagent.host.node import node_identity
from nodeagent.record import Record, field
from nodeagent.units import SystemClock, format_bytes, format_local_time, parse_duration_s

if TYPE_CHECKING:
    from nodeagent.gc.executor import PassReport
    from nodeagent.gc.plan import saved_plan
    from nodeagent.settings.settings import Settings

_LARGEST_FILE_BYTES = 256 << 20


class ApplyOptions(Record):
    """The options of one ``apply`` command."""

    file: Path
    config: Path | None
    dry_run: bool | None
    yes: bool
    output: str
    overrides: Mapping[str, str | int] = field(default_factory=dict)


def save(
    config: Path | None, overrides: Mapping[str, str | int], scope: str, out: Path | None, expires: str, *, force: bool
) -> None:
    """Observe the node, plan the removals, and write the plan to a file or to standard output.

    Raises:
        UsageError: the lifetime is not a duration, or the file exists or cannot be written.
    """
    try:
        lifetime = timedelta(seconds=parse_duration_s(expires))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--expires: {error}") from error
    if out is not None and out.exists() and not force:
        raise UsageError(f"{out} exists; add --force to replace it")
    settings = load_settings(config, overrides)

    preview = run_with_agent(settings, lambda agent: agent.collector.preview(Scope(scope)))
    configured = load_settings(config, {}).policy
    if configured != settings.policy:
        by_configuration = plans_for(preview.scope, preview.snapshot, configured)
        kept = {each.id for each in preview.removals} - {each.id for plan in by_configuration for each in plan.removals}
        if kept:
            warn(
                f"nodeagent: the configuration keeps {len(kept)} of the listed items; 'nodeagent apply' needs the same "
                "options to remove them"
            )
    text = encode(
        encode_saved_plan(
            preview,
            node=node_identity(),
            expires_at=preview.snapshot.observed_at + lifetime,
            agent_version=__version__,
        ),
        "json",
    )
    if out is None:
        sys.stdout.write(text)
        return
    _write(out, text)
    frees = sum(plan.frees_bytes for plan in preview.plans)
    warn(f"{out}: {len(preview.removals)} removals, about {format_bytes(frees)}; expires in {expires}")


def apply_file(request: ApplyOptions) -> None:
    """Remove the items of a saved plan that a new plan under the policy in force removes too.

    Options of the command line are part of the policy in force, as for ``gc``.

    Raises:
        UsageError: the file is not a plan, was changed, has expired, or is for another node.
    """
    saved = read_plan(request.file)
    settings = load_settings(request.config, request.overrides)
    refused = refusal_of(saved, SystemClock().now(), node_identity())
    if refused:
        raise UsageError(f"{request.file}: {refused}")
    if not (request.dry_run or request.yes) and not (sys.stdin.isatty() and request.output == "table"):
        raise UsageError("nothing was removed: confirmation needs a terminal; add --yes or --dry-run")
    sys.exit(run_async(_apply(request, settings, saved)))


async def _apply(request: ApplyOptions, settings: Settings, saved: SavedPlan) -> ExitCode:
    dry_run = settings.dry_run if request.dry_run is None else request.dry_run
    async with open_for_command(settings, record=not dry_run, dry_run=dry_run) as agent:
        preview, drift = await agent.collector.prepare_saved(saved)
        if dry_run:
            _show(request, preview, saved, drift, None)
            if not request.dry_run:
                gc.note_dry_run()
            predicted = gc.predicted_exit_code(preview)
            return ExitCode.PARTIAL if predicted is ExitCode.DONE and drift else predicted
        if request.output == "table":
            _show(request, preview, saved, drift, None)
        window_s = offered_window_s(settings, preview)
        if preview.removals and not request.yes and not gc.confirm_removals(preview, window_s):
            sys.stderr.write("nothing was removed\n")
            return ExitCode.DONE
        report = await gc.run_interruptibly(
            agent, preview, trigger=PassTrigger.APPLY, rounds=1, progress=request.output == "table", plan_id=saved.id
        )
    if request.output == "table":
        display = standard_output()
        no_dry_run = request.dry_run is False
        display.write(gc.report_lines(report, settings.policy.images, display.columns, no_dry_run=no_dry_run))
    else:
        _show(request, preview, saved, drift, report)
    code = gc.exit_code(report)
    not_done = any(result not in report.removed for result in report.results)
    return ExitCode.PARTIAL if code is ExitCode.DONE and (drift or not_done) else code


def diff(before: Path, after: Path, form: str) -> None:
    """Print the differences of two saved plans; exit with code 0 if all decisions are equal, otherwise with 1."""
    old, new = read_plan(before), read_plan(after)
    document = PlanDiff.of(old, new, compare(old, new))
    show_document(document, form, _difference_lines)
    sys.exit(ExitCode.FAILED if document.differences else ExitCode.DONE)


def read_plan(path: Path) -> SavedPlan:
    """Return the plan in a file.

    Raises:
        UsageError: the file cannot be read or is not a saved plan.
    """
    try:
        return parse_plan(_read(path))
    except ValueError as error:
        raise UsageError(f"{path}: {error}; nothing was done") from error


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise UsageError(f"cannot read plan {path}: larger than 256 MiB")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read plan {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read plan {path}: {error}") from error


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error


def _show(
    request: ApplyOptions,
    preview: Preview,
    saved: SavedPlan,
    drift: Sequence[saved_plan.Drift],
    report: PassReport | None,
) -> None:
    if request.output != "table":
        document = Apply(
            plan_id=saved.id,
            drift=tuple(map(DriftDocument.of, drift)),
            preview=PreviewDocument.of(saved.scope.value, preview.snapshot, preview.plans),
            report=None if report is None else Report.of(report),
        )
        sys.stdout.write(encode(document, request.output))
        return
    display = standard_output()
    columns = display.columns
    lines = [
        Line(
            f"plan {saved.id.removeprefix('sha256:')[:12]} of {format_local_time(saved.made_at)}: "
            f"{len(preview.removals)} of {len(saved.removals)} removals still possible"
        )
    ]
    possible = frozenset(each.id for each in preview.removals)
    for plan in preview.plans:
        chosen = [each for each in plan.removals if each.id in possible]
        if chosen:
            lines += gc.decision_lines(plan, chosen, columns, numbered=True)
    if drift:
        table = Table("KIND", gc.item_heading(), "STATUS")
        for each in drift:
            table.add(
                each.item.kind.value, short_reference(each.item.name), "gone" if each.gone else "kept", style="yellow"
            )
        lines += table.lines(columns)
        lines += [Line(f"{short_reference(each.item.name)}: {each.why}", "dim") for each in drift]
    display.write(lines)


def _difference_lines(document: PlanDiff, columns: int | None) -> list[Line]:
    """Print the number of items per change of verdict, and the items that differ."""
    if not document.differences:
        return [Line("no decisions differ")]
    changes = Counter((_status(each.before), _status(each.after)) for each in document.differences)
    counts = Table(Heading("ITEMS", right=True), "BEFORE", "AFTER")
    for (before, after), count in changes.most_common():
        counts.add(str(count), before, after)
    items = Table("KIND", gc.item_heading(), "BEFORE", "AFTER")
    for each in document.differences:
        kind = "" if each.kind is None else each.kind.value
        items.add(kind, short_reference(each.name or ""), _status(each.before), _status(each.after))
    return [*counts.lines(columns), Line(), *items.lines(columns)]


def _status(item: SavedItemDocument | None) -> str:
    return "absent" if item is None else f"{item.verdict.value}: {item.reason.code}"
