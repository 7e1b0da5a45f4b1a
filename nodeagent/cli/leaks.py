"""``nodeagent gc leaks``: unreferenced blobs and snapshots."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent.cli import gc
from nodeagent.cli.options import Source, duration_s
from nodeagent.cli.reading import ask, load_settings, open_for_command, run_async
from nodeagent.gc.documents import passes as documents

if TYPE_CHECKING:
    from nodeagent.cli.exit_codes import ExitCode
    from nodeagent.gc.pass_state import Preview
    from nodeagent.settings.settings import Settings


def collect_leaks(request: gc.CollectOptions, *, minimum_age: str, rooted: bool) -> None:
    """List unreferenced blobs and snapshots; delete them with ``--yes`` only.

    Raises:
        UsageError: the minimum age is not a duration.
        NodeAgentError: references cannot be read from the runtime.
    """
    minimum_age_s = duration_s("--minimum-age", minimum_age)
    if request.dry_run or not request.yes:
        fields = {"minimum_age_seconds": minimum_age_s, "rooted": rooted}
        found = ask(
            "Leaks", documents.PreviewDocument, fields, Source(request.config, request.overrides, request.direct)
        )
        if found is not None:
            sys.exit(_listed(gc.show_document(request, found)))
    settings = load_settings(request.config, request.overrides)
    sys.exit(run_async(_collect(request, settings, minimum_age_s, rooted=rooted)))


def _listed(preview: Preview) -> ExitCode:
    """Print a note that the listed leaks were not deleted; return the exit code of the preview."""
    if preview.removals:
        sys.stderr.write("nothing was deleted; add --yes to delete the items listed for removal\n")
    return gc.predicted_exit_code(preview)


async def _collect(request: gc.CollectOptions, settings: Settings, minimum_age_s: float, *, rooted: bool) -> ExitCode:
    only_list = request.dry_run or not request.yes
    dry_run = only_list or settings.dry_run
    async with open_for_command(settings, record=not dry_run, dry_run=dry_run) as agent:
        if not dry_run:
            await agent.recovery.run()
        preview = await agent.find_leaks(minimum_age_s, rooted=rooted)
        if dry_run or request.is_table:
            gc.show_preview(request, agent, preview)
        if only_list:
            return _listed(preview)
        if dry_run:
            gc.note_dry_run()
            return gc.predicted_exit_code(preview)
        report = await gc.run_interruptibly(agent, preview, trigger="leaks", rounds=1, progress=request.is_table)
        gc.show_report(request, agent, report)
        return gc.exit_code(report)
