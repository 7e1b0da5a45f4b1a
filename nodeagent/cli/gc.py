"""``nodeagent gc``: preview, ask, run, report."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from nodeagent.act.gc.collector import MAX_ROUNDS
from nodeagent.act.gc.outcomes import Outcome, PassEnd
from nodeagent.act.gc.preview import Preview
from nodeagent.api import documents as document
from nodeagent.cli.control_answers import breakdown as decode_breakdown
from nodeagent.cli.control_answers import by_agent
from nodeagent.cli.control_answers import preview as preview_told
from nodeagent.cli.exit_codes import ExitCode, pass_exit_code
from nodeagent.cli.output import say, warn
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.clock import SystemClock
from nodeagent.errors import StoreError, UsageError
from nodeagent.plan.gc.scope import Scope
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodeagent.act.agent import Agent
    from nodeagent.act.gc.outcomes import PassReport
    from nodeagent.cli.control_client import ControlConnection
    from nodeagent.config.settings import Settings
    from nodeagent.plan.gc.storage_breakdown import Breakdown

_AGREED_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line."""

    scope: str
    config: Path | None
    dry_run: bool
    yes: bool
    output: str
    show_kept: bool
    overrides: Mapping[str, str | int] = field(default_factory=dict)


def collect(request: Request) -> None:
    """Preview and, unless it is a dry run or declined, carry out.

    Raises:
        UsageError: there is no terminal to ask on and neither ``--yes`` nor ``--dry-run`` was given.
        NodeAgentError: the node could not be observed.
    """
    if not (request.dry_run or request.yes) and not (sys.stdin.isatty() and request.output == "table"):
        raise UsageError(
            "nothing was done: there is no terminal to ask on; add --yes to remove without asking, or --dry-run to "
            "see what would be removed"
        )
    with by_agent(request.config, request.overrides) as agent:
        if agent is not None:
            sys.exit(_have_collected(request, agent))
    loaded = load_settings(request.config, request.overrides)
    sys.exit(run_async(_collect(request, loaded)))


def _have_collected(request: Request, agent: ControlConnection) -> ExitCode:
    """Have the running agent preview and, unless it is a dry run or declined, carry out what was shown."""
    from nodeagent._proto.control.v1 import control_pb2  # noqa: PLC0415 - for whoever has the agent do it

    saved: dict[str, Any] | None = None
    if not request.yes or request.dry_run:
        shown = agent.ask("Plan", control_pb2.PlanRequest(scope=request.scope))
        _show_told(request, shown)
        preview = Preview(Scope(request.scope), *preview_told(shown))
        predicted = predicted_exit_code(preview)
        if request.dry_run or (predicted is ExitCode.DONE and not preview.acts):
            return predicted
        status = agent.ask("Status")
        if status.get("waiting") is not None:
            raise UsageError(f"nothing was removed: reload grace period, {status['waiting']['seconds_left']} s left")
        if status["agent"]["dry_run"]:
            sys.stderr.write("nothing was removed: by its configuration the agent only shows (dry_run = true)\n")
            return predicted
        saved = agent.ask("Plan", control_pb2.PlanRequest(scope=request.scope, lasts_seconds=_AGREED_S))
        going = {each.id for each in preview.removals}
        if {each["id"] for each in saved["decisions"] if each["verdict"] == "remove"} - going:
            sys.stderr.write("the node changed while it was looked at: nothing was removed, try again\n")
            return ExitCode.PARTIAL
        if preview.acts and not confirmed(preview):
            sys.stderr.write("nothing was removed\n")
            return ExitCode.DONE
    asked = (
        control_pb2.ApplyRequest(scope=request.scope, rounds=MAX_ROUNDS)
        if saved is None
        else control_pb2.ApplyRequest(plan=json.dumps(saved, ensure_ascii=False, separators=(",", ":")))
    )
    last: dict[str, Any] = {}
    for last in agent.follow("Apply", asked):
        if request.output == "table" and "outcome" in last:
            say(f"{last['outcome']}: {last['kind']} {last['name']}: {last['reason']['sentence']}")
    _show_report_of_agent(request, last)
    outcomes = [Outcome(each["outcome"]) for each in last["results"]]
    return pass_exit_code(PassEnd(last["end"]), outcomes)


def _show_report_of_agent(request: Request, report: dict[str, Any]) -> None:
    if request.output != "table":
        sys.stdout.write(document.dumps(report, request.output))
        return
    removed = sum(each["outcome"] in ("done", "gone") for each in report["results"])
    freed = report["freed_bytes"]
    detail = f" ({report['end_detail']})" if report["end_detail"] else ""
    say(
        f"{report['end']}{detail}: removed {removed} of {len(report['results'])}"
        f"{'' if freed is None else f', measured {format_bytes(max(0, freed))}'}"
    )
    if "breakdown" in report:
        from nodeagent.cli import du, render  # noqa: PLC0415 - only where something is missing

        render.make_console().print(du.breakdown_view(decode_breakdown(report["breakdown"]), details=False))


def _show_told(request: Request, shown: dict[str, Any]) -> None:
    if request.output != "table":
        sys.stdout.write(document.dumps(shown, request.output))
        return
    from nodeagent.cli import render  # noqa: PLC0415 - tables are only for people

    snapshot, plans = preview_told(shown)
    render.make_console().print(render.preview_view(snapshot, plans, None, show_kept=request.show_kept))


async def _collect(request: Request, settings: Settings) -> ExitCode:
    dry_run = request.dry_run or settings.dry_run
    if not dry_run:
        _tell_pause(settings)
    async with open_for_command(settings, record=not dry_run, dry_run=dry_run) as agent:
        preview = await agent.collector.preview(Scope(request.scope))
        if dry_run or request.output == "table":
            show_preview(request, agent, preview)
        if dry_run:
            return predicted_exit_code(preview)
        if preview.acts and not request.yes and not confirmed(preview):
            sys.stderr.write("nothing was removed\n")
            return ExitCode.DONE
        if preview.acts:
            rounds = MAX_ROUNDS if request.yes else 1  # an agreement covers what was shown and nothing more
            report = await run_interruptibly(
                agent, preview, trigger="command", rounds=rounds, progress=request.output == "table"
            )
        else:  # judged and kept in the history all the same
            report = await agent.run(preview, trigger="command", stop=asyncio.Event())
        told = (*agent.store.take_notices(), agent.store.health.problem)
        report = replace(report, warnings=(*report.warnings, *filter(None, told)))
        filled = await agent.break_down_shortfall(report)
    if request.output != "table" or report.end is not PassEnd.NOTHING_TO_DO:
        show_report(request, agent, report, filled)
    return exit_code(report)


def _tell_pause(settings: Settings) -> None:
    """Say that the daemon is paused; what an operator asks for is done nevertheless."""
    from nodeagent.store.pause import PauseFile  # noqa: PLC0415 - not for a dry run

    try:
        kept = PauseFile(settings.state_directory).read()
    except StoreError as error:
        warn(f"nodeagent: {error}")
        return
    if kept is not None and kept.until > SystemClock().now():
        until = document.time_text(kept.until)
        warn(f"nodeagent: {kept.by} paused the daemon until {until}: {kept.why}; this goes on")


async def run_interruptibly(
    agent: Agent, preview: Preview, *, trigger: str, rounds: int, progress: bool, plan_id: str = ""
) -> PassReport:
    """Carry out a preview until told to stop by a signal, with a progress bar for a person."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        if not progress:
            return await agent.run(preview, trigger=trigger, stop=stop, max_rounds=rounds, plan_id=plan_id)
        from nodeagent.cli.progress import removal_progress  # noqa: PLC0415 - only for people

        with removal_progress(len(preview.removals)) as on_result:
            return await agent.run(
                preview, trigger=trigger, stop=stop, on_result=on_result, max_rounds=rounds, plan_id=plan_id
            )
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def confirmed(preview: Preview) -> bool:
    """Ask whether to remove what was shown."""
    import typer  # noqa: PLC0415 - only who is asked pays for it

    if not preview.removals:
        return typer.confirm("Let the runtime collect what nothing holds?", default=False)
    return agreed(len(preview.removals))


def agreed(items: int) -> bool:
    """Ask whether to remove so many items that were shown."""
    import typer  # noqa: PLC0415 - likewise

    return typer.confirm(f"Remove these {items} items?", default=False)


def show_preview(request: Request, agent: Agent, preview: Preview) -> None:
    """Print what a run would do."""
    if request.output != "table":
        shown = document.preview(request.scope, preview.snapshot, preview.plans)
        sys.stdout.write(document.dumps(shown, request.output))
        return
    from nodeagent.cli import render  # noqa: PLC0415 - tables are only for people

    view = render.preview_view(
        preview.snapshot, preview.plans, agent.settings.policy.images, show_kept=request.show_kept
    )
    render.make_console().print(view)


def show_report(request: Request, agent: Agent, report: PassReport, filled: Breakdown | None = None) -> None:
    """Print what a run did, and what still fills the filesystem where that is known."""
    if request.output != "table":
        shown = document.report(report) | ({"breakdown": document.breakdown(filled)} if filled else {})
        sys.stdout.write(document.dumps(shown, request.output))
        return
    from nodeagent.cli import du, render  # noqa: PLC0415 - tables are only for people

    console = render.make_console()
    console.print(render.report_view(report, agent.settings.policy.images))
    if filled is not None:
        console.print(du.breakdown_view(filled, details=False))


def exit_code(report: PassReport) -> ExitCode:
    """Return the exit code that tells how a pass ended."""
    return pass_exit_code(report.end, [each.outcome for each in report.results])


def predicted_exit_code(preview: Preview) -> ExitCode:
    """Return the exit code of a run that goes as previewed."""
    return pass_exit_code(preview.predicted_end[0])
