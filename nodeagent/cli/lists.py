"""``nodeagent images``, ``containers`` and ``pods``: every item with its verdict."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent.api import lists
from nodeagent.api.codec import encode
from nodeagent.api.lists import LayerStack, list_header
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.errors import ObservationError
from nodeagent.plan.decision import Accounting, ItemKind, Verdict
from nodeagent.plan.gc.layer_sharing import Stack, sharing_tree
from nodeagent.plan.gc.scope import Scope
from nodeagent.plan.pods.deletion import check_pods
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from rich.table import Table
    from rich.tree import Tree as RichTree

    from nodeagent.act.gc.preview import Preview
    from nodeagent.api.codec import Document
    from nodeagent.config.settings import Settings
    from nodeagent.model import Container, Image, NodeSnapshot, Sandbox
    from nodeagent.plan.decision import Decision, Plan
    from nodeagent.plan.pods.deletion import PodDeletionStatus


def list_images(path: Path | None, overrides: Mapping[str, str | int], form: str) -> None:
    """Print every image with its verdict."""
    preview = _preview(load_settings(path, overrides), Scope.IMAGES)
    (plan,) = preview.plans
    decisions = {decision.id: decision for decision in plan.decisions}
    images = sorted(preview.snapshot.images, key=lambda image: (image.name, image.id))
    if form != "table":
        usage = preview.snapshot.image_usage
        rows = tuple(lists.Image.of(each, decisions[each.id], usage.get(each.id), plan.accounting) for each in images)
        _print_document(lists.Images(**list_header(preview.snapshot), images=rows), form)
        return
    _print_table(_image_table(images, decisions, plan, preview.snapshot))


def image_tree(path: Path | None, overrides: Mapping[str, str | int], form: str) -> None:
    """Print the images as a tree of shared layers.

    Raises:
        ObservationError: the layers of the images are unknown.
    """
    preview = _preview(load_settings(path, overrides), Scope.IMAGES)
    if preview.snapshot.storage is None:
        why = "; ".join(preview.snapshot.warnings) or "runtime.containerd_api is off, or the runtime is not containerd"
        raise ObservationError(f"cannot show image layers: {why}")
    stacks, unknown = sharing_tree(preview.snapshot.images, preview.snapshot.storage)
    if form != "table":
        rows = tuple(LayerStack.of(each) for each in (*stacks, *(Stack([image]) for image in unknown)))
        _print_document(lists.ImageTree(**list_header(preview.snapshot), image_tree=rows), form)
        return
    from rich.tree import Tree  # noqa: PLC0415 - only for tables

    from nodeagent.cli.render import make_console  # noqa: PLC0415
    from nodeagent.cli.terminal import Text  # noqa: PLC0415

    shown = Tree("images by shared layers", guide_style="dim")
    for stack in stacks:
        _add_stack(shown, stack)
    for image in unknown:
        label = Text(f"{image.name}  ")
        label.append("no layers unpacked", style="dim")
        shown.add(label)
    make_console().print(shown)


def _add_stack(branch: RichTree, stack: Stack) -> None:
    from nodeagent.cli.render import short_reference  # noqa: PLC0415 - only for people
    from nodeagent.cli.terminal import Text  # noqa: PLC0415

    names = ", ".join(short_reference(image.name) for image in stack.images)
    many = f", in {stack.image_count} images" if stack.image_count > 1 else ""
    layers = f"{stack.layers} layer{'s' if stack.layers != 1 else ''}"
    label = Text(names) if names else Text("shared layers", style="italic")
    label.append(f"  +{format_bytes(stack.size_bytes)}, {layers}{many}", style="dim")
    node = branch.add(label)
    for each in stack.derived:
        _add_stack(node, each)


def list_containers(path: Path | None, overrides: Mapping[str, str | int], form: str) -> None:
    """Print every container with its verdict."""
    preview = _preview(load_settings(path, overrides), Scope.CONTAINERS)
    decisions = _decisions(preview.plans, ItemKind.CONTAINER)
    containers = sorted(
        preview.snapshot.containers, key=lambda each: (each.pod_namespace, each.pod_name, each.name, -each.attempt)
    )
    if form != "table":
        rows = tuple(lists.Container.of(each, decisions[each.id]) for each in containers)
        _print_document(lists.Containers(**list_header(preview.snapshot), containers=rows), form)
        return
    _print_table(_container_table(containers, decisions, preview.snapshot.observed_at))


def list_pods(path: Path | None, overrides: Mapping[str, str | int], form: str) -> None:
    """Print every pod of the runtime with its deletion status."""
    settings = load_settings(path, overrides)
    preview = _preview(settings, Scope.CONTAINERS)
    statuses = check_pods(preview.snapshot, settings.policy.containers.deleted_pod_grace_s)
    grouped: dict[str, list[Sandbox]] = {}
    for sandbox in preview.snapshot.sandboxes:
        grouped.setdefault(sandbox.uid, []).append(sandbox)
    pods = sorted(grouped.items(), key=lambda item: (item[1][0].namespace, item[1][0].name, item[0]))
    containers: dict[str, list[Container]] = {}
    for container in preview.snapshot.containers:
        containers.setdefault(container.sandbox_id, []).append(container)
    if form != "table":
        rows = tuple(lists.Pod.of(uid, sandboxes, containers, statuses.get(uid)) for uid, sandboxes in pods)
        _print_document(lists.Pods(**list_header(preview.snapshot), pods=rows), form)
        return
    _print_table(_pod_table(pods, containers, statuses, preview.snapshot.observed_at))


def _preview(settings: Settings, scope: Scope) -> Preview:
    async def observe() -> Preview:
        async with open_for_command(settings, record=False) as agent:
            return await agent.collector.preview(scope)

    return run_async(observe())


def _decisions(plans: Iterable[Plan], kind: ItemKind) -> dict[str, Decision]:
    return {decision.id: decision for plan in plans for decision in plan.decisions if decision.kind is kind}


def _print_document(document: Document, form: str) -> None:
    sys.stdout.write(encode(document, form))


def _print_table(table: Table) -> None:
    from nodeagent.cli.render import make_console  # noqa: PLC0415 - only for tables

    make_console().print(table)


def _image_table(
    images: Sequence[Image], decisions: Mapping[str, Decision], plan: Plan, snapshot: NodeSnapshot
) -> Table:
    from nodeagent.cli import render  # noqa: PLC0415 - tables are only for people
    from nodeagent.cli.terminal import stacked  # noqa: PLC0415

    table = render.table(
        "image",
        "id",
        "size",
        "frees",
        "last used",
        "verdict",
        "reason",
        right=("size", "frees"),
        wrap=("image", "reason"),
    )
    bound = plan.accounting is Accounting.UPPER_BOUND
    for image in images:
        decision, usage = decisions[image.id], snapshot.image_usage.get(image.id)
        names = [render.short_reference(tag) for tag in image.repo_tags] or [render.short_reference(image.name)]
        table.add_row(
            stacked(names),
            render.short_id(image.id),
            render.size(image.size_bytes),
            render.size(decision.frees_bytes, upper_bound=bound),
            render.ago(usage.last_used if usage else None, snapshot.observed_at),
            decision.verdict.value,
            decision.reason.sentence,
            style="red" if decision.verdict is Verdict.REMOVE else "",
        )
    return table


def _container_table(containers: Sequence[Container], decisions: Mapping[str, Decision], now: datetime) -> Table:
    from nodeagent.cli import render  # noqa: PLC0415 - tables are only for people

    table = render.table(
        "pod",
        "container",
        "attempt",
        "id",
        "state",
        "created",
        "verdict",
        "reason",
        right=("attempt",),
        wrap=("pod", "reason"),
    )
    for each in containers:
        decision = decisions[each.id]
        pod = f"{each.pod_namespace}/{each.pod_name}" if each.pod_name else "-"
        table.add_row(
            pod,
            each.name,
            str(each.attempt),
            render.short_id(each.id),
            each.state.value,
            render.ago(each.created_at, now) if each.created_at else "?",
            decision.verdict.value,
            decision.reason.sentence,
            style="red" if decision.verdict is Verdict.REMOVE else "",
        )
    return table


def _pod_table(
    pods: Sequence[tuple[str, Sequence[Sandbox]]],
    by_sandbox: Mapping[str, Sequence[Container]],
    statuses: Mapping[str, PodDeletionStatus],
    now: datetime,
) -> Table:
    from nodeagent.cli import render  # noqa: PLC0415 - only for tables

    table = render.table(
        "namespace",
        "pod",
        "sandboxes",
        "running",
        "dead",
        "created",
        "status",
        right=("running", "dead"),
        wrap=("status",),
    )
    for uid, sandboxes in pods:
        containers = [each for sandbox in sandboxes for each in by_sandbox.get(sandbox.id, ())]
        running = sum(each.state.value == "running" for each in containers)
        ready = sum(sandbox.ready for sandbox in sandboxes)
        newest = max((sandbox.created_at for sandbox in sandboxes if sandbox.created_at), default=None)
        status = statuses.get(uid)
        table.add_row(
            sandboxes[0].namespace,
            sandboxes[0].name,
            f"{ready} ready of {len(sandboxes)}",
            str(running),
            str(len(containers) - running),
            render.ago(newest, now) if newest else "?",
            f"{'deleted' if status.deleted else 'present'}: {status.how}" if status else "present",
        )
    return table
