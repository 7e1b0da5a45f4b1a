"""``nodeagent images --tree``: images as a tree of shared layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.api import lists
from nodeagent.cli.display import Line, standard_output
from nodeagent.cli.list_options import ListOptions
from nodeagent.cli.lists import read_list
from nodeagent.cli.reading import print_document
from nodeagent.cli.values import short_reference
from nodeagent.errors import UsageError
from nodeagent.text import Cut, escape, fit
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nodeagent.act.previewer import Previews
    from nodeagent.cli.source import Source

_SHORTEST_NAME: Final = 16
_INNER: Final = ("\u251c\u2500\u2500", "\u2502   ")
_LAST: Final = ("\u2514\u2500\u2500", "    ")


def image_tree(source: Source, options: ListOptions) -> None:
    """Print the images as a tree of shared layers.

    Raises:
        UsageError: a list option is set that ``--tree`` does not support.
        ObservationError: the runtime does not report the layers of images.
    """
    form = options.form
    if options != ListOptions(form=form, truncate=options.truncate) or form not in ("table", "json", "yaml"):
        raise UsageError("--tree has the output formats table, json and yaml, and no list option except --no-trunc")
    tree = read_list("ImageLayers", lists.ImageTree, source, _image_layers)
    if form != "table":
        print_document(tree, form)
        return
    display = standard_output()
    columns = display.columns if options.truncate else None
    display.write_fitted([Line("images by shared layers"), *_branches(tree.image_tree, columns)])


def _branches(stacks: Sequence[lists.LayerStack], columns: int | None, indent: str = "") -> Iterator[Line]:
    """Yield one line per stack of layers, each followed by the stacks built on top of the stack."""
    for number, stack in enumerate(stacks, 1):
        corner, side = _LAST if number == len(stacks) else _INNER
        guide = f"{indent}{corner} "
        if stack.layers:
            many = f", in {stack.images_in_all} images" if stack.images_in_all > 1 else ""
            content = f"  +{format_bytes(stack.bytes)}, {stack.layers} layer{'s' if stack.layers != 1 else ''}{many}"
        else:
            content = "  no layers unpacked"
        names = escape(", ".join(stack.images if columns is None else map(short_reference, stack.images)))
        if columns is not None:
            names = fit(names, max(_SHORTEST_NAME, columns - len(guide) - len(content)), Cut.PATH)
        yield Line(guide, "dim").append(names or "shared layers").append(content, "dim")
        yield from _branches(stack.derived, columns, f"{indent}{side}")


async def _image_layers(node: Previews) -> lists.ImageTree:
    from nodeagent.api.node import lists as documents  # noqa: PLC0415 - not needed if the daemon responds

    return await documents.list_image_layers(node)
