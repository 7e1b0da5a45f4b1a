"""Commands for saved plans: save, apply and compare; drift."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.command import nodeagent
from tests.unit.cli.served_process import served

if TYPE_CHECKING:
    from pathlib import Path


def test_saved_plan_is_applied_and_its_drift_reported(config: Path, tmp_path: Path) -> None:
    saved, later = (tmp_path / f"{name}.json" for name in ("plan", "later"))
    loose = ("--high", "1", "--low", "0", "--minimum-age", "0s")
    rules = (*loose, "--scope", "images")
    with served(tmp_path):
        planned = nodeagent("plan", "--out", str(saved), *rules, "--config", str(config))
        assert (planned.returncode, planned.stdout) == (0, ""), planned.stderr
        listed = [each for each in json.loads(saved.read_text())["decisions"] if each["verdict"] == "remove"]
        assert len(listed) > 2
        refused = nodeagent("plan", "--out", str(saved), "--config", str(config))
        assert (refused.returncode, "--force" in refused.stderr) == (2, True)
        hold = nodeagent("hold", "add", listed[0]["name"], "--for", "2h", "--why", "debugging", "--config", str(config))
        assert hold.stdout.startswith(f"hold 1 on {listed[0]['name']} until ")
        assert f"the configuration keeps {len(listed)} of the listed items; 'nodeagent apply' needs" in planned.stderr
        strict = nodeagent("apply", str(saved), "--dry-run", "--output", "json", "--config", str(config))
        assert len(json.loads(strict.stdout)["drift"]) == len(listed), "the configuration keeps all"
        shown = nodeagent("apply", str(saved), "--dry-run", "--output", "json", *loose, "--config", str(config))
        assert shown.returncode == 3
        assert [each["id"] for each in json.loads(shown.stdout)["drift"]] == [listed[0]["id"]]
        applied = nodeagent("apply", str(saved), "--yes", "--output", "json", *loose, "--config", str(config))
        assert applied.returncode == 3, applied.stderr
        report = json.loads(applied.stdout)["report"]
        assert {each["id"] for each in report["results"]} == {each["id"] for each in listed[1:]}
        history = json.loads(nodeagent("history", "--output", "json", "--config", str(config)).stdout)
        assert [each["plan_id"] for each in history["passes"]] == [json.loads(saved.read_text())["id"]]
        assert len(history["passes"][0]["actions"]) == len(listed) - 1
        assert nodeagent("plan", "--out", str(later), *rules, "--config", str(config)).returncode == 0
        differing = nodeagent("plan", "diff", str(saved), str(later))
        assert (differing.returncode, "keep: held" in differing.stdout) == (1, True)
        assert nodeagent("plan", "diff", str(saved), str(saved)).returncode == 0
        removed = nodeagent("explain", listed[1]["name"], "--config", str(config))
        assert (removed.returncode, "done, least recently used" in removed.stdout) == (0, True)
        kept = json.loads(nodeagent("explain", listed[0]["id"], "--output", "json", "--config", str(config)).stdout)
        assert [each["reason"]["code"] for each in kept["explanations"]] == ["held"]
        assert nodeagent("hold", "remove", "1", "--config", str(config)).returncode == 0
        assert json.loads(nodeagent("hold", "list", "-o", "json", "-c", str(config)).stdout)["holds"] == []


def test_changed_plan_is_refused_by_apply_and_diff(config: Path, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    with served(tmp_path):
        assert nodeagent("plan", "--out", str(saved), "--scope", "images", "--config", str(config)).returncode == 0
        saved.write_text(saved.read_text().replace('"images"', '"all"'))
        for words in (("apply", str(saved), "--dry-run", "--config", str(config)), ("plan", "diff", saved, saved)):
            refused = nodeagent(*map(str, words))
            assert (refused.returncode, "changed since it was saved" in refused.stderr) == (2, True), refused.stderr


def test_removal_prevented_by_dry_run_of_the_configuration_is_reported(config: Path, tmp_path: Path) -> None:
    saved, rules = tmp_path / "plan.json", ("--high", "1", "--low", "0", "--minimum-age", "0s")
    config.write_text(f"dry_run = true\n{config.read_text()}")
    with served(tmp_path):
        for words in (("gc", "images", *rules), ("gc", "all", "-o", "json", *rules)):
            ended = nodeagent(*words, "--yes", "--config", str(config))
            assert "nothing was removed: dry_run = true in the configuration; --no-dry-run removes" in ended.stderr
            assert "dry_run = true" not in nodeagent(*words, "--dry-run", "--config", str(config)).stderr
        options = ("--scope", "images", *rules, "--config", str(config))
        assert nodeagent("plan", "--out", str(saved), *options).returncode == 0
        applied = nodeagent("apply", str(saved), "--yes", *rules, "--config", str(config))
        assert "nothing was removed: dry_run = true in the configuration; --no-dry-run removes" in applied.stderr
