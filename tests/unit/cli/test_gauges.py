"""Gauges of ``nodeagent status``: one line per disk, marks, the next action, statements on filesystems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from nodeagent.api.common import decode
from nodeagent.api.outlook import ForecastDocument, GrowthDocument, OutlookDocument
from nodeagent.cli.display import Mark, MarkKind
from nodeagent.cli.gauges import Limit, gauge_lines, next_action, resource_gauges
from nodeagent.cli.status import status_view
from nodeagent.daemon.documents import FilesystemStatus, PauseStatus, Status
from nodeagent.eviction.documents import SignalDocument, ThresholdDocument
from nodeagent.model.outlook import Outlook, ThresholdKind
from nodeagent.model.pressure import Signal
from tests.unit.cli.test_golden import DOCUMENTS, NOW

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB = 1 << 30
COLLECTION, HARD = ThresholdKind.COLLECTION, ThresholdKind.HARD
LOW = Limit(Mark(0.80, MarkKind.GC_LOW), False, "", "", "", "")


def image_gc(*, met: bool = False) -> tuple[Limit, ...]:
    high = Mark(0.85, MarkKind.GC_HIGH)
    return LOW, Limit(high, met, "images", "images: collects at 85%", "images: collects down to 80%", "image GC 85%")


def eviction(percent: int, *, met: bool = False, kind: MarkKind = MarkKind.HARD, loop: str = "eviction") -> Limit:
    text = f"nodefs.available<{100 - percent}%"
    now = f"pods: evicts now ({text})"
    return Limit(Mark(percent / 100, kind), met, loop, f"pods: evicts at {percent}%", now, text)


@pytest.mark.parametrize(
    ("limits", "hindrances", "shown"),
    [
        pytest.param([*image_gc(), eviction(90)], {}, "images: collects at 85%", id="first threshold of growing usage"),
        pytest.param([eviction(90), eviction(80)], {}, "pods: evicts at 80%", id="lower of two thresholds"),
        pytest.param(
            [*image_gc(), eviction(90)._replace(mark=Mark(0.85 - 1e-9, MarkKind.HARD))],
            {},
            "images: collects at 85%",
            id="image GC before an eviction at the same usage",
        ),
        pytest.param([*image_gc(met=True), eviction(90)], {}, "images: collects down to 80%", id="image GC"),
        pytest.param(
            [*image_gc(met=True), eviction(90, met=True)], {}, "pods: evicts now (nodefs.available<10%)", id="eviction"
        ),
        pytest.param(
            [eviction(80, met=True, kind=MarkKind.SOFT), eviction(75, met=True)],
            {},
            "pods: evicts now (nodefs.available<25%)",
            id="hard before soft",
        ),
        pytest.param(image_gc(), {"images": "paused"}, "images: collects at 85% (paused)", id="paused"),
        pytest.param([*image_gc(), eviction(90)], {"images": "disabled"}, "pods: evicts at 90%", id="next that acts"),
        pytest.param(image_gc(), {"images": "no daemon"}, "", id="without a daemon"),
        pytest.param(
            image_gc(met=True), {"images": "no daemon"}, "exceeded: image GC 85% (no daemon)", id="met, no daemon"
        ),
        pytest.param(
            [eviction(90, met=True)],
            {"eviction": "disabled"},
            "exceeded: nodefs.available<10% (disabled)",
            id="met, disabled",
        ),
        pytest.param([eviction(90, met=True, loop="")], {}, "exceeded: nodefs.available<10% (no action)", id="no loop"),
        pytest.param([eviction(90, loop="")], {}, "", id="threshold without an action"),
        pytest.param([], {}, "", id="without thresholds"),
    ],
)
def test_next_action(limits: list[Limit], hindrances: Mapping[str, str], shown: str) -> None:
    assert next_action(limits, hindrances) == shown


IMAGEFS = FilesystemStatus(
    name="imagefs = nodefs",
    roles=("imagefs", "nodefs", "containerfs", "agent-state"),
    path="/var/lib/x",
    high_percent=85,
    low_percent=80,
    high_inodes_percent=90,
    low_inodes_percent=85,
    capacity_bytes=100 * GIB,
    available_bytes=50 * GIB,
    used_percent=50,
    inodes=1000,
    inodes_free=601,
)
FULL = "/run/x (runtime-state): 0.0% of bytes available; if it is full: no pod starts"
RUN = FilesystemStatus(
    name="runtime-state",
    roles=("runtime-state",),
    path="/run/x",
    high_percent=None,
    low_percent=None,
    capacity_bytes=2,
    available_bytes=0,
    used_percent=100,
    inodes=0,
    inodes_free=0,
    nearly_full=FULL,
)


def signal(name: str, available: float, capacity: float, *thresholds: tuple[str, float, float]) -> SignalDocument:
    """Return a signal with thresholds, each of its text, its amount and its grace period in seconds."""
    return SignalDocument(
        signal=Signal(name),
        available=available,
        capacity=capacity,
        observed_at=NOW,
        change_per_s=None,
        thresholds=tuple(
            ThresholdDocument(text=text, value=value, met=available < value, distance=None, grace_period_s=grace_s)
            for text, value, grace_s in thresholds
        ),
    )


def disk_signals(available: float = 50 * GIB) -> tuple[SignalDocument, ...]:
    """Return the signals of all roles of one disk of 100 GiB."""
    soft, hard = ("nodefs.available<15%", 15 * GIB, 60.0), ("nodefs.available<10%", 10 * GIB, 0.0)
    return (
        signal("nodefs.available", available, 100 * GIB, soft, hard),
        signal("imagefs.available", available, 100 * GIB, ("imagefs.available<5Gi", 5 * GIB, 0.0)),
        signal("containerfs.available", available, 100 * GIB, ("containerfs.available<10%", 10 * GIB, 0.0)),
    )


def status(*filesystems: FilesystemStatus, signals: tuple[SignalDocument, ...] = (), **changes: object) -> Status:
    """Return the status of a running daemon whose loops act."""
    found = decode((DOCUMENTS / "status.json").read_text(), Status)
    loops = tuple(structs.replace(each, activity="waiting", stuck=False) for each in found.loops)
    own = {"filesystems": filesystems, "signals": signals, "conditions": (), "loops": loops, "paused": None}
    return structs.replace(found, **{**own, "outlook": (), **changes})


def shown(found: Status, columns: int | None = 120) -> list[str]:
    return [line.text for line in gauge_lines(found, columns)]


def test_roles_and_signals_of_a_disk_are_one_line_with_all_thresholds() -> None:
    lines = shown(status(IMAGEFS, signals=disk_signals()))
    assert lines == [
        "imagefs = nodefs ████████████████████░░░░░░░░░░░░[░!░X░X░  50%  50.0 of 100 GiB  images: collects at 85%",
        "marks: [ image GC stops, ] starts, ! soft eviction, X hard eviction",
        "no pressure",
    ]


@pytest.mark.parametrize(
    ("available", "action"),
    [
        (50 * GIB, "images: collects at 85%"),
        (14 * GIB, "pods: evicts after 1m of nodefs.available<15%"),
        (9 * GIB, "pods: evicts now (nodefs.available<10%)"),
    ],
)
def test_action_on_a_disk_follows_its_usage(available: int, action: str) -> None:
    used = 100 - available // GIB
    disk = structs.replace(IMAGEFS, available_bytes=available, used_percent=used)
    (gauge,) = resource_gauges(status(disk, signals=disk_signals(available)))
    assert (gauge.action, gauge.is_met) == (action, used > 50)


@pytest.mark.parametrize(
    ("due_in_s", "used", "changes", "action"),
    [
        (120, 50, {}, "images: collects ahead of 85% in 2m"),
        (None, 50, {}, "images: collects ahead of 85% now"),
        (120, 50, {"dry_run": True}, "images: collects ahead of 85% in 2m (dry run)"),
        (120, 87, {}, "images: collects down to 80%"),
    ],
    ids=["postponed", "running", "dry run", "threshold met"],
)
def test_planned_collection_ahead_is_the_next_action_instead_of_the_threshold(
    *, due_in_s: int | None, used: int, changes: dict[str, bool], action: str
) -> None:
    disk = structs.replace(IMAGEFS, available_bytes=(100 - used) * GIB, used_percent=used, inodes_free=110)
    coming = outlook("nodefs.available", (COLLECTION, Outlook.RANGE, 7200.0))
    found = status(disk, signals=disk_signals(), outlook=(coming,))
    loops = tuple(
        structs.replace(each, due_in_s=due_in_s, collects_ahead=True) if each.name == "images" else each
        for each in found.loops
    )
    gauge, inodes = resource_gauges(
        structs.replace(found, loops=loops, agent=structs.replace(found.agent, **{"dry_run": False, **changes}))
    )
    assert gauge.action == action
    assert inodes.action.startswith("images: collects at 90% of inodes")


def test_inodes_have_a_line_if_they_are_scarcer_than_bytes() -> None:
    scarce = structs.replace(IMAGEFS, inodes_free=90)
    inodes = signal("nodefs.inodesFree", 90, 1000, ("nodefs.inodesFree<5%", 50, 0.0))
    bytes_line, inodes_line, *_ = shown(status(scarce, signals=(inodes,)))
    assert "inodes" not in bytes_line.partition("/var")[0].partition("GiB")[2].replace("inodes 91%", "")
    assert inodes_line.startswith("imagefs inodes ")
    assert inodes_line.endswith("91%  910 of 1,000     images: collects down to 85% of inodes")


@pytest.mark.parametrize(
    ("threshold", "action"),
    [
        (("memory.available<100Mi", 100 << 20, 0.0), "pods: evicts at 100MiB available"),
        (("memory.available<25%", GIB // 4, 0.0), "pods: evicts at 75%"),
        (("memory.available<4.5%", GIB * 0.045, 0.0), "pods: evicts at 95.5%"),
    ],
)
def test_action_has_the_unit_of_the_configured_threshold(threshold: tuple[str, float, float], action: str) -> None:
    (gauge,) = resource_gauges(status(signals=(signal("memory.available", GIB / 2, GIB, threshold),)))
    assert gauge.action == action


def test_threshold_on_io_stalls_has_no_action() -> None:
    stall = structs.replace(
        signal("io.psi.some", 50.0, 100.0, ("io.psi.some>40", 40.0, 0.0)),
        thresholds=(ThresholdDocument(text="io.psi.some>40", value=40.0, met=True, distance=-10.0),),
    )
    (gauge,) = resource_gauges(status(signals=(stall,)))
    assert (gauge.share, gauge.limits[0].mark.share) == (0.5, 0.4)
    assert gauge.action == "exceeded: io.psi.some>40 (no action)"


def test_pause_and_dry_run_are_stated_beside_the_action() -> None:
    found = status(IMAGEFS)
    dry_run = structs.replace(found, agent=structs.replace(found.agent, dry_run=True))
    paused = structs.replace(found, paused=PauseStatus(who="operator", why="test", seconds_left=None))
    stopped = structs.replace(found, agent=structs.replace(found.agent, running=False), loops=())
    actions = [next(resource_gauges(each)).action for each in (dry_run, paused, stopped)]
    assert actions == ["images: collects at 85% (dry run)", "images: collects at 85% (paused)", ""]


def test_shortage_that_no_eviction_ends_is_not_shown_as_an_eviction() -> None:
    statement = "nodefs.available<10% is met, and no eviction ends the shortage of 1 GiB: every pod is protected"
    lines = shown(status(IMAGEFS, signals=disk_signals(9 * GIB), unrelieved=(statement,)))
    assert lines[0].endswith("exceeded: nodefs.available<10% (no eviction helps)")
    assert lines[-1] == statement


def test_status_without_a_read_signal_does_not_state_that_there_is_no_pressure() -> None:
    assert shown(status()) == ["pressure unknown: no signal was read"]


@pytest.mark.parametrize("columns", range(1, 41))
def test_every_width_of_a_terminal_has_a_screen(columns: int) -> None:
    stall = signal("memory.psi.some", 20.0, 100.0, ("memory.psi.some>10%", 10.0, 0.0))
    assert shown(status(IMAGEFS, signals=(*disk_signals(), stall)), columns)


def test_nearly_full_filesystem_is_stated_in_place_of_no_pressure() -> None:
    assert shown(status(IMAGEFS, signals=disk_signals()))[-1] == "no pressure"
    assert shown(status(IMAGEFS, RUN))[-1] == FULL
    assert "no pressure" not in shown(status(IMAGEFS, RUN))
    assert shown(status(IMAGEFS, RUN, conditions=("DiskPressure",)))[-2:] == ["DiskPressure", FULL]


def test_disk_has_inodes_path_and_further_roles_where_they_fit() -> None:
    details = "  inodes 40%, /var/lib/x (containerfs, agent-state)"
    assert shown(status(IMAGEFS), None)[0].endswith(details)
    assert not shown(status(IMAGEFS), 100)[0].endswith(details)


def test_filesystem_that_cannot_be_read_has_the_cause() -> None:
    unread = FilesystemStatus(
        name="imagefs", high_percent=85, low_percent=80, path="/var/\x1bx", problem="not \x1bread"
    )
    assert shown(status(unread))[0] == r"imagefs /var/\x1bx: not \x1bread"


@pytest.mark.parametrize("columns", [60, 80, 120, 200, None])
def test_bars_begin_in_one_column_and_lines_fit(columns: int | None) -> None:
    signals = (*disk_signals(9 * GIB), signal("memory.available", GIB / 2, GIB), signal("pid.available", 1, 32768))
    lines = shown(status(IMAGEFS, RUN, signals=signals), columns)[:-2]
    assert len({line.index("█") for line in lines if "█" in line}) == 1
    assert columns is None or max(map(len, lines)) <= columns


def outlook(resource: str, *forecasts: tuple[ThresholdKind, Outlook, float | None]) -> OutlookDocument:
    """Return an outlook with forecasts, each of its threshold, its outlook and its time in seconds."""
    return OutlookDocument(
        resource=resource,
        used=1,
        capacity=2,
        observed_at=NOW,
        forecasts=tuple(
            ForecastDocument(
                threshold=threshold,
                used=1,
                outlook=kind,
                earliest_s=seconds,
                expected_s=seconds,
                latest_s=seconds,
                rate_per_s=1,
                observed_s=3600,
            )
            for threshold, kind, seconds in forecasts
        ),
        growth=(GrowthDocument(part="shop/logger volumes", rate_per_s=1, share=0.8),),
        hours=(*(None,) * 22, 0.5, 0.75),
    )


@pytest.mark.parametrize(
    ("forecasts", "action"),
    [
        ([(COLLECTION, Outlook.RANGE, 7200.0), (HARD, Outlook.RANGE, 9e4)], "images: collects at 85% in about 2h"),
        ([(COLLECTION, Outlook.NO_TREND, None)], "images: collects at 85%"),
        ([(COLLECTION, Outlook.UNKNOWN, None)], "images: collects at 85%"),
        ([(HARD, Outlook.RANGE, 7200.0)], "images: collects at 85%"),
    ],
    ids=["expected", "no trend", "unknown", "only of another threshold"],
)
def test_next_action_has_the_expected_time_of_its_own_threshold(
    forecasts: list[tuple[ThresholdKind, Outlook, float | None]], action: str
) -> None:
    found = status(IMAGEFS, signals=disk_signals(), outlook=(outlook("nodefs.available", *forecasts),))
    assert next(iter(resource_gauges(found))).action == action


def test_outlook_of_another_disk_gives_no_time() -> None:
    other = outlook("imagefs.available on /mnt", (COLLECTION, Outlook.RANGE, 7200.0))
    found = status(IMAGEFS, signals=disk_signals(), outlook=(other,))
    assert next(iter(resource_gauges(found))).action == "images: collects at 85%"


def test_last_day_has_the_resources_in_bytes_by_their_unit() -> None:
    names = ("imagefs.available on /pid.psi", "nodefs.inodesFree on /a.available", "pid.available", "swap.free")
    found = status(outlook=tuple(outlook(each, (HARD, Outlook.NO_TREND, None)) for each in names))
    shown = [line.text.partition(" \u00b7")[0].rstrip() for line in status_view(found, None) if "24 h" in line.text]
    assert shown == ["imagefs on /pid.psi", "swap"]


def test_status_shows_the_last_day_once_two_hours_are_known() -> None:
    day = outlook("nodefs.available", (HARD, Outlook.NO_TREND, None))
    new = structs.replace(day, resource="memory.available", hours=(*(None,) * 23, 0.5))
    shown = [line.text for line in status_view(status(IMAGEFS, outlook=(day, new)), 100)]
    (line,) = [each for each in shown if "24 h" in each]
    assert line == f"nodefs {'·' * 22}▅▇  24 h  80% by shop/logger volumes"
