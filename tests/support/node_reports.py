"""Node reports of a simulated fleet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nodeagent.api.outlook import ForecastDocument, GrowthDocument, OutlookDocument
from nodeagent.daemon.documents import AgentStatus, FilesystemStatus, RuntimeStatusDocument
from nodeagent.daemon.report_document import NodeReport, PlannedPass, PlannedRemovals
from nodeagent.model.outlook import Outlook, ThresholdKind

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def planned(*removals: PlannedRemovals, pending_bytes: int = 0, shortfall_bytes: int = 0) -> PlannedPass:
    """Return the report of a planned pass."""
    return PlannedPass(
        scope="all",
        removals=removals,
        upper_bound=False,
        pending_bytes=pending_bytes,
        shortfall_bytes=shortfall_bytes,
        blocked=(),
    )


def report(
    node: str,
    *,
    plan: PlannedPass | None,
    version: str = "0.1",
    role: str | None = "standalone",
    dry_run: bool = True,
    running: bool = True,
    observed_at: datetime = NOW,
    problem: str = "",
    warnings: tuple[str, ...] = (),
    conditions: tuple[str, ...] = (),
    outlook: tuple[OutlookDocument, ...] = (),
) -> NodeReport:
    """Return the report of a simulated node."""
    return NodeReport(
        observed_at=observed_at,
        node=node,
        agent=AgentStatus(running=running, version=version, dry_run=dry_run, role=role, role_because="configured"),
        runtime=RuntimeStatusDocument(
            up=True, name="containerd", version="1.7.0", endpoint="unix:///run/s", problem=""
        ),
        paused=None,
        planned=plan,
        unplanned_because=problem,
        filesystems=(
            FilesystemStatus(
                name="imagefs",
                high_percent=85,
                low_percent=80,
                path="/var/lib/containerd",
                capacity_bytes=100,
                available_bytes=9,
                used_percent=91,
            ),
        ),
        conditions=conditions,
        exceeded=(),
        outlook=outlook,
        warnings=warnings,
    )


def expecting(hours: float | None, outlook: Outlook = Outlook.RANGE) -> OutlookDocument:
    """Return the outlook of imagefs with a hard threshold in some hours; without a trend for ``None``."""
    expected_s = None if hours is None else hours * 3600
    return OutlookDocument(
        resource="imagefs.available",
        used=80,
        capacity=100,
        observed_at=NOW,
        forecasts=(
            ForecastDocument(
                threshold=ThresholdKind.HARD,
                used=90,
                outlook=Outlook.NO_TREND if hours is None and outlook is Outlook.RANGE else outlook,
                earliest_s=None if expected_s is None else expected_s / 2,
                expected_s=expected_s,
                latest_s=None if expected_s is None else expected_s * 2,
                rate_per_s=None if expected_s is None else 1.0,
                observed_s=86_400,
            ),
        ),
        growth=(GrowthDocument(part="shop/logger volumes", rate_per_s=1.0, share=0.8),),
        hours=(0.8,) * 24,
    )


def fleet(count: int) -> Iterator[NodeReport]:
    """Yield the reports of a fleet with two agent versions, two roles, and some nodes with warnings."""
    for number in range(count):
        removals = PlannedRemovals(kind="image", count=number % 40, bytes=(number % 40) << 28, without_size=0)
        dead = PlannedRemovals(kind="container", count=3, bytes=3 << 20, without_size=1)
        yield report(
            f"ip-10-0-{number // 250}-{number % 250}.eu-central-1.compute.internal",
            plan=None if number % 100 == 99 else planned(dead, removals, shortfall_bytes=(number % 25 == 24) << 30),
            problem="cannot list images: deadline of 10 s exceeded" if number % 100 == 99 else "",
            version="0.2.0" if number % 7 == 0 else "0.1.0",
            role="beside-kubelet" if number % 5 else "standalone",
            dry_run=number % 10 == 0,
            warnings=("clock: synchronisation lost 3h ago",) if number % 50 == 0 else (),
            outlook=() if number % 3 == 0 else (expecting(None if number % 4 else float(number)),),
        )
