"""Static pod manifests, read from a directory."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.kube.kubelet_pods import ManifestReader

if TYPE_CHECKING:
    from pathlib import Path

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: kube-system
  labels: {{component: etcd}}
spec:
  priorityClassName: system-node-critical
  containers:
  - name: etcd
    command:
    - etcd
    - --listen=https://127.0.0.1:2379
    resources:
      requests: {{cpu: 100m, memory: 100Mi}}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    return manifests


def test_missing_directory_has_no_static_pods(tmp_path: Path) -> None:
    found = ManifestReader(tmp_path / "none").read()
    assert (found.pods, found.warnings) == ((), ())


def test_pods_are_read_from_yaml_json_and_lists(directory: Path) -> None:
    (directory / "etcd.yaml").write_text(POD.format(name="etcd"))
    (directory / "one.json").write_text(json.dumps({"kind": "Pod", "metadata": {"name": "one"}, "spec": {}}))
    (directory / "flow.yaml").write_text("{kind: Pod, metadata: {name: flow}, spec: {}}")
    item = {"metadata": {"name": "listed"}, "spec": {}}
    (directory / "two.json").write_text(json.dumps({"kind": "PodList", "items": [item]}))
    (directory / "empty.yaml").write_text("# empty\n")
    (directory / ".hidden.yaml").write_text("kind: Pod")
    (directory / "sub").mkdir()
    found = ManifestReader(directory).read()
    assert [each.name for each in found.pods] == ["etcd", "flow", "one", "listed"]
    assert found.warnings == ()
    assert (found.pods[0].namespace, found.pods[0].priority) == ("kube-system", 2_000_001_000)
    assert found.pods[0].memory_request_bytes == 100 << 20


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("kind: Deployment", "skipped: kind 'Deployment', not Pod"),
        ("- a\n- b", "skipped: kind null, not Pod"),
        ("kind: Pod\nmetadata: {}\nspec: {}", "metadata.name is missing"),
        ("kind: [", "neither JSON nor YAML"),
        ("{" * 100_000, "neither JSON nor YAML"),
        ("kind: Pod\n  \tname: x", "neither JSON nor YAML"),
        ("!!python/object/apply:os.system ['true']", "neither JSON nor YAML"),
        ("kind: Pod\n" + "#" * (256 << 10), "more than 262144"),
        ("\xff\xfe\x00", "neither JSON nor YAML"),
    ],
)
def test_malformed_file_is_skipped_with_a_warning(directory: Path, text: str, cause: str) -> None:
    (directory / "bad.yaml").write_text(text, encoding="latin-1")
    (directory / "good.yaml").write_text(POD.format(name="good"))
    found = ManifestReader(directory).read()
    assert [each.name for each in found.pods] == ["good"]
    (warning,) = found.warnings
    assert cause in warning
    assert str(directory / "bad.yaml") in warning


def test_malformed_pod_of_a_manifest_is_kept_by_its_name(directory: Path) -> None:
    pods = [{"metadata": {"name": name}, "spec": {"priority": priority}} for name, priority in (("a", "x"), ("b", 1))]
    (directory / "two.json").write_text(json.dumps({"kind": "PodList", "items": pods}))
    found = ManifestReader(directory).read()
    assert [(each.name, bool(each.malformed)) for each in found.pods] == [("a", True), ("b", False)]
    (warning,) = found.warnings
    assert "two.json: pod 0 (default/a): spec.priority is 'x', not a 32-bit number" in warning


def test_recursive_yaml_aliases_are_bounded(directory: Path) -> None:
    levels = [f"l{number}: &l{number} [{', '.join([f'*l{number - 1}'] * 9)}]" for number in range(1, 30)]
    (directory / "bomb.yaml").write_text("\n".join(["l0: &l0 [x]", *levels, "kind: Pod", "metadata: *l29", "spec: {}"]))
    (warning,) = ManifestReader(directory).read().warnings
    assert "more than 10000 values" in warning
    assert len(warning) < 500


def test_link_out_of_the_directory_is_skipped(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text(POD.format(name="secret"))
    (directory / "out.yaml").symlink_to(tmp_path / "secret.yaml")
    (directory / "real.yaml").write_text(POD.format(name="real"))
    (directory / "in.yaml").symlink_to("real.yaml")
    (directory / "dangling.yaml").symlink_to("nowhere")
    (directory / "loop.yaml").symlink_to("loop.yaml")
    found = ManifestReader(directory).read()
    assert [each.name for each in found.pods] == ["real", "real"]
    assert any("resolves outside the directory" in each for each in found.warnings)


def test_pipe_is_skipped(directory: Path) -> None:
    os.mkfifo(directory / "pipe")
    found = ManifestReader(directory).read()
    assert (found.pods, found.warnings) == ((), ())


def test_changed_file_is_read_again(directory: Path) -> None:
    reader = ManifestReader(directory)
    (directory / "etcd.yaml").write_text(POD.format(name="etcd"))
    first = reader.read().pods
    assert reader.read().pods[0] is first[0]
    (directory / "etcd.yaml").write_text(POD.format(name="other"))
    assert [each.name for each in reader.read().pods] == ["other"]
    (directory / "etcd.yaml").unlink()
    assert reader.read().pods == ()
