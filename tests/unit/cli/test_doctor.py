"""Checks of ``nodeagent doctor`` on temporary trees."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - lazily imported; unreadable for an unprivileged user
import getpass  # noqa: F401 - lazily imported; unreadable for an unprivileged user
import os
import socket
import sqlite3
import time
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli import doctor as checks, doctor as doctor_memory
from nodeagent.cli.doctor import fix_logind, summary
from nodeagent.doctor.plan.node import (
    Finding,
    Grade,
    check_api_access,
    check_certificate,
    check_client_certificate,
    check_image_use,
)
from nodeagent.model.kubernetes import Certificate
from nodeagent.model.node import Role
from nodeagent.record import replace
from nodeagent.runtime.connection import K3S_SOCKET
from nodeagent.settings.loading import load
from nodeagent.settings.settings import ControlSettings
from nodeagent.units import format_time
from tests.support.kubelet_tree import add_process, make_node
from tests.support.other_user import as_other_user
from tests.support.terminal import in_pipe, on_terminal
from tests.unit.cli.served_process import served

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.settings.settings import Settings

KUBELET = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


@pytest.fixture
def node_settings(tmp_path: Path) -> Settings:
    state = tmp_path / "state"
    state.mkdir(mode=0o750)
    overrides = {"runtime.endpoint": f"unix://{tmp_path}/none.sock", "role": "standalone"}
    return replace(load(None, overrides, {}).config.settings(), state_directory=state)


def write(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("problems", "warnings", "text"),
    [
        (0, 0, "1 check: no problems, no warnings"),
        (1, 2, "4 checks: 1 problem, 2 warnings"),
        (3, 1, "5 checks: 3 problems, 1 warning"),
    ],
)
def test_summary_counts_problems_and_warnings(problems: int, warnings: int, text: str) -> None:
    verdicts = [Grade.OK, *[Grade.PROBLEM] * problems, *[Grade.WARNING] * warnings]
    assert summary([Finding("agent", each, "evidence") for each in verdicts]) == text


def test_terminal_shows_problems_first_and_only_the_names_of_other_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Finding("one", Grade.OK, "fine"), Finding("two", Grade.SKIPPED, "off"), Finding("three", Grade.OK, "good")]
    found += [Finding("four", Grade.WARNING, "bad"), Finding("five", Grade.PROBLEM, "worse", "repair it")]
    monkeypatch.setattr(checks, "run_checks", lambda *_, **__: found)
    monkeypatch.setenv("NO_COLOR", "1")
    config = tmp_path / "config.toml"
    config.write_text("")
    command = ("doctor", "--config", str(config))
    problems = ["problem  five  worse", "  fix: repair it", "warning  four  bad"]
    shown = on_terminal(80, *command).out.splitlines()
    assert shown[:-1] == [*problems, "ok       configuration, one, three", "skipped  two"]
    assert shown[-1] == "6 checks: 1 problem, 1 warning; -o wide lists all"
    for all_of_them in (in_pipe(*command), on_terminal(80, *command, "-o", "wide")):
        lines = [line.split() for line in all_of_them.out.splitlines()]
        assert [line[1] for line in lines if line[0] in ("ok", "skipped")] == ["configuration", "one", "three", "two"]
        assert lines[0] == ["problem", "five", "worse"]


def test_times_are_local_in_the_table_and_utc_in_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    usable = Certificate(("CN=system:node:node-1", "O=system:nodes"), at, at)
    found = [
        check_client_certificate(usable, "", None, node="node-1", renewal_at=at, dry_run=False),
        check_certificate(Finding("metrics", Grade.OK, ""), "", at, at),
        check_api_access("", (), at, foreign="", has_node=True, now=at),
        check_image_use(at, at, maximum_s=0.0),
        Finding("other", Grade.PROBLEM, f"problem at {format_time(at)}", f"wait until {format_time(at)}"),
    ]
    monkeypatch.setattr(checks, "run_checks", lambda *_, **__: found)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    config = tmp_path / "config.toml"
    config.write_text("")
    time.tzset()
    try:
        table = in_pipe("doctor", "--config", str(config)).out
        document = in_pipe("doctor", "-o", "json", "--config", str(config)).out
    finally:
        monkeypatch.undo()
        time.tzset()
    assert document.count("2026-03-01T12:00:00.000Z") == table.count("2026-03-01 13:00:00 CET") == 7
    assert "UTC" not in document + table


@pytest.mark.usefixtures("proc")
def test_kubelet_configuration_in_force_is_compared_with_the_settings(node_settings: Settings, tmp_path: Path) -> None:
    make_node(tmp_path)
    assert [each.verdict for each in checks.kubelet_findings(node_settings, tmp_path)] == [Grade.SKIPPED] * 3
    write(tmp_path, "etc/kubernetes/kubelet/config.json", f'{KUBELET}shutdownGracePeriod: "30s" # seconds')
    add_process(
        tmp_path,
        812,
        "kubelet",
        ("/usr/bin/kubelet", "--config=/etc/kubernetes/kubelet/config.json", "--image-gc-high-threshold=75"),
    )
    _, config, images, _ = checks.kubelet_findings(node_settings, tmp_path)
    assert config.evidence == (
        "/etc/kubernetes/kubelet/config.json, command line: imageGCHighThresholdPercent 75, "
        "evictionHard imagefs.available 15%, shutdownGracePeriod 30s"
    )
    assert (images.check, images.verdict) == ("kubelet-overlap-images", Grade.WARNING)
    assert images.evidence == (
        "the kubelet removes images at 75% (imageGCHighThresholdPercent 75), before the agent does (85%); "
        "2 triggers: nodeagent doctor -o wide"
    )
    assert images.fix.startswith("set image_gc.high_threshold_percent = 70 and low_threshold_percent = 65")


@pytest.mark.usefixtures("proc")
@pytest.mark.parametrize("running", [True, False])
def test_amount_is_converted_only_with_the_filesystem_that_the_runtime_reports(
    config: Path, tmp_path: Path, *, running: bool
) -> None:
    make_node(tmp_path)
    write(tmp_path, "var/lib/kubelet/config.yaml", f"{KUBELET}evictionHard: {{imagefs.available: 1Mi}}")
    add_process(tmp_path, 812, "kubelet", ("/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml"))
    settings = load(config, {}, {}).config.settings()
    with served(tmp_path) if running else nullcontext():
        _, _, first, *_ = checks.kubelet_findings(settings, tmp_path)
    (row,) = [each for each in first.triggers if each.task == "images" and "imagefs.available" in each.kubelet]
    assert (row.kubelet_value is not None) is running
    assert row.first == ("agent" if running else "unknown")


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        (Role.STANDALONE, "no configuration of a kubelet found"),
        (Role.BESIDE_KUBELET, "configuration of the kubelet unknown: its process and files are not visible"),
    ],
)
def test_unseen_configuration_of_a_kubelet_is_absent_only_on_a_node_without_kubelet(
    node_settings: Settings, tmp_path: Path, *, role: Role, statement: str
) -> None:
    make_node(tmp_path)
    _, config, overlap = checks.kubelet_findings(replace(node_settings, role=role), tmp_path)
    assert (config.check, overlap.check) == ("kubelet-config", "kubelet-overlap")
    assert config.evidence == overlap.evidence
    assert config.evidence.startswith(statement)


@pytest.mark.usefixtures("proc")
@pytest.mark.parametrize(("through_api", "running"), [(True, True), (True, False), (False, True), (False, False)])
def test_restart_of_evicted_pods_is_warned_of_only_if_they_are_evicted_through_the_runtime(
    node_settings: Settings, tmp_path: Path, *, through_api: bool, running: bool
) -> None:
    make_node(tmp_path)
    write(tmp_path, "var/lib/kubelet/config.yaml", KUBELET)  # remains after the removal of a kubelet
    if running:
        add_process(tmp_path, 812, "kubelet", ("/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml"))
    eviction = replace(node_settings.eviction, enabled=True, through_api=through_api)
    findings = checks.kubelet_findings(replace(node_settings, eviction=eviction), tmp_path)
    assert any("restarts pods" in each.evidence for each in findings) is not running


@pytest.mark.usefixtures("proc")
@pytest.mark.parametrize(
    ("name", "flags", "own", "verdict"),
    [
        ("kubelet", ["--container-runtime-endpoint=unix://{root}/run/crio/crio.sock"], "crio/crio", Grade.OK),
        ("kubelet", ["--container-runtime-endpoint", "{root}/run/b.sock"], "crio/crio", Grade.PROBLEM),
        ("k3s-server", [], "k3s/containerd/containerd", Grade.OK),
        ("k3s-server", [], "containerd/containerd", Grade.PROBLEM),
        ("kubelet", [], "containerd/containerd", Grade.SKIPPED),
    ],
)
def test_runtime_of_the_agent_is_compared_with_that_of_the_kubelet(
    node_settings: Settings, tmp_path: Path, *, name: str, flags: list[str], own: str, verdict: Grade
) -> None:
    make_node(tmp_path)
    write(tmp_path, f"run/{own}.sock")
    add_process(tmp_path, 812, name, (name, *(each.format(root=tmp_path) for each in flags)))
    (finding, *_) = checks.kubelet_findings(replace(node_settings, endpoint=""), tmp_path)
    assert (finding.check, finding.verdict) == ("kubelet-runtime", verdict)
    assert bool(finding.fix) == (verdict is Grade.PROBLEM)


def test_state_directory_writable_by_others_is_a_warning(node_settings: Settings) -> None:
    assert checks.state_finding(node_settings).verdict is Grade.OK
    node_settings.state_directory.chmod(0o777)
    assert "mode 0777" in checks.state_finding(node_settings).evidence
    node_settings.state_directory.rmdir()
    assert checks.state_finding(node_settings).verdict is Grade.OK
    node_settings.state_directory.write_text("a file")
    assert checks.state_finding(node_settings).verdict is Grade.PROBLEM


def test_broken_database_is_reported_and_not_changed(node_settings: Settings) -> None:
    assert checks.store_finding(node_settings).evidence == "no databases yet"
    sound, broken = node_settings.state_directory / "history.db", node_settings.state_directory / "nodeagent.db"
    with closing(sqlite3.connect(sound)) as connection:
        connection.execute("CREATE TABLE t (x)")
    assert checks.store_finding(node_settings).evidence == "history.db: sound"
    broken.write_bytes(b"no database" * 100)
    finding = checks.store_finding(node_settings)
    assert (finding.verdict, str(broken) in finding.evidence) == (Grade.WARNING, True)
    assert sorted(each.name for each in node_settings.state_directory.iterdir()) == ["history.db", "nodeagent.db"]


def test_unreadable_holds_are_a_problem(node_settings: Settings) -> None:
    assert checks.hold_finding(node_settings).evidence == "0 hold(s)"
    (node_settings.state_directory / "holds.json").write_text("[")
    assert checks.hold_finding(node_settings).verdict is Grade.PROBLEM


@pytest.mark.parametrize(("kernel_estimate", "verdict"), [(True, Grade.OK), (False, Grade.WARNING)])
def test_memory_threshold_below_the_watermarks_is_a_warning(
    node_settings: Settings, tmp_path: Path, verdict: Grade, *, kernel_estimate: bool
) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 8192 kB\n")
    write(tmp_path, "proc/sys/vm/min_free_kbytes", "45056\n")
    write(tmp_path, "sys/fs/cgroup/memory.stat", f"anon {700 << 20}\nfile {200 << 20}\ninactive_file {80 << 20}\n")
    eviction = replace(node_settings.eviction, kernel_estimate=kernel_estimate)
    finding = doctor_memory.memory_finding(replace(node_settings, eviction=eviction), tmp_path)
    assert (finding.check, finding.verdict) == ("memory-thresholds", verdict)


def test_reclaim_of_page_cache_without_a_unit_or_disabled_is_skipped(node_settings: Settings) -> None:
    assert doctor_memory.cache_finding(node_settings).verdict is Grade.SKIPPED
    eviction = replace(node_settings.eviction, reclaim_cache=False)
    finding = doctor_memory.cache_finding(replace(node_settings, eviction=eviction))
    assert (finding.verdict, finding.evidence) == (Grade.SKIPPED, "eviction.reclaim = false")


def test_memory_without_readings_is_skipped(node_settings: Settings, tmp_path: Path) -> None:
    assert doctor_memory.memory_finding(node_settings, tmp_path).verdict is Grade.SKIPPED


def test_failed_check_does_not_prevent_the_others(node_settings: Settings, tmp_path: Path) -> None:
    write(tmp_path, "var/lib/kubelet/config.yaml", "{")
    unit = "[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml"
    write(tmp_path, "etc/systemd/system/kubelet.service", unit)
    write(tmp_path, "run/systemd/journal/socket")
    findings = {each.check: each for each in checks.run_checks(node_settings, tmp_path, is_root=True)}
    assert "neither YAML nor JSON" in findings["kubelet-config"].evidence
    assert findings["journal"].verdict is Grade.OK
    assert findings["runtime"].verdict is Grade.PROBLEM
    assert findings["runtime"].fix


@pytest.mark.skipif(os.geteuid() != 0, reason="changing to another user requires root")
def test_missing_permission_is_not_reported_as_a_problem_of_the_node(node_settings: Settings, tmp_path: Path) -> None:
    for name in ("none.sock", "control.sock"):
        with socket.socket(socket.AF_UNIX) as unanswered:
            unanswered.bind(str(tmp_path / name))
        (tmp_path / name).chmod(0o600)
    (node_settings.state_directory / "holds.json").write_text("{}")
    tmp_path.chmod(0o755)
    node_settings = replace(node_settings, control=ControlSettings(tmp_path / "control.sock"))
    with as_other_user():
        findings = {each.check: each for each in checks.run_checks(node_settings, tmp_path, is_root=False)}
    for name in ("runtime", "state-directory", "stores", "holds", "history", "agent"):
        finding = findings[name]
        assert (finding.verdict, "permission denied" in finding.evidence) == (Grade.WARNING, True), name
        assert finding.fix == "run as root: sudo nodeagent doctor"


def test_stopped_agent_is_a_warning(node_settings: Settings, tmp_path: Path) -> None:
    control = ControlSettings(tmp_path / "none.sock", "no-such-group")
    agent, group = checks.agent_findings(replace(node_settings, control=control))
    assert (agent.verdict, "no agent listening on control socket" in agent.evidence) == (Grade.WARNING, True)
    assert group.verdict is Grade.WARNING
    (disabled,) = checks.agent_findings(replace(node_settings, control=ControlSettings(None)))
    assert disabled.verdict is Grade.SKIPPED


@pytest.mark.difference("logind-limit")
def test_logind_drop_in_is_written_only_for_a_too_short_limit(
    node_settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drop_in = tmp_path / "etc/systemd/logind.conf.d/zz-nodeagent.conf"
    fix_logind(replace(node_settings, shutdown=replace(node_settings.shutdown, enabled=False)), tmp_path)
    assert "logind configuration not changed: graceful shutdown disabled" in capsys.readouterr().err
    fix_logind(replace(node_settings, shutdown=replace(node_settings.shutdown, phases=())), tmp_path)
    assert not drop_in.exists()
    fix_logind(node_settings, tmp_path)
    assert "InhibitDelayMaxSec=34\n" in drop_in.read_text()
    drop_in.unlink()
    write(tmp_path, "etc/systemd/logind.conf", "[Login]\nInhibitDelayMaxSec=5min\n")
    fix_logind(node_settings, tmp_path)
    assert not drop_in.exists()
    assert "allows at least 34s" in capsys.readouterr().err


@pytest.mark.parametrize(("allowed_s", "verdict"), [(30, Grade.WARNING), (31, Grade.OK)])
def test_reserve_of_the_daemon_counts_against_the_limit_of_logind(
    node_settings: Settings, tmp_path: Path, allowed_s: int, verdict: Grade
) -> None:
    write(tmp_path, "etc/systemd/logind.conf", f"[Login]\nInhibitDelayMaxSec={allowed_s}\n")
    found = checks.shutdown_findings(node_settings, tmp_path, lambda: (None, "no bus here"))
    assert {each.check: each.verdict for each in found}["logind-delay"] is verdict


def test_line_that_disables_cri_is_named_for_a_runtime_without_an_answer(
    node_settings: Settings, tmp_path: Path
) -> None:
    (unknown,) = checks.runtime_findings(node_settings, tmp_path)
    write(tmp_path, "etc/containerd/config.toml", 'disabled_plugins = ["cri"]\n')
    (known,) = checks.runtime_findings(node_settings, tmp_path)
    assert known.verdict is unknown.verdict is Grade.PROBLEM
    assert "; /etc/containerd/config.toml:1: disabled_plugins" in known.evidence
    assert ("disabled_plugins" in known.fix, "disabled_plugins" in unknown.evidence) == (True, False)


@pytest.mark.parametrize(("socket", "is_named"), [("run/containerd/containerd.sock", True), (K3S_SOCKET, False)])
def test_default_configuration_is_not_that_of_a_stopped_runtime_of_a_distribution(
    node_settings: Settings, tmp_path: Path, socket: str, *, is_named: bool
) -> None:
    write(tmp_path, "etc/containerd/config.toml", 'disabled_plugins = ["cri"]\n')
    (finding,) = checks.runtime_findings(replace(node_settings, endpoint=f"unix://{tmp_path / socket}"), tmp_path)
    assert ("disabled_plugins" in finding.evidence) is is_named


def test_faults_of_the_configuration_are_named_for_a_runtime_without_an_answer(
    node_settings: Settings, tmp_path: Path
) -> None:
    write(tmp_path, "etc/containerd/config.toml", 'imports = ["a.toml"]\n')
    (finding,) = checks.runtime_findings(node_settings, tmp_path)
    expected = "; /etc/containerd/config.toml:1: cannot read /etc/containerd/a.toml: No such file or directory"
    assert finding.evidence.endswith(expected)


def test_lines_of_logind_without_effect_are_named(node_settings: Settings, tmp_path: Path) -> None:
    write(tmp_path, "etc/systemd/logind.conf", "[Login]\nInhibitDelayMaxSec=60\n")
    write(tmp_path, "usr/lib/systemd/logind.conf.d/20-vendor.conf", "[Login]\nInhibitDelayMaxSec=10\n")
    write(tmp_path, "etc/systemd/logind.conf.d/99-local", "[Login]\nInhibitDelayMaxSec=60\n")

    def named(settings: Settings) -> list[str]:
        found = checks.shutdown_findings(settings, tmp_path, lambda: (None, "no bus here"))
        return [each.evidence.split(":")[0] for each in found if each.check == "logind-files"]

    assert named(node_settings) == [
        str(tmp_path / "etc/systemd/logind.conf"),
        str(tmp_path / "etc/systemd/logind.conf.d/99-local"),
    ]
    assert named(replace(node_settings, shutdown=replace(node_settings.shutdown, enabled=False))) == []


@pytest.mark.parametrize(("timeout_s", "is_short"), [(40, True), (41, False), (None, False)])
def test_stop_timeout_of_the_unit_below_the_phases_and_the_reserve_is_a_warning(
    node_settings: Settings, monkeypatch: pytest.MonkeyPatch, timeout_s: int | None, *, is_short: bool
) -> None:
    monkeypatch.setattr("nodeagent.doctor.host_facts.read_unit_exposure", lambda _: 1.8)
    monkeypatch.setattr(checks, "read_stop_timeout_us", lambda _: timeout_s and timeout_s * 1_000_000)
    found = list(checks.unit_findings(node_settings))
    assert [each.check for each in found] == ["unit", *(["unit-stop-timeout"] if is_short else [])]
    assert not is_short or "TimeoutStopSec=44 " in found[1].fix
    off = replace(node_settings, shutdown=replace(node_settings.shutdown, enabled=False))
    assert [each.check for each in checks.unit_findings(off)] == ["unit"]


def test_running_kubelet_disables_eviction_and_shutdown(node_settings: Settings, tmp_path: Path) -> None:
    on = replace(
        node_settings,
        eviction=replace(node_settings.eviction, enabled=True),
        shutdown=replace(node_settings.shutdown, enabled=True),
    )
    root = make_node(tmp_path / "node")
    assert [(each.check, each.verdict) for each in checks.role_findings(on, root)] == [("role", Grade.OK)]
    add_process(root, 812, "kubelet", ("/usr/bin/kubelet",))
    findings = {each.check: each for each in checks.role_findings(on, root)}
    assert {name: each.verdict for name, each in findings.items()} == {
        "role": Grade.WARNING,
        "eviction-refused": Grade.WARNING,
        "shutdown-refused": Grade.WARNING,
    }
    assert "kubelet process 812" in findings["role"].evidence
    assert "is refused: a kubelet manages this node" in findings["eviction-refused"].evidence


def test_role_is_unknown_with_hidden_processes(node_settings: Settings, tmp_path: Path) -> None:
    (finding,) = checks.role_findings(replace(node_settings, role=None), tmp_path)
    assert (finding.verdict, "unknown, treated as beside a kubelet" in finding.evidence) == (Grade.WARNING, True)
