"""Parsing of pod specs, and refusal of malformed pod specs."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.errors import ObservationError
from nodeagent.kube.podspec import parse_listed_pod, parse_pod, parse_resource_quantity
from nodeagent.model.pods import EmptyDirSpec
from nodeagent.model.pressure import QosClass

MIB = 1 << 20


def pod(spec: Any = None, status: Any = None, **metadata: Any) -> dict[str, Any]:
    """Return a pod document with this spec, status and metadata."""
    return {
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", **metadata},
        "spec": {"containers": [{"name": "app"}]} | (spec or {}),
        **({} if status is None else {"status": status}),
    }


def container(name: str = "app", *, limits: Any = None, restart: str | None = None, **requests: Any) -> dict[str, Any]:
    """Return a container document; ``requests`` maps resource names, with dashes written as underscores, to amounts."""
    fields: dict[str, Any] = {
        "name": name,
        "resources": {"requests": {k.replace("_", "-"): requests[k] for k in requests}},
    }
    if limits is not None:
        fields["resources"]["limits"] = limits
    if restart is not None:
        fields["restartPolicy"] = restart
    return fields


def test_fields_relevant_for_eviction_are_parsed() -> None:
    spec = {
        "priority": 1000,
        "priorityClassName": "shop-high",
        "terminationGracePeriodSeconds": 45,
        "containers": [
            container(memory="100Mi", ephemeral_storage="1Gi", limits={"memory": "1Gi", "ephemeral-storage": "2Gi"}),
            container("side", memory="50Mi"),
        ],
        "volumes": [
            {"name": "cache", "emptyDir": {"sizeLimit": "64Mi"}},
            {"name": "scratch", "emptyDir": {"medium": "Memory"}},
            {"name": "plain", "emptyDir": {}},
            {"name": "settings", "configMap": {"name": "x"}},
        ],
    }
    parsed = parse_pod(
        pod(
            spec,
            {"phase": "Running", "qosClass": "Burstable"},
            labels={"app": "web"},
            annotations={"kubernetes.io/config.source": "api"},
        ),
        "here",
    )
    assert (parsed.uid, parsed.namespace, parsed.name) == ("u-1", "shop", "web")
    assert (parsed.priority, parsed.priority_class, parsed.termination_grace_s) == (1000, "shop-high", 45)
    assert (parsed.memory_request_bytes, parsed.ephemeral_request_bytes) == (150 * MIB, 1024 * MIB)
    assert parsed.ephemeral_limit_bytes == 2048 * MIB
    assert parsed.containers[0].memory_limit_bytes == 1024 * MIB
    assert parsed.empty_dirs == (
        EmptyDirSpec("cache", 64 * MIB, "64Mi"),
        EmptyDirSpec("scratch"),
        EmptyDirSpec("plain"),
    )
    assert (parsed.qos, parsed.phase, parsed.deleting) == (QosClass.BURSTABLE, "Running", False)
    assert (parsed.labels, parsed.annotations) == ({"app": "web"}, {"kubernetes.io/config.source": "api"})


def test_absent_fields_get_their_defaults() -> None:
    parsed = parse_pod({"metadata": {"name": "web"}, "spec": {}}, "here")
    assert (parsed.uid, parsed.namespace, parsed.priority, parsed.termination_grace_s) == ("", "default", None, None)
    assert (parsed.memory_request_bytes, parsed.ephemeral_limit_bytes, parsed.qos) == (0, None, QosClass.BEST_EFFORT)


def test_deleted_pod_has_the_grace_period_of_its_deletion() -> None:
    parsed = parse_pod(
        pod(
            {"terminationGracePeriodSeconds": 45},
            deletionTimestamp="2026-01-01T00:00:00Z",
            deletionGracePeriodSeconds=5,
        ),
        "here",
    )
    assert (parsed.deleting, parsed.termination_grace_s) == (True, 5)


@pytest.mark.difference("overhead-alone", "pod-level-resources")
@pytest.mark.parametrize(
    ("spec", "request_mib"),
    [
        pytest.param({"containers": [container(memory="1Mi", limits={"memory": "9Mi"})]}, 1, id="request"),
        pytest.param({"containers": [container(limits={"memory": "9Mi"})]}, 9, id="limit alone"),
        pytest.param(
            {"containers": [container(memory="2Mi")], "initContainers": [container("i", memory="5Mi")]},
            5,
            id="larger request of an init container",
        ),
        pytest.param(
            {
                "containers": [container(memory="2Mi")],
                "initContainers": [container("s", memory="3Mi", restart="Always"), container("i", memory="4Mi")],
            },
            7,
            id="init beside a sidecar",
        ),
        pytest.param(
            {
                "containers": [container(memory="5Mi")],
                "initContainers": [container("i", memory="4Mi"), container("s", memory="3Mi", restart="Always")],
            },
            8,
            id="sidecar after init",
        ),
        pytest.param({"containers": [container(memory="2Mi")], "overhead": {"memory": "6Mi"}}, 8, id="overhead"),
        pytest.param(
            {"containers": [container(memory="2Mi")], "resources": {"requests": {"memory": "20Mi"}}}, 20, id="pod level"
        ),
        pytest.param(
            {
                "containers": [container(memory="2Mi")],
                "resources": {"requests": {"memory": "20Mi"}},
                "overhead": {"memory": "6Mi"},
            },
            26,
            id="overhead beside the pod level",
        ),
        pytest.param(
            {"containers": [container(memory="2Mi")], "resources": {"requests": {"cpu": "1"}}},
            2,
            id="cpu alone at the pod level",
        ),
        pytest.param({"overhead": {"memory": "6Mi"}}, 6, id="overhead alone"),
    ],
)
def test_request_is_computed_as_by_the_scheduler(spec: dict[str, Any], request_mib: int) -> None:
    assert parse_pod(pod(spec), "here").memory_request_bytes == request_mib * MIB


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        ([container()], QosClass.BEST_EFFORT),
        ([container(cpu="100m")], QosClass.BURSTABLE),
        ([container(memory="1Mi", cpu="1", limits={"memory": "1Mi", "cpu": "1000m"})], QosClass.GUARANTEED),
        ([container(limits={"memory": "1Mi", "cpu": "1"})], QosClass.GUARANTEED),
        ([container(limits={"memory": "1Mi"})], QosClass.BURSTABLE),
        ([container(limits={"memory": "1Mi", "cpu": "1"}), container("b")], QosClass.BURSTABLE),
        ([container(memory="1Mi", limits={"memory": "2Mi", "cpu": "1"})], QosClass.BURSTABLE),
    ],
)
def test_qos_class_is_computed_from_the_resources(containers: list[Any], qos: QosClass) -> None:
    assert parse_pod(pod({"containers": containers}), "here").qos is qos


def test_qos_class_is_computed_with_init_containers() -> None:
    guaranteed = container(memory="1Mi", cpu="1", limits={"memory": "1Mi", "cpu": "1"})

    def qos(init: dict[str, Any], main: dict[str, Any]) -> QosClass | None:
        return parse_pod(pod({"initContainers": [init], "containers": [main]}), "here").qos

    assert qos(container("init"), container()) is QosClass.BEST_EFFORT
    assert qos(container("init", cpu="1m"), container()) is QosClass.BURSTABLE
    assert qos(container("init"), guaranteed) is QosClass.BURSTABLE
    assert qos(guaranteed | {"name": "init"}, guaranteed) is QosClass.GUARANTEED


@pytest.mark.difference("critical-class")
@pytest.mark.parametrize(
    ("name", "priority"),
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000), ("other", None)],
)
def test_priority_of_a_built_in_class_is_known(name: str, priority: int | None) -> None:
    assert parse_pod(pod({"priorityClassName": name}), "here").priority == priority


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "here: null is not an object"),
        ([], "here: [] is not an object"),
        ({"metadata": {}, "spec": {}}, "here: metadata.name is missing"),
        ({"metadata": {"name": 7}, "spec": {}}, "here: name is 7, not a string"),
        ({"metadata": {"name": "x"}}, "here (default/x): spec: null is not an object"),
        (pod({"priority": "high"}), "here (shop/web): spec.priority is 'high', not a 32-bit number"),
        (pod({"priority": True}), "here (shop/web): spec.priority is True, not a 32-bit number"),
        (pod({"priority": 2**31}), "here (shop/web): spec.priority is 2147483648, not a 32-bit number"),
        (pod({"containers": {}}), "here (shop/web): containers is {}, not a list"),
        (
            pod({"containers": [container(memory="-5")]}),
            "here (shop/web): spec.containers[0].resources.requests.memory: '-5' is not a quantity such as 500Mi",
        ),
        (
            pod({"volumes": [{"name": "c", "emptyDir": {"sizeLimit": "big"}}]}),
            "here (shop/web): spec.volumes[0].emptyDir.sizeLimit: 'big' is not a quantity such as 500Mi",
        ),
        (
            pod({"terminationGracePeriodSeconds": 1.5}),
            "here (shop/web): terminationGracePeriodSeconds is 1.5, not a number of seconds",
        ),
        (pod(annotations={"a": 1}), "here (shop/web): annotations.a is 1, not a string"),
        (pod(status=[]), "here (shop/web): status: [] is not an object"),
    ],
)
def test_malformed_field_is_refused_with_its_path(document: object, message: str) -> None:
    with pytest.raises(ObservationError) as caught:
        parse_pod(document, "here")
    assert str(caught.value) == message


@pytest.mark.parametrize(("value", "number"), [("1.5Gi", 3 << 29), (100, 100), (0.5, Decimal("0.5")), (1e3, 1000)])
def test_quantity_may_be_a_text_or_a_number(value: object, number: object) -> None:
    assert parse_resource_quantity(value, "x") == number


@pytest.mark.parametrize("value", ["", "1 Mi", "1mi", "Mi", "1e", "9Ei1", "1" * 65, True, None, [], "-1"])
def test_value_that_is_not_a_quantity_is_refused(value: object) -> None:
    with pytest.raises(ObservationError):
        parse_resource_quantity(value, "x")


@pytest.mark.parametrize("value", ["12E", "8Ei", "9223372036854775808", "10000P", "1e999", "9" * 64, 2**70])
def test_quantity_above_64_bits_saturates(value: object) -> None:
    assert parse_resource_quantity(value, "x") == 2**63 - 1


@pytest.mark.difference("quantity-below-byte")
@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [
        ("1e9", 10**9),
        ("1E12", 10**12),
        ("1.3E+6", 1_300_000),
        ("5n", 1),
        ("+5Gi", 5 << 30),
        ("1.G", 10**9),
        ("1e-99", 1),
    ],
)
def test_every_form_of_a_quantity_is_parsed(value: str, size_bytes: int) -> None:
    parsed = parse_pod(pod({"containers": [container(memory=value)]}), "here")
    assert parsed.memory_request_bytes == size_bytes


MAIN, INIT, SIDE = (
    container("app", limits={"ephemeral-storage": "10Mi"}),
    container("init", limits={"ephemeral-storage": "50Mi"}),
    container("side", limits={"ephemeral-storage": "4Mi"}, restart="Always"),
)


@pytest.mark.parametrize(
    ("spec", "limit_mib"),
    [
        pytest.param({"containers": [MAIN]}, 10, id="main"),
        pytest.param({"containers": [MAIN], "initContainers": [SIDE]}, 14, id="sidecar added"),
        pytest.param({"containers": [MAIN], "initContainers": [INIT]}, 50, id="maximum with init"),
        pytest.param({"containers": [MAIN], "initContainers": [SIDE, INIT]}, 54, id="init beside a sidecar"),
        pytest.param({"containers": [MAIN], "initContainers": [INIT, SIDE]}, 50, id="sidecar after init"),
        pytest.param({"containers": [container()], "initContainers": [INIT]}, 50, id="init alone has a limit"),
        pytest.param({"containers": [MAIN], "overhead": {"ephemeral-storage": "5Mi"}}, 15, id="overhead"),
        pytest.param({"overhead": {"ephemeral-storage": "5Mi"}}, None, id="overhead without limit"),
        pytest.param({"containers": [container()]}, None, id="none"),
    ],
)
def test_storage_limit_of_a_pod_is_counted_like_a_request(spec: dict[str, Any], limit_mib: int | None) -> None:
    limit_bytes = parse_pod(pod(spec), "here").ephemeral_limit_bytes
    assert limit_bytes == (None if limit_mib is None else limit_mib * MIB)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, ("", "default", "", ())),
        ({"metadata": {"uid": "u-1", "name": 7}, "spec": []}, ("u-1", "default", "", ())),
        (
            pod({"priority": "high", "containers": [{"image": "a:1"}, 5, {"image": []}], "volumes": [{"image": 7}]}),
            ("u-1", "shop", "web", ("a:1",)),
        ),
    ],
)
def test_malformed_pod_of_a_list_keeps_its_readable_name_and_images(document: object, expected: object) -> None:
    parsed = parse_listed_pod(document, "here")
    assert (parsed.uid, parsed.namespace, parsed.name, parsed.images) == expected
    assert parsed.malformed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["priority", "containers", "initContainers", "volumes", "resources", "overhead", "x"])


@given(spec=st.dictionaries(KEYS, JSON, max_size=4), metadata=JSON, status=JSON)
def test_any_document_is_a_pod_or_refused(spec: dict[str, object], metadata: object, status: object) -> None:
    document = pod(spec, status, annotations=metadata)
    try:
        parsed = parse_pod(document, "here")
    except ObservationError:
        return
    assert parsed.memory_request_bytes >= 0


def test_images_of_all_containers_and_image_volumes_are_parsed() -> None:
    spec = {
        "initContainers": [{"name": "init", "image": "r.io/init:1"}],
        "containers": [
            {"name": "app", "image": " r.io/app:1 "},
            {"name": "side", "image": "r.io/init:1"},
            {"name": "x"},
        ],
        "ephemeralContainers": [{"name": "debug", "image": "r.io/debug:1"}],
        "volumes": [
            {"name": "model", "image": {"reference": "r.io/model:1", "pullPolicy": "IfNotPresent"}},
            {"name": "data", "emptyDir": {}},
        ],
    }
    parsed = parse_pod(pod(spec), "p")
    assert parsed.images == ("r.io/init:1", "r.io/app:1", "r.io/debug:1", "r.io/model:1")


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{"name": "app", "image": 1}]},
        {"ephemeralContainers": ["debug"]},
        {"volumes": [{"name": "model", "image": "r.io/model:1"}]},
        {"volumes": [{"name": "model", "image": {"reference": []}}]},
    ],
)
def test_malformed_image_reference_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ObservationError, match="web"):
        parse_pod(pod(spec), "p")


def test_error_of_a_malformed_pod_is_shortened() -> None:
    pod = parse_listed_pod({"metadata": {"name": "a", "labels": {"k" * 5000: 1}}, "spec": {}}, "pod 0")
    assert (pod.name, len(pod.malformed)) == ("a", 503)


@pytest.mark.parametrize(
    ("volumes", "claims"),
    [
        ([], ()),
        ([{"name": "tmp", "emptyDir": {}}, {"name": "c", "configMap": {"name": "x"}}], ()),
        ([{"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}}], ("data-0",)),
        ([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}], ("web-scratch",)),
        ([{"name": each, "persistentVolumeClaim": {"claimName": "data-0"}} for each in "ab"], ("data-0",)),
    ],
)
def test_claims_of_persistent_and_generic_ephemeral_volumes_are_parsed(
    volumes: list[dict[str, Any]], claims: tuple[str, ...]
) -> None:
    assert parse_pod(pod({"containers": [], "volumes": volumes}), "here").claims == claims


def test_malformed_claim_is_refused() -> None:
    with pytest.raises(ObservationError, match="claimName"):
        parse_pod(pod({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": 7}}]}), "here")
