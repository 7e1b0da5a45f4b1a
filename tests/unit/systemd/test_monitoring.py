"""Alert rules and dashboard: they load, speak of metrics that are told, and go off when they should."""

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
DASHBOARD = SYSTEMD / "grafana-dashboard.json"
_NAME = re.compile(r"\b(?:nodeagent|kubelet)_[a-z0-9_]+")
_OTHERS = re.compile(r"\b(?:process_[a-z_]+|up)\b")


def promql_names() -> set[str]:
    """Return every name that a query may use."""
    ends = ("_bucket", "_sum", "_count")
    spread = {name + end for name, metric in METRICS.items() if metric.kind is Kind.HISTOGRAM for end in ends}
    return (set(METRICS) | spread) - {name for name, metric in METRICS.items() if metric.kind is Kind.HISTOGRAM}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def run(promtool: str, *words: str, at: Path) -> None:
    ended = subprocess.run([promtool, *words], capture_output=True, text=True, check=False, timeout=120, cwd=at)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def labels_of(expression: str) -> set[str]:
    """Return the label names that an expression matches or groups by."""
    matched = re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = [
        name for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression) for name in re.split(r"[\s,]+", group)
    ]
    return {*matched, *grouped} - {""}


@pytest.mark.parametrize("expression", [each["expr"] for each in rules()] + queries())
def test_a_query_speaks_of_what_is_told(expression: str) -> None:
    names = set(_NAME.findall(expression))
    assert names <= promql_names()
    assert names or _OTHERS.search(expression)
    metrics = [METRICS[re.sub(r"_(bucket|sum|count)$", "", each)] for each in names]
    known = {label for each in metrics for label in each.labels} | {"job", "instance", "le"}
    assert labels_of(expression) <= known


def test_the_dashboard_shows_every_metric_or_says_why_not() -> None:
    left_out = {
        "kubelet_image_garbage_collected_total": "removals by kind",
        "kubelet_evictions": "evictions by outcome",
        "kubelet_runtime_operations_errors_total": "errors by status",
        "kubelet_graceful_shutdown_start_time_seconds": "lost with the node that goes down",
        "kubelet_graceful_shutdown_end_time_seconds": "likewise",
        "nodeagent_pass_end_timestamp_seconds": "the end of each task's last run",
        "nodeagent_threshold_limit": "the distance",
        "nodeagent_task_enabled": "an alert on what is disabled would be one on the configuration",
        "nodeagent_task_runs_total": "passes",
    }
    shown = {re.sub(r"_(bucket|sum|count)$", "", each) for query in queries() for each in _NAME.findall(query)}
    assert shown | set(left_out) == set(METRICS)
    assert not shown & set(left_out)


def test_the_dashboard_is_whole() -> None:
    made = json.loads(DASHBOARD.read_text())
    ids = [each["id"] for each in panels()]
    assert len(set(ids)) == len(ids)
    assert {each["name"] for each in made["templating"]["list"]} == {"datasource", "job", "instance"}
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert all('job=~"$job",instance=~"$instance"' in each["expr"] for each in panel["targets"])


def test_every_alert_says_what_and_what_to_do() -> None:
    for each in rules():
        assert each["alert"].startswith("Nodeagent")
        assert each["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(each["annotations"]) == {"summary", "description"}
        assert "$labels.instance" in each["annotations"]["summary"], each["alert"]
        assert each["annotations"]["description"].endswith("."), each["alert"]


def test_every_alert_has_a_case_in_which_it_goes_off_and_one_in_which_it_does_not() -> None:
    cases = yaml.safe_load((HERE / "nodeagent.rules.test.yml").read_text())["tests"]
    loud: set[str] = set()
    quiet: set[str] = set()
    for case in (each for group in cases for each in group["alert_rule_test"]):
        (loud if case.get("exp_alerts") else quiet).add(case["alertname"])
    assert loud == quiet == {each["alert"] for each in rules()}


def test_the_rules_are_checked_by_prometheus(promtool: str) -> None:
    run(promtool, "check", "rules", "--lint-fatal", RULES.name, at=SYSTEMD)


def test_the_alerts_go_off_when_they_should(promtool: str, tmp_path: Path) -> None:
    bare = [{key: value for key, value in each.items() if key != "annotations"} for each in rules()]
    (tmp_path / RULES.name).write_text(yaml.safe_dump({"groups": [{"name": "nodeagent", "rules": bare}]}))
    shutil.copy(HERE / "nodeagent.rules.test.yml", tmp_path)
    run(promtool, "test", "rules", "nodeagent.rules.test.yml", at=tmp_path)


def test_the_alerts_read_well(promtool: str, tmp_path: Path) -> None:
    for each in (RULES, HERE / "nodeagent.texts.test.yml"):
        shutil.copy(each, tmp_path)
    run(promtool, "test", "rules", "nodeagent.texts.test.yml", at=tmp_path)


def test_prometheus_understands_the_queries_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    made = [
        {"record": f"panel:{number}", "expr": each.replace("$__rate_interval", "5m")}
        for number, each in enumerate(queries())
    ]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": made}]}))
    run(promtool, "check", "rules", "panels.yml", at=tmp_path)


def test_prometheus_understands_the_examples_of_the_readme(promtool: str, tmp_path: Path) -> None:
    text = (SYSTEMD.parent / "README.md").read_text()
    shutil.copy(RULES, tmp_path)
    configured = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "scrape_configs" in each]
    assert configured
    for number, block in enumerate(configured):
        path = tmp_path / f"{number}.yml"
        path.write_text(re.sub(r"[^\s\[]*/nodeagent\.rules\.yml", str(tmp_path / RULES.name), block))
        run(promtool, "check", "config", path.name, at=tmp_path)
    asked = re.findall(r"```promql\n(.*?)```", text, re.DOTALL)
    assert asked
    made = [{"record": "readme:line", "expr": each} for each in "".join(asked).splitlines() if each.strip()]
    (tmp_path / "asked.yml").write_text(yaml.safe_dump({"groups": [{"name": "readme", "rules": made}]}))
    run(promtool, "check", "rules", "asked.yml", at=tmp_path)
    for each in made:
        assert set(_NAME.findall(each["expr"])) <= promql_names(), each
