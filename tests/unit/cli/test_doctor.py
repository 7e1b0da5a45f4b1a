"""What the doctor reads of a node, on trees of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli import doctor, shutdown
from nodeagent.config.control import ControlSettings
from nodeagent.config.loading import load
from nodeagent.config.policies import settings
from nodeagent.errors import ConfigError
from nodeagent.plan.node_checks import Verdict
from tests.support.kubelet_tree import add_process, make_node

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.config.settings import Settings

KUBELET = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


@pytest.fixture
def made(tmp_path: Path) -> Settings:
    state = tmp_path / "state"
    state.mkdir(mode=0o750)
    overrides = {"runtime.endpoint": f"unix://{tmp_path}/none.sock", "role": "standalone"}
    return replace(settings(load(None, overrides, {}).config), state_directory=state)


def write(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_what_the_kernel_offers_is_read(tmp_path: Path) -> None:
    assert doctor._controllers(tmp_path) is None
    assert doctor._stalls(tmp_path) == []
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
    write(tmp_path, "proc/pressure/memory")
    assert doctor._controllers(tmp_path) == ["cpu", "memory", "pids"]
    assert doctor._stalls(tmp_path) == ["memory"]


def test_the_settings_of_a_kubelet_are_read_whatever_their_form(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    assert doctor._kubelet_settings(path) == {}
    path.write_text(f'{KUBELET}"shutdownGracePeriod": "30s" # seconds\nimageGCHighThresholdPercent: 100\n')
    found = doctor._kubelet_settings(path)
    assert (found["shutdownGracePeriod"], found["imageGCHighThresholdPercent"]) == ("30s", "100")
    path.write_text('{"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1", "clusterDNS": []}')
    assert doctor._kubelet_settings(path) == {"kind": "KubeletConfiguration"}
    path.write_text("{")
    with pytest.raises(ConfigError, match="neither YAML nor JSON"):
        doctor._kubelet_settings(path)


def test_a_state_directory_that_others_can_write_is_told(made: Settings) -> None:
    assert doctor._state(made).verdict is Verdict.OK
    made.state_directory.chmod(0o777)
    assert "mode 0777" in doctor._state(made).evidence
    made.state_directory.rmdir()
    assert doctor._state(made).verdict is Verdict.OK
    made.state_directory.write_text("a file")
    assert doctor._state(made).verdict is Verdict.PROBLEM


def test_a_broken_store_is_told_and_left_as_it_is(made: Settings) -> None:
    assert doctor._stores(made).evidence == "there are none yet"
    sound, broken = made.state_directory / "history.db", made.state_directory / "nodeagent.db"
    with closing(sqlite3.connect(sound)) as connection:
        connection.execute("CREATE TABLE t (x)")
    assert doctor._stores(made).evidence == "history.db: sound"
    broken.write_bytes(b"no database" * 100)
    finding = doctor._stores(made)
    assert (finding.verdict, str(broken) in finding.evidence) == (Verdict.WARNING, True)
    assert sorted(each.name for each in made.state_directory.iterdir()) == ["history.db", "nodeagent.db"]


def test_holds_that_cannot_be_read_are_a_problem(made: Settings) -> None:
    assert doctor._holds(made).evidence == "0 hold(s)"
    (made.state_directory / "holds.json").write_text("[")
    assert doctor._holds(made).verdict is Verdict.PROBLEM


def test_a_check_that_fails_does_not_keep_the_others_from_being_made(made: Settings, tmp_path: Path) -> None:
    write(tmp_path, "var/lib/kubelet/config.yaml", "{")
    write(tmp_path, "run/systemd/journal/socket")
    found = {each.check: each for each in doctor._all(made, tmp_path)}
    assert "neither YAML nor JSON" in found["kubelet-overlap"].evidence
    assert found["journal"].verdict is Verdict.OK
    assert found["runtime"].verdict is Verdict.PROBLEM
    assert found["runtime"].fix


def test_an_agent_that_does_not_run_is_told(made: Settings, tmp_path: Path) -> None:
    away, group = doctor._agent(replace(made, control=ControlSettings(tmp_path / "none.sock", "no-such-group")))
    assert (away.verdict, "no agent listens at" in away.evidence) == (Verdict.WARNING, True)
    assert group.verdict is Verdict.WARNING
    (off,) = doctor._agent(replace(made, control=ControlSettings(None)))
    assert off.verdict is Verdict.SKIPPED


def test_the_drop_in_for_logind_is_written_where_it_is_needed(
    made: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drop_in = tmp_path / "etc/systemd/logind.conf.d/zz-nodeagent.conf"
    doctor._fix_logind(replace(made, shutdown=replace(made.shutdown, enabled=False)), tmp_path)
    assert "left as it is" in capsys.readouterr().err
    doctor._fix_logind(replace(made, shutdown=replace(made.shutdown, phases=())), tmp_path)
    assert not drop_in.exists()
    doctor._fix_logind(made, tmp_path)
    assert "InhibitDelayMaxSec=34\n" in drop_in.read_text()
    drop_in.unlink()
    write(tmp_path, "etc/systemd/logind.conf", "[Login]\nInhibitDelayMaxSec=5min\n")
    doctor._fix_logind(made, tmp_path)
    assert not drop_in.exists()
    assert "allows 34 s and more already" in capsys.readouterr().err


@pytest.mark.parametrize(("allowed_s", "verdict"), [(30, Verdict.WARNING), (31, Verdict.OK)])
def test_what_the_daemon_keeps_back_counts_against_logind_s_limit(
    made: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed_s: int, verdict: Verdict
) -> None:
    monkeypatch.setattr(shutdown, "query_logind", lambda: (None, "no bus here"))
    write(tmp_path, "etc/systemd/logind.conf", f"[Login]\nInhibitDelayMaxSec={allowed_s}\n")
    found = {each.check: each for each in doctor._shutdown(made, tmp_path)}
    assert found["logind-delay"].verdict is verdict


def test_running_kubelet_is_shown_with_what_it_disables(made: Settings, tmp_path: Path) -> None:
    on = replace(made, eviction=replace(made.eviction, enabled=True), shutdown=replace(made.shutdown, enabled=True))
    root = make_node(tmp_path / "node")
    assert [(each.check, each.verdict) for each in doctor._role(on, root)] == [("role", Verdict.OK)]
    add_process(root, 812, "kubelet", ("/usr/bin/kubelet",))
    found = {each.check: each for each in doctor._role(on, root)}
    assert {name: each.verdict for name, each in found.items()} == {
        "role": Verdict.WARNING,
        "eviction-refused": Verdict.WARNING,
        "shutdown-refused": Verdict.WARNING,
    }
    assert "kubelet process 812" in found["role"].evidence
    assert "is refused: a kubelet manages this node" in found["eviction-refused"].evidence


def test_node_whose_processes_are_hidden_is_of_unknown_role(made: Settings, tmp_path: Path) -> None:
    (finding,) = doctor._role(replace(made, role=None), tmp_path)
    assert (finding.verdict, "unknown, treated as beside a kubelet" in finding.evidence) == (Verdict.WARNING, True)


@pytest.mark.parametrize(("high", "expected"), [(80, 80), (100, None)])
def test_a_threshold_of_100_collects_nothing(made: Settings, high: int, expected: int | None) -> None:
    images = replace(made.policy.images, high_threshold_percent=high)
    assert doctor._collects_from(replace(made, policy=replace(made.policy, images=images))) == expected
    assert doctor._collects_from(replace(made, image_interval_s=None)) is None
