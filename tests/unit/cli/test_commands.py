"""The command line as a process: exit codes, output formats, refused arguments."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from nodeagent.clock import SystemClock
from nodeagent.host.node import boot_id
from nodeagent.model.pressure import Signal
from nodeagent.plan.eviction.effects import OutstandingEffect, Shortage
from nodeagent.store.evictions import EvictionFile
from tests.support.command import nodeagent
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{tmp_path}/s"\n[state]\ndirectory = "{tmp_path}/state"\n'
        f'[container_gc]\npod_log_root = "{tmp_path}/pods"\ncontainer_log_root = "{tmp_path}/containers"\n'
    )
    return path


@contextmanager
def served(directory: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "nodeagent.sim", "--socket", str(directory / "s"), "--root", str(directory)]
    sizes = ["--images", "20", "--layers", "3", "--containers", "12"]
    with subprocess.Popen([*command, *sizes], stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        try:
            poll("the simulated runtime serves", (directory / "s").exists, timeout_s=30)
            yield
        finally:
            process.terminate()


def test_invalid_configuration_exits_with_2_and_names_the_setting(config: Path) -> None:
    config.write_text("[image_gc]\nlow_threshold_percent = 99\n")
    for arguments in (("config", "check"), ("gc", "all", "--yes"), ("run", "--once"), ("images",)):
        ended = nodeagent(*arguments, "--config", str(config))
        assert ended.returncode == 2
        assert f"{config}: image_gc.low_threshold_percent = 99: must be below" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_gc_without_terminal_and_without_yes_or_dry_run_is_refused(config: Path) -> None:
    ended = nodeagent("gc", "all", "--config", str(config))
    assert ended.returncode == 2
    assert "--yes" in ended.stderr
    assert "--dry-run" in ended.stderr


def test_missing_runtime_exits_with_4_and_a_hint(config: Path) -> None:
    for arguments in (("gc", "all", "--dry-run"), ("images",), ("pods",), ("version",), ("run", "--once")):
        ended = nodeagent(*arguments, "--config", str(config))
        assert ended.returncode == 4, ended.stderr
        assert "is the runtime running" in ended.stderr


def test_lists_and_previews_are_printed_in_every_format(config: Path, tmp_path: Path) -> None:
    with served(tmp_path):
        for what in ("images", "containers", "pods", "version"):
            ended = nodeagent(what, "--config", str(config), "--output", "json")
            assert json.loads(ended.stdout)["schema"] == f"nodeagent/{what}/v1", ended.stderr
            assert nodeagent(what, "--config", str(config)).returncode == 0
        preview = ("gc", "all", "--dry-run", "--high", "2", "--low", "1", "--config", str(config))
        plain = json.loads(nodeagent(*preview, "--output", "json").stdout)
        assert plain["schema"] == "nodeagent/preview/v1"
        assert [plan["kind"] for plan in plain["plans"]] == ["containers", "sandboxes", "logs", "images"]
        assert yaml.safe_load(nodeagent(*preview, "--output", "yaml").stdout)["plans"][3]["kind"] == "images"
        table = nodeagent(*preview, "--kept")
        assert table.returncode == (3 if plain["plans"][3]["shortfall_bytes"] else 0)
        assert "\x1b" not in table.stdout
        assert not (tmp_path / "state").exists()
        once = nodeagent("run", "--once", "--dry-run", "--config", str(config))
        events = [json.loads(line)["event"] for line in once.stderr.splitlines()]
        assert (events[0], events[-1]) == ("agent_started", "agent_stopped")
        assert "pass_finished" in events


def test_demo_removes_exactly_the_previewed_items() -> None:
    ended = nodeagent("demo")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("nodeagent demo: a SIMULATED node")
    assert "Removed exactly the previewed items: yes" in ended.stdout


def test_help_and_configuration_reference_are_printed() -> None:
    assert "Exit codes" in nodeagent("gc", "all", "--help").stdout
    assert "high_threshold_percent" in nodeagent("config", "reference").stdout
    assert "[image_gc]" in nodeagent("config", "show").stdout
    assert nodeagent("--version").stdout.startswith("nodeagent ")
    assert nodeagent("gc", "all", "--no-such-option").returncode == 2


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("apply", "PLAN", "--yes"), "cannot read plan /none.json: No such file or directory\n"),
        (("apply", "CONFIG", "--yes"), "not JSON"),
        (("plan", "--expires", "soon"), "--expires"),
        (("hold", "add"), "give --all"),
        (("hold", "add", "a", "--all"), "not both"),
        (("hold", "add", "a", "--for", "0"), "more than 0"),
        (("hold", "add", "a", "--for", "9999d"), "365d"),
        (("hold", "add", "regex:(", "--for", "1h"), "not a regular expression"),
        (("hold", "remove", "7"), "no hold 7; 'nodeagent hold list' lists all"),
        (("history", "--since", "yesterday"), "--since"),
    ],
)
def test_invalid_argument_exits_with_2_and_writes_nothing(
    config: Path, arguments: tuple[str, ...], message: str
) -> None:
    words = [{"PLAN": "/none.json", "CONFIG": str(config)}.get(each, each) for each in arguments]
    ended = nodeagent(*words, "--config", str(config))
    assert (ended.returncode, message in ended.stderr) == (2, True), ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (config.parent / "state").exists()


def test_eviction_preview_shows_thresholds_usage_and_sources(config: Path, tmp_path: Path) -> None:
    with served(tmp_path):
        quiet = nodeagent("evict", "--dry-run", "--config", str(config))
        assert quiet.returncode == 0, quiet.stderr
        assert "no pod would be evicted: no eviction threshold met" in quiet.stdout
        low = nodeagent("evict", "--simulate", "memory.available=1Mi", "--config", str(config), "--output", "json")
        shown = json.loads(low.stdout)
        assert shown["schema"] == "nodeagent/evict/v1"
        assert shown["plan"]["threshold"]["threshold"] == "memory.available<100Mi"
        assert len(shown["plan"]["decisions"]) == len(shown["pods"]) > 0
        assert all(fact["source"] for pod in shown["pods"].values() for fact in (pod["priority"], pod["qos"]))
        full = nodeagent("evict", "-s", "nodefs.available=1%", "--config", str(config))
        assert "first unused-images on nodefs" in full.stdout
        assert "\x1b" not in full.stdout


def test_outstanding_effect_is_shown_as_withheld_in_the_preview(config: Path, tmp_path: Path) -> None:
    now_s = SystemClock().monotonic_s()
    effect = OutstandingEffect(
        "eviction of shop/web", Shortage.NODEFS, Signal.NODEFS_AVAILABLE, 0.0, 5 << 20, now_s, now_s + 3000
    )
    EvictionFile(config.parent / "state").write(boot_id(), [effect], [])
    with served(tmp_path):
        shown = json.loads(
            nodeagent("evict", "-s", "nodefs.available=1%", "--config", str(config), "--output", "json").stdout
        )
        assert shown["plan"]["withheld"]["code"] == "effect-outstanding"
        assert shown["plan"]["withheld"]["details"]["action"] == "eviction of shop/web"
        assert (shown["plan"]["victim"], shown["reclaim_first"]) == (None, [])
        table = nodeagent("evict", "-s", "nodefs.available=1%", "--config", str(config))
        printed = " ".join(table.stdout.split())
        assert "withheld: nodefs.available<10% met; waiting for the effect of eviction of shop/web" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "add --dry-run, or --simulate"),
        (("-s", "memory.avail=1Mi"), "expected SIGNAL=AMOUNT"),
        (("-s", "memory.available"), "expected SIGNAL=AMOUNT"),
        (("-s", "memory.available=lots"), "'lots' is not a size"),
        (("-s", "nodefs.available=0%"), "disable a threshold"),
    ],
)
def test_invalid_simulated_signal_exits_with_2(arguments: tuple[str, ...], words: str, config: Path) -> None:
    ended = nodeagent("evict", *arguments, "--config", str(config))
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_configured_threshold_is_shown_and_invalid_one_exits_with_2(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text() + '[eviction]\nhard = "memory.available<1Mi"\n')
    with served(tmp_path):
        shown = json.loads(nodeagent("pressure", "--config", str(config), "--output", "json").stdout)
    (memory,) = [each for each in shown["signals"] if each["signal"] == "memory.available"]
    assert [each["text"] for each in memory["thresholds"]] == ["memory.available<1Mi"]
    assert memory["thresholds"][0]["distance"] > 0
    config.write_text(config.read_text().replace("memory.available<1Mi", "memory.available<1Mo"))
    ended = nodeagent("config", "check", "--config", str(config))
    assert ended.returncode == 2
    assert "'1Mo' is not a size" in ended.stderr


def test_config_check_warns_of_eviction_enabled_beside_a_kubelet(config: Path) -> None:
    config.write_text('role = "beside-kubelet"\n[eviction]\nenabled = "on"\n[shutdown]\nenabled = "auto"\n')
    ended = nodeagent("config", "check", "--config", str(config))
    assert ended.returncode == 0
    assert 'eviction.enabled = "on" has no effect with role = "beside-kubelet"' in ended.stderr
    assert "shutdown" not in ended.stderr


def test_doctor_exits_with_1_for_a_problem(config: Path, tmp_path: Path) -> None:
    with served(tmp_path):
        ended = nodeagent("doctor", "--config", str(config), "--output", "json")
    findings = {each["check"]: each for each in json.loads(ended.stdout)["findings"]}
    assert findings["runtime"]["verdict"] == "ok"
    assert findings["sandbox-image"]["verdict"] == "ok"
    stopped = nodeagent("doctor", "--config", str(config))
    assert stopped.returncode == 1
    assert "problem" in stopped.stdout
    config.write_text("dry_run = 3\n")
    invalid = nodeagent("doctor", "--config", str(config))
    assert invalid.returncode == 1
    assert "dry_run = 3" in " ".join(invalid.stdout.split())


def test_source_of_each_value_is_shown_with_effective(config: Path) -> None:
    shown = json.loads(nodeagent("config", "show", "--effective", "-c", str(config), "-o", "json").stdout)
    assert shown["settings"]["role"] == {"value": '"standalone"', "source": str(config)}
    assert shown["settings"]["dry_run"] == {"value": "false", "source": "default"}


def test_kubelet_configuration_is_imported(tmp_path: Path) -> None:
    head = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"
    path, converted = tmp_path / "kubelet.yaml", tmp_path / "config.toml"
    path.write_text(f"{head}imageGCHighThresholdPercent: 83\nclusterDNS: [192.0.2.1]\n")
    ended = nodeagent("config", "import", str(path))
    assert (ended.returncode, "1 fields without effect on the agent: clusterDNS" in ended.stderr) == (0, True)
    converted.write_text(ended.stdout)
    assert nodeagent("config", "check", "--config", str(converted)).returncode == 0
    path.write_text(f"{head}imageGCHighThresholdPercent: 830\n")
    assert nodeagent("config", "import", str(path)).returncode == 3
    path.write_text("kind: Pod\n")
    refused = nodeagent("config", "import", str(path))
    assert (refused.returncode, f"{path}: 0 documents of kind KubeletConfiguration" in refused.stderr) == (2, True)
    assert "cannot read" in nodeagent("config", "import", str(tmp_path)).stderr


@pytest.mark.parametrize("name", ["", "  "])
def test_explain_of_an_empty_name_is_a_usage_error(config: Path, name: str) -> None:
    ended = nodeagent("explain", name, "--config", str(config))
    assert ended.returncode == 2
    assert "the name is empty" in ended.stderr
    assert not ended.stdout


def test_help_lists_every_command_in_a_group_with_its_full_summary() -> None:
    shown = nodeagent("--help").stdout
    panels = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert panels == ["Options:", "Inspect:", "Collect:", "Evict and shut down:", "Operate:"]
    assert "..." not in shown.partition("\n")[2]
    assert "  hold   Protect images from removal for a limited time\n" in shown


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


@pytest.mark.parametrize("words", [("images",), ("gc", "all", "--dry-run"), ("history",), ("status",), ("pause",)])
def test_empty_name_of_the_configuration_file_is_a_usage_error(words: tuple[str, ...]) -> None:
    ended = nodeagent(*words, "--config", "")
    assert (ended.returncode, "no file name" in ended.stderr) == (2, True), ended.stderr


@pytest.mark.parametrize(
    ("option", "words"), [("-u", "config default"), ("-I", "config reference"), ("-I", "version"), ("-I", "--version")]
)
def test_full_disk_of_the_output_is_one_line_on_standard_error(option: str, words: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, option, "-m", "nodeagent", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert (ended.returncode, ended.stderr) == (1, "nodeagent: cannot write output: No space left on device\n")


@pytest.mark.parametrize("words", ["config default", "history", "--version"])
def test_closed_output_is_one_line_on_standard_error(words: str) -> None:
    command = shlex.join([sys.executable, "-I", "-m", "nodeagent", *words.split()])
    ended = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    expected = "nodeagent: cannot write output: standard output is closed\n"
    assert (ended.returncode, ended.stderr) == (1, expected)


def test_endpoint_that_is_not_utf_8_is_a_usage_error() -> None:
    ended = nodeagent("images", "--endpoint", "unix:///\udcff")
    assert (ended.returncode, ended.stderr) == (2, "nodeagent: --endpoint unix:///\\xff: not UTF-8 text\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("history", ""), "PASS is empty"),
        (("explain", ""), "the name is empty"),
        (("hold", "remove", ""), "HOLD is empty"),
        (("apply", ""), "'FILE': no file name"),
        (("plan", "--out", ""), "'--out': no file name"),
        (("plan", "diff", "a", ""), "'B': no file name"),
        (("config", "import", ""), "'FILE|-': no file name"),
        (("config", "import", "x", "--out", ""), "'--out': no file name"),
        (("images", "-o", "x"), "'--output' / '-o': 'x' is not one of 'table'"),
        (("gc", "all", "--dry-run", "--high", "x"), "'--high': must be a whole number"),
        (("history", "--limit", "0"), "'--limit': must be at least 1"),
        (("pause", "--for", "0s"), "--for 0s: must be more than 0 and at most 7d"),
        (("pause", "--for", "8d"), "--for 8d: must be more than 0 and at most 7d"),
        (("pause", "--why", "a\x07"), "--why: at most 4096 characters, all printable"),
        (("hold", "add", "x", "--why", "a\x07"), "--why: at most 4096 characters, all printable; no hold was placed"),
        (("hold", "add", "a\n"), "IMAGE: at most 4096 characters, all printable; no hold was placed"),
    ],
)
def test_error_of_a_value_names_the_option(words: tuple[str, ...], error: str) -> None:
    ended = nodeagent(*words)
    assert (ended.returncode, error in ended.stderr) == (2, True), ended.stderr
    assert "Value error" not in ended.stderr


def test_json_for_an_ascii_output_is_escaped(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path):
        held = nodeagent("hold", "add", "app:v1", "--why", "für später", "--config", str(config))
        assert held.returncode == 0
        monkeypatch.setenv("PYTHONIOENCODING", "ascii")
        ended = nodeagent("hold", "list", "-o", "json", "--config", str(config))
    assert (ended.returncode, json.loads(ended.stdout)["holds"][0]["why"]) == (0, "für später"), ended.stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("shutdown -o json status", "--output"),
        ("shutdown -c /nonexistent status", "--config"),
        ("plan --out plan.json --high 10 diff a b", "--out, --high"),
    ],
)
def test_option_before_a_subcommand_is_a_usage_error(words: str, option: str) -> None:
    ended = nodeagent(*words.split())
    assert ended.returncode == 2
    assert f"{option}: options must follow" in ended.stderr
