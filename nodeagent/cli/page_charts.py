"""Charts of the record of a resource as SVG for a page, drawn by matplotlib.

The drawing is inline in the page and uses the variables of its style sheet, so that it follows light and dark. It has
no text of tenants. Matplotlib has no colours from style sheets: each colour is drawn as a placeholder, which is
replaced.

Matplotlib reads a file ``matplotlibrc`` of the working directory when it is imported, and of the user: it is imported
in the root directory, and its defaults are restored for each chart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir
from datetime import datetime
from io import StringIO
from math import inf, nan
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

with chdir("/"):
    import matplotlib as mpl
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nodeagent.trend.documents import ResourceTrend, Trend

_WIDTH, _HEIGHT, _DPI = 360, 108, 72
_FONT: Final = 8
_COLOURS: Final[Mapping[str, str]] = {
    "#010101": "var(--series)",
    "#020202": "var(--gc)",
    "#030303": "var(--soft)",
    "#040404": "var(--hard)",
    "#050505": "var(--reboot)",
    "#060606": "var(--muted)",
    "#070707": "var(--grid)",
}
"""Placeholders and the colours of the style sheet."""
_SERIES, _GC, _SOFT, _HARD, _REBOOT, _TEXT, _GRID = _COLOURS
_THRESHOLDS: Final[Mapping[str, str]] = {"collection": _GC, "soft": _SOFT, "hard": _HARD}
_MARKS: Final[Mapping[str, tuple[str, float, str]]] = {
    "collection": (_GC, 7.0, "-"),
    "reboot": (_REBOOT, 100.0, ":"),
    "eviction": (_HARD, 100.0, "-"),
}
"""Colour, height in percent, and style of the line of each kind of mark."""
_GAP: Final = 3.0
"""Time between two readings, in usual times between their neighbours, from which no line is drawn between them."""
_NEIGHBOURS: Final = 6
"""Readings on each side of a step that show the usual time."""
_SHORTEST_AXIS: Final = 1 / 1440
"""Minimum length of the axis of time in days, since the times of a foreign report may be equal."""
_STYLE: Final[Mapping[Any, Any]] = {
    "svg.fonttype": "none",
    "font.size": _FONT,
    "text.color": _TEXT,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": _GRID,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": _GRID,
    "xtick.labelcolor": _TEXT,
    "xtick.major.size": 2.5,
    "ytick.color": _GRID,
    "ytick.labelcolor": _TEXT,
    "ytick.major.size": 0,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
}
_SVG: Final = "http://www.w3.org/2000/svg"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_NUMBER: Final = re.compile(r"(-?\d+\.\d)\d+")
_FONT_FAMILY: Final = re.compile(r"font-family:[^;]*;? ?")
_UNSEEN: Final = re.compile(r"^fill: none$")


def chart(trend: ResourceTrend, document: Trend) -> str:
    """Return the SVG of the used share of one resource, with thresholds and everything that happened."""
    with mpl.rc_context():
        mpl.rcdefaults()
        salt = f"{trend.outlook.resource} {document.since}"  # ids differ from those of the other charts
        mpl.rcParams.update({**_STYLE, "svg.hashsalt": salt})
        figure = Figure(figsize=(_WIDTH / _DPI, _HEIGHT / _DPI), dpi=_DPI)
        _draw(figure.add_axes((0.085, 0.16, 0.88, 0.78)), trend, document)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return _inlined(text.getvalue())


def _draw(axes: Axes, trend: ResourceTrend, document: Trend) -> None:
    since = _days(document.since)
    until = max(_days(document.observed_at), since + _SHORTEST_AXIS)
    times, shares = _series(trend)
    axes.fill_between(times, shares, color=_SERIES, alpha=0.18, linewidth=0)
    axes.plot(times, shares, color=_SERIES, linewidth=1.2, solid_joinstyle="round")
    for each in trend.outlook.forecasts:
        if each.threshold in _THRESHOLDS:
            share = 100 * each.used / trend.outlook.capacity
            axes.axhline(share, color=_THRESHOLDS[each.threshold], linewidth=0.9, linestyle=(0, (4, 3)))
    for kind, (colour, height, line) in _MARKS.items():
        found = [at for each in document.marks if each.kind == kind and since <= (at := _days(each.at)) <= until]
        if found:
            xs = [x for at in found for x in (at, at, at)]
            axes.plot(xs, [0.0, height, nan] * len(found), color=colour, linewidth=1.1, linestyle=line)
    axes.set_xlim(since, until)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100], ["0%", "50%", "100%"])
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    zone = document.observed_at.astimezone().tzinfo  # one zone: a change to summer time would repeat or omit an hour
    locator = AutoDateLocator(tz=zone, minticks=4, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone, show_offset=False))  # type: ignore[no-untyped-call]


def _days(at: datetime) -> float:
    """Return a time in the unit of matplotlib. Source: ``matplotlib.dates``, days since 1970."""
    return at.timestamp() / 86_400


def _series(trend: ResourceTrend) -> tuple[list[float], list[float]]:
    """Return times and used shares in percent; a gap in the record, or a new start, is a share without a value."""
    found = [_days(each.at) for each in trend.points]
    times: list[float] = []
    shares: list[float] = []
    for index, (at, each) in enumerate(zip(found, trend.points, strict=True)):
        if index and (each.new_start or _is_gap(found, index)):
            times.append(at)
            shares.append(nan)
        times.append(at)
        shares.append(100 * each.used / trend.outlook.capacity)
    return times, shares


def _is_gap(times: Sequence[float], index: int) -> bool:
    """Return whether the step from the reading before to this one is much longer than those on both sides of it.

    The record is thinned out with age, so a step is compared with its neighbours only, and with the side of the longer
    ones. A point is the highest reading of a period, at any time of it, so that a short step follows a long one: the
    usual step is half of two.
    """
    sides = times[max(0, index - _NEIGHBOURS) : index], times[index : index + _NEIGHBOURS]
    usual = [
        median(later - each for each, later in zip(side, side[2:], strict=False)) / 2 for side in sides if side[2:]
    ]
    return times[index] - times[index - 1] > _GAP * max(usual, default=inf)


def _inlined(text: str) -> str:
    """Return a drawing of matplotlib as a part of a page: with the colours of the page, without style sheet and ids."""
    root = ET.fromstring(text)  # noqa: S314 - of matplotlib
    elements = list(root.iter())
    used = {found for each in elements for value in each.attrib.values() for found in _references(value)}
    for parent in elements:
        for child in list(parent):
            is_style = child.tag in (f"{{{_SVG}}}style", f"{{{_SVG}}}metadata")
            if is_style or _UNSEEN.match(child.get("style", "")):
                parent.remove(child)
    for each in elements:
        if each.get("id") not in used:
            each.attrib.pop("id", None)
        if _LINK in each.attrib:
            each.set("href", each.attrib.pop(_LINK))
        for name, value in each.attrib.items():
            each.set(name, _FONT_FAMILY.sub("", _NUMBER.sub(r"\1", " ".join(value.split()))))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("aria-hidden", "true")
    ET.register_namespace("", _SVG)
    drawn = ET.tostring(root, encoding="unicode")
    for placeholder, colour in _COLOURS.items():
        drawn = drawn.replace(placeholder, colour)
    return re.sub(r">\s+<", "><", drawn)


def _references(value: str) -> Iterable[str]:
    return re.findall(r"#([\w-]+)", value)
