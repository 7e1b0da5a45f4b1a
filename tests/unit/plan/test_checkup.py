"""Judging what a checkup saw."""

from __future__ import annotations

import pytest

from nodeagent.plan.checkup import (
    Finding,
    Verdict,
    judge_agent,
    judge_cgroups,
    judge_clock,
    judge_control_group,
    judge_delay,
    judge_image_use,
    judge_kubelet,
    judge_lock,
    judge_sandbox_image,
    judge_snapshotter,
    judge_split,
    judge_stalls,
    judge_state,
    judge_stores,
)
from nodeagent.plan.shutdown_phases import fit_phases, two_bands
from tests.unit.builders import NOW, ago

OK, WARNING, PROBLEM, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.PROBLEM, Verdict.SKIPPED
PHASES = two_bands(30.0, 10.0)


def delay(limit_s: float | None, off: str = "") -> Finding:
    limit_us = None if limit_s is None else round(limit_s * 1e6)
    return judge_delay(fit_phases(PHASES, limit_us), off=off, set_by="/etc/x.conf")


@pytest.mark.parametrize(
    ("finding", "verdict", "words"),
    [
        (judge_stalls(["memory", "io"]), OK, "memory and io"),
        (judge_stalls([]), WARNING, "io and memory"),
        (judge_cgroups(["cpu", "memory", "pids"]), OK, "cgroup v2"),
        (judge_cgroups(["cpu"]), PROBLEM, "without memory, pids"),
        (judge_cgroups(None), WARNING, "not cgroup v2"),
        (delay(60), OK, "allows 1m (/etc/x.conf), the phases want 30s"),
        (delay(5), WARNING, "/etc/x.conf"),
        (delay(0), WARNING, "allows 0s (/etc/x.conf), the phases want 30s: too short: no pod is stopped at the signal"),
        (delay(5, off="a kubelet"), SKIPPED, "a kubelet"),
        (judge_lock(True, "listed", off=""), OK, "listed"),
        (judge_lock(False, "not listed", off=""), WARNING, "not listed"),
        (judge_lock(False, "", off="off"), SKIPPED, "off"),
        (judge_sandbox_image(None, False, False), SKIPPED, "does not tell"),
        (judge_sandbox_image("pause", False, False), PROBLEM, "no pod can start"),
        (judge_sandbox_image("pause", True, False), OK, "not pinned"),
        (judge_sandbox_image("pause", True, True), OK, "is pinned"),
        (judge_state("/x", "", 1 << 40), OK, "can be written"),
        (judge_state("/x", "", 1 << 20), WARNING, "1.00 MiB left"),
        (judge_state("/x", "Read-only file system", None), PROBLEM, "Read-only"),
        (judge_state("/x", "", 1 << 40, 0o770), WARNING, "mode 0770"),
        (judge_snapshotter("overlayfs"), OK, "overlayfs"),
        (judge_snapshotter("stargz"), WARNING, "when they are read"),
        (judge_snapshotter(None), SKIPPED, "does not tell"),
        (judge_split({"imagefs": 1, "containerfs": 1, "nodefs": 1}, 1), OK, "are one"),
        (judge_split({"imagefs": 1, "containerfs": 2, "nodefs": 2}, 1), OK, "apart: imagefs; containerfs and nodefs"),
        (judge_split({"imagefs": None, "containerfs": 1, "nodefs": 1}, 1), WARNING, "of imagefs cannot be read"),
        (judge_split({"imagefs": 1, "containerfs": 1, "nodefs": 1}, 2), WARNING, "2 filesystems of images"),
        (judge_stores({}, ["a.db", "b.db"]), OK, "a.db, b.db: sound"),
        (judge_stores({}, []), OK, "none yet"),
        (judge_stores({"/x/a.db": "malformed"}, ["b.db"]), WARNING, "/x/a.db: malformed"),
        (judge_agent("", (), 7), OK, "at work, process 7"),
        (judge_agent("no agent listens", (), None), WARNING, "no agent listens"),
        (judge_agent("", ("no progress: images",), 7), PROBLEM, "no progress: images"),
        (judge_control_group("nodeagent", True), OK, "members of group nodeagent"),
        (judge_control_group("ops", False), WARNING, "there is no group ops"),
        (judge_image_use(None, NOW, 0), SKIPPED, "no image is removed by age"),
        (judge_image_use(None, NOW, 60), WARNING, "state database is unavailable"),
        (judge_image_use(ago(60), NOW, 60), OK, "(1m): no image is removed by age before 1m"),
        (judge_image_use(ago(61), NOW, 60), OK, "observed since 2026-03-01T11:58:59.000Z (1m1s)"),
        (judge_clock(None, True), OK, "synchronised"),
        (judge_clock(-10, None), OK, "future"),
        (judge_clock(60, True), WARNING, "1m in the future"),
        (judge_clock(None, False), WARNING, "not synchronised"),
    ],
)
def test_each_reading_has_its_verdict(finding: Finding, verdict: Verdict, words: str) -> None:
    assert finding.verdict is verdict
    assert words in finding.evidence
    if verdict is PROBLEM:
        assert finding.fix


@pytest.mark.parametrize(
    ("found", "work", "expected"),
    [
        ({}, (True, True, 85), {"kubelet-overlap": SKIPPED}),
        ({"kind": "x"}, (False, False, None), {"kubelet-overlap": OK}),
        ({"kind": "x"}, (False, False, 85), {"kubelet-overlap-images": WARNING}),
        ({"kind": "x"}, (False, False, 84), {"kubelet-overlap": OK}),
        ({"imageGCHighThresholdPercent": "95"}, (False, False, 85), {"kubelet-overlap": OK}),
        ({"imageGCHighThresholdPercent": "70"}, (False, False, 85), {"kubelet-overlap-images": WARNING}),
        ({"imageGCHighThresholdPercent": "much"}, (False, False, 85), {"kubelet-overlap-images": WARNING}),
        ({"imageGCHighThresholdPercent": "100"}, (False, False, 85), {"kubelet-overlap": OK}),
        ({"kind": "x"}, (True, False, None), {"kubelet-overlap-eviction": WARNING}),
        ({"shutdownGracePeriod": "30s"}, (False, True, None), {"kubelet-overlap-shutdown": PROBLEM}),
        ({"shutdownGracePeriod": "0s"}, (False, True, None), {"kubelet-overlap": OK}),
    ],
)
def test_work_done_twice_is_told(
    found: dict[str, str], work: tuple[bool, bool, int | None], expected: dict[str, Verdict]
) -> None:
    evicts, stops, collects_from = work
    findings = judge_kubelet(found, evicts=evicts, stops=stops, collects_from=collects_from)
    assert {each.check: each.verdict for each in findings} == expected
