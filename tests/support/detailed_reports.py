"""Node reports with details, as a page shows them: a full record of 7 days, evictions, and names chosen by tenants."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, structs

from nodeagent.api.common import RecordedReason
from nodeagent.api.outlook import ForecastDocument, GrowthDocument, OutlookDocument
from nodeagent.daemon.control_documents import FindingDocument
from nodeagent.daemon.documents import (
    AgentStatus,
    FilesystemStatus,
    LoopStatusDocument,
    ShutdownSummary,
    Status,
)
from nodeagent.daemon.report_document import NodeDetails, NodeReport, ReportedPass
from nodeagent.eviction.documents import SignalDocument, ThresholdDocument
from nodeagent.gc.documents.history import PastActionDocument, PastPassDocument
from nodeagent.gc.documents.passes import DiskUsageDocument
from nodeagent.gc.plan.breakdown import Breakdown, Member, Share, UsageCategory
from nodeagent.model.outlook import Outlook, ThresholdKind
from nodeagent.model.pressure import Signal
from nodeagent.model.runtime import FsObservation
from nodeagent.trend.documents import ResourceTrend, Trend, TrendMark, TrendPoint
from tests.support.hostile import NAMES
from tests.support.node_reports import NOW, planned, report

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB: Final = 1 << 30
MARKUP: Final = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</style><style>body{display:none}",
    "</title></script><h1>owned</h1>",
    "&#x3c;script&#x3e;&lt;b&gt;",
    "javascript:document.title='owned'",
    "' onmouseover='document.title=1' x='",
    "{{ 7*7 }}{% raw %}",
    "<!-- <svg onload=document.title='owned'> ]]>",
    "<a href=https://example.invalid/>click</a>",
    "<meta http-equiv=refresh content='0;url=https://example.invalid/'>",
    "\u202etxt.exe\u2066\u200e<b>",
    "$\\frac{1}{2}$ \\href{https://example.invalid}{x}",
)
"""Names that are markup, code of the template engine, or formulas; in addition to those of ``hostile``."""
HOSTILE: Final = tuple(f"{name} {number}" for number, name in enumerate([*MARKUP, *NAMES] * 8))[:200]
ORDINARY: Final = tuple(f"shop/checkout-{number}" for number in range(40))
_RESOURCES: Final = (
    ("imagefs.available", 500 * GIB, 0.82),
    ("nodefs.available", 200 * GIB, 0.62),
    ("memory.available", 64 * GIB, 0.71),
    ("imagefs.inodesFree", 30_000_000, 0.31),
    ("nodefs.inodesFree", 12_000_000, 0.12),
    ("pid.available", 4_194_304, 0.02),
)


def outlook(resource: str, capacity: int, share: float, names: Sequence[str]) -> OutlookDocument:
    """Return the outlook of a resource; imagefs is collected in hours, memory has no trend."""
    is_growing = resource.startswith("imagefs.a")
    none: dict[str, Any] = {"earliest_s": None, "expected_s": None, "latest_s": None, "rate_per_s": None}
    coming = {"earliest_s": 7_200.0, "expected_s": 10_800.0, "latest_s": 18_000.0, "rate_per_s": GIB / 1_200}
    forecasts = tuple(
        ForecastDocument(
            threshold=name,
            used=capacity * at,
            outlook=Outlook.RANGE if is_growing and name is not ThresholdKind.FULL else Outlook.NO_TREND,
            observed_s=604_800.0,
            **(coming if is_growing and name is not ThresholdKind.FULL else none),
        )
        for name, at in (
            *([(ThresholdKind.COLLECTION, 0.85)] if "imagefs" in resource else []),
            (ThresholdKind.HARD, 0.9),
            (ThresholdKind.FULL, 1.0),
        )
    )
    growth = tuple(
        GrowthDocument(part=name, rate_per_s=GIB / 1_500, share=part)
        for name, part in zip(names, (0.7, 0.2), strict=False)
    )
    hours = tuple(min(1.0, share + hour / 300 - 0.08) for hour in range(24))
    return OutlookDocument(
        resource=resource,
        used=capacity * share,
        capacity=capacity,
        observed_at=NOW,
        forecasts=forecasts,
        growth=growth if is_growing else (),
        hours=hours,
    )


def record(days: int, names: Sequence[str], resources: int = 1) -> Trend:
    """Return a record of 400 points for each resource, with a gap, and marks of passes, evictions and a reboot."""
    step = timedelta(days=days) / 400
    trends = []
    for number, (resource, capacity, share) in enumerate(_RESOURCES[:resources]):
        points = tuple(
            TrendPoint(
                at=NOW - step * left,
                used=capacity * min(1.0, share - 0.1 * (left % 60) / 60 + 0.05 * math.sin(left / 17 + number)),
            )
            for left in reversed(range(400))
            if not 150 < left < 170
        )
        trends.append(ResourceTrend(outlook=outlook(resource, capacity, share, names), points=points))
    marks = [
        TrendMark(at=NOW - step * 60 * number, kind="collection", text="12 removed by interval") for number in range(7)
    ]
    marks += [
        TrendMark(at=NOW - timedelta(hours=5 + 30 * number), kind="eviction", text=names[number]) for number in range(4)
    ]
    marks.append(TrendMark(at=NOW - step * 160, kind="reboot", text="the node was started"))
    return Trend(observed_at=NOW, since=NOW - timedelta(days=days), resources=tuple(trends), marks=tuple(marks))


def usage(names: Sequence[str]) -> DiskUsageDocument:
    """Return the usage of imagefs with all names as items."""
    sizes = {
        UsageCategory.IMAGES_IN_USE: 190 * GIB,
        UsageCategory.IMAGES_UNUSED: 96 * GIB,
        UsageCategory.WRITABLE_RUNNING: 61 * GIB,
        UsageCategory.POD_LOGS: 34 * GIB,
        UsageCategory.POD_VOLUMES: 12 * GIB,
        UsageCategory.HOST_FILES: 11 * GIB,
        UsageCategory.UNEXPLAINED: 6 * GIB,
    }
    shares = []
    for number, (part, size) in enumerate(sizes.items()):
        own = names[number :: len(sizes)]
        members = tuple(
            Member(name, size // (place + 2), pod=f"{name}/{name}" if place % 2 else "")
            for place, name in enumerate(own)
        )
        shares.append(Share(part, size, 1000, members if part is not UsageCategory.UNEXPLAINED else ()))
    disk = FsObservation("/var/lib/containerd", 0, 500 * GIB, 90 * GIB, 30_000_000, 20_700_000, NOW)
    return DiskUsageDocument.of(Breakdown(disk, tuple(shares), exact=True, warnings=(f"{names[0]}: not read",)), 20)


def past_pass(number: int, names: Sequence[str]) -> PastPassDocument:
    """Return an eviction for every eighth number, otherwise a collection of images."""
    is_eviction = number % 8 == 3
    chosen = [names[(number + place) % len(names)] for place in range(1 if is_eviction else 12)]
    actions = tuple(
        PastActionDocument(
            kind="pod" if is_eviction else "image",
            id=f"id-{number}-{place}",
            name=name,
            references=(name,),
            outcome="failed" if place == 2 and number % 5 == 0 else "done",
            detail="in use by another process" if place == 2 and number % 5 == 0 else "",
            reason=RecordedReason(code="evicted", sentence=f"uses 3.1 GiB, requests 1 GiB; {name}"),
            frees_bytes=GIB,
            duration_s=1.5,
        )
        for place, name in enumerate(chosen)
    )
    ranking = [
        {
            "rank": rank,
            "name": chosen[0] if rank == 1 else names[(number + rank) % len(names)],
            "usage": (40 - rank) * GIB // 10,
            "request": GIB,
            "priority": 100 * rank,
            "reason": "exceeds-request",
        }
        for rank in range(1, 31)
    ]
    eviction = {
        "threshold": {"threshold": "memory.available<5%", "capacity": 64 * GIB},
        "ranking": ranking,
        "available_before": 2 * GIB,
        "available_after": 6 * GIB,
    }
    return PastPassDocument(
        id=f"{number:08x}",
        started_at=NOW - timedelta(minutes=37 * number),
        duration_s=4.2,
        trigger="pressure" if is_eviction else "interval",
        scope="pods" if is_eviction else "images",
        plan_id="",
        dry_run=False,
        end="complete",
        end_detail="",
        predicted_bytes=12 * GIB,
        freed_bytes=11 * GIB,
        imagefs_percent_before=86,
        imagefs_percent_after=80,
        actions=actions,
        eviction=eviction if is_eviction else UNSET,
    )


def status(names: Sequence[str], outlooks: tuple[OutlookDocument, ...], conditions: tuple[str, ...]) -> Status:
    """Return the status of a node with three disks."""

    def signal(name: Signal, available: float, capacity: int, text: str, value: float) -> SignalDocument:
        threshold = ThresholdDocument(text=text, value=value, met=available < value, distance=abs(available - value))
        return SignalDocument(
            signal=name,
            available=available,
            capacity=capacity,
            observed_at=NOW,
            change_per_s=None,
            thresholds=(threshold,),
        )

    def disk(name: str, path: str, size: int, used: int, percents: tuple[int, int] | None) -> FilesystemStatus:
        low, high = percents or (None, None)
        return FilesystemStatus(
            name=name,
            roles=(name,),
            high_percent=high,
            low_percent=low,
            path=path,
            capacity_bytes=size * GIB,
            available_bytes=(size - used) * GIB,
            used_percent=100 * used // size,
            inodes=30_000_000,
            inodes_free=20_700_000,
            observed_at=NOW,
        )

    return Status(
        observed_at=NOW,
        agent=AgentStatus(
            running=True,
            version="0.3.0",
            pid=812,
            started_at=NOW - timedelta(days=11),
            ready=True,
            not_ready_because=(),
            config=None,
            config_problem="",
            dry_run=False,
            role="standalone",
            role_because="configured",
        ),
        paused=None,
        runtime=report("x", plan=None).runtime,
        filesystems=(
            disk("nodefs", "/var/lib/kubelet", 200, 124, None),
            disk("imagefs", "/var/lib/containerd", 500, 410, (80, 85)),
            FilesystemStatus(name="data", high_percent=None, low_percent=None, path=names[0], problem="no such device"),
        ),
        conditions=conditions,
        signals=(
            signal(Signal.NODEFS_AVAILABLE, 76 * GIB, 200 * GIB, "nodefs.available<10%", 20 * GIB),
            signal(Signal.IMAGEFS_AVAILABLE, 90 * GIB, 500 * GIB, "imagefs.available<10%", 50 * GIB),
            signal(Signal.MEMORY_AVAILABLE, 2 * GIB, 64 * GIB, "memory.available<5%", 3.2 * GIB)
            if conditions
            else signal(Signal.MEMORY_AVAILABLE, 19 * GIB, 64 * GIB, "memory.available<5%", 3.2 * GIB),
        ),
        loops=tuple(
            LoopStatusDocument(
                name=name,
                activity="waiting",
                why="",
                started_at=NOW,
                ended_at=NOW,
                result="done",
                detail="",
                runs=9,
                failures=0,
                due_in_s=60,
                stuck=False,
            )
            for name in ("containers", "eviction", "images")
        ),
        last_passes=(),
        shutdown=ShutdownSummary(off_because="", lock_held=True),
        holds=(),
        outlook=outlooks,
        warnings=(),
    )


def detailed_report(
    node: str,
    names: Sequence[str] = ORDINARY,
    *,
    passes: int = 40,
    conditions: tuple[str, ...] = (),
    resources: int = len(_RESOURCES),
) -> NodeReport:
    """Return the report of a node with all details, in which all names occur; ``resources`` are recorded."""
    day, week = record(1, names, resources), record(7, names, resources)
    made = status(names, tuple(each.outlook for each in day.resources), conditions)
    return structs.replace(
        report(node, plan=planned(), version="0.3.0", dry_run=False, warnings=tuple(names[1:2]), conditions=conditions),
        agent=made.agent,
        filesystems=made.filesystems,
        outlook=made.outlook,
        checks=(
            FindingDocument(check="metrics", verdict="warning", evidence=f"TLS off {names[2]}", fix=names[3]),
            FindingDocument(check="runtime", verdict="problem", evidence=names[4], fix="restart containerd"),
        ),
        details=NodeDetails(
            status=made,
            usage=usage(names),
            day=day,
            week=week,
            passes=tuple(ReportedPass.of_past(past_pass(number, names)) for number in range(passes)),
            unread=(),
        ),
    )
