"""Commands as processes: exit codes, output formats, unwritable output."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.command import nodeagent
from tests.unit.cli.served_process import ROOT, served


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


def test_help_and_configuration_reference_are_printed() -> None:
    assert "Exit codes" in nodeagent("gc", "all", "--help").stdout
    assert "high_threshold_percent" in nodeagent("config", "reference").stdout
    assert "[image_gc]" in nodeagent("config", "show").stdout
    assert nodeagent("--version").stdout.startswith("nodeagent ")
    assert nodeagent("gc", "all", "--no-such-option").returncode == 2


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


def test_help_lists_every_command_in_a_group_with_its_full_summary() -> None:
    shown = nodeagent("--help").stdout
    panels = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert panels == ["Options:", "Inspect:", "Collect:", "Evict and shut down:", "Operate:"]
    assert "..." not in shown.partition("\n")[2]
    assert "  hold   Protect images from removal for a limited time\n" in shown


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


@pytest.mark.parametrize("words", ["explain --reason all", "config default"])
def test_command_whose_reader_has_ended_succeeds_silently(words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "nodeagent", *words.split()],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_json_for_an_ascii_output_is_escaped(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path):
        held = nodeagent("hold", "add", "app:v1", "--why", "für später", "--config", str(config))
        assert held.returncode == 0
        monkeypatch.setenv("PYTHONIOENCODING", "ascii")
        ended = nodeagent("hold", "list", "-o", "json", "--config", str(config))
    assert (ended.returncode, json.loads(ended.stdout)["holds"][0]["why"]) == (0, "für später"), ended.stderr


@pytest.mark.parametrize(
    ("locale", "encoding"),
    [
        ({"LANG": "C"}, "ascii"),
        ({"LC_ALL": "POSIX", "LANG": "C.UTF-8"}, "ascii"),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "utf-8"),
        ({"LANG": "C.UTF-8"}, "utf-8"),
        ({"LANG": "xx_XX.UTF-8"}, "utf-8"),
        ({}, "utf-8"),
    ],
    ids=["c", "posix", "ctype", "utf-8", "not-installed", "unset"],
)
def test_output_is_ascii_in_the_c_locale_only(locale: dict[str, str], encoding: str) -> None:
    script = "import atexit, sys; atexit.register(lambda: print(sys.stdout.encoding)); sys.argv[1:] = ['--version']; "
    script += "from nodeagent.cli.start import main; main()"
    variables = {name: value for name, value in os.environ.items() if name != "LANG" and not name.startswith("LC_")}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**variables, **locale},
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert ended.stdout.split()[-1] == encoding
