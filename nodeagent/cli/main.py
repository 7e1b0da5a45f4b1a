"""The command tree, and the entry that parses a command line with it."""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from nodeagent import __version__
from nodeagent.cli.commands import collection, inspection, operations, termination
from nodeagent.cli.exit_codes import EPILOG, guarded
from nodeagent.cli.options import CommandGroup

app = typer.Typer(
    cls=CommandGroup,
    name="nodeagent",
    help="Garbage collection, pod eviction and graceful shutdown for a container node.\n\nEvery removal can be "
    "previewed and has a reason.",
    epilog=EPILOG,
    no_args_is_help=True,
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
    """Options of every command."""


for _command in (inspection.images, inspection.du, inspection.containers, inspection.pods, collection.apply):
    app.command(epilog=EPILOG)(_command)
app.command(epilog=inspection.PRESSURE_EPILOG)(inspection.pressure)
app.command(epilog=inspection.DOCTOR_EPILOG)(inspection.doctor)
for _command in (termination.evict, inspection.explain, inspection.history):
    app.command(epilog=EPILOG)(_command)
for _command in (inspection.status, inspection.top, inspection.events):
    app.command(epilog=EPILOG)(_command)
for _command in (operations.pause, operations.resume, operations.trigger, operations.reload, operations.run):
    app.command(epilog=EPILOG)(_command)
app.command(epilog=EPILOG)(operations.api)
app.command(epilog=EPILOG)(inspection.version)
app.command()(operations.demo)
for _command in (operations.install, operations.uninstall):
    app.command(epilog=EPILOG)(_command)
for _name, _group in (
    ("gc", collection.gc_app),
    ("plan", collection.plan_app),
    ("hold", collection.hold_app),
    ("shutdown", termination.shutdown_app),
    ("config", operations.config_app),
):
    app.add_typer(_group, name=_name)


def main() -> None:
    """Run the command line; every expected error becomes one message and an exit code."""
    gc.set_threshold(50_000, 20, 20)  # snapshots are large, short-lived and free of cycles
    with guarded():
        app()
