"""Settings of the node in a Kubernetes cluster."""

from __future__ import annotations

import pytest

from nodeagent.config.kubernetes_models import parse_node_ips, parse_reserved
from nodeagent.plan.kubernetes.policy import Reservation


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
