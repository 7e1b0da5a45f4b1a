"""The outlook in the output of ``explain``, ``evict``, ``pressure``, ``status`` and ``doctor``."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from nodeagent.cli.doctor import outlook_findings
from nodeagent.cli.evict import eviction_lines
from nodeagent.cli.explain import explanation_lines
from nodeagent.cli.local_pressure import node_pressure
from nodeagent.cli.pressure import pressure_view, wide_view
from nodeagent.doctor.plan.node import Grade
from nodeagent.eviction.documents import EvictionPreview, Pressure, SignalDocument, ThresholdDocument
from nodeagent.gc.documents.passes import ExplanationDocument
from nodeagent.model.pressure import FilesystemLayout, Signal
from nodeagent.record import replace
from nodeagent.store.clock_record import ClockReading
from nodeagent.trend.plan.outlook import TrendPolicy
from nodeagent.trend.plan.readings import ResourceReading
from nodeagent.trend.recorder import outlook_of_file
from nodeagent.trend.sample_file import RecordedLine, SampleFile
from nodeagent.trend.words import growth_words
from tests.support.manual_clock import MIDNIGHT
from tests.unit.cli.test_both_sources import without_readings
from tests.unit.control_node import IMAGE, Node, say, serving
from tests.unit.eviction.plan.cases import evaluated, planned, read
from tests.unit.outlooks import FULL, GIB, HARD, NO_TREND, REACHED, SOFT, UNKNOWN, forecast, hard, outlook

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.api.outlook import ForecastDocument, OutlookDocument
    from nodeagent.cli.display import Line

HOSTILE = "shop/\x1b[31mred\nline"
DRIVEN = "nodefs: eviction at 90% in 1h to 4h, at 1.00 GiB/h, 80% by shop/logger volumes"
STOPPED = {**UNKNOWN, "observed_s": 0.0}


def preview(*outlooks: OutlookDocument, available_mib: int = 900) -> list[str]:
    evaluation, plan = evaluated(read(available_mib=available_mib)), planned([], read(available_mib=available_mib))
    document = EvictionPreview.of(evaluation, plan, plan, [], simulated=(), disabled_because="", warnings=())
    return [line.text for line in eviction_lines(structs.replace(document, outlook=outlooks), None)]


@pytest.mark.parametrize(
    ("outlooks", "line"),
    [
        ([outlook(hard(9), resource="imagefs.available"), outlook(hard(2))], f"first eviction threshold: {DRIVEN}"),
        ([outlook(hard(**REACHED))], None),
        ([outlook(hard(2), forecast(SOFT, **REACHED))], f"first eviction threshold: {DRIVEN}"),
        ([outlook(hard(**NO_TREND))], "no eviction threshold is expected: no trend"),
        ([outlook(hard(**UNKNOWN))], "first eviction threshold: unknown, 4m of readings"),
        ([outlook(hard(**STOPPED))], "first eviction threshold: unknown, too few recent readings"),
        ([outlook(forecast())], None),
        ([], None),
    ],
    ids=[
        "expected",
        "reached",
        "next",
        "no trend",
        "unknown",
        "stopped record",
        "without eviction",
        "without a record",
    ],
)
def test_preview_without_a_met_threshold_says_when_the_first_is_expected_and_what_grows(
    outlooks: list[OutlookDocument], line: str | None
) -> None:
    shown = preview(*outlooks)
    assert shown[0].startswith("no pod would be evicted: ")
    assert shown[1:] == ([line] if line else [])


def test_preview_of_a_met_threshold_has_no_expected_one() -> None:
    assert not any("first eviction threshold" in each for each in preview(outlook(hard(2)), available_mib=50))


@pytest.mark.parametrize(
    ("found", "then"),
    [
        (hard(2), "eviction at 90% in 1h to 4h"),
        (hard(**NO_TREND), "eviction at 90%: no trend"),
    ],
    ids=["expected", "no trend"],
)  # fmt: skip
def test_explanation_has_the_growth_of_the_pod_and_what_follows(found: ForecastDocument, then: str) -> None:
    own = structs.replace(outlook(found), growth=outlook().growth[:1])
    document = ExplanationDocument(asked="x", observed_at=MIDNIGHT, explanations=(), past=(), outlook=(own,))
    growth = "growth: shop/logger volumes: 819 MiB/h on nodefs, 80% of its growth"
    assert [each.text for each in explanation_lines(document)] == [f"{growth}; {then}"]


def pressure(*outlooks: OutlookDocument, signal: str = "nodefs.available", soft: bool = False) -> Pressure:
    """Return the pressure of a single filesystem of 100 GiB with a threshold of 10 GiB."""
    threshold = ThresholdDocument(
        text="t", value=10 * GIB, met=False, distance=12 * GIB, grace_period_s=60.0 if soft else 0.0
    )
    one = SignalDocument(
        signal=Signal(signal),
        available=22 * GIB,
        capacity=100 * GIB,
        observed_at=MIDNIGHT,
        change_per_s=0.0,
        thresholds=(threshold,),
    )
    return Pressure(layout="single", conditions=(), signals=(one,), warnings=(), outlook=outlooks)


def texts(lines: list[Line]) -> list[str]:
    return [each.text for each in lines]


@pytest.mark.parametrize(
    ("document", "cell"),
    [
        (pressure(outlook(hard(2))), "1h to 4h"),
        (pressure(outlook(hard(2)), signal="imagefs.available"), "1h to 4h"),
        (pressure(outlook(forecast(SOFT, 90 * GIB), hard(2)), soft=True), "2h to 5h"),
        (pressure(outlook(hard(**NO_TREND))), "no trend"),
        (pressure(outlook(hard(**UNKNOWN))), "unknown"),
        (pressure(outlook(forecast(HARD, 95 * GIB))), "-"),
        (pressure(outlook(hard(2), resource="imagefs.available on /mnt")), "-"),
    ],
    ids=["range", "same filesystem", "soft", "no trend", "unknown", "another threshold", "another filesystem"],
)
def test_pressure_has_the_expected_time_beside_the_distance(document: Pressure, cell: str) -> None:
    heading, row, *_ = texts(list(pressure_view(document, 200)))
    start = heading.index("DISTANCE") + len("DISTANCE")
    assert heading[start:].split()[0] == "EXPECTED"
    assert row[start:].strip().startswith(cell)


def test_expected_time_replaces_the_trend_on_a_narrow_terminal_and_is_absent_without_an_outlook() -> None:
    narrow = texts(list(pressure_view(pressure(outlook(hard(2))), 80)))[0]
    assert "EXPECTED" in narrow
    assert "TREND" not in narrow
    assert max(map(len, texts(list(pressure_view(pressure(outlook(hard(2))), 80))))) <= 80
    without = texts(list(pressure_view(pressure(), 80)))[0]
    assert "EXPECTED" not in without
    assert "TREND" in without


def test_wide_pressure_lists_every_threshold_with_its_rate() -> None:
    shown = texts(list(wide_view(pressure(outlook(forecast(), hard(2), forecast(FULL, 100 * GIB, **NO_TREND))), 120)))
    rows = [each.split() for each in shown if each.startswith("nodefs ")]
    assert rows == [
        ["nodefs", "collection", "85%", "2h", "to", "5h", "1.00", "GiB/h"],
        ["nodefs", "hard", "90%", "1h", "to", "4h", "1.00", "GiB/h"],
        ["nodefs", "full", "100%", "no", "trend", "-"],
    ]


@pytest.mark.parametrize(
    ("outlooks", "verdict", "evidence"),
    [
        ([outlook(hard(2)), outlook(hard(9), resource="memory.available")], Grade.WARNING, DRIVEN),
        ([outlook(hard(**REACHED))], Grade.WARNING, "nodefs: eviction at 90%: reached"),
        ([outlook(hard(9)), outlook(hard(**NO_TREND))], Grade.OK, "no shortage expected within 4h"),
        (
            [outlook(hard(**UNKNOWN)), outlook(hard(9), resource="memory.available")],
            Grade.SKIPPED,
            "unknown whether nodefs will be short within 4h: 4m of readings",
        ),
        ([], Grade.SKIPPED, "unknown whether a resource will be short within 4h: no record"),
    ],
    ids=["near", "reached", "late", "unknown", "no record"],
)
def test_doctor_warns_of_a_near_shortage_and_states_an_unknown_one(
    outlooks: list[OutlookDocument], verdict: Grade, evidence: str
) -> None:
    (finding,) = outlook_findings(outlooks)
    assert (finding.check, finding.verdict, finding.evidence) == ("outlook", verdict, evidence)
    assert bool(finding.fix) is (verdict is Grade.WARNING)


def test_command_of_doctor_for_a_resource_with_a_path_is_quoted() -> None:
    (finding,) = outlook_findings([outlook(hard(2), resource="imagefs.available on /da ta")])
    assert finding.fix.endswith("nodeagent trend 'imagefs.available on /da ta'")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (outlook(hard(2)), "at 1.00 GiB/h, 80% by shop/logger volumes"),
        (outlook(hard(2), growth=()), "at 1.00 GiB/h"),
        (outlook(hard(**NO_TREND)), "80% by shop/logger volumes"),
        (outlook(hard(**UNKNOWN), growth=()), ""),
    ],
)
def test_status_has_the_rate_and_the_part_that_grows(found: OutlookDocument, words: str) -> None:
    assert growth_words(found) == words


MINUTES = 90
WRITTEN = 64 << 20


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """Yield a node with a daemon and its record, in which a pod and the images grow; commands run as root."""
    async with serving(tmp_path) as made:
        monkeypatch.setattr("nodeagent.config.files.DEFAULT_PATH", made.config)
        monkeypatch.setattr("nodeagent.config.paths.CONFIG_FILE", str(made.config))
        monkeypatch.setattr("os.geteuid", lambda: 0)
        record(made, MINUTES)
        yield made


def record(node: Node, minutes: int) -> None:
    """Write a record until now, and give the daemon the same outlook."""
    now, file = node.context.clock.now(), SampleFile(node.context.settings.state_directory)
    lines = []
    for minute in range(minutes):
        at = now - timedelta(minutes=minutes - minute)
        parts = {
            "default/web volumes": 1.0 * WRITTEN * minute,
            "images of registry.example/app": 0.5 * WRITTEN * minute,
            "default/web-2 logs": 0.25 * WRITTEN * minute,
        }
        used = 50.0 * GIB + sum(parts.values())
        reading = ResourceReading("nodefs.available", used, 100.0 * GIB, None, parts if minute % 5 == 0 else {})
        lines.append(RecordedLine(ClockReading("b", minute * 60.0, at), (reading,)))
    file.append(lines)
    policy = TrendPolicy((), None, FilesystemLayout.SINGLE)
    node.context.trend.outlook = outlook_of_file(file, policy, now)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("default/web", ["default/web volumes"]), (IMAGE, ["images of registry.example/app"])],
    ids=["pod", "image"],
)
@pytest.mark.usefixtures("node")
async def test_explain_has_the_growth_of_the_item_only_with_and_without_the_daemon(
    capsys: pytest.CaptureFixture[str], name: str, parts: list[str]
) -> None:
    for option in ((), ("--direct",)):
        _, out, _ = await say(capsys, "explain", name, "-o", "json", *option)
        assert [one["part"] for each in json.loads(out)["outlook"] for one in each["growth"]] == parts
        _, out, _ = await say(capsys, "explain", name, *option)
        assert f"growth: {parts[0]}: " in " ".join(out.split())
    assert "web-2" not in out


async def test_documents_of_a_daemon_have_no_outlook_of_an_ended_record(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.context.trend.outlook = tuple(
        replace(each, observed_at=each.observed_at - timedelta(hours=1)) for each in node.context.trend.outlook
    )
    for words in ("evict --dry-run", "pressure", "status"):
        _, out, _ = await say(capsys, *words.split(), "-o", "json")
        document = json.loads(out)
        assert document["outlook"] == [], words
        assert "no resource was recorded for 30m" in document["warnings"], words


async def test_explain_says_that_the_growth_is_unknown(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    (node.context.settings.state_directory / "trend.db").unlink()
    record(node, 5)
    for option in ((), ("--direct",)):
        _, out, _ = await say(capsys, "explain", "default/web", *option)
        assert "growth: unknown, 4m of readings" in out


@pytest.mark.parametrize("words", ["evict --dry-run", "pressure", "report"])
@pytest.mark.usefixtures("node")
async def test_documents_have_the_outlook_with_and_without_the_daemon(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    found = []
    for option in ((), ("--direct",)):
        _, out, _ = await say(capsys, *words.split(), "-o", "json", *option)
        (one,) = json.loads(out)["outlook"]
        full = one["forecasts"][-1]
        assert (full["threshold"], full["outlook"]) == ("full", "range")
        assert full["earliest_s"] < full["expected_s"] < full["latest_s"]
        assert full["rate_per_s"] == pytest.approx(1.75 * WRITTEN / 60, rel=0.1)
        found.append(without_readings(one["growth"]))
    assert found[0] == found[1]


async def test_each_reading_of_pressure_without_a_daemon_has_the_outlook_of_its_time(node: Node) -> None:
    settings = node.context.settings

    def read_twice() -> list[Pressure]:
        with node_pressure(settings, "", "") as read_pressure:
            first = read_pressure()
            (settings.state_directory / "trend.db").unlink()
            return [first, read_pressure()]

    assert [len(each.outlook) for each in await asyncio.to_thread(read_twice)] == [1, 0]


@pytest.mark.usefixtures("node")
async def test_simulated_preview_has_no_outlook(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await say(capsys, "evict", "--simulate", "memory.available=1Mi", "-o", "json")
    assert json.loads(out)["outlook"] == []


async def test_unreadable_record_is_a_warning(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    file = node.context.settings.state_directory / "trend.db"
    file.write_bytes(b"no database" * 1000)
    for words in ("evict --dry-run", "pressure", "explain default/web"):
        _, out, _ = await say(capsys, *words.split(), "-o", "json", "--direct")
        document = json.loads(out)
        assert document["outlook"] == []
        assert any("trend.db" in each for each in document["warnings"]), words


def test_names_of_tenants_are_escaped() -> None:
    growth = structs.replace(outlook().growth[0], part=HOSTILE)
    hostile = outlook(hard(2), growth=(growth,))
    document = ExplanationDocument(asked="x", observed_at=MIDNIGHT, explanations=(), past=(), outlook=(hostile,))
    for text in (*texts(list(explanation_lines(document))), *preview(hostile)):
        assert "\x1b" not in text
        assert "\n" not in text
