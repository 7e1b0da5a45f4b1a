"""``nodeagent images``, ``containers`` and ``pods``: every item with its verdict."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent.api import lists
from nodeagent.api.codec import encode
from nodeagent.api.lists import LayerStack, list_header
from nodeagent.cli.list_request import ListRequest
from nodeagent.cli.list_views import CONTAINERS, IMAGES, PODS
from nodeagent.cli.listing import ListOptions
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.errors import ObservationError, UsageError
from nodeagent.plan.decision import ItemKind
from nodeagent.plan.gc.layer_sharing import Stack, sharing_tree
from nodeagent.plan.gc.scope import Scope
from nodeagent.plan.pods.deletion import check_pods
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rich.tree import Tree as RichTree

    from nodeagent.act.gc.preview import Preview
    from nodeagent.api.codec import Document
    from nodeagent.config.settings import Settings
    from nodeagent.model import Container, Sandbox
    from nodeagent.plan.decision import Decision, Plan


def list_images(path: Path | None, overrides: Mapping[str, str | int], options: ListOptions) -> None:
    """Print every image with its verdict.

    Raises:
        UsageError: an option is invalid.
    """
    request = ListRequest.of(IMAGES, options)
    preview = _preview(load_settings(path, overrides), Scope.IMAGES)
    (plan,) = preview.plans
    decisions = {decision.id: decision for decision in plan.decisions}
    images = sorted(preview.snapshot.images, key=lambda image: (image.name, image.id))
    usage = preview.snapshot.image_usage
    rows = tuple(lists.Image.of(each, decisions[each.id], usage.get(each.id), plan.accounting) for each in images)
    document = lists.Images(**list_header(preview.snapshot), images=rows)
    request.print(document, document.observed_at, empty="no images")


def image_tree(path: Path | None, overrides: Mapping[str, str | int], options: ListOptions) -> None:
    """Print the images as a tree of shared layers.

    Raises:
        UsageError: an option of lists is given that a tree does not have.
        ObservationError: the layers of the images are unknown.
    """
    form = options.form
    if options != ListOptions(form=form, truncate=options.truncate) or form not in ("table", "json", "yaml"):
        raise UsageError("--tree has the output formats table, json and yaml, and no other options of a list")
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
    from nodeagent.cli.terminal import Text  # noqa: PLC0415
    from nodeagent.cli.values import short_reference  # noqa: PLC0415 - only for people

    names = ", ".join(short_reference(image.name) for image in stack.images)
    many = f", in {stack.image_count} images" if stack.image_count > 1 else ""
    layers = f"{stack.layers} layer{'s' if stack.layers != 1 else ''}"
    label = Text(names) if names else Text("shared layers", style="italic")
    label.append(f"  +{format_bytes(stack.size_bytes)}, {layers}{many}", style="dim")
    node = branch.add(label)
    for each in stack.derived:
        _add_stack(node, each)


def list_containers(path: Path | None, overrides: Mapping[str, str | int], options: ListOptions) -> None:
    """Print every container with its verdict.

    Raises:
        UsageError: an option is invalid.
    """
    request = ListRequest.of(CONTAINERS, options)
    preview = _preview(load_settings(path, overrides), Scope.CONTAINERS)
    decisions = _decisions(preview.plans, ItemKind.CONTAINER)
    containers = sorted(
        preview.snapshot.containers, key=lambda each: (each.pod_namespace, each.pod_name, each.name, -each.attempt)
    )
    rows = tuple(lists.Container.of(each, decisions[each.id]) for each in containers)
    document = lists.Containers(**list_header(preview.snapshot), containers=rows)
    request.print(document, document.observed_at, empty="no containers")


def list_pods(path: Path | None, overrides: Mapping[str, str | int], options: ListOptions) -> None:
    """Print every pod of the runtime with its deletion status.

    Raises:
        UsageError: an option is invalid.
    """
    request = ListRequest.of(PODS, options)
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
    rows = tuple(lists.Pod.of(uid, sandboxes, containers, statuses.get(uid)) for uid, sandboxes in pods)
    document = lists.Pods(**list_header(preview.snapshot), pods=rows)
    request.print(document, document.observed_at, empty="no pods")


def _preview(settings: Settings, scope: Scope) -> Preview:
    async def observe() -> Preview:
        async with open_for_command(settings, record=False) as agent:
            return await agent.collector.preview(scope)

    return run_async(observe())


def _decisions(plans: Iterable[Plan], kind: ItemKind) -> dict[str, Decision]:
    return {decision.id: decision for plan in plans for decision in plan.decisions if decision.kind is kind}


def _print_document(document: Document, form: str) -> None:
    sys.stdout.write(encode(document, form))
