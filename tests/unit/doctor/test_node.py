"""Verdicts and evidence of the node checks of ``nodeagent doctor``."""

from __future__ import annotations

import pytest

from nodeagent.doctor.plan.kubelet import check_kubelet_config, check_pod_list, check_runtime_endpoint
from nodeagent.doctor.plan.node import (
    Finding,
    Grade,
    check_agent,
    check_cgroups,
    check_clock,
    check_control_group,
    check_delay,
    check_filesystems,
    check_held_content,
    check_image_use,
    check_lock,
    check_sandbox_image,
    check_snapshotter,
    check_split,
    check_stalls,
    check_state,
    check_stores,
)
from nodeagent.model.clock import ClockTrust
from nodeagent.model.node import KubeletConfig
from nodeagent.model.pods import Completeness, PodListReading, PodListSource
from nodeagent.model.pressure import FilesystemRole, NodeFilesystem
from nodeagent.model.runtime import FsObservation, GapCause, HeldContent, ObservationGap, ReferenceKind
from nodeagent.record import replace
from nodeagent.shutdown.plan.planner import DelayLimit, shutdown_budget, two_bands
from tests.unit.builders import MIB, NOW, ago

OK, WARNING, PROBLEM, SKIPPED = Grade.OK, Grade.WARNING, Grade.PROBLEM, Grade.SKIPPED
PHASES = two_bands(30.0, 10.0)
HIGH = "imageGCHighThresholdPercent"
UNREAD = KubeletConfig(unread=("/x: bad",))
KUBELET = PodListSource.KUBELET
LISTED = PodListReading(KUBELET, "kubelet https://x/pods", NOW, 7, Completeness.SOURCE_LISTED)
GAP = ObservationGap(ago(3660), ago(60), GapCause.AGENT_DOWN)
OLD_LEASE = HeldContent(ReferenceKind.LEASE, "pull-1", 120 * MIB, ago(2 * 86_400), "no expiry", is_stuck=True)
LEASE_OF_TODAY = replace(OLD_LEASE, created_at=ago(3600))
BROKEN = HeldContent(ReferenceKind.UNLISTED_IMAGE, "r/x:1", 80 * MIB, None, "1 of 3 blobs missing", is_stuck=True)
PULLED = replace(BROKEN, detail="not listed by CRI", is_stuck=False)
JUMPED = ClockTrust(jump_s=86_400.0, jumped_at=ago(60), untrusted_until=ago(-60))


def reboots(*ended_d: float) -> tuple[ObservationGap, ...]:
    """Return gaps of one hour that ended before the given numbers of days."""
    return tuple(ObservationGap(ago(each * 86_400 + 3600), ago(each * 86_400), GapCause.REBOOT) for each in ended_d)


def delay(limit_s: float | None, off: str = "") -> Finding:
    limit_us = None if limit_s is None else round(limit_s * 1e6)
    return check_delay(shutdown_budget(PHASES, DelayLimit(limit_us, "/etc/x.conf"), reserve_ms=0), off=off)


def space(
    path: str, available_bytes: int, inodes_free: int, *roles: FilesystemRole, inodes: int = 1000
) -> NodeFilesystem:
    reading = FsObservation(path, 1, 1000, available_bytes, inodes, inodes_free, NOW)
    return NodeFilesystem("x", path, roles or (FilesystemRole.RUNTIME_STATE,), reading)


def sandbox_image(name: str | None, *, listed: bool = True, pinned: bool = False, beside: bool = False) -> Finding:
    return check_sandbox_image(name, listed=listed, pinned=pinned, beside_kubelet=beside)


@pytest.mark.parametrize(
    ("finding", "verdict", "words"),
    [
        (check_stalls(["memory", "io"]), OK, "memory and io"),
        (check_stalls([]), WARNING, "io and memory"),
        (check_cgroups(["cpu", "memory", "pids"]), OK, "cgroup v2"),
        (check_cgroups(["cpu"]), PROBLEM, "without memory, pids"),
        (check_cgroups(None), WARNING, "cgroup v1"),
        (delay(60), OK, "allows 1m (/etc/x.conf), the phases request 30s"),
        (delay(5), WARNING, "/etc/x.conf"),
        (
            delay(0),
            WARNING,
            "allows 0s (/etc/x.conf), the phases request 30s: too short: no pod is stopped at the signal",
        ),
        (delay(5, off="a kubelet"), SKIPPED, "a kubelet"),
        (check_lock(True, "listed", off=""), OK, "listed"),
        (check_lock(False, "not listed", off=""), WARNING, "not listed"),
        (check_lock(False, "", off="off"), SKIPPED, "off"),
        (sandbox_image(None), SKIPPED, "not reported by the runtime"),
        (sandbox_image("pause", listed=False), WARNING, "no pod can start before a pull of it"),
        (sandbox_image("pause"), OK, "not pinned"),
        (sandbox_image("pause", beside=True), WARNING, "the kubelet's image GC may remove it, and then no new pod"),
        (sandbox_image("pause", listed=False, beside=True), WARNING, "no pod can start before a pull of it"),
        (sandbox_image("pause", pinned=True, beside=True), OK, "is pinned"),
        (
            check_pod_list(None),
            SKIPPED,
            "kubelet.url is not set: the image of a pod bound to this node is kept from its first",
        ),
        (check_pod_list(None, is_watched=True), SKIPPED, "is kept from its binding on, by kubernetes.watch_pods"),
        (check_pod_list(LISTED), OK, "kubelet https://x/pods: 7 pods; a missing pod does not count as deleted"),
        (check_pod_list(replace(LISTED, error="HTTP 403 Forbidden")), PROBLEM, "images of new pods are not kept"),
        (check_pod_list(PodListReading(KUBELET, error="HTTP 403")), PROBLEM, "HTTP 403: no image is removed"),
        (
            check_pod_list(replace(LISTED, completeness=Completeness.PARTIAL, detail="the runtime has shop/web")),
            WARNING,
            "7 pods; the runtime has shop/web: no image is removed until",
        ),
        (
            check_pod_list(replace(LISTED, completeness=Completeness.UNCONFIRMED, detail="no pod of the API server")),
            OK,
            "no pod of the API server; a missing",
        ),
        (check_runtime_endpoint("", "/run/a.sock"), SKIPPED, "socket of the kubelet unknown"),
        (check_runtime_endpoint("/run/a.sock", ""), SKIPPED, "socket of the agent unknown"),
        (check_runtime_endpoint("/run/a.sock", "/run/a.sock"), OK, "use /run/a.sock"),
        (
            check_runtime_endpoint("/run/k3s/a.sock", "/run/a.sock"),
            PROBLEM,
            "the kubelet uses /run/k3s/a.sock",
        ),
        (check_kubelet_config(None, has_kubelet=False), SKIPPED, "no configuration of a kubelet found"),
        (check_kubelet_config(None, has_kubelet=True), SKIPPED, "configuration of the kubelet unknown"),
        (check_kubelet_config(KubeletConfig(), has_kubelet=True), OK, "defaults: imageGCHighThresholdPercent 85"),
        (
            check_kubelet_config(UNREAD, has_kubelet=True),
            WARNING,
            "no source read: imageGCHighThresholdPercent unknown, evictionHard imagefs.available unknown, shutdown",
        ),
        (
            check_kubelet_config(KubeletConfig({"evictionHard": {"memory.available": "1%"}}), has_kubelet=True),
            OK,
            "imageGCHighThresholdPercent 85, evictionHard imagefs.available none, shutdownGracePeriod 0s",
        ),
        (
            check_kubelet_config(replace(UNREAD, certain=frozenset({HIGH}), fields={HIGH: 70}), has_kubelet=True),
            WARNING,
            "imageGCHighThresholdPercent 70, evictionHard imagefs.available unknown",
        ),
        (
            check_kubelet_config(KubeletConfig({HIGH: "9\n9" * 50}, sources=("/x",)), has_kubelet=True),
            OK,
            "/x: imageGCHighThresholdPercent 9?99?9",
        ),
        (check_state("/x", "", 1 << 40), OK, "is writable"),
        (check_state("/x", "", 1 << 20), WARNING, "1.00 MiB available"),
        (check_state("/x", "Read-only file system", None), PROBLEM, "Read-only"),
        (check_state("/x", "", 1 << 40, 0o770), WARNING, "mode 0770"),
        (check_held_content([], NOW), OK, "no image with missing blobs"),
        (check_held_content([LEASE_OF_TODAY, PULLED], NOW), OK, "no old lease"),
        (check_held_content([OLD_LEASE], NOW), WARNING, "120 MiB that no pass frees: lease pull-1 (no expiry)"),
        (
            check_held_content([OLD_LEASE, BROKEN], NOW),
            WARNING,
            "200 MiB that no pass frees: lease pull-1 (no expiry) and 1",
        ),
        (check_filesystems([space("/run/containerd", 400, 900)]), OK, "/run/containerd"),
        (check_filesystems([space("/run/containerd", 400, 0, inodes=0)]), OK, "/run/containerd"),
        (check_filesystems([space("/x", 50, 50)]), OK, "/x (runtime-state)"),
        (
            check_filesystems([space("/run/containerd", 0, 900)]),
            WARNING,
            "/run/containerd (runtime-state): 0.0% of bytes available; if it is full: no pod starts",
        ),
        (
            check_filesystems([space("/var/log", 400, 49, FilesystemRole.NODEFS, FilesystemRole.POD_LOGS)]),
            WARNING,
            "/var/log (nodefs, pod-logs): 4.9% of inodes available; if it is full: no pod starts, container logs are",
        ),
        (
            check_filesystems([space("/a", 49, 0), space("/b", 900, 900)]),
            WARNING,
            "/a (runtime-state): 4.9% of bytes and 0.0% of inodes available",
        ),
        (
            check_filesystems([NodeFilesystem("x", "/x", (FilesystemRole.POD_LOGS,), problem="cannot read /x: I/O")]),
            WARNING,
            "/x (pod-logs): cannot read /x: I/O",
        ),
        (check_snapshotter("overlayfs"), OK, "overlayfs"),
        (check_snapshotter("stargz"), WARNING, "when they are read"),
        (check_snapshotter(None), SKIPPED, "not reported by the runtime"),
        (check_split({"imagefs": 1, "containerfs": 1, "nodefs": 1}, 1), OK, "share one filesystem"),
        (
            check_split({"imagefs": 1, "containerfs": 2, "nodefs": 2}, 1),
            OK,
            "separate: imagefs; containerfs and nodefs",
        ),
        (
            check_split({"imagefs": None, "containerfs": 1, "nodefs": 1}, 1),
            WARNING,
            "cannot read the filesystem of imagefs",
        ),
        (
            check_split({"imagefs": 1, "containerfs": 1, "nodefs": 1}, 2),
            OK,
            "2 image filesystems",
        ),
        (check_stores({}, ["a.db", "b.db"]), OK, "a.db, b.db: sound"),
        (check_stores({}, []), OK, "no databases yet"),
        (check_stores({"/x/a.db": "malformed"}, ["b.db"]), WARNING, "/x/a.db: malformed"),
        (check_agent("", (), 7), OK, "running (pid 7)"),
        (check_agent("no agent listens", (), None), WARNING, "no agent listens"),
        (check_agent("", ("no progress: images",), 7), PROBLEM, "no progress: images"),
        (check_control_group("nodeagent", True), OK, "members of group nodeagent"),
        (check_control_group("ops", False), WARNING, "group ops not found"),
        (check_image_use(None, NOW, 0), SKIPPED, "no image is removed by age"),
        (check_image_use(None, NOW, 60), WARNING, "state database is unavailable"),
        (check_image_use(ago(60), NOW, 0), SKIPPED, "no image is removed by age; observed since"),
        (check_image_use(ago(60), NOW, 60, (GAP,)), OK, "last gap of 1h until 2026-03-01T11:59:00.000Z (agent-down)"),
        (check_image_use(ago(60), NOW, 60), OK, "(1m): no image is removed by age until use is observed for 1m"),
        (check_image_use(ago(61), NOW, 60), OK, "observed since 2026-03-01T11:58:59.000Z (1m1s)"),
        (
            check_image_use(ago(86_400), NOW, 7 * 86_400, reboots(11, 6, 1)),
            WARNING,
            "the last 2 observations lasted 4d23h at most (reboot): no image is removed by age",
        ),
        (check_image_use(ago(86_400), NOW, 7 * 86_400, reboots(9, 1)), OK, "last gap of 1h"),
        (check_image_use(ago(86_400), NOW, 7 * 86_400, reboots(20, 6, 1)), OK, "last gap of 1h"),
        (check_image_use(ago(3600), NOW, 7 * 86_400, reboots(0.3, 0.2, 0.1)), OK, "last gap of 1h"),
        (check_image_use(ago(8 * 86_400), NOW, 7 * 86_400, reboots(18, 13, 8)), OK, "last gap of 1h"),
        (check_clock(None, True), OK, "synchronised"),
        (check_clock(-10, None), OK, "future"),
        (
            check_clock(None, True, JUMPED),
            WARNING,
            "set forward by 1d: nothing is removed by age before 2026-03-01T12:01",
        ),
        (check_clock(None, True, replace(JUMPED, untrusted_until=None)), OK, "set forward by 1d at 2026-03-01T11:59"),
        (check_clock(None, None, ClockTrust(problem="before the build")), WARNING, "before the build"),
        (check_clock(60, True), WARNING, "1m in the future"),
        (check_clock(None, False), WARNING, "not synchronised"),
    ],
)
def test_reading_has_verdict_evidence_and_fix(finding: Finding, verdict: Grade, words: str) -> None:
    assert finding.verdict is verdict
    assert words in finding.evidence
    if verdict is PROBLEM:
        assert finding.fix
