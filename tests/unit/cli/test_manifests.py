"""``nodeagent manifest daemonset`` and ``static-pod``: YAML with comments, and refused values."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from nodeagent import __version__
from nodeagent.cluster.plan.rules import rules_for
from nodeagent.cluster.plan.workloads import API_FEATURES, Workload, daemon_set_objects, static_pod
from tests.support.terminal import in_pipe

IMAGE = ("--image", "registry.example.com:5000/team/nodeagent@sha256:" + "0" * 64)


def test_daemonset_is_printed_as_its_objects() -> None:
    shown = in_pipe("manifest", "daemonset", *IMAGE, "--pod-monitor", "--max-unavailable", "3", "--no-dry-run")
    made = Workload(IMAGE[1], __version__, dry_run=False, max_unavailable="3", scraped=True)
    assert (shown.code, shown.err) == (0, "")
    assert tuple(yaml.safe_load_all(shown.out)) == daemon_set_objects(made)
    assert [each["kind"] for each in yaml.safe_load_all(shown.out)] == [
        "ConfigMap",
        "DaemonSet",
        "PodMonitor",
    ]


@pytest.mark.parametrize("options", [(), ("--api", "--pod-monitor", "--namespace", "agents")], ids=["plain", "api"])
def test_kustomization_has_the_objects_of_the_printed_manifest(options: tuple[str, ...], tmp_path: Path) -> None:
    base = tmp_path / "base"
    shown = in_pipe("manifest", "daemonset", *IMAGE, *options, "--kustomization", str(base))
    assert (shown.code, shown.out, shown.err) == (0, "", "")
    made = yaml.safe_load((base / "kustomization.yaml").read_text())
    assert {each.name for each in base.iterdir()} == {"kustomization.yaml", *made["resources"], "config.toml"}
    (generator,) = made["configMapGenerator"]
    metadata = {"name": generator["name"], "namespace": generator["namespace"], **generator["options"]}
    data = {name: (base / name).read_text() for name in generator["files"]}
    objects = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}]
    for name in made["resources"]:
        objects += yaml.safe_load_all((base / name).read_text())
    printed = list(yaml.safe_load_all(in_pipe("manifest", "daemonset", *IMAGE, *options).out))
    assert sorted(objects, key=str) == sorted(printed, key=str)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="requires kubectl")
def test_configuration_of_an_overlay_is_that_of_the_daemonset(tmp_path: Path) -> None:
    assert in_pipe("manifest", "daemonset", *IMAGE, "--kustomization", str(tmp_path / "base")).code == 0
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "config.toml").write_text("dry_run = false\n")
    generator = {"name": "nodeagent", "namespace": "kube-system", "behavior": "replace", "files": ["config.toml"]}
    made = {"resources": ["../base"], "configMapGenerator": [generator]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(made))

    def built(directory: Path) -> tuple[str, str, object]:
        done = subprocess.run(["kubectl", "kustomize", directory], check=True, capture_output=True, text=True)
        found = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
        pod, config = found["DaemonSet"]["spec"]["template"]["spec"], found["ConfigMap"]
        return pod["volumes"][0]["configMap"]["name"], config["metadata"]["name"], config["data"]

    base = built(tmp_path / "base")
    changed = built(overlay)
    assert (base[0], changed[0]) == (base[1], changed[1])
    assert base[0] != changed[0]
    assert changed[2] == {"config.toml": "dry_run = false\n"}


def test_existing_directory_is_not_changed_by_a_kustomization(tmp_path: Path) -> None:
    shown = in_pipe("manifest", "daemonset", *IMAGE, "--kustomization", str(tmp_path))
    assert (shown.code, shown.out, "File exists" in shown.err) == (2, "", True)
    assert list(tmp_path.iterdir()) == []


def test_api_options_are_the_settings_of_the_printed_configuration() -> None:
    taints = "nodeagent.dev/image-gc-degraded:NoSchedule"
    options = ("--api", "--evict-pods", "--override-disruption-budgets", "--condition-taints", taints)
    shown = in_pipe("manifest", "daemonset", *IMAGE, *options, "--delete-failed-after", "24h")
    features: dict[str, bool | str] = {
        **API_FEATURES,
        "condition_taints": taints,
        "evict_pods": True,
        "override_disruption_budgets": True,
        "delete_failed_after": "24h",
    }
    assert (shown.code, shown.err) == (0, "")
    assert tuple(yaml.safe_load_all(shown.out)) == daemon_set_objects(
        Workload(IMAGE[1], __version__, kubernetes=features)
    )
    rules = rules_for(features)
    assert all(f"# {', '.join(each.verbs)} {each.resource}: {each.purpose}\n" in shown.out for each in rules)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--evict-pods",), "evict_pods = true requires watch_pods = true"),
        (("--api", "--override-disruption-budgets"), "requires evict_pods = true"),
        (("--condition-taints", "nodeagent.dev/image-gc-degraded:NoSchedule"), "requires publish_conditions"),
        (("--api", "--condition-taints", "x:NoSchedule"), "the key must be one of"),
        (("--api", "--delete-failed-after", "5s"), "must be 0 or at least 1m"),
        (("--api", "--delete-failed-after", "0s"), "--delete-failed-after: the value disables the setting"),
        (("--api", "--condition-taints", " , "), "--condition-taints: the value disables the setting"),
        (("--api", "--delete-failed-after", 'soon"\n'), "soon"),
    ],
)
def test_api_option_that_the_configuration_would_refuse_is_refused(options: tuple[str, ...], words: str) -> None:
    shown = in_pipe("manifest", "daemonset", *IMAGE, *options)
    assert (shown.code, shown.out, words in shown.err) == (2, "", True)
    assert shown.err.count("\n") == 1


def test_static_pod_is_printed_as_its_object() -> None:
    shown = in_pipe("manifest", "static-pod", *IMAGE, "--socket", "/run/k3s/containerd/containerd.sock")
    assert (shown.code, shown.err) == (0, "")
    made = Workload(IMAGE[1], __version__, socket="/run/k3s/containerd/containerd.sock")
    assert yaml.safe_load(shown.out) == static_pod(made)
    assert '#   role = "beside-kubelet"\n' in shown.out


@pytest.mark.parametrize(
    "line", ["hostPID: false", "hostNetwork: true", "runAsUser: 0", "automountServiceAccountToken:"]
)
def test_privilege_has_its_reason_above_it(line: str) -> None:
    lines = in_pipe("manifest", "daemonset", *IMAGE).out.splitlines()
    for number, each in enumerate(lines):
        if each.strip().startswith(line):
            assert lines[number - 1].strip().startswith("# ")


def test_dry_run_is_stated_first() -> None:
    first = in_pipe("manifest", "daemonset", *IMAGE).out.splitlines()[0]
    assert first == f"# nodeagent {__version__} beside a kubelet, dry run: removes nothing."
    first = in_pipe("manifest", "daemonset", *IMAGE, "--no-dry-run").out.splitlines()[0]
    assert first == f"# nodeagent {__version__} beside a kubelet."


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--image", each) for each in ("", "a b", "a\nkind: Pod", "-x", "a\x1b[2J", "{{x}}")),
        *(("--namespace", each) for each in ("", "Kube", "a_b", "a\n", "-a", "a" * 64)),
        *(
            ("--socket", each)
            for each in ("containerd.sock", "/containerd.sock", "/run/crio.sock", "/run/../x/s", '/a"/s')
        ),
        *(("--image-root", each) for each in ("/", "/var", "/var/lib", "/proc", "/run", "lib", "/var/lib/../..", "")),
        *(("--manifests", each) for each in ("/", "/etc", "/etc/kubernetes", "manifests", "/var/lib/kubelet")),
        *(("--max-unavailable", each) for each in ("0", "0%", "101%", "-1", "x", "1.5", "\u0661", "9999999")),
    ],
)
def test_value_that_is_not_valid_in_a_manifest_is_refused(option: str, value: str) -> None:
    given = {"--image": IMAGE[1], option: value}
    shown = in_pipe("manifest", "daemonset", *(f"{name}={each}" for name, each in given.items()))
    assert (shown.code, shown.out, option in shown.err) == (2, "", True)
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("command", ["daemonset", "static-pod"])
def test_image_is_required(command: str) -> None:
    shown = in_pipe("manifest", command)
    assert (shown.code, shown.out, "--image" in shown.err) == (2, "", True)
