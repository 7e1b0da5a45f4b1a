"""Commands that run, control, configure and install the daemon."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nodeagent.cli import options
from nodeagent.cli.completion_values import script, setting_keys, topic_names
from nodeagent.cli.exit_codes import EPILOG

config_app = options.command_group("Check, show, import or document the configuration.")


def pause(
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="Length of the pause, at most 7d")] = "30m",
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Reason, shown by status and in the log")] = "",
    config: options.ConfigOption = None,
) -> None:
    """Pause garbage collection and eviction.

    The pause continues after a restart of the agent. In a shutdown of the node, the agent stops no pods during a pause.
    """
    from nodeagent.cli.control import pause as pause_agent  # noqa: PLC0415

    pause_agent(config, duration=duration, why=why)


def resume(config: options.ConfigOption = None) -> None:
    """End the pause."""
    from nodeagent.cli.control import resume as resume_agent  # noqa: PLC0415

    resume_agent(config)


def help_(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Topic or command", autocompletion=topic_names)
    ] = None,
) -> None:
    """Print a document or the help of a command.

    Without a topic, list the topics by reader. A terminal shows the text in the pager of $NODEAGENT_PAGER or $PAGER, by
    default less; an empty value disables the pager.
    """
    from nodeagent.cli.help import show_help  # noqa: PLC0415

    show_help(context.find_root().command, words or ())


class Shell(StrEnum):
    """Shells with a completion script, as values of the argument SHELL."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish")]) -> None:
    """Print the completion script of a shell.

    Image names, ids and pods are completed from the running daemon. 'nodeagent install' installs the scripts.
    """
    import sys  # noqa: PLC0415 - not needed by every command

    sys.stdout.write(script(shell.value))


def trigger(
    loop: Annotated[
        str,
        typer.Argument(
            metavar="LOOP",
            help="containers, images or eviction",
            autocompletion=lambda: ["containers", "images", "eviction"],
        ),
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end of the run and print its result")] = False,
    config: options.ConfigOption = None,
) -> None:
    """Run a loop of the agent now."""
    from nodeagent.cli.control import trigger as trigger_loop  # noqa: PLC0415

    trigger_loop(config, loop, wait=wait)


def reload(
    config: options.ConfigOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Print changes and effect; reload nothing")] = False,
    output: options.OutputOption = options.Output.TABLE,
) -> None:
    """Reload the configuration of the agent.

    Changes, their effect on the next passes, and the reload grace period are printed. A faulty configuration is
    refused and changes nothing. After a switch of dry_run from true to false the first pass that removes or evicts
    waits for reload_grace, 60s by default; 'nodeagent pause' stops the countdown. With --dry-run the exit code is 3 if
    the effect is unknown.
    """
    from nodeagent.cli.control import reload as reload_agent  # noqa: PLC0415

    reload_agent(config, output.value, dry_run=dry_run)


def run(
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Log removals; write only the agent's state")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Run one pass of every loop and exit")] = False,
) -> None:
    """Run the daemon.

    Containers are collected every minute and images every five minutes, unless configured otherwise.
    """
    from nodeagent.cli.run import run_daemon  # noqa: PLC0415

    run_daemon(config, options.at_endpoint(endpoint), dry_run=dry_run, once=once)


def install(
    prefix: options.PrefixOption = Path("/opt/nodeagent"),
    enable: Annotated[bool, typer.Option("--enable", help="Enable and start the unit")] = False,
    root: options.RootOption = None,
    systemd: Annotated[int | None, typer.Option("--systemd", hidden=True)] = None,
) -> None:
    """Install or upgrade the agent on this node.

    The virtual environment, the unit, the journal catalog, completions, manual pages and a first configuration are
    installed; an existing configuration is kept.
    """
    from nodeagent.cli.install import install as install_agent  # noqa: PLC0415

    install_agent(prefix, enable=enable, root=root, systemd=systemd)


def uninstall(
    prefix: options.PrefixOption = Path("/opt/nodeagent"),
    purge: Annotated[bool, typer.Option("--purge", help="Remove configuration, state and group too")] = False,
    root: options.RootOption = None,
) -> None:
    """Stop the agent and remove the installed files.

    Configuration and state are kept without --purge.
    """
    from nodeagent.cli.install import uninstall as uninstall_agent  # noqa: PLC0415

    uninstall_agent(prefix, purge=purge, root=root)


@config_app.command("check", epilog=EPILOG)
def config_check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File to check, as --config", callback=options.named_file)
    ] = None,
    config: options.ConfigOption = None,
) -> None:
    """Check a configuration file.

    Every fault is reported with its key, its value and the allowed form.
    """
    from nodeagent.cli.config import check  # noqa: PLC0415
    from nodeagent.errors import UsageError  # noqa: PLC0415

    if file is not None and config is not None:
        raise UsageError("FILE, --config: give one of them")
    check(file or config)


class ConfigOutput(StrEnum):
    """Output formats of ``nodeagent config show``."""

    TABLE = "table"
    TOML = "toml"
    JSON = "json"
    YAML = "yaml"


KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="Only this setting, such as image_gc.interval", autocompletion=setting_keys)
]


@config_app.command("show")
def config_show(
    key: KeyArgument = "",
    config: options.ConfigOption = None,
    effective: Annotated[
        bool, typer.Option("--effective", help="Show the source of each value: file, variable, default")
    ] = False,
    output: Annotated[ConfigOutput, typer.Option("--output", "-o", help="Output format")] = ConfigOutput.TABLE,
    direct: options.DirectOption = False,
) -> None:
    """Show the configuration in force, defaults included."""
    from nodeagent.cli.config import show  # noqa: PLC0415

    show(config, output.value, sources=effective, key=key, direct=direct)


@config_app.command("import", epilog=EPILOG)
def config_import(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE|-",
            help="KubeletConfiguration [default: that of this node, with flags]",
            callback=options.named_file,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Source of dry_run [default: /etc/nodeagent/config.toml]",
            callback=options.named_file,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="File to write [default: standard output]", callback=options.named_file
        ),
    ] = None,
    force: options.ForceOption = False,
) -> None:
    """Convert a KubeletConfiguration, YAML or JSON.

    Without a file the configuration in force on this node is converted: file, drop-ins and flags of its kubelet.
    Fields that are not imported are reported on standard error. dry_run is false only if the configuration in force
    and the file to be replaced both set it to false; otherwise it is true.
    """
    from nodeagent.cli.config import import_kubelet  # noqa: PLC0415

    import_kubelet(file, config=config, out=out, force=force)


@config_app.command("default")
def config_default(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Set dry_run = true, so that nothing is removed")] = False,
) -> None:
    """Print a commented configuration file with all defaults."""
    from nodeagent.cli.config import default  # noqa: PLC0415

    default(dry_run=dry_run)


@config_app.command("reference")
def config_reference(key: KeyArgument = "") -> None:
    """Print the form, default and effect of every setting."""
    from nodeagent.cli.config import reference  # noqa: PLC0415

    reference(key)
