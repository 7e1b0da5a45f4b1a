"""Commands for saved plans: save, apply and compare; signatures and drift."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.support.command import nodeagent
from tests.unit.cli.served_process import served

if TYPE_CHECKING:
    from pathlib import Path


def test_saved_plan_is_applied_and_its_drift_reported(config: Path, tmp_path: Path) -> None:
    saved, later, other = (tmp_path / f"{name}.json" for name in ("plan", "later", "other"))
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
        assert "apply' needs the same options" in planned.stderr
        strict = nodeagent("apply", str(saved), "--dry-run", "--output", "json", "--config", str(config))
        assert len(json.loads(strict.stdout)["drift"]) == len(listed), "the configuration is stricter than the plan"
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
        assert "no settings differ" in differing.stdout
        assert nodeagent("plan", "--out", str(other), "--scope", "images", "--config", str(config)).returncode == 0
        rules_differ = nodeagent("plan", "diff", str(saved), str(other)).stdout
        assert re.search(r"image_gc.high_threshold_percent +1 +85", rules_differ), rules_differ
        assert "image_gc.max_images_per_pass" not in rules_differ
        assert nodeagent("plan", "diff", str(saved), str(saved)).returncode == 0
        removed = nodeagent("explain", listed[1]["name"], "--config", str(config))
        assert (removed.returncode, "done, least recently used" in removed.stdout) == (0, True)
        kept = json.loads(nodeagent("explain", listed[0]["id"], "--output", "json", "--config", str(config)).stdout)
        assert [each["reason"]["code"] for each in kept["explanations"]] == ["held"]
        assert nodeagent("hold", "remove", "1", "--config", str(config)).returncode == 0
        assert json.loads(nodeagent("hold", "list", "-o", "json", "-c", str(config)).stdout)["holds"] == []


def test_plan_not_signed_with_the_key_of_this_state_directory_is_refused(config: Path, tmp_path: Path) -> None:
    saved, key = tmp_path / "plan.json", tmp_path / "state/plan.key"
    make = ("plan", "--out", str(saved), "--force", "--scope", "images", "--config", str(config))
    use = ("apply", str(saved), "--dry-run", "--config", str(config))
    with served(tmp_path):
        assert nodeagent(*make).returncode == 0
        assert key.stat().st_mode & 0o7777 == 0o600
        assert nodeagent(*use).returncode == 0
        document = json.loads(saved.read_text())
        saved.write_text(json.dumps({name: value for name, value in document.items() if name != "mac"}))
        refused = nodeagent(*use)
        assert (refused.returncode, "the plan is not signed" in refused.stderr) == (2, True), refused.stderr
        assert nodeagent("plan", "diff", str(saved), str(saved)).returncode == 0
        saved.write_text(json.dumps(document))
        key.unlink()
        refused = nodeagent(*use)
        assert (refused.returncode, "this node has no plan key" in refused.stderr) == (2, True), refused.stderr
        assert not key.exists(), "applying creates no key"
        key.write_text("00" * 32)
        key.chmod(0o600)
        refused = nodeagent(*use)
        assert (refused.returncode, "does not match this node's plan key" in refused.stderr) == (2, True)
        key.chmod(0o644)
        refused = nodeagent(*use)
        assert (refused.returncode, "gives access to others; remove it" in refused.stderr) == (1, True)


def test_plan_without_a_state_directory_is_saved_unsigned_with_a_warning(config: Path, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    config.write_text(config.read_text().replace(f"{tmp_path}/state", f"{config}/state"))
    with served(tmp_path):
        planned = nodeagent("plan", "--out", str(saved), "--config", str(config))
        assert planned.returncode == 0
        assert f"cannot read plan key {config}/state/plan.key" in planned.stderr
        assert "the plan is not signed, 'nodeagent apply' refuses it" in planned.stderr
        assert "Traceback" not in planned.stderr
        assert json.loads(saved.read_text())["schema"] == "nodeagent/plan/v1"


def test_removal_prevented_by_dry_run_of_the_configuration_is_reported(config: Path, tmp_path: Path) -> None:
    saved, rules = tmp_path / "plan.json", ("--high", "1", "--low", "0", "--minimum-age", "0s")
    config.write_text(f"dry_run = true\n{config.read_text()}")
    with served(tmp_path):
        for words in (("gc", "images", *rules), ("gc", "all", "-o", "json", *rules)):
            ended = nodeagent(*words, "--yes", "--config", str(config))
            assert "nothing was removed: dry_run = true in the configuration\n" in ended.stderr
            assert "dry_run = true" not in nodeagent(*words, "--dry-run", "--config", str(config)).stderr
        options = ("--scope", "images", *rules, "--config", str(config))
        assert nodeagent("plan", "--out", str(saved), *options).returncode == 0
        applied = nodeagent("apply", str(saved), "--yes", *rules, "--config", str(config))
        assert "nothing was removed: dry_run = true in the configuration\n" in applied.stderr
