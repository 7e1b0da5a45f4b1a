"""``nodeagent images``, ``containers`` and ``pods``: every item with its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.api.light import view
from nodeagent.cli.list_request import ListRequest
from nodeagent.cli.list_views import CONTAINERS, IMAGES, PODS
from nodeagent.cli.listing import ListOptions
from nodeagent.cli.reading import print_document, read
from nodeagent.errors import UsageError
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from rich.tree import Tree as RichTree

    from nodeagent.act.agent import Agent
    from nodeagent.api import lists
    from nodeagent.cli.source import Source


def list_images(source: Source, options: ListOptions) -> None:
    """Print every image with its verdict.

    Raises:
        UsageError: an option is invalid.
    """
    request = ListRequest.of(IMAGES, options)
    request.print(read("Images", {}, source, _images), empty="no images")


def image_tree(source: Source, options: ListOptions) -> None:
    """Print the images as a tree of shared layers.

    Raises:
        UsageError: an option of lists is given that a tree does not have.
        ObservationError: the layers of the images are unknown.
    """
    form = options.form
    if options != ListOptions(form=form, truncate=options.truncate) or form not in ("table", "json", "yaml"):
        raise UsageError("--tree has the output formats table, json and yaml, and no other options of a list")
    document = read("ImageLayers", {}, source, _image_layers)
    if form != "table":
        print_document(document, form)
        return
    from rich.tree import Tree  # noqa: PLC0415 - only for tables

    from nodeagent.cli.render import make_console  # noqa: PLC0415
    from nodeagent.cli.terminal import Text  # noqa: PLC0415

    tree: lists.ImageTree = view(document)
    shown = Tree("images by shared layers", guide_style="dim")
    for stack in tree.image_tree:
        if stack.layers:
            _add_stack(shown, stack)
        else:
            label = Text(f"{', '.join(stack.images)}  ")
            label.append("no layers unpacked", style="dim")
            shown.add(label)
    make_console().print(shown)


def _add_stack(branch: RichTree, stack: lists.LayerStack) -> None:
    from nodeagent.cli.terminal import Text  # noqa: PLC0415
    from nodeagent.cli.values import short_reference  # noqa: PLC0415 - imported only for tables

    names = ", ".join(map(short_reference, stack.images))
    many = f", in {stack.images_in_all} images" if stack.images_in_all > 1 else ""
    layers = f"{stack.layers} layer{'s' if stack.layers != 1 else ''}"
    label = Text(names) if names else Text("shared layers", style="italic")
    label.append(f"  +{format_bytes(stack.bytes)}, {layers}{many}", style="dim")
    node = branch.add(label)
    for each in stack.derived:
        _add_stack(node, each)


def list_containers(source: Source, options: ListOptions) -> None:
    """Print every container with its verdict.

    Raises:
        UsageError: an option is invalid.
    """
    request = ListRequest.of(CONTAINERS, options)
    request.print(read("Containers", {}, source, _containers), empty="no containers")


def list_pods(source: Source, options: ListOptions) -> None:
    """Print every pod of the runtime with its deletion status.

    Raises:
        UsageError: an option is invalid.
    """
    request = ListRequest.of(PODS, options)
    request.print(read("PodList", {}, source, _pods), empty="no pods")


async def _images(agent: Agent) -> lists.Images:
    from nodeagent.api.node import lists as node  # noqa: PLC0415 - not with a daemon

    return await node.list_images(agent)


async def _image_layers(agent: Agent) -> lists.ImageTree:
    from nodeagent.api.node import lists as node  # noqa: PLC0415 - as above

    return await node.list_image_layers(agent)


async def _containers(agent: Agent) -> lists.Containers:
    from nodeagent.api.node import lists as node  # noqa: PLC0415 - as above

    return await node.list_containers(agent)


async def _pods(agent: Agent) -> lists.Pods:
    from nodeagent.api.node import lists as node  # noqa: PLC0415 - as above

    return await node.list_pods(agent)
