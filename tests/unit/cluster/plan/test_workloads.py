"""DaemonSet and static pod manifests of the agent: structure, privileges, and mounts from one table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster.plan.rules import SETTINGS, STATE, host_paths, role_documents
from nodeagent.cluster.plan.workloads import (
    API_FEATURES,
    CAPABILITIES,
    IN_CLUSTER,
    METRICS_PORT,
    Workload,
    daemon_set_objects,
    static_pod,
)
from nodeagent.model.node import Role
from nodeagent.record import replace
from nodeagent.settings.loading import load

UNIT = (Path(__file__).parents[4] / "systemd/nodeagent.service").read_text()
WORKLOAD = Workload("registry.example.com/nodeagent:1", "1.2.3")
PATHS = tuple(host_paths("/run/containerd", "/var/lib/containerd", "/etc/kubernetes/manifests"))


def printed(workload: Workload = WORKLOAD) -> dict[str, dict[str, Any]]:
    """Return the objects of the DaemonSet by kind."""
    return {each["kind"]: each for each in daemon_set_objects(workload)}


def specs(workload: Workload = WORKLOAD) -> list[dict[str, Any]]:
    return [printed(workload)["DaemonSet"]["spec"]["template"]["spec"], static_pod(workload)["spec"]]


def setting(name: str) -> set[str]:
    """Return the values of a setting of the systemd unit, without the prefix ``-`` of optional paths."""
    values = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return {each.lstrip("-") for value in values for each in value.split()}


def test_write_access_of_the_table_is_that_of_the_unit() -> None:
    state = {f"/var/lib/{each}" for each in setting("StateDirectory")}
    assert state == {STATE}
    # A container does not change the units of the host; only the systemd unit writes drop-ins of slices.
    paths = {each for each in setting("ReadWritePaths") if not each.startswith("/run/systemd/system/")}
    assert {each.path for each in PATHS if each.writable} == paths | state


@pytest.mark.parametrize("spec", specs(), ids=["daemonset", "static-pod"])
def test_mounts_are_those_of_the_table_besides_configuration_and_temporary_files(spec: dict[str, Any]) -> None:
    (container,) = spec["containers"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert {each["name"] for each in mounts.values()} == volumes.keys()
    assert mounts.keys() == {each.path for each in PATHS} | {"/etc/nodeagent", "/tmp"}
    for each in PATHS:
        assert volumes[each.name]["hostPath"]["path"] == each.path == mounts[each.path]["mountPath"]
        assert (volumes[each.name]["hostPath"]["type"] == "File") is each.is_file
        assert mounts[each.path]["readOnly"] is not each.writable
        assert (mounts[each.path].get("mountPropagation") == "HostToContainer") is each.has_mounts
    assert mounts["/etc/nodeagent"]["readOnly"] is True
    assert "emptyDir" in volumes["tmp"]


@pytest.mark.parametrize("spec", specs(), ids=["daemonset", "static-pod"])
def test_machine_id_is_readable_in_the_container(spec: dict[str, Any]) -> None:
    (volume,) = [each for each in spec["volumes"] if each.get("hostPath", {}).get("path") == "/etc/machine-id"]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert (volume["hostPath"]["type"], mount["mountPath"], mount["readOnly"]) == ("File", "/etc/machine-id", True)


def test_no_mount_has_the_secrets_of_pods_or_the_whole_host() -> None:
    for each in PATHS:
        assert not any(Path(one).is_relative_to(each.path) for one in ("/var/lib/kubelet", "/etc", "/proc", "/var/run"))


@pytest.mark.parametrize("spec", specs(), ids=["daemonset", "static-pod"])
def test_container_has_two_capabilities_and_a_read_only_root(spec: dict[str, Any]) -> None:
    security = spec["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": sorted(CAPABILITIES)}
    assert {f"CAP_{each}" for each in CAPABILITIES} <= setting("CapabilityBoundingSet")
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    assert (security["privileged"], security["seccompProfile"]) == (False, {"type": "RuntimeDefault"})
    assert (spec["hostPID"], spec["automountServiceAccountToken"]) == (False, False)
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.parametrize("scraped", [False, True])
@pytest.mark.parametrize("dry_run", [False, True])
def test_configuration_is_valid_with_the_role_of_a_node_with_a_kubelet(
    tmp_path: Path, dry_run: bool, scraped: bool
) -> None:
    workload = replace(WORKLOAD, dry_run=dry_run, scraped=scraped, socket="/run/k3s/containerd/containerd.sock")
    path = tmp_path / "config.toml"
    path.write_text(printed(workload)["ConfigMap"]["data"]["config.toml"])
    found = load(path, {}).config.settings()
    assert (found.dry_run, found.role) == (dry_run, Role.BESIDE_KUBELET)
    assert found.endpoint == "unix:///run/k3s/containerd/containerd.sock"
    assert found.metrics.listen is not None
    assert (found.metrics.listen.port, found.metrics.listen.is_loopback) == (METRICS_PORT, not scraped)


def test_dry_run_is_the_default_and_an_argument_of_the_static_pod() -> None:
    assert WORKLOAD.dry_run
    assert static_pod(WORKLOAD)["spec"]["containers"][0]["command"][-1] == "--dry-run"
    assert "--dry-run" not in static_pod(replace(WORKLOAD, dry_run=False))["spec"]["containers"][0]["command"]


def test_selectors_match_the_pods_and_no_label_of_the_version() -> None:
    made = printed(replace(WORKLOAD, scraped=True))
    daemon_set, monitor = made["DaemonSet"], made["PodMonitor"]
    labels = daemon_set["spec"]["template"]["metadata"]["labels"]
    for selector in (daemon_set["spec"]["selector"]["matchLabels"], monitor["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
        assert WORKLOAD.version not in selector.values()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (port,) = daemon_set["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert endpoint["port"] == port["name"]


def test_changed_configuration_updates_the_pods() -> None:
    annotations = [
        printed(each)["DaemonSet"]["spec"]["template"]["metadata"]["annotations"]
        for each in (WORKLOAD, WORKLOAD, replace(WORKLOAD, dry_run=False))
    ]
    assert annotations[0] == annotations[1] != annotations[2]


def test_access_to_the_api_is_that_of_the_documented_pod_with_an_account_of_its_own(tmp_path: Path) -> None:
    workload = replace(WORKLOAD, namespace="agents", kubernetes={**API_FEATURES, "delete_failed_after": "24h"})
    made = printed(workload)
    path = tmp_path / "config.toml"
    path.write_text(made["ConfigMap"]["data"]["config.toml"])
    found = load(path, {}).config.settings().kubernetes
    used = {each for each in SETTINGS if getattr(found, each)}
    assert used == {"watch_pods", "publish_conditions", "publish_events", "delete_failed_after"}
    text = (Path(__file__).parents[4] / "nodeagent/docs/kubernetes.md").read_text()
    assert all(f'\n{name} = "{value}"\n' in text for name, value in IN_CLUSTER.items())
    spec = made["DaemonSet"]["spec"]["template"]["spec"]
    assert (spec["automountServiceAccountToken"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    account = made["ServiceAccount"]["metadata"]
    assert (spec["serviceAccountName"], account["namespace"]) == (account["name"], "agents")
    granted = [each for each in daemon_set_objects(workload) if "Role" in each["kind"] or "ServiceA" in each["kind"]]
    assert granted == list(role_documents(used, name=account["name"], namespace="agents"))


def test_no_object_is_in_the_manifests_of_both_daemonset_and_account() -> None:
    def names(objects: tuple[dict[str, Any], ...]) -> set[tuple[str, str, str]]:
        return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in objects}

    everything = replace(WORKLOAD, scraped=True, kubernetes=dict.fromkeys(SETTINGS, True))
    assert names(daemon_set_objects(everything)).isdisjoint(names(role_documents(SETTINGS)))


def test_without_the_api_no_account_is_printed_and_no_token_mounted() -> None:
    made = printed()
    assert made.keys() == {"ConfigMap", "DaemonSet"}
    spec = made["DaemonSet"]["spec"]["template"]["spec"]
    assert not {"serviceAccountName", "dnsPolicy"} & spec.keys()
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("spec", specs(), ids=["daemonset", "static-pod"])
def test_name_of_the_node_is_that_of_the_cluster(spec: dict[str, Any]) -> None:
    (variable,) = spec["containers"][0]["env"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    loaded = load(None, {}, {variable["name"]: "ip-10-0-0-1.example.com"})
    assert loaded.config.settings().kubelet.node_name == "ip-10-0-0-1.example.com"


def test_static_pod_refers_to_no_object_of_the_cluster() -> None:
    spec = static_pod(WORKLOAD)["spec"]
    assert "serviceAccountName" not in spec
    assert all(each.keys() & {"hostPath", "emptyDir"} for each in spec["volumes"])


@pytest.mark.parametrize(
    ("manifests", "mounted"), [("/etc/kubernetes/manifests", True), ("/etc/static", True), ("", False)]
)
def test_directory_of_static_pods_is_mounted_and_configured(tmp_path: Path, manifests: str, mounted: bool) -> None:
    workload = replace(WORKLOAD, manifests=manifests)
    path = tmp_path / "config.toml"
    path.write_text(workload.config())
    found = load(path, {}).config.settings().kubelet.manifests
    assert (str(found or "")) == manifests
    for spec in specs(workload):
        assert ("manifests" in {each["name"] for each in spec["volumes"]}) is mounted
