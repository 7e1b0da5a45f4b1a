"""Hypothesis strategies of nodes and policies for property tests of garbage collection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings, strategies as st

from nodeagent.gc.plan.image_protection import ProtectionPolicy, parse_rule
from nodeagent.gc.plan.policy import ContainerGCPolicy, GCPolicy, ImageGCPolicy, PodLogPolicy, SandboxGCPolicy
from nodeagent.model.node import CollectionForecast, NodeSnapshot, Role
from nodeagent.model.pods import PodList, PodListSource
from nodeagent.model.runtime import (
    ANNOTATION_SOURCE,
    ContainerState,
    Image,
    ImageUsage,
    PieceKind,
    ReferenceKind,
    StorageGraph,
    StoredPiece,
)
from tests.unit.builders import MIB, ago, container, filesystem, log_directory, log_link, sandbox, snapshot

if TYPE_CHECKING:
    from nodeagent.model.decision import ItemKind, Plan

EXAMPLES = settings(suppress_health_check=[HealthCheck.too_slow])


"""Hypothesis settings without the check for slow generation, since a node needs many draws."""

PODS = ("p0", "p1", "p2", "p3")
HEX = "0123456789abcdef"
RULES = ("r.io/app0", "regex:app1:", "*/web0*", "r.io/team/*:1")


def image_id(number: int) -> str:
    return f"sha256:{number:02x}" + HEX[number % 16] * 62


seconds = st.one_of(st.integers(0, 4000), st.sampled_from([0, 120, 299, 300, 301, -60, 10**6]))
maybe_seconds = st.one_of(st.none(), seconds)


@st.composite
def images(draw: st.DrawFn, *, pins: bool = True) -> tuple[tuple[Image, ...], dict[str, ImageUsage]]:
    listed, usage = [], {}
    for number in range(draw(st.integers(0, 9))):
        repository = draw(
            st.sampled_from(["r.io/app0", "r.io/app1", "r.io/web0", "r.io/team/x", "r.io:5000/y", "k.io/pause"])
        )
        tags = (f"{repository}:{number}",) if draw(st.integers(0, 4)) else ()
        digests = (f"{repository}@sha256:{'d' * 62}{number:02x}",) if draw(st.booleans()) else ()
        size_bytes = draw(st.one_of(st.none(), st.integers(0, 200).map(lambda mib: mib * MIB)))
        pinned = pins and draw(st.integers(0, 7)) == 0
        listed.append(Image(image_id(number), tags, digests, size_bytes, pinned))
        if draw(st.integers(0, 6)):
            last_s = draw(maybe_seconds)
            usage[image_id(number)] = ImageUsage(ago(draw(seconds)), None if last_s is None else ago(last_s))
    return tuple(listed), usage


@st.composite
def storages(draw: st.DrawFn, listed: tuple[Image, ...]) -> StorageGraph:
    holders = st.one_of(st.just(()), st.just(()), st.just(()), st.just((ReferenceKind.CONTAINER,)))
    pieces = tuple(
        StoredPiece(f"p{n}", PieceKind.SNAPSHOT, draw(st.integers(0, 90)) * MIB, draw(st.integers(0, 9)), draw(holders))
        for n in range(draw(st.integers(1, 8)))
    )
    references = {
        each.id: tuple(sorted(draw(st.sets(st.integers(0, len(pieces) - 1)))))
        for each in listed
        if draw(st.integers(0, 8))
    }
    return StorageGraph(pieces, references)


@st.composite
def references(draw: st.DrawFn, listed: tuple[Image, ...]) -> dict[str, str]:
    """Return the field of a container with a reference to a listed or to an unlisted image."""
    if not listed or draw(st.integers(0, 5)) == 0:
        return {"image_ref": "sha256:" + "9" * 64}
    chosen = draw(st.sampled_from(listed))
    forms = [chosen.id, chosen.id.removeprefix("sha256:"), *chosen.repo_tags, *chosen.repo_digests]
    field = draw(st.sampled_from(["image_ref", "image_id", "image_name"]))
    return {field: draw(st.sampled_from(forms))}


@st.composite
def workloads(draw: st.DrawFn, listed: tuple[Image, ...]) -> dict[str, Any]:
    containers = [
        container(
            f"c{number}",
            pod=draw(st.sampled_from(PODS)),
            name=draw(st.sampled_from(["a", "b"])),
            state=draw(st.sampled_from([*ContainerState, ContainerState.EXITED, ContainerState.EXITED])),
            created_s=draw(maybe_seconds),
            finished_s=draw(maybe_seconds),
            labelled=draw(st.integers(0, 5)) > 0,
            attempt=draw(st.integers(0, 3)),
            **draw(references(listed)),
        )
        for number in range(draw(st.integers(0, 10)))
    ]
    sandboxes = [
        sandbox(
            pod,
            sandbox_id=f"sb-{pod}" if copy == 0 else f"sb-{pod}-{copy}",
            ready=draw(st.integers(0, 3)) == 0,
            created_s=draw(maybe_seconds),
            labelled=draw(st.integers(0, 5)) > 0,
            image=draw(st.sampled_from(["", *(each.id for each in listed)])),
            annotations={} if draw(st.integers(0, 4)) else {ANNOTATION_SOURCE: "api"},
        )
        for pod in PODS
        for copy in range(draw(st.integers(0, 3)))
    ]
    return {
        "containers": tuple(containers),
        "sandboxes": tuple(sandboxes),
        "writable_bytes": {each.id: draw(st.integers(0, 50)) * MIB for each in containers if draw(st.booleans())},
        "pod_log_directories": tuple(
            log_directory(f"uid-{pod}", modified_s=draw(seconds), is_directory=draw(st.integers(0, 5)) > 0)
            for pod in (*PODS, "px", "py")
            if draw(st.booleans())
        ),
        "dead_log_links": tuple(
            log_link(f"c{number}", modified_s=draw(seconds)) for number in range(12) if draw(st.integers(0, 3)) == 0
        ),
    }


_UIDS = st.sets(st.sampled_from([f"uid-{pod}" for pod in PODS])).map(frozenset)
POD_LISTS = st.tuples(
    st.sampled_from(PodListSource), _UIDS, st.booleans(), _UIDS, st.sampled_from([None, ago(0), ago(3600), ago(86400)])
).map(lambda values: PodList(*values))


@st.composite
def nodes(draw: st.DrawFn, *, pins: bool = True) -> NodeSnapshot:
    listed, usage = draw(images(pins=pins))
    fields = draw(workloads(listed))
    return snapshot(
        images=listed,
        image_usage=usage,
        image_filesystem=draw(st.one_of(st.none(), st.integers(0, 100).map(filesystem))),
        storage=draw(st.one_of(st.none(), storages(listed))),
        role=draw(st.sampled_from(list(Role))),
        pod_list=draw(st.one_of(st.none(), POD_LISTS)),
        booted_at=draw(st.sampled_from([None, ago(100), ago(10**7), ago(10**7)])),
        sandboxes_unread=draw(st.sampled_from([frozenset(), frozenset(), frozenset({"sb-p0"})])),
        sandbox_images=draw(st.sampled_from([frozenset(), frozenset({"r.io/web0:2"})])),
        collection_forecast=draw(st.sampled_from([None, CollectionForecast(ago(60), MIB / 10)])),
        **fields,
    )


@st.composite
def image_policies(draw: st.DrawFn, *, limits: bool = True, gain: bool = True) -> ImageGCPolicy:
    high = draw(st.integers(1, 100))
    rules = tuple(map(parse_rule, draw(st.sets(st.sampled_from(RULES)))))
    return ImageGCPolicy(
        high_threshold_percent=high,
        low_threshold_percent=draw(st.integers(0, high - 1)),
        minimum_age_s=draw(st.sampled_from([0.0, 120.0, 1000.0])),
        maximum_unused_age_s=draw(st.sampled_from([0.0, 0.0, 300.0])),
        collect_ahead_s=draw(st.sampled_from([0.0, 1800.0])),
        minimum_gain_bytes=draw(st.sampled_from([0, 0, 30 * MIB])) if gain else 0,
        max_images_per_pass=draw(st.sampled_from([0, 0, 1, 3])) if limits else 0,
        max_bytes_per_pass=draw(st.sampled_from([0, 0, 100 * MIB])) if limits else 0,
        untagged_first=draw(st.booleans()),
        protection=ProtectionPolicy(rules, draw(st.sampled_from([0, 0, 1, 2]))),
    )


container_policies = st.builds(
    ContainerGCPolicy,
    minimum_age_s=st.sampled_from([0.0, 300.0]),
    max_per_pod_container=st.integers(-1, 3),
    max_containers=st.sampled_from([-1, 0, 1, 2, 5]),
    deleted_pod_grace_s=st.sampled_from([0.0, 300.0]),
    include_unlabelled=st.booleans(),
)


@st.composite
def policies(draw: st.DrawFn, *, limits: bool = True) -> GCPolicy:
    containers = draw(container_policies)
    return GCPolicy(
        images=draw(image_policies(limits=limits)),
        containers=containers,
        sandboxes=SandboxGCPolicy(draw(st.sampled_from([0.0, 60.0])), containers.include_unlabelled),
        logs=PodLogPolicy(draw(st.sampled_from([0.0, 300.0]))),
    )


def by_id(plan: Plan) -> dict[tuple[ItemKind, str], Any]:
    return {(each.kind, each.id): each for each in plan.decisions}
