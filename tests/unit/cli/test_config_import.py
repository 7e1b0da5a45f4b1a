"""``nodeagent config import`` never disables a dry run, with any method of replacing the file."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nodeagent.cli.config import fields_of_node
from nodeagent.errors import ConfigError
from tests.support.command import nodeagent
from tests.support.kubelet_tree import add_process, make_node

ROOT = Path(__file__).parents[3]
KUBELET = (
    "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"
    "imageGCHighThresholdPercent: 83\nclusterDNS: [192.0.2.1]\n"
)
ACTIVE, DRY = "dry_run = false\n", "dry_run = true\n"


@pytest.fixture
def kubelet(tmp_path: Path) -> Path:
    path = tmp_path / "kubelet.yaml"
    path.write_text(KUBELET)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NODEAGENT_")}
    return subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env=environment
    )


def command(*words: str | Path) -> str:
    return shlex.join([sys.executable, "-m", "nodeagent", "config", "import", *map(str, words)])


def imported(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return nodeagent("config", "import", *map(str, words))


def dry_run_in(path: Path) -> object:
    return tomllib.loads(path.read_text())["dry_run"]


def test_imported_configuration_always_sets_dry_run(kubelet: Path) -> None:
    assert "dry_run" in tomllib.loads(imported(kubelet).stdout)


def test_redirection_that_truncates_the_configuration_gives_dry_run(kubelet: Path, target: Path) -> None:
    for text in (DRY, ACTIVE):
        target.write_text(text)
        ended = shell(f"{command(kubelet, '--config', target)} > {target}")
        assert (ended.returncode, dry_run_in(target)) == (0, True)
        assert f"dry_run = true ({target} does not set dry_run)" in ended.stderr


@pytest.mark.parametrize(("text", "value"), [(DRY, True), (ACTIVE, False), (None, True), ("dry_run = 3\n", True)])
def test_standard_output_has_dry_run_of_the_configuration_in_force(
    kubelet: Path, target: Path, text: str | None, value: bool
) -> None:
    if text is not None:
        target.write_text(text)
    ended = imported(kubelet, "--config", target)
    assert (ended.returncode, tomllib.loads(ended.stdout)["dry_run"]) == (0, value)
    assert f"dry_run = {str(value).lower()} (" in ended.stderr
    assert str(target) in ended.stderr


@pytest.mark.parametrize(("text", "value"), [(DRY, True), (ACTIVE, False)])
def test_replaced_file_keeps_its_dry_run_owner_and_mode(kubelet: Path, target: Path, text: str, value: bool) -> None:
    target.write_text(text)
    target.chmod(0o640)
    ended = imported(kubelet, "--config", target, "--out", target, "--force")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert dry_run_in(target) is value
    assert tomllib.loads(target.read_text())["image_gc"] == {"high_threshold_percent": 83}
    assert target.stat().st_mode & 0o7777 == 0o640
    assert [each.name for each in target.parent.iterdir() if each.name.startswith(".")] == []


def test_new_file_has_dry_run_of_the_configuration_in_force(kubelet: Path, target: Path, tmp_path: Path) -> None:
    converted = tmp_path / "converted.toml"
    for text, value in ((ACTIVE, False), (DRY, True)):
        target.write_text(text)
        converted.unlink(missing_ok=True)
        assert imported(kubelet, "--config", target, "--out", converted).returncode == 0
        assert (dry_run_in(converted), converted.stat().st_mode & 0o7777) == (value, 0o644)


def test_replaced_file_in_dry_run_keeps_dry_run_if_an_active_one_is_in_force(
    kubelet: Path, target: Path, tmp_path: Path
) -> None:
    converted = tmp_path / "converted.toml"
    target.write_text(ACTIVE)
    converted.write_text(DRY)
    assert imported(kubelet, "--config", target, "--out", converted, "--force").returncode == 0
    assert dry_run_in(converted) is True


def test_existing_file_is_not_replaced_without_force(kubelet: Path, target: Path) -> None:
    target.write_text(ACTIVE)
    ended = imported(kubelet, "--out", target)
    assert (ended.returncode, ended.stderr) == (2, f"nodeagent: {target} exists; add --force to replace it\n")
    assert target.read_text() == ACTIVE


def test_invalid_input_does_not_change_the_file(kubelet: Path, target: Path) -> None:
    target.write_text(ACTIVE)
    kubelet.write_text("kind: Pod\n")
    assert imported(kubelet, "--out", target, "--force").returncode == 2
    assert target.read_text() == ACTIVE


@pytest.mark.parametrize("place", ["/dev/null", "directory", "missing/config.toml"])
def test_unwritable_path_exits_with_2(kubelet: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "directory").mkdir()
    ended = imported(kubelet, "--out", tmp_path / place, "--force")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert Path("/dev/null").is_char_device()


def test_symbolic_link_is_kept_and_its_target_replaced(kubelet: Path, target: Path, tmp_path: Path) -> None:
    target.write_text(DRY)
    link = tmp_path / "link.toml"
    link.symlink_to(target)
    assert imported(kubelet, "--config", target, "--out", link, "--force").returncode == 0
    assert link.is_symlink()
    assert dry_run_in(target) is True


@pytest.mark.usefixtures("proc")
def test_configuration_in_force_on_the_node_is_read_with_its_drop_ins_and_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_node(tmp_path)
    (root / "etc/k.d").mkdir(parents=True)
    (root / "etc/k.yaml").write_text(KUBELET)
    (root / "etc/k.d/10.conf").write_text(KUBELET.replace("83", "82"))
    flags = ("--config=/etc/k.yaml", "--config-dir=/etc/k.d", "--image-gc-low-threshold=70")
    add_process(root, 812, "kubelet", ("/usr/bin/kubelet", *flags))
    fields = fields_of_node(root)
    assert (fields["imageGCHighThresholdPercent"], fields["imageGCLowThresholdPercent"]) == (82, 70)
    assert capsys.readouterr().err == "nodeagent: read /etc/k.yaml, /etc/k.d/10.conf, command line\n"


@pytest.mark.usefixtures("proc")
def test_configuration_with_an_unread_source_is_not_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_node(tmp_path)
    (root / "etc/k.d").mkdir(parents=True)
    (root / "etc/k.yaml").write_text(KUBELET)
    (root / "etc/k.d/10.conf").write_text("{")
    (root / "etc/k.d/20.conf").write_text(KUBELET.replace("clusterDNS: [192.0.2.1]", "evictionHard: {a: 1%}"))
    add_process(root, 812, "kubelet", ("/usr/bin/kubelet", "--config=/etc/k.yaml", "--config-dir=/etc/k.d"))
    with pytest.raises(ConfigError, match=r"not known completely: /etc/k.d/10.conf: neither YAML"):
        fields_of_node(root)
    assert capsys.readouterr().err == (
        "nodeagent: in force: imageGCHighThresholdPercent\n"
        "nodeagent: at least: evictionHard\n"
        "nodeagent: unknown: clusterDNS\n"
    )


def test_node_without_a_kubelet_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no kubelet configuration found on this node"):
        fields_of_node(make_node(tmp_path))


def test_invalid_value_is_omitted_and_exits_with_3(kubelet: Path, target: Path) -> None:
    kubelet.write_text(KUBELET.replace("83", "830"))
    assert imported(kubelet, "--config", target, "--out", target).returncode == 3
    assert dry_run_in(target) is True
