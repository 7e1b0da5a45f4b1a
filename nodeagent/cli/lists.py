"""``nodeagent images``, ``containers`` and ``pods``: every item with its verdict; filters, order and output formats.

The rows are a field of a JSON document; filters and order apply to JSON and YAML output too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from msgspec import structs

from nodeagent.api.common import Document, encode
from nodeagent.cli.display import Display, Line, standard_output, warn, warning_lines
from nodeagent.cli.listing import CONTAINERS, IMAGES, PODS, Column, ListOptions, ListScope, ListView
from nodeagent.cli.reading import ask, print_document, read_preview, read_runtime
from nodeagent.cli.table import EMPTY, Heading, Row, fitted_lines, short_reference, table_lines
from nodeagent.errors import UsageError
from nodeagent.gc.documents import lists
from nodeagent.linear_expression import ExpressionError, glob_search
from nodeagent.text import Cut, escape, fit
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from nodeagent.cli.jsonpath import Path, Template
    from nodeagent.cli.options import Source
    from nodeagent.gc.agent_parts import Previews
    from nodeagent.model.runtime import Container, Image, Sandbox
    from nodeagent.runtime.cri import CriClient

    D = TypeVar("D", bound=Document)
    ReadPreviews = Callable[[Previews], Coroutine[Any, Any, D]]

L = TypeVar("L", bound=lists.ListDocument)
W = TypeVar("W", bound=Document)


def list_images(source: Source, options: ListOptions) -> None:
    """Print every image with its verdict.

    Raises:
        UsageError: a list option is invalid.
    """
    _print("Images", lists.Images, IMAGES, source, options, _images, _listed_images)


def list_containers(source: Source, options: ListOptions) -> None:
    """Print every container with its verdict.

    Raises:
        UsageError: a list option is invalid.
    """
    _print("Containers", lists.Containers, CONTAINERS, source, options, _containers, _listed_containers)


def list_pods(source: Source, options: ListOptions) -> None:
    """Print every pod of the runtime with its deletion status.

    Raises:
        UsageError: a list option is invalid.
    """
    _print("PodList", lists.Pods, PODS, source, options, _pods, _listed_pods)


def _print(
    operation: str,
    kind: type[L],
    view: ListView[Any],
    source: Source,
    options: ListOptions,
    local: ReadPreviews[L],
    listed: Callable[[CriClient], Coroutine[Any, Any, Sequence[Any]]],
) -> None:
    """Print the document of a list, from the daemon or else from ``local``; ids or names alone also from ``listed``.

    ``listed`` returns items of the runtime's list with the id, the name and the order of the document's rows.
    """
    request = ListRequest.of(view, options)
    document = ask(operation, kind, {}, source)
    if document is None and request.shows_ids_only and options.watch_s is None:
        request.print_ids(read_runtime(source, listed))
        return
    first = read_preview(source, local) if document is None else document
    empty = f"no {view.rows}"
    if options.watch_s is None:
        request.print(first, empty=empty, now=first.observed_at)
    else:
        request.watch(first, lambda: ask(operation, kind, {}, source) or read_preview(source, local), empty=empty)


async def _listed_images(cri: CriClient) -> Sequence[Image]:
    return sorted(await cri.list_images(), key=lists.image_order)


async def _listed_containers(cri: CriClient) -> Sequence[Container]:
    return sorted(await cri.list_containers(), key=lists.container_order)


async def _listed_pods(cri: CriClient) -> Sequence[Sandbox]:
    return sorted({each.uid: each for each in await cri.list_sandboxes()}.values(), key=lists.pod_order)


async def _images(node: Previews) -> lists.Images:
    from nodeagent.gc.documents import readings as documents  # noqa: PLC0415 - not needed if the daemon responds

    return await documents.list_images(node)


async def _containers(node: Previews) -> lists.Containers:
    from nodeagent.gc.documents import readings as documents  # noqa: PLC0415 - not needed if the daemon responds

    return await documents.list_containers(node)


async def _pods(node: Previews) -> lists.Pods:
    from nodeagent.gc.documents import readings as documents  # noqa: PLC0415 - not needed if the daemon responds

    return await documents.list_pods(node)


_SHORTEST_NAME: Final = 16
_INNER: Final = ("\u251c\u2500\u2500", "\u2502   ")
_LAST: Final = ("\u2514\u2500\u2500", "    ")


def show_image_tree(source: Source, options: ListOptions) -> None:
    """Print the images as a tree of shared layers.

    Raises:
        UsageError: a list option is set that ``--tree`` does not support.
        ObservationError: the runtime does not report the layers of images.
    """
    form = options.form
    if options != ListOptions(form=form, truncate=options.truncate) or form not in ("table", "json", "yaml"):
        raise UsageError("--tree has the output formats table, json and yaml, and no list option except --no-trunc")
    tree = ask("ImageLayers", lists.ImageTree, {}, source) or read_preview(source, _image_layers)
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
    from nodeagent.gc.documents import readings as documents  # noqa: PLC0415 - not needed if the daemon responds

    return await documents.list_image_layers(node)


R = TypeVar("R")
G = TypeVar("G")


class Condition(NamedTuple):
    """Parsed condition of ``--filter``."""

    key: str
    value: str
    equal: bool

    def matches(self, texts: Iterable[str]) -> bool:
        """Return whether the value or glob matches a text."""
        return any(text == self.value or glob_search(self.value)(text) for text in texts)


class ListRequest(NamedTuple, Generic[R]):
    """Request to print a list, with validated options."""

    view: ListView[R]
    options: ListOptions
    conditions: tuple[Condition, ...]
    template: Template | None = None
    custom_columns: tuple[tuple[str, Path], ...] = ()

    @classmethod
    def of(cls, view: ListView[R], options: ListOptions) -> ListRequest[R]:
        """Return the request of a list command after validating its options.

        Raises:
            UsageError: a key or a value is unknown, a filter has no value, ``--quiet`` is combined with another output
                format, or the expression of an output format is invalid.
        """
        if options.quiet and options.form != "table":
            raise UsageError(f"--quiet prints ids only: omit it or -o {options.form}")
        if options.group and not options.is_table:
            raise UsageError("--group has the output formats table and wide; omit it or the other format")
        sorted_by = view.groups if options.group and view.groups is not None else view
        key = options.sort_by.removeprefix("-")
        if options.sort_by and key not in sorted_by.sort_keys:
            raise UsageError(f"--sort-by {options.sort_by}: unknown key; keys: {', '.join(sorted_by.sort_keys)}")
        conditions = tuple(_condition(view, each) for each in options.filters)
        if options.form not in ("jsonpath", "custom-columns"):
            return cls(view, options, conditions)
        from nodeagent.cli.jsonpath import parse_columns, parse_template  # noqa: PLC0415 - needed for these forms only

        if options.form == "jsonpath":
            return cls(view, options, conditions, parse_template(options.expression))
        return cls(view, options, conditions, custom_columns=parse_columns(options.expression))

    @property
    def shows_ids_only(self) -> bool:
        """Whether ids or names of all rows are shown, and no other property of a row is used."""
        options = self.options
        is_selected = self.conditions or options.sort_by or options.namespace
        return (options.quiet or options.form == "name") and not is_selected

    def print(self, document: Document, *, empty: str, now: datetime) -> None:
        """Print a document in the requested form.

        Args:
            document: document with the rows.
            empty: message on standard error if the table has no rows and the options select none.
            now: time that ages are computed for.
        """
        options, own = self.options, self.view
        rows = self.selected(getattr(document, own.rows))
        if options.quiet or options.form == "name":
            self.print_ids(rows)
        elif options.form in ("json", "yaml"):
            print_document(structs.replace(document, **{own.rows: rows}), options.form)
        elif not options.is_table:
            self._print_values(structs.replace(document, **{own.rows: rows}))
        else:
            for warning in getattr(document, "warnings", ()):
                warn(f"warning: {warning}")
            if rows:
                display = standard_output()
                display.write_fitted(self.table(rows, now, display))
            else:
                warn(self._none(empty))

    def watch(
        self,
        first: W,
        read: Callable[[], W],
        *,
        empty: str,
        now_of: Callable[[W], datetime] = attrgetter("observed_at"),
        below: Callable[[W], Iterable[Line]] = lambda _: (),
    ) -> None:
        """Print a list until an interrupt: on a terminal a table at every reading, otherwise after a change of rows.

        Args:
            first: the first document.
            read: returns the current document.
            empty: message for a table without rows.
            now_of: returns the time that ages are computed for.
            below: returns further lines below a table on a terminal.
        """
        every_s = self.options.watch_s or 0.0
        if self.options.is_table and standard_output().has_screen:
            from nodeagent.cli.live import Scrolled, show_live  # noqa: PLC0415 - rich is slow to import

            def lines(document: W, columns: int) -> list[Line]:
                rows, now = self.selected(getattr(document, self.view.rows)), now_of(document)
                table = self.table(rows, now, Display(columns)) if rows else [Line(self._none(empty))]
                return [*warning_lines(getattr(document, "warnings", ())), *table, *below(document)]

            show_live(first, read, every_s, Scrolled(lines))
            return
        previous, document = None, first
        while True:
            watched = [self.view.watched(row) for row in self.selected(getattr(document, self.view.rows))]
            if watched != previous:
                self.print(document, empty=empty, now=now_of(document))
                sys.stdout.flush()
            previous = watched
            time.sleep(every_s)
            document = read()

    def _print_values(self, document: Document) -> None:
        """Print the values of a template, or the custom columns of each row."""
        values = json.loads(encode(document))
        rows = values[self.view.rows]
        if self.template is not None:
            standard_output().write_raw(self.template.text({"items": rows, **values}))
            return
        from nodeagent.cli.jsonpath import column_text  # noqa: PLC0415 - needed for this form only

        headings = [Heading(title) for title, _ in self.custom_columns]
        cells = [Row([column_text(path, row, values) for _, path in self.custom_columns]) for row in rows]
        standard_output().write_fitted(table_lines(headings, cells, None, headers=self.options.headers))

    def _none(self, empty: str) -> str:
        """Return the message for a table without rows, with the namespace that may have excluded rows."""
        named = f" in namespace {self.options.namespace}" if self.options.namespace else ""
        return f"no {'matching ' if self.conditions else ''}{self.view.rows}{named}" if named else empty

    def print_ids(self, rows: Iterable[R]) -> None:
        """Print the id of each row with ``--quiet``, else its name."""
        text_of = self.view.id if self.options.quiet else self.view.name
        standard_output().write_fitted([Line(text_of(row)) for row in rows])

    def selected(self, rows: Iterable[R]) -> tuple[R, ...]:
        """Return the rows that match the filters, in the requested order.

        Filters with the same key and ``=`` are alternatives; all other filters must match.
        """
        columns = {each.key: each for each in self.view.columns}
        selected, namespace_of = list(rows), self.view.namespace
        if self.options.namespace and namespace_of is not None:
            selected = [row for row in selected if namespace_of(row) == self.options.namespace]
        for key in dict.fromkeys(each.key for each in self.conditions):
            own = [each for each in self.conditions if each.key == key]
            matched = {each: self._matched(each, columns[key], selected) for each in own}
            wanted, excluded = [each for each in own if each.equal], [each for each in own if not each.equal]
            selected = [
                row
                for place, row in enumerate(selected)
                if (not wanted or any(place in matched[each] for each in wanted))
                and not any(place in matched[each] for each in excluded)
            ]
        return tuple(selected if self.options.group else self._sorted(selected, self.view))

    def _matched(self, condition: Condition, column: Column[R], rows: Sequence[R]) -> frozenset[int]:
        """Return the positions of the rows whose texts match the value of a condition, or that the value names."""
        texts_of, resolve = column.texts, column.resolve
        named = resolve(rows, condition.value) if resolve is not None else ()
        return frozenset(
            place
            for place, row in enumerate(rows)
            if (texts_of is not None and condition.matches(texts_of(row))) or (named and self.view.id(row) in named)
        )

    def _sorted(self, rows: Sequence[G], view: ListView[G]) -> Sequence[G]:
        """Return rows in the requested order; rows without a value are last."""
        key = self.options.sort_by.removeprefix("-")
        if not key:
            return rows
        value_of = next(each.value for each in view.columns if each.key == key)
        known = [row for row in rows if value_of(row) is not None]
        known.sort(key=value_of, reverse=self.options.sort_by.startswith("-"))
        return known + [row for row in rows if value_of(row) is None]

    def table(self, rows: Sequence[R], now: datetime, display: Display) -> list[Line]:
        """Return the lines of the table, of groups with ``--group``; ``rows`` is not empty."""
        view = self.view
        if self.options.group and view.groups is not None:
            return self._lines(self._sorted(view.group(rows), view.groups), view.groups, now, display)
        return self._lines(rows, view, now, display)

    def _lines(self, rows: Sequence[G], view: ListView[G], now: datetime, display: Display) -> list[Line]:
        options = self.options
        brief = display.columns is not None and options.truncate
        scopes = {
            ListScope.TABLE,
            *([ListScope.WIDE] if options.form == "wide" else []),
            *([] if brief else [ListScope.FULL]),
        }
        headings, columns = [], []
        own = {each.key: each for each in view.in_namespace} if options.namespace else {}
        for column in (own.get(each.key, each) for each in view.columns):
            if column.scope not in scopes:
                continue
            short = column.brief if brief else None
            shown = [column.show(row, now) if short is None else short(row) for row in rows]
            headings.append(column.heading)
            columns.append([cell or EMPTY for cell in shown])
        lines = [Row(cells, view.style(row)) for row, cells in zip(rows, zip(*columns, strict=True), strict=True)]
        if brief and display.columns is not None:
            return fitted_lines(headings, lines, display.columns, headers=options.headers)
        return table_lines(headings, lines, None, headers=options.headers)


def _condition(view: ListView[R], text: str) -> Condition:
    key, equals, value = text.partition("=")
    equal = not key.endswith("!")
    key = key.removesuffix("!")
    if not equals:
        raise UsageError(f"--filter {text}: write KEY=VALUE or KEY!=VALUE; keys: {', '.join(view.filter_keys)}")
    if key not in view.filter_keys:
        raise UsageError(f"--filter {text}: unknown key {key!r}; keys: {', '.join(view.filter_keys)}")
    column = next(each for each in view.columns if each.key == key)
    known = column.values() if column.values is not None else ()
    condition = Condition(key, value.lower() if known else value, equal)
    try:
        glob_search(condition.value)
    except ExpressionError as error:
        raise UsageError(f"--filter {key}={value[:20]}...: {error}") from error
    if known and not condition.matches(known):
        raise UsageError(f"--filter {text}: unknown value {value!r}; values: {', '.join(known)}")
    return condition
