"""Import of a KubeletConfiguration: every field is converted or listed with a reason."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.config.validation import convert
from nodeagent.errors import ConfigError
from nodeagent.settings.kubelet_import import Imported, import_kubelet, import_report, read_kubelet
from nodeagent.settings.loading import load
from nodeagent.settings.settings import Config

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
WHOLE = """\
authentication: {anonymous: {enabled: false}}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
evictionHard:
  memory.available: 200Mi
  nodefs.available: "0%"
  nodefs.inodesFree: 5000
evictionSoft: {memory.available: 500Mi}
evictionSoftGracePeriod: {memory.available: 1m30s}
evictionMinimumReclaim: {imagefs.available: 2Gi}
evictionPressureTransitionPeriod: 0s
evictionMaxPodGracePeriod: 60
imageGCHighThresholdPercent: 70
imageGCLowThresholdPercent: 60
imageMinimumGCAge: 0s
imageMaximumGCAge: 168h0m0s
localStorageCapacityIsolation: false
podLogsDir: /srv/pods
readOnlyPort: 10255
shutdownGracePeriod: 45s
staticPodPath: /srv/manifests
systemReserved: {cpu: 100m}
"""


KUBEADM = """\
authentication: {anonymous: {enabled: false}}
authorization: {mode: Webhook}
cgroupDriver: systemd
clusterDNS: [192.0.2.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzPort: 10248
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {}
memorySwap: {}
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
staticPodPath: /etc/kubernetes/manifests
volumeStatsAggPeriod: 0s
"""


def of(text: str) -> Imported:
    return import_kubelet(read_kubelet(HEAD + text))


def values(imported: Imported) -> dict[str, object]:
    return {each.key: each.value for each in imported.taken}


def reasons(imported: Imported) -> dict[str, str]:
    return {each.field: each.reason for each in imported.left}


def test_all_fields_with_a_counterpart_are_converted() -> None:
    imported = of(WHOLE)
    assert values(imported) == {
        "runtime.endpoint": "unix:///run/containerd/containerd.sock",
        "image_gc.high_threshold_percent": 70,
        "image_gc.low_threshold_percent": 60,
        "image_gc.minimum_age": "2m",
        "image_gc.maximum_unused_age": "168h0m0s",
        "container_gc.pod_log_root": "/srv/pods",
        "eviction.hard": "memory.available<200Mi,nodefs.available<0%,nodefs.inodesFree<5000",
        "eviction.soft": "memory.available<500Mi",
        "eviction.soft_grace_period": "memory.available=1m30s",
        "eviction.minimum_reclaim": "imagefs.available=2Gi",
        "eviction.pressure_transition_period": "5m",
        "eviction.max_pod_grace_period": "60s",
        "eviction.local_storage_isolation": False,
        "kubelet.url": "http://127.0.0.1:10255",
        "kubelet.manifests": "/srv/manifests",
        "shutdown.grace_period": "45s",
        "shutdown.grace_period_critical": "0s",
    }
    assert set(reasons(imported)) == {"authentication", "systemReserved"}
    assert not any(each.faulty for each in imported.left)


def test_written_file_loads_to_the_same_settings(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(of(WHOLE).to_toml())
    loaded = load(path, {}, {}).config.settings()
    hard = [each.text for each in loaded.eviction.thresholds if each.hard]
    assert hard == ["memory.available<200Mi", "nodefs.inodesFree<5000", "allocatableMemory.available<200Mi"]
    assert [phase.seconds for phase in loaded.shutdown.phases] == [45.0, 0.0]


@pytest.mark.parametrize("indent", [None, 4, "\t"], ids=["one line", "spaces", "tabs"])
def test_json_is_accepted_with_any_indentation(indent: str | int | None) -> None:
    document = {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "evictionHard": {"memory.available": "5%"},
        "mergeDefaultEvictionSettings": True,
    }
    imported = import_kubelet(read_kubelet(json.dumps(document, indent=indent)))
    assert values(imported)["eviction.hard"] == (
        "memory.available<5%,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"
    )


@pytest.mark.difference("shutdown-priority-order")
@pytest.mark.parametrize(
    ("period", "setting"),
    [
        ("0s", "2m"),
        ("0", "2m"),
        ("0h0m0.0s", "2m"),
        ("0h5m", "0h5m"),
        (f"{'0' * 80}8m0", None),
        (f"{'0h' * 40}5", None),
    ],
    ids=["zero", "no unit", "parts", "minutes", "digits", "units"],
)
def test_period_of_zero_is_the_default_of_the_kubelet_and_every_text_is_matched_in_linear_time(
    period: str, setting: str | None
) -> None:
    imported = of(f"podLogsDir: /srv/pods\nimageMinimumGCAge: '{period}'\n")
    assert values(imported).get("image_gc.minimum_age") == setting


def test_phases_by_priority_are_sorted() -> None:
    imported = of(
        "shutdownGracePeriod: 0s\nshutdownGracePeriodByPodPriority:\n"
        "- {priority: 2000000000, shutdownGracePeriodSeconds: 10}\n- {priority: 0, shutdownGracePeriodSeconds: 60}\n"
    )
    assert values(imported) == {
        "shutdown.by_priority": (
            {"min_priority": 0, "seconds": 60.0},
            {"min_priority": 2_000_000_000, "seconds": 10.0},
        )
    }


@pytest.mark.parametrize(
    "periods",
    [
        "shutdownGracePeriod: 30s",
        "shutdownGracePeriodCriticalPods: 10s",
        "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s",
        "shutdownGracePeriod: 0.5s\nshutdownGracePeriodCriticalPods: 0s",
    ],
)
def test_phases_by_priority_beside_the_plain_periods_are_invalid(periods: str) -> None:
    bands = "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 60}]"
    imported = of(f"podLogsDir: /srv/pods\n{periods}\n{bands}\n")
    assert values(imported) == {"container_gc.pod_log_root": "/srv/pods"}
    given = {each.partition(":")[0] for each in f"{periods}\n{bands}".splitlines()}
    assert {each.field for each in imported.left if each.faulty} == given
    assert all("cannot be combined with shutdownGracePeriod" in reasons(imported)[name] for name in given)


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        (
            "imageGCHighThresholdPercent: 50",
            "imageGCHighThresholdPercent",
            "imageGCLowThresholdPercent (80 by default) must be below imageGCHighThresholdPercent (50)",
        ),
        (
            "imageGCHighThresholdPercent: 80\nimageGCLowThresholdPercent: 80",
            "imageGCLowThresholdPercent",
            "imageGCLowThresholdPercent (80) must be below imageGCHighThresholdPercent (80)",
        ),
        ("evictionHrad: {memory.available: 5%}", "evictionHrad", "unknown field; did you mean evictionHard?"),
        ("clusterDns: [192.0.2.1]", "clusterDns", "unknown field; did you mean clusterDNS?"),
        ("imageGCHighThresholdPercent: '50'", "imageGCHighThresholdPercent", "must be a whole number"),
        ("evictionHard: {memory.available: lots}", "evictionHard", "lots"),
        ("evictionHard: {memory.available<1,x: 5}", "evictionHard", "is not a signal"),
        ("evictionHard: [memory.available]", "evictionHard", "must be a mapping"),
        ("evictionHard: {memory.free: 5%}", "evictionHard", "memory.free"),
        ("evictionSoft: {memory.available: 1Gi}", "evictionSoft", "no grace period"),
        ("evictionMaxPodGracePeriod: -1", "evictionMaxPodGracePeriod", "of at least 0"),
        ("shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s", "shutdownGracePeriod", "must not exceed"),
        ("shutdownGracePeriodByPodPriority: [{prio: 1}]", "shutdownGracePeriodByPodPriority", "must be a list"),
        ("containerRuntimeEndpoint: tcp://x", "containerRuntimeEndpoint", "must be a unix socket"),
        ("staticPodPath: manifests", "staticPodPath", "must be an absolute path"),
    ],
)
def test_invalid_value_is_listed_as_faulty(text: str, field: str, words: str) -> None:
    imported = of(f"podLogsDir: /srv/pods\n{text}\n")
    assert words in reasons(imported)[field]
    assert next(each for each in imported.left if each.field == field).faulty
    assert values(imported) == {"container_gc.pod_log_root": "/srv/pods"}


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("evictionHard: {}", "evictionHard", "the defaults apply"),
        ("readOnlyPort: 0", "readOnlyPort", "kubelet.url"),
        ("readOnlyPort: 10255\naddress: 192.0.2.1", "address", "local addresses"),
        ("containerRuntimeEndpoint: ''", "containerRuntimeEndpoint", "detects the socket"),
        ("evictionSoft:", "evictionSoft", "no value"),
        ("noSuchField: 1", "noSuchField", "misspelt, or of a newer kubelet"),
        ("clusterDNS: [192.0.2.1]", "clusterDNS", "not a function of the agent"),
        ("runtimeRequestTimeout: 2m0s", "runtimeRequestTimeout", "runtime.removal_timeout"),
    ],
)
def test_field_without_a_counterpart_is_listed_with_the_reason(text: str, field: str, words: str) -> None:
    imported = of(text)
    assert words in reasons(imported)[field]
    assert not any(each.faulty for each in imported.left)
    assert values(imported) == {}


def test_report_has_faults_one_by_one_and_the_rest_by_group() -> None:
    imported = of(
        KUBEADM + "evictionHrad: {}\nimageGCHighThresholdPercent: 500\nsystemReserved: {cpu: 1}\n"
        "kubeReserved: {cpu: 1}\nnewField: 1\nevictionMaxPodGracePeriod: 0\n"
    )
    irrelevant = (
        "authentication, authorization, cgroupDriver, clusterDNS, clusterDomain, containerRuntimeEndpoint, "
        "cpuManagerReconcilePeriod, fileCheckFrequency, healthzPort, logging, memorySwap, nodeStatusUpdateFrequency, "
        "resolvConf, rotateCertificates, runtimeRequestTimeout, volumeStatsAggPeriod"
    )
    head, *lines, shutdown, grace = import_report(imported)
    assert head == "7 fields imported as 7 settings"
    assert lines == [
        "not imported: imageGCHighThresholdPercent: 500: must be at most 100",
        "not imported: evictionHrad: unknown field; did you mean evictionHard?",
        "not imported: newField: unknown field: misspelt, or of a newer kubelet",
        "not imported: systemReserved, kubeReserved: the agent reads cgroups and does not configure them",
        f"16 fields without effect on the agent: {irrelevant}",
    ]
    assert shutdown.startswith("no shutdownGracePeriod: ")
    assert grace.startswith("evictionMaxPodGracePeriod is 0: ")


def test_report_of_an_ordinary_file_is_short_and_has_no_fault() -> None:
    imported = of(KUBEADM)
    assert len(list(import_report(imported))) == 3
    assert not any(each.faulty for each in imported.left)


def test_field_names_of_a_tenant_file_are_escaped_in_the_report() -> None:
    lines = list(import_report(of('"x\\u001b[2Jy\\n": 1\n')))
    assert all(each.isprintable() for each in lines)


def test_missing_shutdown_grace_period_adds_a_note() -> None:
    assert "shutdownGracePeriod" in of("").notes[0]
    assert of("shutdownGracePeriod: 30s").notes == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty file"),
        ("kind: Pod", "found kinds: Pod"),
        ("- 1", "found kinds: a list of 1"),
        (f"{HEAD}---\n{HEAD}", "2 documents"),
        ("kind: KubeletConfiguration\napiVersion: v1", "apiVersion = v1: must start with"),
        ("{", "neither YAML nor JSON"),
        ("a: !!python/object:os.system {}", "neither YAML nor JSON"),
        ("[" * 5000, "neither YAML nor JSON"),
        ("# " + "x" * (1 << 20), "longer than"),
    ],
)
def test_document_of_another_kind_is_rejected(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_kubelet(text)


FIELDS = sorted(
    {line.partition(":")[0] for line in WHOLE.splitlines() if not line.startswith(" ")}
    | {"shutdownGracePeriodByPodPriority", "shutdownGracePeriodCriticalPods", "mergeDefaultEvictionSettings", "address"}
)
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(["5%", "1m"])
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["memory.available", "priority"]) | st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=9), VALUES, max_size=6))
def test_every_field_is_converted_or_listed_and_the_result_is_valid(fields: dict[str, object]) -> None:
    imported = import_kubelet(fields)
    sources = {name for each in imported.taken for name in each.fields.split(" and ")}
    assert set(fields) <= sources | {each.field for each in imported.left}
    convert(Config, tomllib.loads(imported.to_toml()))


@given(st.text(max_size=300) | st.text(max_size=300).map(lambda text: HEAD + text))
def test_any_text_is_converted_or_raises_config_error(text: str) -> None:
    try:
        fields = read_kubelet(text)
    except ConfigError:
        return
    import_kubelet(fields)
