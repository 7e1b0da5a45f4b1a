"""Settings in the section ``kubernetes``: reserved resources, node IPs, taints, evictions."""

from __future__ import annotations

import pytest

from nodeagent.cluster.plan.registration import Reservation
from nodeagent.cluster.settings import parse_addresses, parse_condition_taints, parse_node_ips, parse_reserved
from nodeagent.config.validation import convert
from nodeagent.errors import ConfigError
from nodeagent.model.node import Role
from nodeagent.settings.settings import Config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Reservation()),
        ("cpu=200m, memory=512Mi,ephemeral-storage=1Gi", Reservation(200, 512 << 20, 1 << 30)),
        ("cpu=1.5", Reservation(1500)),
    ],
)
def test_reserved_resources_are_read(text: str, expected: Reservation) -> None:
    assert parse_reserved(text) == expected


@pytest.mark.parametrize(
    "text", ["cpu", "cpu=", "pods=1", "memory=1Gi,memory=2Gi", "memory=-1", "cpu=9999999", "memory=1m"]
)
def test_invalid_reserved_resources_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_reserved(text)


def test_node_ips_are_one_of_each_family() -> None:
    assert parse_node_ips("192.0.2.1, 2001:DB8::1") == ("192.0.2.1", "2001:db8::1")
    for text in ("192.0.2.1,192.0.2.2", "node-1", "192.0.2.1/24"):
        with pytest.raises(ValueError, match="address"):
            parse_node_ips(text)


def test_addresses_of_further_types_are_read() -> None:
    found = parse_addresses("ExternalIP=192.0.2.7, ExternalIP=2001:DB8::7,InternalDNS=node-1.example.com")
    assert [(each.type, each.address) for each in found] == [
        ("ExternalIP", "192.0.2.7"),
        ("ExternalIP", "2001:db8::7"),
        ("InternalDNS", "node-1.example.com"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("192.0.2.7", "ExternalIP=node-1", "InternalIP=192.0.2.7", "ExternalDNS=", "ExternalDNS=a b"),
        "ExternalIP=::1,ExternalIP=::1",
    ],
)
def test_invalid_further_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_addresses(text)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"evict_pods": True}, "requires watch_pods = true"),
        ({"override_disruption_budgets": True}, "requires evict_pods = true"),
        ({"publish_pod_status": True}, "requires register_node and watch_pods = true"),
        ({"publish_pod_status": True, "register_node": True}, "requires register_node and watch_pods = true"),
        ({"publish_pod_status": True, "watch_pods": True}, "requires register_node and watch_pods = true"),
        ({"watch_pods": True, "override_disruption_budgets": True}, "requires evict_pods = true"),
    ],
)
def test_setting_without_the_one_that_it_requires_is_refused(section: dict[str, bool], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        convert(Config, {"kubernetes": {"server": "https://192.0.2.1:6443", **section}})


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "credentials without server"),
        ({"kubeconfig": "/k"}, "bootstrap_token_file excludes kubeconfig, token_file and certificate_file"),
        ({"server": "https://192.0.2.1", "token_file": "/t"}, "bootstrap_token_file excludes"),
        ({"server": "https://192.0.2.1", "certificate_file": "/c"}, "bootstrap_token_file excludes"),
        ({"server": "https://192.0.2.1", "key_file": "/k"}, "bootstrap_token_file excludes"),
    ],
)
def test_bootstrap_token_with_other_credentials_is_refused(section: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        convert(Config, {"kubernetes": {"bootstrap_token_file": "/t", **section}})


def test_requested_certificate_is_in_the_state_directory() -> None:
    section = {"server": "https://192.0.2.1", "bootstrap_token_file": "/t"}
    access = convert(Config, {"kubernetes": section, "state": {"directory": "/s"}}).settings().kubernetes.access
    assert access is not None
    assert str(access.certificate_file) == "/s/api-client.pem"


@pytest.mark.parametrize(("evict_pods", "off"), [(False, True), (True, False)])
def test_eviction_beside_a_kubelet_is_enabled_through_the_api_server_only(evict_pods: bool, off: bool) -> None:
    section = {"kubeconfig": "/etc/nodeagent/kubeconfig", "watch_pods": True, "evict_pods": evict_pods}
    for enabled in ("auto", "on"):
        found = convert(Config, {"kubernetes": section, "eviction": {"enabled": enabled}}).settings().eviction
        assert bool(found.off_because(Role.BESIDE_KUBELET)) is off
        assert found.refused(Role.BESIDE_KUBELET) is (off and enabled == "on")
        assert not found.off_because(Role.STANDALONE)


@pytest.mark.parametrize(("text", "seconds"), [("0s", 0.0), ("1m", 60.0), ("24h", 86400.0)])
def test_failed_pods_are_deleted_from_the_configured_age_on(text: str, seconds: float) -> None:
    section = {"kubeconfig": "/etc/nodeagent/kubeconfig", "delete_failed_after": text}
    found = convert(Config, {"kubernetes": section}).settings().kubernetes
    assert (found.delete_failed_after_s, found.delete_failed_after) == (seconds, seconds > 0)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"server": "https://192.0.2.1:6443", "delete_failed_after": "59s"}, "must be 0 or at least 1m"),
        ({"delete_failed_after": "1h"}, "requires kubeconfig or server"),
    ],
)
def test_deletion_of_failed_pods_that_is_too_early_or_without_a_server_is_refused(
    section: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        convert(Config, {"kubernetes": section})


@pytest.mark.parametrize(
    ("value", "registers", "again"), [(False, False, False), (True, True, False), ("always", True, True)]
)
def test_deleted_node_object_is_created_again_only_if_always_registered(
    value: bool | str, registers: bool, again: bool
) -> None:
    section = {"kubeconfig": "/etc/nodeagent/kubeconfig", "register_node": value}
    found = convert(Config, {"kubernetes": section}).settings().kubernetes
    assert (found.register_node, found.register_again) == (registers, again)


@pytest.mark.parametrize("value", ["never", "true", 1, None])
def test_other_registration_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match='must be true, false or "always"'):
        convert(Config, {"kubernetes": {"kubeconfig": "/etc/nodeagent/kubeconfig", "register_node": value}})


def test_taints_of_conditions_are_read() -> None:
    taints = "nodeagent.dev/image-gc-degraded:NoSchedule, nodeagent.dev/container-gc-degraded:PreferNoSchedule"
    section = {"kubeconfig": "/etc/nodeagent/kubeconfig", "publish_conditions": True, "condition_taints": taints}
    assert convert(Config, {"kubernetes": section}).settings().kubernetes.condition_taints == {
        "nodeagent.dev/image-gc-degraded": "NoSchedule",
        "nodeagent.dev/container-gc-degraded": "PreferNoSchedule",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodeagent.dev/image-gc-degraded", "the effect must be NoSchedule or PreferNoSchedule"),
        ("nodeagent.dev/image-gc-degraded:NoExecute", "the effect must be NoSchedule or PreferNoSchedule"),
        ("nodeagent.dev/image-gc-degraded=v:NoSchedule", "the key must be one of nodeagent.dev/image-gc-degraded, "),
        ("node.kubernetes.io/disk-pressure:NoSchedule", "the key must be one of nodeagent.dev/image-gc-degraded, "),
        ("nodeagent.dev/no-kubelet:NoSchedule", "the key must be one of nodeagent.dev/image-gc-degraded, "),
        (
            "nodeagent.dev/image-gc-degraded:NoSchedule,nodeagent.dev/image-gc-degraded:PreferNoSchedule",
            "nodeagent.dev/image-gc-degraded is repeated",
        ),
    ],
)
def test_other_taints_of_conditions_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_condition_taints(text)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"kubeconfig": "/etc/nodeagent/kubeconfig"}, "condition_taints requires publish_conditions = true"),
        ({"publish_conditions": True}, "requires kubeconfig or server"),
    ],
)
def test_taints_without_conditions_or_without_a_server_are_refused(section: dict[str, object], words: str) -> None:
    taints = {"condition_taints": "nodeagent.dev/image-gc-degraded:NoSchedule"}
    with pytest.raises(ConfigError, match=words):
        convert(Config, {"kubernetes": {**section, **taints}})
