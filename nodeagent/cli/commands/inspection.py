"""Commands that inspect the node and the daemon."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nodeagent.cli import options
from nodeagent.cli.completion_values import image_names, item_names, pass_ids, reason_codes
from nodeagent.cli.listing import CONTAINERS, IMAGES, PASSES, PODS, ListOptions
from nodeagent.errors import UsageError


@options.with_list_options(IMAGES, watches=True)
def images(
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    tree: Annotated[bool, typer.Option("--tree", help="Show images as a tree of shared layers")] = False,
    direct: options.DirectOption = False,
    *,
    listing: ListOptions,
) -> None:
    """List images with size, last use and verdict.

    -o wide adds the bytes freed by removing the image: the content that no other object references, or an upper bound,
    which is marked. With --group, a row has the images of a repository, their newest and oldest use, and the bytes that
    the next pass frees by its removals among them.
    """
    from nodeagent.cli.lists import list_images, show_image_tree  # noqa: PLC0415

    show = show_image_tree if tree else list_images
    show(options.Source(config, options.at_endpoint(endpoint), direct), listing)


def du(
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    details: Annotated[bool, typer.Option("--details", "-d", help="List more items of each category")] = False,
    inodes: Annotated[bool, typer.Option("--inodes", "-i", help="Show inodes instead of bytes")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="Deadline for measuring directories")
    ] = "20s",
    output: options.OutputOption = options.Output.TABLE,
    direct: options.DirectOption = False,
) -> None:
    """Show what uses the image filesystem, by category.

    Each used byte and inode is in one category, such as unused images, pod logs, leases or host files. The largest
    items are listed with their pods.
    """
    from nodeagent.cli.du import show  # noqa: PLC0415

    source = options.Source(config, options.at_endpoint(endpoint), direct)
    show(source, output.value, details=details, inodes=inodes, timeout=timeout)


@options.with_list_options(CONTAINERS, watches=True)
def containers(
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    direct: options.DirectOption = False,
    *,
    listing: ListOptions,
) -> None:
    """List containers with pod, state, age and verdict.

    STATE is Running, Completed, Error or OOMKilled with the exit code, CrashLoop with the number of restarts, Created,
    Exited (with an unknown exit code) or Unknown. CrashLoop is a container that failed after a restart, less than ten
    minutes ago, in a ready sandbox. The filter 'state' has the states of CRI too: state=exited includes all of these.
    """
    from nodeagent.cli.lists import list_containers  # noqa: PLC0415

    list_containers(options.Source(config, options.at_endpoint(endpoint), direct), listing)


@options.with_list_options(PODS, watches=True)
def pods(
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    direct: options.DirectOption = False,
    *,
    listing: ListOptions,
) -> None:
    """List pods with containers, status, restarts and age.

    RUNNING shows running/total containers, without completed ones (such as init containers) unless all are completed.
    STATUS is the worst state of the containers, or Deleted. Of each container the newest instance counts. -o wide adds
    ready/total sandboxes and running/total container instances.
    """
    from nodeagent.cli.lists import list_pods  # noqa: PLC0415

    list_pods(options.Source(config, options.at_endpoint(endpoint), direct), listing)


class MemoryChoice(StrEnum):
    """Formulas of the signal ``memory.available``, as values of ``--memory``."""

    WORKING_SET = "working-set"
    MEM_AVAILABLE = "mem-available"


def pressure(
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    hard: Annotated[
        str,
        typer.Option(
            "--hard",
            metavar="THRESHOLDS",
            help="Hard thresholds as in evictionHard [default: configured]",
        ),
    ] = "",
    memory: Annotated[
        MemoryChoice | None,
        typer.Option("--memory", help="Formula of memory.available [default: configured]"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every --every seconds, with the trend")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="Refresh interval of --watch")
    ] = 2.0,
    output: options.PlanOutputOption = options.PlanOutput.TABLE,
    direct: options.DirectOption = False,
) -> None:
    """Show available resources against eviction thresholds.

    Signals cover memory, disk, inodes and process ids. Thresholds are written as in the kubelet's configuration, such
    as 'memory.available<100Mi,nodefs.available<10%'.
    """
    from nodeagent.cli.pressure import show  # noqa: PLC0415

    show(
        config,
        options.at_endpoint(endpoint),
        output.value,
        hard=hard,
        memory_source="" if memory is None else memory.value,
        watch_s=every if watch else None,
        direct=direct,
    )


def doctor(
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for a warning too")] = False,
    fix_logind: Annotated[
        bool,
        typer.Option("--fix-logind", help="Raise logind's delay limit for all phases; reload logind"),
    ] = False,
    fix_pin: Annotated[bool, typer.Option("--fix-pin", help="Pin the sandbox image in containerd")] = False,
    output: options.PlanOutputOption = options.PlanOutput.TABLE,
) -> None:
    """Check the node: verdict, evidence and fix per check.

    --fix-logind writes a drop-in with an InhibitDelayMaxSec= that covers all phases of a graceful shutdown.
    Problems and warnings are listed first; a terminal shows the names of the other checks only. -o wide lists all, and
    every trigger of the tasks of kubelet and agent: which side acts first at which value.
    """
    from nodeagent.cli.doctor import (  # noqa: PLC0415
        examine,
        fix_logind as apply_logind_fix,
        fix_pin as apply_pin_fix,
    )

    fixes = [*([apply_logind_fix] if fix_logind else []), *([apply_pin_fix] if fix_pin else [])]
    examine(config, options.at_endpoint(endpoint), output.value, strict=strict, fixes=fixes)


def explain(
    item: Annotated[
        str | None,
        typer.Argument(metavar="IMAGE|CONTAINER|POD", help="Name, digest, id or pod UID", autocompletion=item_names),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason", metavar="CODE", help="Explain a reason code instead; 'all': all", autocompletion=reason_codes
        ),
    ] = None,
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    output: options.OutputOption = options.Output.TABLE,
    direct: options.DirectOption = False,
) -> None:
    """Explain the verdict of an image, container or pod.

    An image is given by name, digest or id; a container by id or [[NAMESPACE/]POD/]NAME; a pod by UID or
    [NAMESPACE/]NAME. Past removals are listed too. With --reason, the meaning of a reason code and what to do about it
    are printed; the code of an item is in the lists, plans and the history.
    """
    from nodeagent.cli.explain import show, show_reason  # noqa: PLC0415

    if (item is None) is (reason is None):
        raise UsageError("explain one of them: the name, digest or id of an item, or --reason CODE")
    if item is None:
        if output is not options.Output.TABLE:
            raise UsageError("--reason: the meaning of a reason code has no other form than a table")
        show_reason(reason or "")
        return
    show(options.Source(config, options.at_endpoint(endpoint), direct), item, output.value)


@options.with_list_options(PASSES, watches=True)
def history(
    pass_id: Annotated[
        str | None,
        typer.Argument(
            metavar="PASS", help="Show the details of this pass; id or its beginning", autocompletion=pass_ids
        ),
    ] = None,
    config: options.ConfigOption = None,
    since: Annotated[
        str,
        options.since_option("Only passes since then: 2h, yesterday, 2026-03-01"),
    ] = "",
    image: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="TEXT",
            help="Only images whose name or id contains TEXT",
            autocompletion=image_names,
        ),
    ] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="List at most N passes")] = 20,
    idle: Annotated[bool, typer.Option("--all", "-a", help="List passes without removals too")] = False,
    details: Annotated[bool, typer.Option("--details", "-d", help="List the removals of each pass")] = False,
    direct: options.DirectOption = False,
    *,
    listing: ListOptions,
) -> None:
    """List past passes, newest first.

    Times are local. KINDS shows the removed items by kind; on a terminal a summary of all listed passes follows.
    The details list each removal with its reason, its outcome and the bytes freed. REMOVED shows removed/planned items,
    FREED the measured bytes. The result of a killed pass is interrupted; the outcome of a removal without a record is
    unknown.
    """
    from nodeagent.cli.history import EVERY_PASS, HistorySelection, show_history  # noqa: PLC0415

    if pass_id:
        limit, idle = EVERY_PASS, True
    show_history(config, HistorySelection(pass_id, since, image, limit, idle, details), listing, direct=direct)


def report(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Files of reports to merge; - is standard input")
    ] = None,
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    merge: Annotated[bool, typer.Option("--merge", help="Merge reports of many nodes into a summary")] = False,
    doctor: Annotated[bool, typer.Option("--doctor", help="Add problems and warnings of 'nodeagent doctor'")] = False,
    details: Annotated[
        bool, typer.Option("--details", "-d", help="Add the documents of status, du, trend and history")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with everything of --doctor and --details"),
    ] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Nodes per list of the table")] = 10,
    output: Annotated[
        options.Output | None,
        typer.Option("--output", "-o", help="Output format [default: json on one line, with --merge table]"),
    ] = None,
    direct: options.DirectOption = False,
) -> None:
    """Print the state of this node on one line, for a fleet.

    The line is a JSON document: version, role, planned removals with their bytes, filesystems, pressure, warnings.
    --merge reads the reports of many nodes from files or standard input and sums them up. Only the newest report of
    each node is counted. Lines that are not reports are listed on standard error; the exit code is then 3.

    --html writes one file without scripts and links, readable in every browser without a network. It requires
    libraries that are not installed on nodes by default: the extra html of the package. Instead, print 'report
    --details --doctor' on the node, and render it elsewhere with --merge --html.
    """
    from nodeagent.cli.report import merge_reports, show_report  # noqa: PLC0415

    if html is not None and output is not None:
        raise UsageError("--html writes a page: --output is excluded")
    if merge:
        if doctor or details or direct or config is not None or endpoint is not None:
            raise UsageError(
                "--merge reads reports: --config, --endpoint, --doctor, --details and --direct are excluded"
            )
        merge_reports(files or (), "table" if output is None else output.value, html, most=top)
        return
    if files:
        raise UsageError("files are read with --merge only")
    show_report(
        options.Source(config, options.at_endpoint(endpoint), direct),
        "json" if output is None else output.value,
        html,
        doctor=doctor,
        details=details,
    )


def status(
    config: options.ConfigOption = None,
    output: options.OutputOption = options.Output.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every --every seconds")] = False,
    every: options.EveryOption = 2.0,
) -> None:
    """Show the state of node and agent on one screen.

    Bars are filled by the used share. Marks are thresholds: [ and ] where image GC stops and starts, ! and X of soft
    and hard evictions. The next action of the agent is beside the bar.
    The exit code is 1 unless the agent is running and ready.
    """
    from nodeagent.cli.status import show_status  # noqa: PLC0415

    show_status(config, output.value, watch_s=every if watch else None)


def top(
    config: options.ConfigOption = None,
    output: options.OutputOption = options.Output.TABLE,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit")] = False,
    every: options.EveryOption = 2.0,
) -> None:
    """Show resources and pods in eviction order, live.

    FREES is the amount that an eviction returns to the resource in shortage, ? if unknown. Keys: r, m, d and p sort the
    pods by rank, memory, disk usage and process ids; the arrow keys select a pod, Enter explains it; ? lists all keys.
    Without a terminal, or with an output format other than table, the command prints once.
    """
    from nodeagent.cli.top import show_top  # noqa: PLC0415

    show_top(config, output.value, watch_s=None if once else every)


def trend(
    resource: Annotated[
        str, typer.Argument(metavar="[RESOURCE]", help="Draw the record of this resource, such as nodefs")
    ] = "",
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    since: Annotated[
        str, typer.Option("--since", metavar="DURATION", help="Length of the record, at most 90d")
    ] = "24h",
    output: options.OutputOption = options.Output.TABLE,
    direct: options.DirectOption = False,
) -> None:
    """Show the node over time, and when thresholds will be met.

    The daemon records a reading every minute. Each resource has its use with a bar for each of the last 24 hours. Below
    is the threshold that will be met first, with the range of its time, the rate and the part that grows most, a pod or
    the images of a repository; 'no trend', or 'unknown' with too few readings. With a resource, a chart marks passes,
    evictions and reboots on the axis of time, and all thresholds and growing parts are listed below.
    """
    from nodeagent.cli.trend import show_trend  # noqa: PLC0415

    since_s = options.duration_s("--since", since)
    show_trend(options.Source(config, options.at_endpoint(endpoint), direct), resource, since_s, output.value)


def events(config: options.ConfigOption = None, output: options.OutputOption = options.Output.TABLE) -> None:
    """Follow the events of the agent.

    With -o json each event is one line.
    """
    from nodeagent.cli.control import follow_events  # noqa: PLC0415

    follow_events(config, output.value)


def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until interrupted")] = False,
    lines: Annotated[
        str,
        typer.Option(
            "--lines",
            "--tail",
            "-n",
            metavar="N|all",
            help="Print the last N lines [default: 100, with --since all]",
        ),
    ] = "",
    since: Annotated[
        str,
        options.since_option("Only lines since then: 2h, today, 2026-03-01"),
    ] = "",
) -> None:
    """Show the journal of the agent.

    journalctl prints the journal of the unit nodeagent.service. A date or a time without a zone is local.
    """
    from nodeagent.cli.logs import show_journal  # noqa: PLC0415

    show_journal(follow=follow, lines=lines, since=since)


def version(
    config: options.ConfigOption = None,
    endpoint: options.EndpointOption = None,
    output: options.OutputOption = options.Output.TABLE,
    direct: options.DirectOption = False,
) -> None:
    """Show the versions of the agent and the runtime."""
    from nodeagent.cli.version import show_version  # noqa: PLC0415

    show_version(options.Source(config, options.at_endpoint(endpoint), direct), output.value)
