"""Command tree, and the entry point of the parser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer

from nodeagent import __version__
from nodeagent.cli.exit_codes import EPILOG, guarded
from nodeagent.cli.help import ALIASES, alias_text
from nodeagent.cli.options import CommandGroup


class _Entry(NamedTuple):
    """A command of the program.

    Attributes:
        panel: heading above the command in the help of the program.
        module: module below ``nodeagent.cli.commands``.
        name: function or command group in the module.
        epilog: last paragraph of the help; a command group has its own.
    """

    panel: str
    module: str
    name: str
    epilog: str = EPILOG


_COMMANDS: Final[Mapping[str, _Entry]] = {
    "status": _Entry("Inspect", "inspection", "status"),
    "images": _Entry("Inspect", "inspection", "images"),
    "containers": _Entry("Inspect", "inspection", "containers"),
    "pods": _Entry("Inspect", "inspection", "pods"),
    "explain": _Entry("Inspect", "inspection", "explain"),
    "history": _Entry("Inspect", "inspection", "history"),
    "du": _Entry("Inspect", "inspection", "du"),
    "top": _Entry("Inspect", "inspection", "top"),
    "trend": _Entry("Inspect", "inspection", "trend"),
    "events": _Entry("Inspect", "inspection", "events"),
    "logs": _Entry("Inspect", "inspection", "logs"),
    "report": _Entry("Inspect", "inspection", "report"),
    "pressure": _Entry(
        *("Inspect", "inspection", "pressure"),
        epilog="Exit codes: 0 no threshold exceeded, 1 threshold exceeded, 2 wrong usage or configuration.",
    ),
    "rmi": _Entry("Collect", "collection", "rmi"),
    "apply": _Entry("Collect", "collection", "apply"),
    "evict": _Entry("Evict and shut down", "termination", "evict"),
    "doctor": _Entry(
        *("Operate", "inspection", "doctor"),
        epilog="Exit codes: 0 no problem, 1 a problem (with --strict also a warning), 2 wrong usage.",
    ),
    "run": _Entry("Operate", "operations", "run"),
    "pause": _Entry("Operate", "operations", "pause"),
    "resume": _Entry("Operate", "operations", "resume"),
    "trigger": _Entry("Operate", "operations", "trigger"),
    "reload": _Entry("Operate", "operations", "reload"),
    "install": _Entry("Operate", "operations", "install"),
    "uninstall": _Entry("Operate", "operations", "uninstall"),
    "version": _Entry("Operate", "inspection", "version"),
    "completion": _Entry("Operate", "operations", "completion"),
    "help": _Entry("Operate", "operations", "help_"),
    "node": _Entry("Inspect", "cluster", "node_app"),
    "gc": _Entry("Collect", "collection", "gc_app"),
    "plan": _Entry("Collect", "collection", "plan_app"),
    "hold": _Entry("Collect", "collection", "hold_app"),
    "shutdown": _Entry("Evict and shut down", "termination", "shutdown_app"),
    "manifest": _Entry("Operate", "cluster", "manifest_app"),
    "config": _Entry("Operate", "operations", "config_app"),
}
"""Commands and command groups by name, in the order of the help."""


class _Commands(Mapping[str, Any]):
    """Commands by name; the module of a command is imported, and its options are prepared, when it is looked up."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - typer has no public type for commands
        return _command(name, _COMMANDS[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


def _declared(entry: _Entry) -> Any:  # noqa: ANN401 - a function or a typer.Typer
    return getattr(import_module(f"nodeagent.cli.commands.{entry.module}"), entry.name)


@cache
def _command(name: str, entry: _Entry) -> Any:  # noqa: ANN401 - typer has no public type for commands
    found = _declared(entry)
    part = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        part.add_typer(found, name=name, rich_help_panel=entry.panel)
    else:
        part.command(name, epilog=entry.epilog, rich_help_panel=entry.panel)(found)
    return typer.main.get_group(part).commands[name]


class _Program(CommandGroup):
    """The program: a group of all commands."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - options of typer's group
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment]  # never changed

    def describe(self, name: str) -> tuple[str, str]:
        """Return the panel and the description of a command; the options of a single command are not prepared."""
        found = _declared(_COMMANDS[name])
        return super().describe(name) if isinstance(found, typer.Typer) else (_COMMANDS[name].panel, found.__doc__)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - types of a module private to typer
        """Write the commands, and the aliases on one line."""
        super().format_commands(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(f"Aliases: {alias_text()}")

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ANN401 - types of a module private to typer
        """Return the completions of a word: commands, aliases and options."""
        from typer._click.shell_completion import CompletionItem  # noqa: PLC0415 - as in the completion

        aliases = [
            CompletionItem(alias, help=f"alias of {' '.join(words)}")
            for alias, words in ALIASES.items()
            if alias.startswith(incomplete)
        ]
        return [*super().shell_complete(ctx, incomplete), *aliases]


app = typer.Typer(
    cls=_Program,
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


def _show_version(context: typer.Context, value: bool) -> None:
    if value and not context.resilient_parsing:  # which is the completion of a command line
        typer.echo(f"nodeagent {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Declare the options of the program itself, which precede a command."""


def main() -> None:
    """Parse and run the command line; convert every expected error to a message and an exit code."""
    with guarded():
        app(prog_name="nodeagent")
