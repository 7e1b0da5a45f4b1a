"""The command line: parse, compose, print. Nothing is decided here.

Modules that a command needs are imported inside it, so that ``--help`` and completion stay quick.
"""

from __future__ import annotations

import gc
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nodeagent import __version__
from nodeagent.cli.exit_codes import EPILOG, guarded

app = typer.Typer(
    name="nodeagent",
    help="Keep a container node tidy: garbage collection, pod eviction and graceful shutdown, with a preview and a "
    "reason for every item.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
gc_app = typer.Typer(
    help="Collect garbage now. Shows the plan and asks first; --dry-run only shows it, --yes does not ask.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
)
hold_app = typer.Typer(help="Keep images for a while, whatever their age.", no_args_is_help=True, rich_markup_mode=None)
plan_app = typer.Typer(
    help="Save a plan, to be looked at and applied later; 'plan diff' compares two.", rich_markup_mode=None
)
shutdown_app = typer.Typer(
    help="What happens to the pods when the node goes down; nothing is ever shut down by this command.",
    rich_markup_mode=None,
)
config_app = typer.Typer(help="Check, show or document the configuration.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(gc_app, name="gc")
app.add_typer(plan_app, name="plan")
app.add_typer(hold_app, name="hold")
app.add_typer(shutdown_app, name="shutdown")
app.add_typer(config_app, name="config")


class Output(StrEnum):
    """The form of an answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Configuration file. [default: /etc/nodeagent/config.toml if it exists]"
    ),
]
EndpointOption = Annotated[
    str | None,
    typer.Option("--endpoint", metavar="unix:///PATH", help="Runtime socket. [default: from the config, else found]"),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Form of the answer.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", "-n", help="Show exactly what would be removed and why.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing.")]
KeptOption = Annotated[bool, typer.Option("--kept", "-k", help="List what is kept, too, each with its reason.")]
HighOption = Annotated[
    int | None, typer.Option("--high", metavar="PERCENT", help="Collect when imagefs is at least this full.")
]
LowOption = Annotated[int | None, typer.Option("--low", metavar="PERCENT", help="Stop when imagefs is down to this.")]
MinimumAgeOption = Annotated[
    str | None, typer.Option("--minimum-age", metavar="DURATION", help="Keep images seen for less than this.")
]
UnusedAgeOption = Annotated[
    str | None,
    typer.Option("--maximum-unused-age", metavar="DURATION", help="Remove images unused for longer than this."),
]
MaxImagesOption = Annotated[
    int | None, typer.Option("--max-images", metavar="N", help="Remove at most N images in this pass.")
]
MaxBytesOption = Annotated[
    str | None, typer.Option("--max-bytes", metavar="SIZE", help="Free at most about this much in this pass.")
]
DeadAgeOption = Annotated[
    str | None, typer.Option("--dead-minimum-age", metavar="DURATION", help="Keep containers created since.")
]
PerContainerOption = Annotated[
    int | None,
    typer.Option("--max-per-pod-container", metavar="N", help="Dead instances kept per container; -1 for all."),
]
MaxContainersOption = Annotated[
    int | None, typer.Option("--max-containers", metavar="N", help="Dead containers kept in all; -1 for all.")
]
GraceOption = Annotated[
    str | None,
    typer.Option("--deleted-pod-grace", metavar="DURATION", help="How long a pod must look dead to count as gone."),
]


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"nodeagent {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command."""


@gc_app.command("images", epilog=EPILOG)
def gc_images(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
    kept: KeptOption = False,
    high: HighOption = None,
    low: LowOption = None,
    minimum_age: MinimumAgeOption = None,
    maximum_unused_age: UnusedAgeOption = None,
    max_images: MaxImagesOption = None,
    max_bytes: MaxBytesOption = None,
) -> None:
    """Remove unused images, least recently used first, when imagefs is too full."""
    from nodeagent.cli.gc import Request, collect  # noqa: PLC0415

    collect(
        Request(
            scope="images",
            config=config,
            dry_run=dry_run,
            yes=yes,
            output=output.value,
            show_kept=kept,
            overrides=_overrides(
                {
                    "runtime.endpoint": endpoint,
                    "image_gc.high_threshold_percent": high,
                    "image_gc.low_threshold_percent": low,
                    "image_gc.minimum_age": minimum_age,
                    "image_gc.maximum_unused_age": maximum_unused_age,
                    "image_gc.max_images_per_pass": max_images,
                    "image_gc.max_bytes_per_pass": max_bytes,
                }
            ),
        )
    )


@gc_app.command("containers", epilog=EPILOG)
def gc_containers(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
    kept: KeptOption = False,
    dead_minimum_age: DeadAgeOption = None,
    max_per_pod_container: PerContainerOption = None,
    max_containers: MaxContainersOption = None,
    deleted_pod_grace: GraceOption = None,
) -> None:
    """Remove dead containers, then empty sandboxes, then the logs of pods that are gone."""
    from nodeagent.cli.gc import Request, collect  # noqa: PLC0415

    collect(
        Request(
            scope="containers",
            config=config,
            dry_run=dry_run,
            yes=yes,
            output=output.value,
            show_kept=kept,
            overrides=_overrides(
                {
                    "runtime.endpoint": endpoint,
                    "container_gc.minimum_age": dead_minimum_age,
                    "container_gc.max_per_pod_container": max_per_pod_container,
                    "container_gc.max_containers": max_containers,
                    "container_gc.deleted_pod_grace": deleted_pod_grace,
                }
            ),
        )
    )


@gc_app.command("all", epilog=EPILOG)
def gc_all(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
    kept: KeptOption = False,
    high: HighOption = None,
    low: LowOption = None,
    minimum_age: MinimumAgeOption = None,
    maximum_unused_age: UnusedAgeOption = None,
    max_images: MaxImagesOption = None,
    max_bytes: MaxBytesOption = None,
    dead_minimum_age: DeadAgeOption = None,
    max_per_pod_container: PerContainerOption = None,
    max_containers: MaxContainersOption = None,
    deleted_pod_grace: GraceOption = None,
) -> None:
    """Remove dead containers, sandboxes and logs, then unused images."""
    from nodeagent.cli.gc import Request, collect  # noqa: PLC0415

    collect(
        Request(
            scope="all",
            config=config,
            dry_run=dry_run,
            yes=yes,
            output=output.value,
            show_kept=kept,
            overrides=_overrides(
                {
                    "runtime.endpoint": endpoint,
                    "image_gc.high_threshold_percent": high,
                    "image_gc.low_threshold_percent": low,
                    "image_gc.minimum_age": minimum_age,
                    "image_gc.maximum_unused_age": maximum_unused_age,
                    "image_gc.max_images_per_pass": max_images,
                    "image_gc.max_bytes_per_pass": max_bytes,
                    "container_gc.minimum_age": dead_minimum_age,
                    "container_gc.max_per_pod_container": max_per_pod_container,
                    "container_gc.max_containers": max_containers,
                    "container_gc.deleted_pod_grace": deleted_pod_grace,
                }
            ),
        )
    )


@gc_app.command("leaks", epilog=EPILOG)
def gc_leaks(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete what is listed; without it nothing is.")] = False,
    output: OutputOption = Output.TABLE,
    kept: KeptOption = False,
    minimum_age: Annotated[
        str, typer.Option("--minimum-age", metavar="DURATION", help="Keep what was made more recently than this.")
    ] = "24h",
    rooted: Annotated[
        bool, typer.Option("--rooted", help="Also what only a label of its own keeps (containerd.io/gc.root).")
    ] = False,
) -> None:
    """Find blobs and snapshots that no image, container, lease or other piece holds; delete them with --yes."""
    from nodeagent.cli.gc import Request  # noqa: PLC0415
    from nodeagent.cli.leaks import collect_leaks  # noqa: PLC0415

    request = Request("leaks", config, dry_run, yes, output.value, kept, _overrides({"runtime.endpoint": endpoint}))
    collect_leaks(request, minimum_age=minimum_age, rooted=rooted)


def _overrides(given: dict[str, str | int | None]) -> dict[str, str | int]:
    return {key: value for key, value in given.items() if value is not None}


@app.command(epilog=EPILOG)
def images(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="Show which images are built on which, by shared layers.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List images: size, what removing each would free, last use, who uses it, and the verdict."""
    from nodeagent.cli.lists import image_tree, list_images  # noqa: PLC0415

    show = image_tree if tree else list_images
    show(config, _overrides({"runtime.endpoint": endpoint}), output.value)


@app.command(epilog=EPILOG)
def du(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    details: Annotated[bool, typer.Option("--details", "-d", help="Name the largest members of each part.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long directories may be walked.")
    ] = "20s",
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what fills the image filesystem: images in use and not, dead containers, logs, volumes, leaks, the rest."""
    from nodeagent.cli.du import show  # noqa: PLC0415

    show(config, _overrides({"runtime.endpoint": endpoint}), output.value, details=details, timeout=timeout)


@app.command(epilog=EPILOG)
def containers(
    config: ConfigOption = None, endpoint: EndpointOption = None, output: OutputOption = Output.TABLE
) -> None:
    """List containers, running and dead, with their pod, age and the verdict."""
    from nodeagent.cli.lists import list_containers  # noqa: PLC0415

    list_containers(config, _overrides({"runtime.endpoint": endpoint}), output.value)


@app.command(epilog=EPILOG)
def pods(config: ConfigOption = None, endpoint: EndpointOption = None, output: OutputOption = Output.TABLE) -> None:
    """List pods with their sandboxes and containers, and whether each counts as gone."""
    from nodeagent.cli.lists import list_pods  # noqa: PLC0415

    list_pods(config, _overrides({"runtime.endpoint": endpoint}), output.value)


class PlanScope(StrEnum):
    """What a saved plan is about."""

    IMAGES = "images"
    CONTAINERS = "containers"
    ALL = "all"


@plan_app.callback(invoke_without_command=True)
def plan(
    context: typer.Context,
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    scope: Annotated[PlanScope, typer.Option("--scope", help="What the plan is about.")] = PlanScope.ALL,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to save it. [default: standard output]")
    ] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="DURATION", help="How long it may be applied.")] = "1h",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    high: HighOption = None,
    low: LowOption = None,
    minimum_age: MinimumAgeOption = None,
    maximum_unused_age: UnusedAgeOption = None,
    max_images: MaxImagesOption = None,
    max_bytes: MaxBytesOption = None,
    dead_minimum_age: DeadAgeOption = None,
    max_per_pod_container: PerContainerOption = None,
    max_containers: MaxContainersOption = None,
    deleted_pod_grace: GraceOption = None,
) -> None:
    """Save what a pass would do now, as JSON; 'nodeagent apply FILE' carries out exactly that, or less."""
    if context.invoked_subcommand is not None:
        return
    from nodeagent.cli.plan import save  # noqa: PLC0415

    overrides = _overrides(
        {
            "runtime.endpoint": endpoint,
            "image_gc.high_threshold_percent": high,
            "image_gc.low_threshold_percent": low,
            "image_gc.minimum_age": minimum_age,
            "image_gc.maximum_unused_age": maximum_unused_age,
            "image_gc.max_images_per_pass": max_images,
            "image_gc.max_bytes_per_pass": max_bytes,
            "container_gc.minimum_age": dead_minimum_age,
            "container_gc.max_per_pod_container": max_per_pod_container,
            "container_gc.max_containers": max_containers,
            "container_gc.deleted_pod_grace": deleted_pod_grace,
        }
    )
    save(config, overrides, scope.value, out, expires, force=force)


@plan_app.command("diff", epilog="Exit codes: 0 no decision differs, 1 some do, 2 a file cannot be used.")
def plan_diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A saved plan.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A saved plan to compare with it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Show every item whose verdict or reason differs between two saved plans."""
    from nodeagent.cli.plan import diff  # noqa: PLC0415

    diff(before, after, output.value)


@app.command(epilog=EPILOG)
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A plan saved by 'nodeagent plan --out FILE'.")],
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
    high: HighOption = None,
    low: LowOption = None,
    minimum_age: MinimumAgeOption = None,
    maximum_unused_age: UnusedAgeOption = None,
    max_images: MaxImagesOption = None,
    max_bytes: MaxBytesOption = None,
    dead_minimum_age: DeadAgeOption = None,
    max_per_pod_container: PerContainerOption = None,
    max_containers: MaxContainersOption = None,
    deleted_pod_grace: GraceOption = None,
) -> None:
    """Carry out a saved plan: only listed items, only if still removable; exits with 3 if the plan has drifted.

    For every setting the stricter of the plan and the current configuration applies. A plan made with options that
    are less strict than the configuration needs the same options here.
    """
    from nodeagent.cli.plan import ApplyRequest, apply_file  # noqa: PLC0415

    overrides = _overrides(
        {
            "runtime.endpoint": endpoint,
            "image_gc.high_threshold_percent": high,
            "image_gc.low_threshold_percent": low,
            "image_gc.minimum_age": minimum_age,
            "image_gc.maximum_unused_age": maximum_unused_age,
            "image_gc.max_images_per_pass": max_images,
            "image_gc.max_bytes_per_pass": max_bytes,
            "container_gc.minimum_age": dead_minimum_age,
            "container_gc.max_per_pod_container": max_per_pod_container,
            "container_gc.max_containers": max_containers,
            "container_gc.deleted_pod_grace": deleted_pod_grace,
        }
    )
    apply_file(ApplyRequest(file, config, dry_run, yes, output.value, overrides))


class MemoryChoice(StrEnum):
    """What memory.available stands for."""

    WORKING_SET = "working-set"
    MEM_AVAILABLE = "mem-available"


@app.command(epilog="Exit codes: 0 no threshold is crossed, 1 one is, 2 wrong usage or configuration.")
def pressure(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    hard: Annotated[
        str,
        typer.Option(
            "--hard",
            metavar="THRESHOLDS",
            help="Thresholds in the kubelet's form, such as 'memory.available<100Mi,nodefs.available<10%'. "
            "[default: those configured]",
        ),
    ] = "",
    memory: Annotated[
        MemoryChoice | None,
        typer.Option("--memory", help="The kubelet's formula, or the kernel's MemAvailable. [default: as configured]"),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every --every seconds, with the trend, until Ctrl-C.")
    ] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, help="With --watch.")] = 2.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what the node has left of memory, disk, inodes and processes, against eviction thresholds."""
    from nodeagent.cli.pressure import show  # noqa: PLC0415
    from nodeagent.model.pressure import MemorySource  # noqa: PLC0415

    overrides = _overrides({"runtime.endpoint": endpoint})
    show(
        config,
        overrides,
        output.value,
        hard=hard,
        memory_source=None if memory is None else MemorySource(memory.value),
        watch_s=every if watch else None,
    )


@app.command(epilog="Exit codes: 0 no problem, 1 a problem (with --strict also a warning), 2 wrong usage.")
def doctor(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for a warning, too.")] = False,
    fix_logind: Annotated[
        bool,
        typer.Option(
            "--fix-logind",
            help="Write a drop-in that has logind wait long enough for all phases of a shutdown, and reload logind.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check whether this node is fit for the agent: a verdict, its evidence and a fix for each check."""
    from nodeagent.cli.doctor import examine  # noqa: PLC0415

    overrides = _overrides({"runtime.endpoint": endpoint})
    examine(config, overrides, output.value, strict=strict, fix_logind=fix_logind)


@app.command(epilog=EPILOG)
def evict(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Tell whether a pod would be evicted now, which, and why.")
    ] = False,
    simulate: Annotated[
        list[str] | None,
        typer.Option(
            "--simulate",
            "-s",
            metavar="SIGNAL=AMOUNT",
            help="Tell what would happen if a signal stood there for long enough, such as memory.available=50Mi or "
            "nodefs.available=5%. May be given several times.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Rehearse an eviction: in which order pods would go, with every number, and what protects each.

    Nothing is evicted by this command: that is the daemon's, which decides by the same rules.
    """
    from nodeagent.cli.evict import preview  # noqa: PLC0415
    from nodeagent.errors import UsageError  # noqa: PLC0415

    if not dry_run and not simulate:
        raise UsageError("evict only rehearses: say --dry-run, or --simulate SIGNAL=AMOUNT; the daemon evicts")
    preview(config, _overrides({"runtime.endpoint": endpoint}), output.value, simulate or [])


@app.command(epilog=EPILOG)
def explain(
    item: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE|CONTAINER|POD",
            help="An image by name, digest or id; a container by id or [[NAMESPACE/]POD/]NAME; a pod by UID or "
            "[NAMESPACE/]NAME.",
        ),
    ],
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say why something was, was not, or when it will be removed."""
    from nodeagent.cli.explain import show  # noqa: PLC0415

    show(config, _overrides({"runtime.endpoint": endpoint}), item, output.value)


@app.command(epilog=EPILOG)
def history(
    config: ConfigOption = None,
    since: Annotated[str, typer.Option("--since", metavar="DURATION", help="Only passes since, such as 24h.")] = "",
    image: Annotated[
        str,
        typer.Option("--image", metavar="TEXT", help="Only what was done to images whose name or id contains this."),
    ] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many passes.")] = 20,
    quiet: Annotated[bool, typer.Option("--all", "-a", help="Also passes that found nothing to do.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what passes did, newest first: what was removed, why, and what it freed."""
    from nodeagent.cli.history import show_history  # noqa: PLC0415

    show_history(config, since=since, image=image, limit=limit, quiet=quiet, form=output.value)


@shutdown_app.callback(invoke_without_command=True)
def shutdown(
    context: typer.Context,
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show the timeline: each phase, its pods, and why they are there.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what would happen to the pods if the node went down now (--dry-run)."""
    if context.invoked_subcommand is not None:
        return
    from nodeagent.errors import UsageError  # noqa: PLC0415

    if not dry_run:
        raise UsageError("nothing is shut down by this command: add --dry-run for the timeline, or 'status'")
    from nodeagent.cli.shutdown import rehearse  # noqa: PLC0415

    rehearse(config, _overrides({"runtime.endpoint": endpoint}), output.value)


@shutdown_app.command("status", epilog="Exit codes: 0 the node waits for its pods (or is not to), 1 it would not.")
def shutdown_status(
    config: ConfigOption = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="At most so many past stops.")] = 5,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the delay lock, logind's limit and who sets it, and how the node went down the last times."""
    from nodeagent.cli.shutdown import status  # noqa: PLC0415

    status(config, output.value, limit=limit)


@shutdown_app.command("at-stop", hidden=True)
def shutdown_at_stop(
    config: ConfigOption = None,
    unit: Annotated[str, typer.Option("--unit", help="The unit that is being stopped.")] = "",
) -> None:
    """Stop the pods if systemd stops the whole node and nobody did; the unit's stop command."""
    from nodeagent.cli.shutdown import at_stop  # noqa: PLC0415

    at_stop(config, unit)


@hold_app.command("add", epilog=EPILOG)
def hold_add(
    image: Annotated[
        str | None, typer.Argument(metavar="[IMAGE]", help="An image, a pattern or a digest, as in protect.images.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Hold every image.")] = False,
    lasts: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long, such as 2h.")] = "1h",
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason; it is shown wherever it holds.")] = "",
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Keep an image, or all, for a while."""
    from nodeagent.cli.hold import add  # noqa: PLC0415

    add(config, image=image, every=every, lasts=lasts, why=why or "no reason given", form=output.value)


@hold_app.command("list")
def hold_list(config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the holds in force."""
    from nodeagent.cli.hold import show  # noqa: PLC0415

    show(config, output.value)


@hold_app.command("remove", epilog=EPILOG)
def hold_remove(
    hold_id: Annotated[str, typer.Argument(metavar="HOLD", help="Its number, as 'hold list' shows it.")],
    config: ConfigOption = None,
) -> None:
    """Take a hold back before it ends."""
    from nodeagent.cli.hold import remove  # noqa: PLC0415

    remove(config, hold_id)


WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again every --every seconds, until interrupted.")
]
EveryOption = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=0.2, help="How often it is shown again.", show_default=True)
]


@app.command(epilog=EPILOG)
def status(
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """Show on one screen how the node and the agent are; exit code 1 unless the agent runs and can do its work."""
    from nodeagent.cli.status import show_status  # noqa: PLC0415

    show_status(config, output.value, watch_s=every if watch else None)


@app.command(epilog=EPILOG)
def top(
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
    once: Annotated[bool, typer.Option("--once", help="Show it once, as where the output is no terminal.")] = False,
    every: EveryOption = 2.0,
) -> None:
    """Follow what the node has left and what its pods use, in the order in which they would be evicted."""
    from nodeagent.cli.status import show_top  # noqa: PLC0415

    live = not once and output is Output.TABLE and sys.stdout.isatty()
    show_top(config, output.value, watch_s=every if live else None)


@app.command(epilog=EPILOG)
def events(config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """Follow what the agent does, as it does it; with -o json a line of JSON an event."""
    from nodeagent.cli.control import follow_events  # noqa: PLC0415

    follow_events(config, output.value)


@app.command(epilog=EPILOG)
def pause(
    lasts: Annotated[str, typer.Option("--for", metavar="DURATION", help="At most 7d.")] = "30m",
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Shown by status and in the log.")] = "",
    config: ConfigOption = None,
) -> None:
    """Have the agent collect and evict nothing for a while, over a restart of it too; graceful shutdown goes on."""
    from nodeagent.cli.control import pause as ask_to_pause  # noqa: PLC0415

    ask_to_pause(config, lasts=lasts, why=why)


@app.command(epilog=EPILOG)
def resume(config: ConfigOption = None) -> None:
    """End a pause."""
    from nodeagent.cli.control import resume as ask_to_resume  # noqa: PLC0415

    ask_to_resume(config)


@app.command(epilog=EPILOG)
def trigger(
    loop: Annotated[str, typer.Argument(metavar="LOOP", help="containers, images or eviction.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run has ended, and tell how.")] = False,
    config: ConfigOption = None,
) -> None:
    """Have one of the agent's loops run now instead of at its time."""
    from nodeagent.cli.control import trigger as ask_to_run  # noqa: PLC0415

    ask_to_run(config, loop, wait=wait)


@app.command(epilog=EPILOG)
def reload(
    config: ConfigOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show changes and effect; reload nothing.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Reload the agent's configuration; print changes, effect on the next passes, and the wait before them.

    A faulty configuration is refused and changes nothing. After a switch of dry_run from true to false the first
    pass that removes or evicts waits for reload_grace, 60s by default; 'nodeagent pause' stops it. With --dry-run the
    exit code is 3 if the effect is unknown.
    """
    from nodeagent.cli.control import reload as ask_to_reload  # noqa: PLC0415

    ask_to_reload(config, output.value, dry_run=dry_run)


@app.command(epilog=EPILOG)
def run(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "-n", help="Log what would be removed; touch nothing but the agent's own state."),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Make one pass over everything, then exit.")] = False,
) -> None:
    """Run the daemon: container collection every minute, image collection every five (configurable)."""
    from nodeagent.cli.run import run_daemon  # noqa: PLC0415

    run_daemon(config, _overrides({"runtime.endpoint": endpoint}), dry_run=dry_run, once=once)


@app.command(epilog=EPILOG)
def version(config: ConfigOption = None, endpoint: EndpointOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the agent's version and the runtime's."""
    from nodeagent.cli.version import show_version  # noqa: PLC0415

    show_version(config, _overrides({"runtime.endpoint": endpoint}), output.value)


@app.command()
def demo(
    show: Annotated[bool, typer.Option("--kept", "-k", help="List what is kept, too, each with its reason.")] = False,
) -> None:
    """Preview, run and result on a simulated node; needs no root and no containerd."""
    from nodeagent.cli.demo import run_demo  # noqa: PLC0415

    raise typer.Exit(run_demo(show_kept=show))


PrefixOption = Annotated[
    Path, typer.Option("--prefix", metavar="DIR", help="Where the agent's virtual environment is.", show_default=True)
]
RootOption = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", help="Treat DIR as /; only files are touched, and nothing is run."),
]


@app.command(epilog=EPILOG)
def install(
    prefix: PrefixOption = Path("/opt/nodeagent"),
    enable: Annotated[bool, typer.Option("--enable", help="Enable the unit and start it.")] = False,
    root: RootOption = None,
    packaged: Annotated[bool, typer.Option("--packaged", hidden=True)] = False,
    systemd: Annotated[int | None, typer.Option("--systemd", hidden=True)] = None,
) -> None:
    """Install the agent on this node, or upgrade it: environment, unit, catalog, completions, manual, configuration."""
    from nodeagent.cli.install import install as put_in_place  # noqa: PLC0415

    put_in_place(prefix, enable=enable, root=root, packaged=packaged, systemd=systemd)


@app.command(epilog=EPILOG)
def uninstall(
    prefix: PrefixOption = Path("/opt/nodeagent"),
    purge: Annotated[bool, typer.Option("--purge", help="Also remove configuration, state and group.")] = False,
    root: RootOption = None,
) -> None:
    """Stop the agent and remove what was installed; configuration and state stay unless --purge."""
    from nodeagent.cli.install import uninstall as take_away  # noqa: PLC0415

    take_away(prefix, purge=purge, root=root)


@config_app.command("check", epilog=EPILOG)
def config_check(config: ConfigOption = None) -> None:
    """Check a configuration file; say what is wrong with which key, and what is allowed."""
    from nodeagent.cli.config import check  # noqa: PLC0415

    check(config)


class ConfigOutput(StrEnum):
    """The form in which a configuration is shown."""

    TABLE = "table"
    TOML = "toml"
    JSON = "json"
    YAML = "yaml"


@config_app.command("show")
def config_show(
    config: ConfigOption = None,
    effective: Annotated[
        bool, typer.Option("--effective", help="Tell for each value where it is set: file, variable or default.")
    ] = False,
    output: Annotated[ConfigOutput, typer.Option("--output", "-o", help="Form of the answer.")] = ConfigOutput.TABLE,
) -> None:
    """Show the configuration in force, defaults filled in; as TOML, JSON or YAML."""
    from nodeagent.cli.config import show  # noqa: PLC0415

    show(config, output.value, sources=effective)


@config_app.command("import", epilog=EPILOG)
def config_import(
    file: Annotated[
        Path, typer.Argument(metavar="FILE|-", help="A KubeletConfiguration, such as /var/lib/kubelet/config.yaml.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Configuration in force, whose dry_run is kept. [default: /etc/nodeagent/config.toml]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write. [default: standard output]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Turn a kubelet's configuration, YAML or JSON, into one of the agent's; name what of it was not taken over.

    dry_run is false only if the configuration in force and the file to be replaced say so; otherwise it is true.
    """
    from nodeagent.cli.config import import_kubelet  # noqa: PLC0415

    import_kubelet(file, config=config, out=out, force=force)


@config_app.command("default")
def config_default(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With dry_run = true, so that nothing is removed yet.")
    ] = False,
) -> None:
    """Print a configuration file with every setting explained and commented out."""
    from nodeagent.cli.config import default  # noqa: PLC0415

    default(dry_run=dry_run)


@config_app.command("reference")
def config_reference() -> None:
    """Document every setting: form, default, unit and effect."""
    from nodeagent.cli.config import reference  # noqa: PLC0415

    reference()


def main() -> None:
    """Run the command line; every expected error becomes one message and an exit code."""
    gc.set_threshold(50_000, 20, 20)  # snapshots are large, short-lived and free of cycles
    with guarded():
        app()
