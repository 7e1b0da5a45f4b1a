"""Command tree, and the entry point of the parser."""

from __future__ import annotations

import sys
from copy import copy
from typing import TYPE_CHECKING, Annotated, Final

import typer

from nodeagent import __version__
from nodeagent.cli.commands import cluster, collection, inspection, operations, termination
from nodeagent.cli.exit_codes import EPILOG, guarded
from nodeagent.cli.options import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typer.models import CommandInfo

app = typer.Typer(
    cls=CommandGroup,
    name="nodeagent",
    help="Garbage collection, pod eviction and graceful shutdown for a container node.\n\nEvery removal can be "
    "previewed and has a reason.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,  # replaced by the command nodeagent completion
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"nodeagent {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Declare the options of the program itself, which precede a command."""


_INSPECT: Final[tuple[Callable[..., None], ...]] = (
    inspection.status,
    inspection.images,
    inspection.containers,
    inspection.pods,
    inspection.explain,
    inspection.history,
    inspection.du,
    inspection.top,
    inspection.events,
    inspection.report,
)
_OPERATE: Final[tuple[Callable[..., None], ...]] = (
    operations.run,
    operations.pause,
    operations.resume,
    operations.trigger,
    operations.reload,
    operations.install,
    operations.uninstall,
    inspection.version,
    operations.completion,
)

for _command in _INSPECT:
    app.command(epilog=EPILOG, rich_help_panel="Inspect")(_command)
app.command(epilog=inspection.PRESSURE_EPILOG, rich_help_panel="Inspect")(inspection.pressure)
app.command(epilog=EPILOG, rich_help_panel="Collect")(collection.apply)
app.command(epilog=EPILOG, rich_help_panel="Evict and shut down")(termination.evict)
app.command(epilog=inspection.DOCTOR_EPILOG, rich_help_panel="Operate")(inspection.doctor)
for _command in _OPERATE:
    app.command(epilog=EPILOG, rich_help_panel="Operate")(_command)
app.command("help", epilog=EPILOG, rich_help_panel="Operate")(operations.help_)
for _name, _group, _panel in (
    ("node", cluster.node_app, "Inspect"),
    ("gc", collection.gc_app, "Collect"),
    ("plan", collection.plan_app, "Collect"),
    ("hold", collection.hold_app, "Collect"),
    ("shutdown", termination.shutdown_app, "Evict and shut down"),
    ("manifest", cluster.manifest_app, "Operate"),
    ("config", operations.config_app, "Operate"),
):
    app.add_typer(_group, name=_name, rich_help_panel=_panel)


def main() -> None:
    """Parse and run the command line; convert every expected error to a message and an exit code."""
    with guarded():
        part_for(sys.argv[1:])(prog_name="nodeagent")


def part_for(words: Sequence[str]) -> typer.Typer:
    """Return the part of the command tree that a command line needs; typer prepares every option of the whole tree.

    The whole tree is returned for an unknown command, which lists similar ones, and for ``help`` and ``install``.
    """
    name = words[0] if words else ""
    part = copy(app)
    part.registered_commands = [each for each in app.registered_commands if _name_of(each) == name]
    part.registered_groups = [each for each in app.registered_groups if each.name == name]
    known = part.registered_commands or part.registered_groups
    return part if known and name not in {"help", "install"} else app


def _name_of(command: CommandInfo) -> str:
    return str(command.name or getattr(command.callback, "__name__", ""))
