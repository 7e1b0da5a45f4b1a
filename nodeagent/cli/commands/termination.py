"""Commands that preview evictions and node shutdowns; only the daemon and the unit's stop command stop pods."""

from typing import Annotated

import typer

from nodeagent.cli import options

shutdown_app = typer.Typer(cls=options.CommandGroup, rich_markup_mode=None)


def evict(
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Preview the eviction that is due now")] = False,
    simulate: Annotated[
        list[str] | None,
        typer.Option(
            "--simulate",
            "-s",
            metavar="SIGNAL=AMOUNT",
            help="Preview with this signal value; repeatable",
        ),
    ] = None,
    output: options.OutputOption = options.Output.TABLE,
    direct: options.DirectOption = False,
) -> None:
    """Preview an eviction: ranking, usage and protection.

    --simulate assumes a value of a signal for longer than every grace period, such as
    memory.available=50Mi or nodefs.available=5%. This command evicts nothing; the daemon evicts by the same rules.
    """
    from nodeagent.cli.evict import preview  # noqa: PLC0415
    from nodeagent.errors import UsageError  # noqa: PLC0415

    if not dry_run and not simulate:
        raise UsageError("no pod is evicted by this command: add --dry-run, or --simulate SIGNAL=AMOUNT")
    preview(options.Source(config, options.at_endpoint(endpoint), direct), output.value, simulate or [])


@shutdown_app.callback(invoke_without_command=True)
def shutdown(
    context: typer.Context,
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show the phases with their pods and times")] = False,
    output: options.OutputOption = options.Output.TABLE,
    direct: options.DirectOption = False,
) -> None:
    """Preview the graceful shutdown of the node.

    This command stops no pod and shuts nothing down.
    """
    if context.invoked_subcommand is not None:
        options.refuse_options_before_subcommand(context)
        return
    from nodeagent.errors import UsageError  # noqa: PLC0415

    if not dry_run:
        raise UsageError("nothing is shut down by this command: add --dry-run for the timeline, or 'status'")
    from nodeagent.cli.shutdown import rehearse  # noqa: PLC0415

    rehearse(options.Source(config, options.at_endpoint(endpoint), direct), output.value)


@shutdown_app.command(
    "status", epilog="Exit codes: 0 shutdown is delayed (or disabled by configuration), 1 shutdown is not delayed."
)
def shutdown_status(
    config: options.ConfigOption = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="List at most N past node stops")] = 5,
    output: options.OutputOption = options.Output.TABLE,
    direct: options.DirectOption = False,
) -> None:
    """Show inhibitor lock, logind limit and past node stops."""
    from nodeagent.cli.shutdown import status  # noqa: PLC0415

    status(options.Source(config, {}, direct), output.value, limit=limit)


@shutdown_app.command("at-stop", hidden=True)
def shutdown_at_stop(
    config: options.ConfigOption = None,
    unit: Annotated[str, typer.Option("--unit", help="Name of the unit that systemd stops")] = "",
) -> None:
    """Stop the remaining pods in a node shutdown.

    This is the stop command of the unit. It stops no pod if systemd stops only the unit, without a node shutdown.
    """
    from nodeagent.cli.shutdown import run_stop_hook  # noqa: PLC0415

    run_stop_hook(config, unit)
