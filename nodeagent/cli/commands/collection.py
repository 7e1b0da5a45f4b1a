"""Commands that remove images, containers and leaks, save and apply plans, and place holds."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nodeagent.cli import options
from nodeagent.cli.completion_values import hold_ids, image_names
from nodeagent.cli.exit_codes import EPILOG
from nodeagent.cli.listing import HOLDS, ListOptions

gc_app = options.command_group(
    "Remove unused images, dead containers or leaks now.\n\nThe plan is printed and confirmed first; --dry-run only "
    "prints it, --yes skips the confirmation.\n\nWithout a subcommand the command is 'gc all'. --free and --to set "
    "the space to reach at any usage of imagefs: dead containers, sandboxes and logs are removed first, then unused "
    "images, least recently used first, and no more than needed. The space is freed at once, without undo.",
    epilog=EPILOG,
)


@gc_app.callback(invoke_without_command=True)
@options.with_collect_options("all")
def gc(
    context: typer.Context,
    free: Annotated[
        str | None, typer.Option("--free", metavar="SIZE", help="Free at least SIZE on imagefs, such as 10Gi")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="PERCENT", help="Remove until imagefs is PERCENT full")
    ] = None,
    *,
    request: options.CollectOptions,
) -> None:
    """Remove what 'gc all' removes, or until the requested space is free."""
    if context.invoked_subcommand is not None:
        options.refuse_options_before_subcommand(context)
        return
    from nodeagent.cli.gc import collect, space_goal  # noqa: PLC0415

    collect(request._replace(goal=space_goal(free, to)))


plan_app = typer.Typer(cls=options.CommandGroup, rich_markup_mode=None)
hold_app = options.command_group("Protect images from removal for a limited time.")


@gc_app.command("images", epilog=EPILOG)
@options.with_collect_options("images", *options.IMAGE_GC)
def gc_images(
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="PATTERN",
            help="Remove these unused images at any usage; repeatable",
            autocompletion=image_names,
        ),
    ] = None,
    *,
    request: options.CollectOptions,
) -> None:
    """Remove unused images, least recently used first.

    Removal starts when the usage of imagefs reaches the high threshold, and stops at the low threshold. With --only, it
    does not depend on the usage: the images are given by name, id, digest, a name with *, or label:KEY=VALUE.
    """
    from nodeagent.api.requests import parse_patterns  # noqa: PLC0415
    from nodeagent.cli.gc import collect  # noqa: PLC0415

    collect(request._replace(only=parse_patterns(",".join(only), "--only") if only else ()))


@gc_app.command("containers", epilog=EPILOG)
@options.with_collect_options("containers", *options.CONTAINER_GC)
def gc_containers(*, request: options.CollectOptions) -> None:
    """Remove dead containers, empty sandboxes, orphaned logs."""
    from nodeagent.cli.gc import collect  # noqa: PLC0415

    collect(request)


@gc_app.command("all", epilog=EPILOG)
@options.with_collect_options("all", *options.IMAGE_GC, *options.CONTAINER_GC)
def gc_all(*, request: options.CollectOptions) -> None:
    """Remove dead containers, sandboxes, logs, unused images."""
    from nodeagent.cli.gc import collect  # noqa: PLC0415

    collect(request)


@gc_app.command("leaks", epilog=EPILOG)
@options.with_collect_options("leaks", yes="Delete the listed leaks (default: only list)")
def gc_leaks(
    minimum_age: Annotated[
        str, typer.Option("--minimum-age", metavar="DURATION", help="Keep items created more recently than this")
    ] = "24h",
    rooted: Annotated[
        bool, typer.Option("--rooted", help="Include items referenced only by containerd.io/gc.root")
    ] = False,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="LEASE", help="Also delete this foreign lease; 'leases': all (repeatable)"),
    ] = None,
    *,
    request: options.CollectOptions,
) -> None:
    """List content that nothing uses; --yes deletes it.

    Leaks are blobs and snapshots without any reference, names of images with missing blobs, and leases of other
    programs without expiry, which are deleted only with --include.
    """
    from nodeagent.cli.gc import collect_leaks  # noqa: PLC0415

    collect_leaks(request, minimum_age=minimum_age, rooted=rooted, include=include or ())


@options.with_collect_options("images", options.UNDO_WINDOW)
def rmi(
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE", help="Name, id or digest, or a name with *", autocompletion=image_names),
    ],
    *,
    request: options.CollectOptions,
) -> None:
    """Remove the named images unless a rule keeps them.

    An image is removed with all its names, at any usage of imagefs, as by 'gc images --only': the plan is printed and
    confirmed first. Images in use, pinned, held, protected or younger than the minimum age are kept, and the reason is
    printed; a removal cannot be forced. The exit code is 1 if no image is removed, 3 if an image is kept.
    """
    from nodeagent.api.requests import parse_patterns  # noqa: PLC0415
    from nodeagent.cli.gc import collect  # noqa: PLC0415

    collect(request._replace(only=parse_patterns(",".join(images), "IMAGE"), is_named=True))


@gc_app.command("undo", epilog=EPILOG)
def gc_undo(
    pass_id: Annotated[
        str, typer.Argument(metavar="PASS", help="Id of the pass, or its beginning [default: the newest]")
    ] = "",
    only_list: Annotated[bool, typer.Option("--list", help="List the passes that can be undone")] = False,
    config: options.ConfigOption = None,
    output: options.PlanOutputOption = options.PlanOutput.TABLE,
    direct: options.DirectOption = False,
) -> None:
    """Restore the images removed by a pass.

    Images removed by age, and all images removed by commands, can be restored within image_gc.undo_window. Their disk
    space is freed afterwards, or earlier if a pass needs more space. Images that were pulled again are not changed.
    """
    from nodeagent.cli.undo import undo  # noqa: PLC0415

    undo(pass_id, config, output.value, only_list=only_list, direct=direct)


class PlanScope(StrEnum):
    """Kinds of items in a saved plan, as values of ``--scope``."""

    IMAGES = "images"
    CONTAINERS = "containers"
    ALL = "all"


@plan_app.callback(invoke_without_command=True)
@options.with_setting_options(*options.IMAGE_GC, *options.CONTAINER_GC)
def plan(
    context: typer.Context,
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    scope: Annotated[PlanScope, typer.Option("--scope", help="Items to plan for")] = PlanScope.ALL,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="File to write [default: standard output]", callback=options.named_file
        ),
    ] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="DURATION", help="Lifetime of the plan")] = "1h",
    force: options.ForceOption = False,
    *,
    overrides: options.Overrides,
) -> None:
    """Save a plan of the removals as JSON.

    'nodeagent apply FILE' removes the listed items that are still removable; 'nodeagent plan diff' compares two plans.
    """
    if context.invoked_subcommand is not None:
        options.refuse_options_before_subcommand(context)
        return
    from nodeagent.cli.plan import save  # noqa: PLC0415

    save(config, options.at_endpoint(endpoint, overrides), scope.value, out, expires, force=force)


@plan_app.command("diff", epilog="Exit codes: 0 no difference, 1 decisions differ, 2 a file cannot be used.")
def plan_diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="Saved plan", callback=options.named_file)],
    after: Annotated[
        Path, typer.Argument(metavar="B", help="Saved plan to compare with A", callback=options.named_file)
    ],
    output: options.OutputOption = options.Output.TABLE,
) -> None:
    """Compare two saved plans: verdicts and reasons.

    The number of items per change of verdict and reason is listed first, then the items.
    """
    from nodeagent.cli.plan import diff  # noqa: PLC0415

    diff(before, after, output.value)


@options.with_setting_options(*options.IMAGE_GC, *options.CONTAINER_GC)
def apply(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Plan saved by 'nodeagent plan --out FILE'", callback=options.named_file),
    ],
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    dry_run: options.RunOption = None,
    yes: options.YesOption = False,
    output: options.OutputOption = options.Output.TABLE,
    *,
    overrides: options.Overrides,
) -> None:
    """Apply a saved plan.

    The agent plans again under the configuration and the options given here, and removes the listed items that the new
    plan removes too. Items that changed after the plan was saved are kept. The exit code is 3 if an item is kept.
    """
    from nodeagent.cli.plan import ApplyOptions, apply_file  # noqa: PLC0415

    apply_file(ApplyOptions(file, config, dry_run, yes, output.value, options.at_endpoint(endpoint, overrides)))


@hold_app.command("add", epilog=EPILOG)
def hold_add(
    image: Annotated[
        str | None,
        typer.Argument(
            metavar="IMAGE", help="Image, pattern, digest or label, as in protect.images", autocompletion=image_names
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Hold every image")] = False,
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="Lifetime of the hold, such as 2h")] = "1h",
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Reason, shown with every held image")] = "",
    config: options.ConfigOption = None,
    output: options.OutputOption = options.Output.TABLE,
) -> None:
    """Hold an image, or all images, for a limited time."""
    from nodeagent.cli.hold import add  # noqa: PLC0415

    add(config, image=image, every=every, duration=duration, why=why or "no reason given", form=output.value)


@hold_app.command("list")
@options.with_list_options(HOLDS, watches=True)
def hold_list(
    config: options.ConfigOption = None, direct: options.DirectOption = False, *, listing: ListOptions
) -> None:
    """List the active holds."""
    from nodeagent.cli.hold import list_holds  # noqa: PLC0415

    list_holds(config, listing, direct=direct)


@hold_app.command("remove", epilog=EPILOG)
def hold_remove(
    hold_id: Annotated[
        str, typer.Argument(metavar="HOLD", help="Id of the hold, see 'nodeagent hold list'", autocompletion=hold_ids)
    ],
    config: options.ConfigOption = None,
) -> None:
    """Remove a hold before its end."""
    from nodeagent.cli.hold import remove  # noqa: PLC0415

    remove(config, hold_id)
