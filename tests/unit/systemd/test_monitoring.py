"""Alerting rules and dashboard: valid queries on declared metrics, and alerts with their test cases."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.telemetry.counters import METRICS, Kind

HERE = Path(__file__).parent
SYSTEMD = Path(__file__).parents[3] / "systemd"
RULES = SYSTEMD / "nodeagent.rules.yml"
CASES = ("nodeagent.rules.test.yml", "nodeagent.days.test.yml")
DASHBOARD = SYSTEMD / "grafana-dashboard.json"
_NAME = re.compile(r"(?<!:)\b(?:nodeagent|kubelet)_[a-z0-9_]+")
_RECORDED = re.compile(r"\b[a-z_]+:nodeagent_[a-z0-9_]+:[a-z0-9_]+")
_OTHERS = re.compile(r"\b(?:process_[a-z_]+|up)\b")


def promql_names() -> set[str]:
    """Return the names that queries can use: declared metrics, histograms with their suffixes."""
    ends = ("_bucket", "_sum", "_count")
    spread = {name + end for name, metric in METRICS.items() if metric.kind is Kind.HISTOGRAM for end in ends}
    return (set(METRICS) | spread) - {name for name, metric in METRICS.items() if metric.kind is Kind.HISTOGRAM}


def rules() -> list[dict[str, Any]]:
    """Return the alerting rules of the rule file."""
    return groups()["nodeagent"]


def recording_rules() -> dict[str, str]:
    """Return the expressions of the recording rules by name."""
    return {each["record"]: each["expr"] for each in groups()["nodeagent-fleet"]}


def groups() -> dict[str, list[dict[str, Any]]]:
    return {each["name"]: each["rules"] for each in yaml.safe_load(RULES.read_text())["groups"]}


def panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return panels


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def run(promtool: str, *words: str, at: Path) -> None:
    result = subprocess.run([promtool, *words], capture_output=True, text=True, check=False, timeout=120, cwd=at)
    assert result.returncode == 0, result.stdout + result.stderr


def labels_of(expression: str) -> set[str]:
    """Return the label names that an expression matches or groups by."""
    matched = re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = [
        name for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression) for name in re.split(r"[\s,]+", group)
    ]
    return {*matched, *grouped} - {""}


@pytest.mark.parametrize("expression", [*(each["expr"] for each in rules()), *recording_rules().values(), *queries()])
def test_query_uses_only_declared_metrics_and_labels(expression: str) -> None:
    names = set(_NAME.findall(expression))
    assert names <= promql_names()
    assert names or _OTHERS.search(expression) or _RECORDED.search(expression)
    assert set(_RECORDED.findall(expression)) <= set(recording_rules())
    metrics = [METRICS[re.sub(r"_(bucket|sum|count)$", "", each)] for each in names]
    known = {label for each in metrics for label in each.labels} | {"job", "instance", "le"}
    known |= {label for each in _RECORDED.findall(expression) for label in labels_of(recording_rules()[each])}
    assert labels_of(expression) <= known


def test_dashboard_shows_every_metric_except_listed_ones() -> None:
    excluded = {
        "kubelet_image_garbage_collected_total": "removals by kind",
        "kubelet_evictions": "evictions by outcome",
        "kubelet_runtime_operations_errors_total": "errors by status",
        "nodeagent_containerd_call_errors_total": "errors by status",
        "kubelet_graceful_shutdown_start_time_seconds": "lost at the shutdown of the node",
        "kubelet_graceful_shutdown_end_time_seconds": "lost at the shutdown of the node",
        "nodeagent_pass_end_timestamp_seconds": "end time of each task's last run",
        "nodeagent_history_records_dropped_total": "whether the history is on disk",
        "nodeagent_pod_list_pods": "part of the status",
        "nodeagent_pod_list_synced": "part of the status",
        "nodeagent_task_runs_total": "passes",
    }
    displayed = {re.sub(r"_(bucket|sum|count)$", "", each) for query in queries() for each in _NAME.findall(query)}
    assert displayed | set(excluded) == set(METRICS)
    assert not displayed & set(excluded)


def test_dashboard_panels_are_unique_described_and_do_not_overlap() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [each["id"] for each in panels()]
    assert len(set(ids)) == len(ids)
    assert {each["name"] for each in dashboard["templating"]["list"]} == {"datasource", "job", "instance"}
    occupied: set[tuple[int, int]] = set()
    row = ""
    for panel in panels():
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not cells & occupied, panel["title"]
        assert position["x"] + position["w"] <= 24
        occupied |= cells
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            selected = 'job=~"$job"}' if row == "Fleet" else 'job=~"$job",instance=~"$instance"'
            assert all(selected in each["expr"] for each in panel["targets"]), panel["title"]
        else:
            row = panel["title"]


def test_every_alert_has_severity_summary_and_description() -> None:
    for each in rules():
        assert each["alert"].startswith("Nodeagent")
        assert each["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(each["annotations"]) == {"summary", "description"}
        assert "$labels.instance" in each["annotations"]["summary"], each["alert"]
        assert each["annotations"]["description"].endswith("."), each["alert"]


def test_every_alert_has_a_firing_and_a_silent_case() -> None:
    cases = [group for each in CASES for group in yaml.safe_load((HERE / each).read_text())["tests"]]
    firing: set[str] = set()
    silent: set[str] = set()
    for case in (each for group in cases for each in group["alert_rule_test"]):
        (firing if case.get("exp_alerts") else silent).add(case["alertname"])
    assert firing == silent == {each["alert"] for each in rules()}


def test_fleet_is_the_first_row_and_uses_every_recording_rule() -> None:
    fleet: list[str] = []
    for panel in panels()[1:]:
        if panel["type"] == "row":
            break
        fleet += [each["expr"] for each in panel["targets"]]
    assert panels()[0]["title"] == "Fleet"
    assert {name for each in fleet for name in _RECORDED.findall(each)} == set(recording_rules())


def test_rules_pass_promtool_check(promtool: str) -> None:
    run(promtool, "check", "rules", "--lint-fatal", RULES.name, at=SYSTEMD)


def test_alerts_fire_in_their_cases(promtool: str, tmp_path: Path) -> None:
    alerts = [{key: value for key, value in each.items() if key != "annotations"} for each in rules()]
    (tmp_path / RULES.name).write_text(yaml.safe_dump({"groups": [{"name": "nodeagent", "rules": alerts}]}))
    for each in CASES:
        shutil.copy(HERE / each, tmp_path)
    run(promtool, "test", "rules", *CASES, at=tmp_path)


def test_recording_rules_count_and_rank_the_nodes_of_a_fleet(promtool: str, tmp_path: Path) -> None:
    for each in (RULES, HERE / "nodeagent.fleet.test.yml"):
        shutil.copy(each, tmp_path)
    run(promtool, "test", "rules", "nodeagent.fleet.test.yml", at=tmp_path)
    text = (HERE / "nodeagent.fleet.test.yml").read_text()
    assert set(_RECORDED.findall(text)) == set(recording_rules())


def test_alert_annotations_are_rendered(promtool: str, tmp_path: Path) -> None:
    for each in (RULES, HERE / "nodeagent.texts.test.yml"):
        shutil.copy(each, tmp_path)
    run(promtool, "test", "rules", "nodeagent.texts.test.yml", at=tmp_path)


def test_dashboard_queries_pass_promtool_check(promtool: str, tmp_path: Path) -> None:
    recording_rules = [
        {"record": f"panel:{number}", "expr": each.replace("$__rate_interval", "5m")}
        for number, each in enumerate(queries())
    ]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recording_rules}]}))
    run(promtool, "check", "rules", "panels.yml", at=tmp_path)


def test_documented_examples_pass_promtool_check(promtool: str, tmp_path: Path) -> None:
    text = (SYSTEMD.parent / "nodeagent/docs/metrics.md").read_text()
    shutil.copy(RULES, tmp_path)
    configurations = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "scrape_configs" in each]
    assert configurations
    for number, block in enumerate(configurations):
        path = tmp_path / f"{number}.yml"
        path.write_text(re.sub(r"[^\s\[]*/nodeagent\.rules\.yml", str(tmp_path / RULES.name), block))
        options = ["--syntax-only"] if "tls_config" in block else []  # TLS files exist only on the Prometheus server
        run(promtool, "check", "config", *options, path.name, at=tmp_path)
    queried = re.findall(r"```promql\n(.*?)```", text, re.DOTALL)
    assert queried
    examples = [{"record": "document:line", "expr": each} for each in "".join(queried).splitlines() if each.strip()]
    (tmp_path / "queried.yml").write_text(yaml.safe_dump({"groups": [{"name": "document", "rules": examples}]}))
    run(promtool, "check", "rules", "queried.yml", at=tmp_path)
    for each in examples:
        assert set(_NAME.findall(each["expr"])) <= promql_names(), each
