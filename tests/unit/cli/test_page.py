"""``nodeagent report --html``: names of tenants are text, and one file below 1 MB has everything."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec import UNSET, structs

from nodeagent.api.client import ControlClient
from nodeagent.api.common import RecordedReason, decode, encode_line
from nodeagent.cli.page import render_page
from nodeagent.cli.page_charts import chart
from nodeagent.daemon.control_documents import FindingDocument
from nodeagent.daemon.documents import PauseStatus, Status
from nodeagent.daemon.report_document import Fleet, NodeDetails, NodeReport
from nodeagent.daemon.status import status_document
from nodeagent.errors import NodeAgentError
from nodeagent.eviction.documents import RecordedThreshold
from nodeagent.model.outlook import Outlook
from nodeagent.store.clock_record import ClockReading
from nodeagent.text import escape
from nodeagent.trend.document_readings import thinned
from nodeagent.trend.plan.readings import ResourceReading
from nodeagent.trend.sample_file import RecordedLine, SampleFile
from nodeagent.units import format_local_time
from tests.support.detailed_reports import HOSTILE, MARKUP, ORDINARY, detailed_report, record
from tests.support.node_reports import NOW, expecting, fleet, report
from tests.support.terminal import in_pipe
from tests.unit.control_node import Node, say, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from nodeagent.api.outlook import OutlookDocument
    from nodeagent.trend.plan.forecast import Sample

SMALL: Final = detailed_report("n", resources=1)
"""The report of a node with the record of one resource, since drawings take most of the time of a page."""
LARGEST: Final = 1_000_000
_ELEMENTS: Final = """
html head meta link title style body header main section article footer h1 h2 h3 p br small span i ul li div table thead
tbody tr th td figure figcaption details summary svg g defs path rect line use text clippath
"""
LINKS: Final = frozenset(
    {"href", "src", "xlink:href", "srcset", "action", "formaction", "data", "poster", "http-equiv"}
)
STYLE: Final = Path("nodeagent/cli/templates/style.css")


class Page(HTMLParser):
    """The elements and attributes of a page, and its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._hidden = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._hidden = tag == "style"

    def handle_data(self, data: str) -> None:
        self.text += "" if self._hidden else data

    def of(self, name: str) -> list[str]:
        return [value for each, value in self.attributes if each == name]


def text_of(*reports: NodeReport) -> str:
    return Page(render_page(reports, ())).text


@pytest.fixture(scope="module")
def hostile() -> str:
    return render_page([detailed_report("n", HOSTILE, passes=200)], ())


@pytest.fixture(scope="module")
def hostile_fleet() -> str:
    full = detailed_report("n", HOSTILE, passes=200)
    return render_page([structs.replace(full, node=f"<b>{number}</b>") for number in range(4)], ())


@pytest.mark.parametrize("kind", ["hostile", "hostile_fleet"])
def test_names_of_tenants_add_no_element_attribute_or_address(kind: str, request: pytest.FixtureRequest) -> None:
    page = Page(request.getfixturevalue(kind))
    assert page.elements <= set(_ELEMENTS.split())
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    addresses = {value for name, value in page.attributes if name in LINKS}
    assert {each for each in addresses if not re.fullmatch(r"#m[0-9a-f]+", each)} == {
        "data:,",
        "Content-Security-Policy",
    }
    assert all("url(#" in value for value in page.of("clip-path"))


def test_names_are_shown_with_every_character_visible(hostile: str) -> None:
    page = Page(hostile)
    for name in (each for each in HOSTILE[: len(MARKUP)] if "\n" not in each):
        assert escape(name) in page.text, name
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]", hostile) is None


def test_policy_of_the_page_forbids_scripts_and_requests(hostile: str) -> None:
    policy = next(each for each in Page(hostile).of("content") if "default-src" in each)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")


def test_page_with_a_full_record_200_passes_and_200_names_is_below_1_mb(hostile: str) -> None:
    assert len(hostile.encode()) < LARGEST


@pytest.mark.parametrize("count", [2, 60, 5000], ids=["details of all", "details of some", "rows of some"])
def test_page_of_a_fleet_is_below_1_mb(count: int) -> None:
    full = detailed_report("gpu", HOSTILE, passes=200)
    detailed = [structs.replace(full, node=f"gpu-{number}") for number in range(min(count, 60))]
    page = render_page([*detailed, *fleet(count - len(detailed))], ())
    assert len(page.encode()) < LARGEST
    shown = page.count('<details class="node">')
    assert ("more nodes are omitted" in page) == (shown < count) == (count == 5000)
    assert f"{count - shown} more nodes" in page or shown == count


def overlong() -> NodeReport:
    """Return the report of a node in which every list of details is longer than any agent writes it."""
    full = detailed_report("overlong", HOSTILE, passes=200)
    assert isinstance(full.details, NodeDetails)
    assert isinstance(full.checks, tuple)
    text = "<" * 1000
    status = structs.replace(full.details.status, filesystems=full.filesystems * 500, unrelieved=(text,) * 2000)
    return structs.replace(
        full,
        details=structs.replace(full.details, status=status, passes=full.details.passes * 10),
        checks=tuple(structs.replace(each, evidence=text, fix=text, check=text) for each in full.checks * 1000),
        warnings=(text,) * 2000,
    )


def test_page_of_a_report_that_is_too_large_is_below_1_mb_and_states_it() -> None:
    page = render_page([overlong()], ())
    assert len(page.encode()) < LARGEST
    text = Page(page).text
    assert "the page would be larger than 1 MB" in text
    assert "1960 more findings" in text


def test_report_that_is_too_large_leaves_the_other_nodes_and_their_details_on_the_page_of_a_fleet() -> None:
    page = render_page([overlong(), SMALL, *fleet(2)], ())
    assert len(page.encode()) < LARGEST
    assert page.count('<details class="node">') == 4
    assert "more nodes are omitted" not in page
    assert page.count("Largest items") == 1  # of SMALL


def test_more_sentences_than_shown_are_counted() -> None:
    text = text_of(structs.replace(SMALL, warnings=tuple(f"warning {number}" for number in range(100))))
    assert "warning 19" in text
    assert "warning 20" not in text
    assert "80 more" in text


def test_long_texts_are_cut() -> None:
    page = render_page([structs.replace(SMALL, warnings=("x" * 5_000_000,))], ())
    assert len(page.encode()) < LARGEST


def test_page_of_a_stored_report_is_the_page_of_the_node() -> None:
    made = detailed_report("n", HOSTILE, resources=1)
    stored = decode(encode_line(made), NodeReport)
    assert render_page([stored], ()) == render_page([decode(encode_line(stored), NodeReport)], ())
    assert len(encode_line(made)) < 1 << 20


def without(**parts: object) -> NodeReport:
    made = SMALL
    assert isinstance(made.details, NodeDetails)
    return structs.replace(made, details=structs.replace(made.details, **parts))


@pytest.mark.parametrize(
    ("made", "shown", "hidden"),
    [
        (report("n", plan=None, problem="cannot list images"), "cannot list images", "Last 24 hours"),
        (report("n", plan=None), "no pressure; outlook unknown", "no threshold is expected"),
        (structs.replace(SMALL, checks=UNSET), "not checked", "restart containerd"),
        (structs.replace(SMALL, checks=()), "no problems and no warnings", "restart containerd"),
        (without(usage=None, unread=("disk usage: denied",)), "not read: disk usage: denied", "What fills the disk"),
        (without(day=None, week=None), "Actions of the last 7 days", "Last 24 hours"),
        (without(day=None), "Last 24 hours and 7 days", "What is full"),
        (without(passes=()), "none", "Ranking"),
        (detailed_report("n", resources=1, conditions=("MemoryPressure",)), "MemoryPressure", "no pressure"),
    ],
    ids=[
        "no details",
        "no outlook",
        "unchecked",
        "no findings",
        "no usage",
        "no record",
        "no day",
        "no passes",
        "pressure",
    ],
)
def test_page_without_a_part_states_it(made: NodeReport, shown: str, hidden: str) -> None:
    text = text_of(made)
    assert shown in text
    assert hidden not in text


def test_page_has_outlook_thresholds_ranking_reason_and_findings() -> None:
    text = text_of(SMALL)
    for each in (
        "imagefs: image GC at 85% in 2h to 5h, at 3.00 GiB/h; eviction at 90% in 2h to 5h, at 3.00 GiB/h, 70% by shop/",
        "thresholds: image GC 85%, imagefs.available<10%",
        "memory.available<5%: 2.00 GiB available of 64.0 GiB, 6.00 GiB afterwards",
        "Ranking: 10 of 30 pods",
        "done: uses 3.1 GiB, requests 1 GiB; shop/checkout-3",
        "images in use",
    ):
        assert each in text, each
    assert text.index("restart containerd") < text.index("TLS off")  # problems precede warnings


def test_reached_threshold_is_a_warning() -> None:
    found = SMALL.outlook[0]
    reached = structs.replace(found.forecasts[0], outlook=Outlook.REACHED, expected_s=None)
    page = render_page([structs.replace(SMALL, outlook=(structs.replace(found, forecasts=(reached,)),))], ())
    assert '<p class="headline warn">imagefs: image GC at 85%: reached' in page


UNREAD: Final = expecting(None, Outlook.UNKNOWN)
STEADY: Final = structs.replace(expecting(None), resource="nodefs.available")
FULL: Final = "imagefs is nearly full"


def seen(*outlooks: OutlookDocument, nearly_full: str = "", signals: bool = True) -> NodeReport:
    """Return a report with details without pressure."""
    found = without(day=None, week=None)
    assert isinstance(found.details, NodeDetails)
    status = found.details.status if signals else structs.replace(found.details.status, signals=())
    disks = tuple(structs.replace(each, nearly_full=nearly_full) for each in found.filesystems[:1])
    details = structs.replace(found.details, status=status)
    return structs.replace(found, outlook=outlooks, warnings=(), filesystems=disks, details=details)


@pytest.mark.parametrize(
    ("made", "headline"),
    [
        (seen(STEADY), "no pressure; no threshold is expected to be met"),
        (seen(STEADY, UNREAD), "no pressure; outlook of imagefs unknown"),
        (seen(UNREAD), "no pressure; outlook of imagefs unknown"),
        (seen(), "no pressure; outlook unknown"),
        (seen(STEADY, nearly_full=FULL), FULL),
        (seen(STEADY, signals=False), "pressure unknown: no signal was read; no threshold is expected to be met"),
        (seen(signals=False), "pressure unknown: no signal was read; outlook unknown"),
        (report("n", plan=None, outlook=(STEADY,)), "no pressure; no threshold is expected to be met"),
        (
            structs.replace(report("n", plan=None), filesystems=()),
            "pressure unknown: no signal was read; outlook unknown",
        ),
    ],
    ids=["steady", "one unknown", "unknown", "none", "full disk", "unread", "all unread", "no details", "nothing"],
)
def test_headline_states_no_pressure_and_no_threshold_only_if_both_are_known(made: NodeReport, headline: str) -> None:
    page = render_page([made], ())
    assert re.search(r'<p class="headline[^>]*>([^<]*)', page)[1] == headline  # type: ignore[index]
    assert page.count("no pressure") == headline.count("no pressure")


def test_reached_image_gc_is_stated_before_an_eviction_in_days() -> None:
    found = SMALL.outlook[0]
    collection, hard, *_ = found.forecasts
    reached = structs.replace(collection, outlook=Outlook.REACHED, expected_s=None, rate_per_s=None)
    later = structs.replace(hard, earliest_s=8e5, expected_s=9e5, latest_s=1e6)
    page = render_page([structs.replace(SMALL, outlook=(structs.replace(found, forecasts=(reached, later)),))], ())
    assert '<p class="headline warn">imagefs: image GC at 85%: reached; eviction at 90% in 9d to 12d' in page


def test_eviction_for_stalls_shows_percent_stalled_and_bytes_of_the_pods() -> None:
    found = SMALL.details
    assert isinstance(found, NodeDetails)
    past = next(each for each in found.passes if each.eviction is not None)
    assert past.eviction is not None
    stalled = structs.replace(
        past.eviction,
        threshold=RecordedThreshold(threshold="memory.psi.some>30%", capacity=100),
        available_before=35.24,
        available_after=4,
    )
    text = text_of(without(passes=(structs.replace(past, eviction=stalled),)))
    assert "memory.psi.some>30%: 35.2% stalled, 4% afterwards" in text
    assert "3.90 GiB" in text  # usage of the first rank


def test_times_in_sentences_are_local_and_names_are_unchanged() -> None:
    time = "2026-03-01T12:00:00.000Z"
    made = detailed_report("n", (f"volume-{time}", *ORDINARY), resources=1)
    assert isinstance(made.details, NodeDetails)
    eviction = next(each for each in made.details.passes if each.eviction is not None)
    action = structs.replace(
        eviction.actions[0], detail=f"detail {time}", reason=RecordedReason(code="evicted", sentence=f"reason {time}")
    )
    past = structs.replace(eviction, actions=(action,), end_detail=f"end {time}")
    made = structs.replace(
        made,
        paused=PauseStatus(who="root", seconds_left=None, why=f"paused {time}"),
        details=structs.replace(made.details, passes=(past,)),
        checks=(FindingDocument(check="clock", verdict="warning", evidence=f"evidence {time}", fix=""),),
    )
    text = text_of(made)
    assert f"volume-{time}" in text
    for each in ("detail", "reason", "end", "paused", "evidence"):
        assert f"{each} {format_local_time(NOW)}" in text, each


def test_rows_of_a_fleet_are_in_the_order_of_its_summary(tmp_path: Path) -> None:
    made = [*fleet(12), structs.replace(SMALL, node="short"), *fleet(3)]
    (tmp_path / "fleet.jsonl").write_text("".join(map(encode_line, made)))
    path = tmp_path / "page.html"
    shown = in_pipe("report", "--merge", "--html", str(path), str(tmp_path / "fleet.jsonl"))
    names = re.findall(r'<span class="name">([^<]+)', path.read_text())
    assert (shown.code, names) == (0, [each.node for each in Fleet.of(made).nodes])
    assert names[0] == "short"


@pytest.mark.parametrize("others", [0, 2])
def test_report_with_a_value_out_of_range_is_shown_without_its_values(others: int) -> None:
    bad = report("bad", plan=None)
    disk = structs.replace(bad.filesystems[0], used_percent=10**400)
    text = text_of(*fleet(others), structs.replace(bad, filesystems=(disk,)))
    assert "a value of this report is out of range" in text
    assert "imagefs" not in text.rpartition("bad")[2]


def test_report_with_a_time_that_no_chart_has_is_shown_without_its_values() -> None:
    end = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    made = without(day=structs.replace(record(1, HOSTILE), since=end, observed_at=end))
    assert "a value of this report is out of range" in text_of(made)


@pytest.mark.parametrize(("since", "until"), [(1, 9998), (2000, 2000), (2001, 2000)], ids=["long", "none", "negative"])
def test_chart_of_any_period_is_drawn(since: int, until: int) -> None:
    day = record(1, HOSTILE)
    at = [datetime(year, 1, 1, tzinfo=UTC) for year in (since, until)]
    assert chart(day.resources[0], structs.replace(day, since=at[0], observed_at=at[1])).endswith("</svg>")


def test_chart_has_the_colours_of_the_page_and_no_text_but_its_axes() -> None:
    week = record(7, HOSTILE)
    drawn = chart(week.resources[0], week)
    assert not re.search("#0[1-7]0[1-7]0[1-7]", drawn)
    assert {"var(--series)", "var(--gc)", "var(--hard)", "var(--reboot)"} <= set(re.findall(r"var\(--\w+\)", drawn))
    assert all(re.fullmatch(r"\d+%|\d\d|\w{3}(-\d\d)?", each) for each in re.findall(r">([^<>]+)</text>", drawn))


def test_chart_without_readings_has_only_its_axes() -> None:
    week = record(7, HOSTILE)
    empty = structs.replace(week.resources[0], points=())
    assert "var(--grid)" in chart(empty, structs.replace(week, marks=()))


def test_gap_in_the_record_is_not_drawn() -> None:
    week = record(7, HOSTILE)
    line = max(re.findall(r'd="([^"]+)"[^>]*stroke: var\(--series\)', chart(week.resources[0], week)), key=len)
    assert line.count("M") == 2


def sampled(directory: Path, record_h: float, gaps: Mapping[float, float]) -> tuple[Sample, ...]:
    """Return the samples that the file of the record keeps of this time, with gaps at some hours before its end.

    Usage grows and falls, with noise.
    """
    chance = random.Random(1)
    lines: list[RecordedLine] = []
    for minute in range(round(record_h * 60)):
        left_h = record_h - minute / 60
        if any(end < left_h <= end + length for end, length in gaps.items()):
            continue
        at = ClockReading("b", minute * 60.0, NOW - timedelta(hours=left_h))
        used = 30.0 + minute % 300 / 10 + 5 * chance.random()
        lines.append(RecordedLine(at=at, readings=(ResourceReading("imagefs.available", used, 100.0),)))
    file = SampleFile(directory)
    file.append(lines)
    return file.read()[0].samples


@pytest.mark.parametrize(
    "gaps", [{}, {2.0: 3.0, 12.0: 3.0}, {4.0: 3.0, 8.0: 3.0, 11.5: 3.0}], ids=["none", "far", "near"]
)
@pytest.mark.parametrize(("shown_h", "record_h"), [(24, 24), (24, 240), (168, 48), (168, 240)])
def test_chart_has_the_whole_record_but_its_gaps(
    shown_h: int, record_h: int, gaps: Mapping[float, float], tmp_path: Path
) -> None:
    since = NOW - timedelta(hours=shown_h)
    kept = [each for each in sampled(tmp_path, record_h, gaps) if each.at >= since]
    day = record(1, HOSTILE)
    trend = structs.replace(day.resources[0], points=thinned(kept, 400))
    drawn = chart(trend, structs.replace(day, since=since, marks=()))
    line = max(re.findall(r'd="([^"]+)"[^>]*stroke: var\(--series\)', drawn), key=len)
    runs = [[float(x) for x in re.findall(r"[ML] (\S+)", run)] for run in re.findall(r"M[^M]+", line)]
    drawn_h = sum(run[-1] - run[0] for run in runs) / (0.88 * 360) * shown_h
    assert len(runs) == 1 + len(gaps)
    assert drawn_h == pytest.approx(min(shown_h, record_h) - sum(gaps.values()), abs=0.04 * shown_h)


def test_ids_are_unique(hostile: str) -> None:
    found = Page(hostile).of("id")
    assert len(found) == len(set(found)) > 0


def test_configuration_of_matplotlib_in_the_working_directory_has_no_effect(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("svg.fonttype: path\nlines.linewidth: 9\ntext.usetex: True\n")
    program = (
        "from tests.support.detailed_reports import record\nfrom nodeagent.cli.page_charts import chart\n"
        "week = record(7, 'ab' * 8)\nprint(chart(week.resources[0], week), end='')"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    week = record(7, "ab" * 8)
    assert shown.stdout == chart(week.resources[0], week)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour. Source: WCAG 2.2."""
    values = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1, 2], ids=["light", "dark", "print"])
@pytest.mark.parametrize("colour", ["fg", "muted", "gc", "soft", "hard", "reboot"])
def test_texts_have_a_contrast_of_4_5(scheme: int, colour: str) -> None:
    block = re.findall(r":root \{(.*?)\}", (Path(__file__).parents[3] / STYLE).read_text(), re.DOTALL)[scheme]
    found = {
        name: value if len(value) == 7 else "#" + "".join(2 * each for each in value[1:])
        for name, value in re.findall(r"--(\w+): (#\w+)", block)
    }
    for background in ("bg", "panel"):
        low, high = sorted((luminance(found[colour]), luminance(found[background])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, background


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as made:
        yield made


async def test_page_of_a_node_is_written_for_its_owner(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    code, out, err = await say(capsys, "report", "--html", str(path), "--config", str(node.config))
    assert (code, out) == (0, ""), err
    assert err.endswith("KiB\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "Findings of doctor" in path.read_text()


async def test_details_are_the_documents_of_the_commands(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await say(capsys, "report", "--details", "--config", str(node.config))
    details = decode(out, NodeReport).details
    assert isinstance(details, NodeDetails)
    assert (details.status.runtime.up, details.status.agent.running) == (True, True)
    assert (details.day, details.week) != (None, None)
    assert [each.partition(":")[0] for each in details.unread] == ["disk usage"]  # simulated: the path does not exist


async def test_details_without_a_daemon_have_the_status_of_the_report(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Status] = []

    async def counted(*arguments: Any) -> Status:
        made.append(await status_document(*arguments))
        return made[-1]

    def fail(*_: object, **__: object) -> str:
        raise NodeAgentError("no response")

    monkeypatch.setattr("nodeagent.daemon.status.status_document", counted)
    monkeypatch.setattr(ControlClient, "call", fail)
    _, out, _ = await say(capsys, "report", "--details", "--config", str(node.config))
    details = decode(out, NodeReport).details
    assert isinstance(details, NodeDetails)
    assert len(made) == 1
    assert abs(details.status.observed_at - made[0].observed_at) < timedelta(milliseconds=1)


def stored(tmp_path: Path) -> str:
    path = tmp_path / "reports.jsonl"
    path.write_text("".join(map(encode_line, (SMALL, SMALL))))
    return str(path)


def test_merged_reports_of_one_node_are_the_page_of_this_node(tmp_path: Path) -> None:
    shown = in_pipe("report", "--merge", "--html", str(tmp_path / "page.html"), stored(tmp_path))
    assert (shown.code, shown.out) == (0, "")
    assert "<h1>n</h1>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_missing_library_is_an_error_that_writes_nothing(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    shown = in_pipe("report", "--merge", "--html", str(tmp_path / "page.html"), stored(tmp_path))
    assert (shown.code, shown.out) == (2, "")
    assert f"--html: {missing} not installed; nothing was written; pip install 'nodeagent[html]'" in shown.err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory", "no directory"])
def test_path_that_is_no_regular_file_is_refused(kind: str, tmp_path: Path) -> None:
    path, target = tmp_path / "page.html", tmp_path / "target"
    if kind == "link":
        target.write_text("kept")
    if "link" in kind:
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path = tmp_path / "none" / "page.html"
    shown = in_pipe("report", "--merge", "--html", str(path), stored(tmp_path))
    assert (shown.code, "nothing was written" in shown.err) == (2, True)
    assert target.read_text() == "kept" if kind == "link" else not target.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", "--html", "x", "-o", "json"), "--output is excluded"),
        (("report", "--merge", "--details"), "--details and --direct are excluded"),
    ],
)
def test_options_that_contradict_are_refused(words: tuple[str, ...], message: str) -> None:
    shown = in_pipe(*words)
    assert (shown.code, message in shown.err) == (2, True)


def test_time_of_the_page_is_local() -> None:
    assert NOW.astimezone().strftime("%Y-%m-%d %H:%M:%S") in text_of(SMALL)
