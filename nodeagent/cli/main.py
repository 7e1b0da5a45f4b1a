"""The command tree, and the entry that parses a command line with it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Annotated, Final

import typer

from nodeagent import __version__
from nodeagent.cli.commands import collection, inspection, operations, termination
from nodeagent.cli.exit_codes import EPILOG, guarded
from nodeagent.cli.options import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Callable

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
    operations.api,
)

for _command in _INSPECT:
    app.command(epilog=EPILOG, rich_help_panel="Inspect")(_command)
app.command(epilog=inspection.PRESSURE_EPILOG, rich_help_panel="Inspect")(inspection.pressure)
app.command(epilog=EPILOG, rich_help_panel="Collect")(collection.apply)
app.command(epilog=EPILOG, rich_help_panel="Evict and shut down")(termination.evict)
app.command(epilog=inspection.DOCTOR_EPILOG, rich_help_panel="Operate")(inspection.doctor)
for _command in _OPERATE:
    app.command(epilog=EPILOG, rich_help_panel="Operate")(_command)
app.command(rich_help_panel="Operate")(operations.demo)
for _name, _group, _panel in (
    ("gc", collection.gc_app, "Collect"),
    ("plan", collection.plan_app, "Collect"),
    ("hold", collection.hold_app, "Collect"),
    ("shutdown", termination.shutdown_app, "Evict and shut down"),
    ("config", operations.config_app, "Operate"),
):
    app.add_typer(_group, name=_name, rich_help_panel=_panel)


def main() -> None:
    """Run the command line; every expected error becomes one message and an exit code."""
    gc.set_threshold(50_000, 20, 20)  # snapshots are large, short-lived and free of cycles
    with guarded():
        app()
