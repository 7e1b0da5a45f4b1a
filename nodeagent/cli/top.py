"""``nodeagent top``: resources, pods by the effect of their eviction, and the last passes, once or as a live view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.cli.display import Line, standard_output, warning_lines
from nodeagent.cli.explain import explanation_lines
from nodeagent.cli.gauges import gauge_lines, short_amount
from nodeagent.cli.reading import watch_document
from nodeagent.cli.status import NodeReader, node_reader, pass_table, state_line
from nodeagent.cli.table import Heading, Table, size_cell
from nodeagent.daemon.documents import Top
from nodeagent.text import Cut, fit

if TYPE_CHECKING:
    from nodeagent.cli.live import Keys, Lines
    from nodeagent.eviction.documents import FactDocument, RankedPodUsage
    from nodeagent.gc.documents.passes import ExplanationDocument

_MEDIUM: Final = 76
"""Minimum width of a terminal for the columns DISK and PIDS."""
_WIDE: Final = 120
_PODS: Final = 40
_PASSES: Final = 3
_FEWEST_PODS: Final = 3
"""Rows for pods on a small terminal, for which other parts of the screen are omitted."""


class PodSort(StrEnum):
    """Order of the pods in the live view, as shown."""

    RANK = "eviction order"
    MEMORY = "memory"
    DISK = "disk usage"
    PIDS = "process ids"


_SORTS: Final = {"r": PodSort.RANK, "m": PodSort.MEMORY, "d": PodSort.DISK, "p": PodSort.PIDS}


def show_top(config: Path | None, form: str, *, watch_s: float | None) -> None:
    """Print resources and pods once, or show them every ``watch_s`` seconds on a terminal that can be overwritten.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: the node cannot be read.
    """
    is_live = watch_s is not None and form == "table" and standard_output().has_screen
    with node_reader(config) as reader:
        screen = TopScreen(reader.explain) if is_live else None
        watch_document(partial(_read, reader), form, watch_s if is_live else None, top_view, screen)


def _read(reader: NodeReader) -> Top:
    return Top.of(reader.status(), reader.pods())


def top_view(top: Top, columns: int | None) -> Iterator[Line]:
    """Yield the resources, the pods in eviction order and the warnings, ``columns`` wide."""
    yield state_line(top)
    yield from gauge_lines(top, columns)
    yield Line()
    yield _title(top, PodSort.RANK)
    yield from _pod_table(top, top.pods.pods[:_PODS], columns).lines(columns)
    yield from _more(len(top.pods.pods) - _PODS)
    yield from warning_lines((*top.warnings, *top.pods.warnings))


class TopState(NamedTuple):
    """State of the live view: the order of the pods, and the UID of the selected pod; empty for the first pod."""

    sort: PodSort = PodSort.RANK
    selected: str = ""


def after_key(state: TopState, key: str, pods: Sequence[RankedPodUsage], page: int) -> TopState:
    """Return the state after a key; ``page`` is the number of shown pods."""
    if key in _SORTS:
        return state._replace(sort=_SORTS[key])
    ordered = sorted_pods(pods, state.sort)
    steps = {"up": -1, "down": 1, "page-up": -page, "page-down": page, "home": -len(ordered), "end": len(ordered)}
    if key not in steps or not ordered:
        return state
    place = min(len(ordered) - 1, max(0, _place(ordered, state) + steps[key]))
    return state._replace(selected=ordered[place].uid)


def sorted_pods(pods: Sequence[RankedPodUsage], sort: PodSort) -> list[RankedPodUsage]:
    """Return the pods in an order: largest usage first, unknown usage last, equal usage by rank."""
    usage_of: dict[PodSort, Callable[[RankedPodUsage], int | None]] = {
        PodSort.RANK: lambda each: -each.rank,
        PodSort.MEMORY: lambda each: each.memory_bytes,
        PodSort.DISK: _disk_bytes,
        PodSort.PIDS: lambda each: each.pids,
    }
    usage = {each.uid: usage_of[sort](each) for each in pods}
    return sorted(pods, key=lambda each: (usage[each.uid] is None, -(usage[each.uid] or 0), each.rank))


def _place(ordered: Sequence[RankedPodUsage], state: TopState) -> int:
    """Return the index of the selected pod; 0 if it is missing."""
    return next((index for index, each in enumerate(ordered) if each.uid == state.selected), 0)


class TopScreen:
    """Live view of resources, pods and passes."""

    def __init__(self, explain: Callable[[str], ExplanationDocument]) -> None:
        """Create the view; ``explain`` reads the explanation of a pod by its UID."""
        self.keys = _keys()
        self._explain = explain
        self._state = TopState()
        self._page = 1

    def lines(self, top: Top, columns: int, rows: int) -> Lines:
        """Return the screen; its pods fill the rows that the other parts leave."""
        shown, self._page = top_screen(top, self._state, columns, rows)
        return shown

    def press(self, key: str, top: Top) -> Callable[[int], Lines] | None:
        """Apply a key; return the reading of the explanation of the selected pod on Enter."""
        pods = top.pods.pods
        if key in ("enter", "e") and pods:
            ordered = sorted_pods(pods, self._state.sort)
            pod = ordered[_place(ordered, self._state)]
            return lambda _: _explained(top, pod, self._explain(pod.uid))
        self._state = after_key(self._state, key, pods, self._page)
        return None


def _keys() -> tuple[Keys, ...]:
    from nodeagent.cli.live import Keys  # noqa: PLC0415 - rich is slow to import

    return (
        Keys("r", "pods in eviction order", "r rank"),
        Keys("m", "pods by memory", "m memory"),
        Keys("d", "pods by disk usage", "d disk"),
        Keys("p", "pods by process ids", "p pids"),
        Keys("up, down, j, k", "select a pod; page up, page down, home and end too"),
        Keys("Enter, e", "explain the selected pod", "Enter explain"),
    )


def _explained(top: Top, pod: RankedPodUsage, found: ExplanationDocument) -> Iterator[Line]:
    """Yield the place of a pod in the eviction order, and the explanation of its containers and sandboxes."""
    kept = "evictable" if pod.kept_because is None else f"kept: {pod.kept_because.sentence}"
    yield Line(f"pod {pod.namespace}/{pod.name}", "bold", hang=len("pod "))
    yield Line(f"  rank           {pod.rank} of {len(top.pods.pods)} in eviction order for {top.pods.signal}", hang=17)
    yield Line(f"  eviction       frees {_frees(top, pod)}; {kept}", hang=17)
    yield Line()
    yield from warning_lines(found.warnings)
    yield from explanation_lines(found)
    if not found.explanations and not found.past:
        yield Line(f"pod {pod.namespace}/{pod.name} is no longer on this node")


def top_screen(top: Top, state: TopState, columns: int, rows: int) -> tuple[list[Line], int]:
    """Return a screen of at most ``rows`` lines, and the number of pods on it.

    Where less than three pods fit, the passes are omitted, then the warnings.
    """
    from nodeagent.cli.live import wrapped  # noqa: PLC0415 - rich is slow to import

    head = wrapped([_cut(state_line(top), columns), *gauge_lines(top, columns)], columns)
    warnings = [_cut(each, columns) for each in warning_lines((*top.warnings, *top.pods.warnings))][:2]
    passes = [Line(), *pass_table(top, _PASSES).lines(columns)] if top.last_passes else []
    ordered = sorted_pods(top.pods.pods, state.sort)
    others = len(head) + len(("blank", "title", "heading"))
    fewest = min(len(ordered), _FEWEST_PODS) + (len(ordered) > _FEWEST_PODS)
    noted = [Line(), *warnings] if warnings else []
    below = next((each for each in ([*passes, *noted], noted) if others + fewest + len(each) <= rows), [])
    space = max(1, rows - others - len(below))
    page = space if len(ordered) <= space else max(1, space - 1)
    place = _place(ordered, state)
    start = max(0, min(place - page // 2, len(ordered) - page))
    selected = ordered[place].uid if ordered else ""
    table = _pod_table(top, ordered[start : start + page], columns, selected).lines(columns)
    if ordered:
        row = table[1 + place - start]
        table[1 + place - start] = Line(f"{row.text:<{columns}}", "reverse")
    lines = [*head, Line(), _cut(_title(top, state.sort), columns), *table, *_more(len(ordered) - page), *below]
    return lines[:rows], page


def _cut(line: Line, columns: int) -> Line:
    """Return a line cut to the width of the terminal; a cut line has the style of its first part."""
    text = fit(line.text, columns)
    return line if text == line.text else Line(text, line.parts[0][1])


def _title(top: Top, sort: PodSort) -> Line:
    title = f"pods in eviction order for {top.pods.signal}"
    return Line(title if sort is PodSort.RANK else f"pods by {sort}; # is the {title.removeprefix('pods in ')}", "dim")


def _more(pods: int) -> Iterator[Line]:
    if pods > 0:
        yield Line(f"and {pods} more pods", "dim")


def _pod_table(top: Top, pods: Sequence[RankedPodUsage], columns: int | None, selected: str = "") -> Table:
    """Return the table of pods; FREES is the amount that an eviction returns to the signal of the ranking."""
    medium, wide = columns is None or columns >= _MEDIUM, columns is None or columns >= _WIDE
    table = Table(
        Heading("#", right=True),
        Heading("POD", cut=Cut.MIDDLE, name=True, at_least=16),
        *(Heading(title, right=True) for title in ("FREES", "MEMORY")),
        *([Heading("REQUEST", right=True)] if wide else []),
        *([Heading("DISK", right=True), Heading("PIDS", right=True)] if medium else []),
        *([Heading("PRIORITY", right=True), Heading("QOS")] if wide else []),
        "REASON",
    )
    for each in pods:
        facts, kept = each.facts, each.kept_because
        is_inferred = each.memory_request_bytes and facts.memory_request_bytes.source == "inferred"
        table.add(
            f"{'>' if each.uid == selected else ''}{each.rank}",
            f"{each.namespace}/{each.name}",
            _frees(top, each),
            size_cell(each.memory_bytes),
            *([f"{'~' if is_inferred else ''}{size_cell(each.memory_request_bytes)}"] if wide else []),
            *([size_cell(_disk_bytes(each)), "?" if each.pids is None else str(each.pids)] if medium else []),
            *([_fact(facts.priority), _fact(facts.qos)] if wide else []),
            "evictable" if kept is None else str(kept.code),
            style="" if kept is None else "dim",
        )
    return table


def _frees(top: Top, pod: RankedPodUsage) -> str:
    """Return the amount that an eviction returns to the signal of the ranking; ``?`` if unknown."""
    signal = next((each for each in top.signals if each.signal == top.pods.signal), None)
    if pod.frees is None:
        return "?"
    amount = size_cell(int(pod.frees)) if signal is None else short_amount(signal, pod.frees)
    return f"≥{amount}" if pod.frees_at_least else amount


def _disk_bytes(pod: RankedPodUsage) -> int | None:
    """Return the sum of the known disk usage values of a pod, in bytes; ``None`` if no value is known."""
    parts = [each for each in (pod.writable_bytes, pod.logs_bytes, pod.volumes_bytes) if each is not None]
    return sum(parts) if parts else None


def _fact(fact: FactDocument) -> str:
    return "?" if fact.value is None else str(fact.value)
