"""Role of the agent, from kubelet traces and the configured role, with hysteresis."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.model.node import KubeletProcess, KubeletTraces, Role, RoleBasis, RoleMemory
from nodeagent.pods.plan.role import ABSENT_S, apply_hysteresis, decide_role
from nodeagent.record import replace

BESIDE, STANDALONE = Role.BESIDE_KUBELET, Role.STANDALONE
NONE = KubeletTraces()
PROCESS = KubeletTraces(processes=(KubeletProcess(812, "k3s-server"),))
LISTENER = KubeletTraces(ports=(10250,))
FILES = KubeletTraces(files=("/var/lib/kubelet/pki", "/etc/kubernetes/kubelet.conf"))
UNREAD = KubeletTraces(unreadable=("cannot read /proc/1/comm: Permission denied",))

TRACES = st.builds(
    KubeletTraces,
    processes=st.sampled_from([(), PROCESS.processes]),
    ports=st.sampled_from([(), LISTENER.ports]),
    files=st.sampled_from([(), FILES.files]),
    unreadable=st.sampled_from([(), UNREAD.unreadable]),
)
NO_KUBELET = "no kubelet process, state or configuration found"
CONFIGURED = st.sampled_from([None, BESIDE, STANDALONE])


@pytest.mark.parametrize(
    ("traces", "configured", "role", "basis", "reason"),
    [
        pytest.param(
            NONE,
            None,
            STANDALONE,
            RoleBasis.NO_TRACE,
            NO_KUBELET,
            id="nothing",
        ),
        pytest.param(PROCESS, None, BESIDE, RoleBasis.LIVE_KUBELET, "kubelet process 812 (k3s-server)", id="process"),
        pytest.param(LISTENER, None, STANDALONE, RoleBasis.NO_TRACE, NO_KUBELET, id="listener"),
        pytest.param(FILES, None, BESIDE, RoleBasis.KUBELET_FILES, "/var/lib/kubelet/pki exists", id="files"),
        pytest.param(
            UNREAD,
            None,
            BESIDE,
            RoleBasis.UNREADABLE,
            "unknown, treated as beside a kubelet: cannot read /proc/1/comm: Permission denied",
            id="unreadable",
        ),
        pytest.param(NONE, BESIDE, BESIDE, RoleBasis.CONFIGURED, "configured", id="configured beside a kubelet"),
        pytest.param(NONE, STANDALONE, STANDALONE, RoleBasis.CONFIGURED, "configured", id="configured standalone"),
        pytest.param(
            FILES,
            STANDALONE,
            STANDALONE,
            RoleBasis.CONFIGURED,
            "configured; overrides /var/lib/kubelet/pki",
            id="standalone overrides files",
        ),
        pytest.param(
            UNREAD,
            STANDALONE,
            STANDALONE,
            RoleBasis.CONFIGURED,
            "configured; overrides cannot read /proc/1/comm: Permission denied",
            id="standalone overrides unreadable",
        ),
        pytest.param(
            PROCESS,
            STANDALONE,
            BESIDE,
            RoleBasis.LIVE_KUBELET,
            "kubelet process 812 (k3s-server)",
            id="a process overrides standalone",
        ),
        pytest.param(
            LISTENER,
            STANDALONE,
            STANDALONE,
            RoleBasis.CONFIGURED,
            "configured",
            id="a listener does not override standalone",
        ),
    ],
)
def test_role_follows_from_traces_and_configuration(
    traces: KubeletTraces, configured: Role | None, role: Role, basis: RoleBasis, reason: str
) -> None:
    decision = decide_role(traces, configured)
    assert (decision.role, decision.basis, decision.reason) == (role, basis, reason)


def test_running_kubelet_with_configured_standalone_is_a_warning() -> None:
    assert "kubelet process 812" in decide_role(PROCESS, STANDALONE).warning
    assert decide_role(PROCESS, None).warning == ""
    assert decide_role(FILES, STANDALONE).warning == ""


@given(TRACES, CONFIGURED)
def test_standalone_is_never_decided_with_a_running_kubelet_or_unreadable_traces(
    traces: KubeletTraces, configured: Role | None
) -> None:
    decision = decide_role(traces, configured)
    if decision.role is STANDALONE:
        assert not traces.processes
        assert configured is STANDALONE or replace(traces, ports=()) == NONE
        assert ("listener on kubelet port 10250 without a kubelet process" in decision.warning) is bool(traces.ports)


def play(*readings: tuple[float, KubeletTraces], configured: Role | None = None) -> list[tuple[Role, RoleBasis]]:
    """Return role and basis after each reading; a reading has a time in seconds and kubelet traces."""
    memory, roles = RoleMemory(), []
    for now_s, traces in readings:
        decision, memory = apply_hysteresis(decide_role(traces, configured), traces, memory, now_s)
        roles.append((decision.role, decision.basis))
    return roles


@pytest.mark.parametrize("traces", [PROCESS, FILES], ids=["process", "files"])
def test_started_kubelet_counts_at_once_and_a_stopped_one_until_the_hysteresis_ends(traces: KubeletTraces) -> None:
    left_s = 20.0
    roles = play(
        (0, NONE), (10, traces), (left_s, NONE), (left_s + ABSENT_S - 0.1, NONE), (left_s + ABSENT_S, NONE), (900, NONE)
    )
    assert [role for role, _ in roles] == [STANDALONE, BESIDE, BESIDE, BESIDE, STANDALONE, STANDALONE]
    assert roles[2][1] is RoleBasis.RECENT_KUBELET


def test_two_readings_far_apart_do_not_count_a_restart_as_a_removal() -> None:
    roles = play((0, PROCESS), (7200, NONE), (7205, PROCESS), (14400, NONE), (14400 + ABSENT_S, NONE))
    assert [role for role, _ in roles] == [BESIDE, BESIDE, BESIDE, BESIDE, STANDALONE]


def test_absence_is_counted_in_complete_readings_only() -> None:
    roles = play((0, PROCESS), (10, NONE), (20, UNREAD), (10 + ABSENT_S, NONE), (20 + 2 * ABSENT_S, NONE))
    assert [role for role, _ in roles] == [BESIDE, BESIDE, BESIDE, BESIDE, STANDALONE]


def test_unreadable_traces_start_no_hysteresis() -> None:
    assert [role for role, _ in play((0, UNREAD), (1, NONE))] == [BESIDE, STANDALONE]


def test_configured_standalone_is_delayed_by_a_running_kubelet_and_not_by_files() -> None:
    roles = play((0, PROCESS), (1, FILES), (1 + ABSENT_S, FILES), configured=STANDALONE)
    assert [role for role, _ in roles] == [BESIDE, BESIDE, STANDALONE]
    decision, _ = apply_hysteresis(
        decide_role(FILES, STANDALONE),
        FILES,
        apply_hysteresis(decide_role(PROCESS, STANDALONE), PROCESS, RoleMemory(), 0)[1],
        1,
    )
    assert 'role = "standalone" is configured' in decision.warning
    assert "kubelet process 812" in decision.reason


@given(st.lists(st.tuples(st.floats(0, 400), TRACES), min_size=1, max_size=12), CONFIGURED)
def test_standalone_never_follows_within_the_hysteresis_of_a_running_kubelet(
    steps: list[tuple[float, KubeletTraces]], configured: Role | None
) -> None:
    memory, now_s, live_s = RoleMemory(), 0.0, None
    for step_s, traces in steps:
        now_s += step_s
        decision, memory = apply_hysteresis(decide_role(traces, configured), traces, memory, now_s)
        if traces.processes:
            live_s = now_s
        if decision.role is STANDALONE and live_s is not None:
            assert now_s - live_s >= ABSENT_S
