"""Audit of leaks: each kind with and without its record, and its minimum age."""

from __future__ import annotations

import pytest

from nodeagent.model.runtime_objects import HostObjects, ObjectKind, RuntimeObject, RuntimeRecords
from nodeagent.plan.gc.deep_leaks import ADVICE, find_deep_leaks
from nodeagent.record import replace
from tests.unit.builders import DAY_S, NOW, ago

RECORDS = RuntimeRecords(
    frozenset({("k8s.io", "box"), ("k8s.io", "app"), ("moby", "other")}),
    frozenset({"box", "app"}),
    frozenset({"sha256:a"}),
    frozenset({("k8s.io", "layer-1")}),
    frozenset({("overlayfs", "k8s.io", "chain")}),
)
DIRECTORIES = {"overlayfs": frozenset({"1"})}
KNOWN = {
    ObjectKind.SNAPSHOT_DIRECTORY: ("1", "overlayfs", ""),
    ObjectKind.SNAPSHOT_RECORD: ("chain", "overlayfs", "k8s.io"),
    ObjectKind.BLOB: ("sha256:a", "", ""),
    ObjectKind.INGEST: ("layer-1", "k8s.io", ""),
    ObjectKind.MOUNT: ("app", "k8s.io", ""),
    ObjectKind.SHIM: ("box", "k8s.io", ""),
    ObjectKind.CGROUP: ("app", "", ""),
    ObjectKind.TASK_DIRECTORY: ("other", "moby", ""),
    ObjectKind.CRI_DIRECTORY: ("box", "", ""),
}
AGED = sorted(set(KNOWN) - {ObjectKind.MOUNT, ObjectKind.SHIM, ObjectKind.CGROUP})


def known(kind: ObjectKind) -> RuntimeObject:
    key, scope, namespace = KNOWN[kind]
    return RuntimeObject(kind, f"/{kind}", key, scope, namespace, changed_at=ago(2 * DAY_S))


def leaks(*objects: RuntimeObject, records: RuntimeRecords = RECORDS, minimum_age_s: float = DAY_S) -> list[str]:
    host = HostObjects(objects, DIRECTORIES)
    return [each.found.name for each in find_deep_leaks(host, records, NOW, minimum_age_s=minimum_age_s)]


@pytest.mark.parametrize("kind", sorted(KNOWN))
def test_object_is_a_leak_only_without_its_record(kind: ObjectKind) -> None:
    assert leaks(known(kind)) == []
    assert leaks(replace(known(kind), key="9")) == [f"/{kind}"]


@pytest.mark.parametrize("kind", AGED)
def test_young_object_and_one_of_unknown_age_are_omitted(kind: ObjectKind) -> None:
    missing = replace(known(kind), key="9")
    assert leaks(replace(missing, changed_at=ago(DAY_S - 1))) == []
    assert leaks(replace(missing, changed_at=ago(DAY_S))) == [f"/{kind}"]
    assert leaks(replace(missing, changed_at=None)) == []
    assert leaks(replace(missing, changed_at=None), minimum_age_s=0) == [f"/{kind}"]


def test_record_of_another_namespace_or_snapshotter_does_not_count() -> None:
    assert leaks(replace(known(ObjectKind.TASK_DIRECTORY), scope="default")) == ["/task-directory"]
    assert leaks(replace(known(ObjectKind.SNAPSHOT_RECORD), namespace="moby")) == ["/snapshot-record"]
    assert leaks(replace(known(ObjectKind.INGEST), scope="moby")) == ["/ingest"]


def test_directories_of_an_unreadable_snapshotter_are_not_compared() -> None:
    assert leaks(replace(known(ObjectKind.SNAPSHOT_DIRECTORY), key="9", scope="native")) == []


def test_expired_lease_is_a_leak() -> None:
    expired = RuntimeObject(ObjectKind.LEASE, "old", "old", "k8s.io", changed_at=ago(1))
    valid = RuntimeObject(ObjectKind.LEASE, "new", "new", "k8s.io", changed_at=ago(-60))
    assert leaks(records=replace(RECORDS, leases=(expired, valid))) == ["old"]


def test_every_kind_has_advice() -> None:
    assert set(ADVICE) == set(ObjectKind)
