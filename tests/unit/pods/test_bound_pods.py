"""Pods bound to this node, read from the kubelet's list after a kubelet start and without the API server."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from nodeagent.errors import NodeAgentError, ObservationError, RuntimeUnavailableError
from nodeagent.model.pods import Completeness, PodSpec
from nodeagent.model.runtime import ANNOTATION_SOURCE
from nodeagent.pods.images import PodImageReader
from nodeagent.pods.sources import VANISHED_S, BoundPods
from nodeagent.record import replace
from tests.sim.clock import SimClock
from tests.unit.builders import sandbox

if TYPE_CHECKING:
    from nodeagent.model.runtime import Sandbox

RESTARTS: Final = 100
PASS_S: Final = 30.0


@dataclass
class Kubelet:
    """A fake kubelet with a changeable pod list and sandboxes, and with optional errors."""

    pods: tuple[PodSpec, ...] = ()
    error: str = ""
    sandboxes: tuple[Sandbox, ...] = ()
    sandbox_error: NodeAgentError | None = None
    comparisons: int = field(default=0, init=False)

    async def read(self) -> tuple[PodSpec, ...]:
        if self.error:
            raise ObservationError(self.error)
        return self.pods

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        self.comparisons += 1
        if self.sandbox_error is not None:
            raise self.sandbox_error
        return self.sandboxes


class Node:
    """Readers of the pods of one kubelet; each reading is one pass interval after the previous reading."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.clock = SimClock()
        self.kubelet = kubelet
        self.bound = BoundPods(self.clock, kubelet, address="kubelet", list_sandboxes=kubelet.list_sandboxes)
        self.images = PodImageReader(self.clock, bound=self.bound)

    async def poll(self, *pods: PodSpec, after_s: float = PASS_S) -> set[str]:
        """Return the images named by pods after the kubelet lists ``pods``."""
        self.kubelet.pods = pods
        self.clock.advance(after_s)
        return set((await self.images.read()).named)


def pod(name: str, *, source: str = "api", uid: str = "", phase: str = "Running", deleting: bool = False) -> PodSpec:
    annotations = {ANNOTATION_SOURCE: source} if source else {}
    return PodSpec(
        uid or f"uid-{name}",
        "shop",
        name,
        annotations=annotations,
        phase=phase,
        deleting=deleting,
        images=(f"{name}:1",),
    )


def made_by_api_server(name: str, *, ready: bool = True) -> Sandbox:
    return replace(sandbox(name, ready=ready), annotations={ANNOTATION_SOURCE: "api"})


WEB, JOB, PROXY, ETCD = pod("web"), pod("job"), pod("proxy"), pod("etcd", source="file")


async def test_pods_missing_in_a_list_of_static_pods_remain_bound_without_limit() -> None:
    node = Node(Kubelet())
    await node.poll(WEB, JOB, ETCD)
    for answer in [(), (ETCD,), (ETCD,), ()] * 50:
        assert await node.poll(*answer) >= {"web:1", "job:1"}
    assert node.clock.monotonic_s() > 5 * VANISHED_S
    assert await node.poll(WEB, JOB, ETCD) == {"web:1", "job:1", "etcd:1"}


async def test_pod_missing_beside_other_pods_of_its_source_is_forgotten_after_a_while() -> None:
    node = Node(Kubelet())
    await node.poll(WEB, JOB, ETCD)
    assert "job:1" in await node.poll(WEB, ETCD)
    assert "job:1" in await node.poll(WEB, ETCD, after_s=VANISHED_S - 1)
    assert await node.poll(WEB, ETCD, after_s=1) == {"web:1", "etcd:1"}


async def test_time_without_other_pods_of_the_source_does_not_count() -> None:
    node = Node(Kubelet())
    await node.poll(WEB, JOB)
    await node.poll(WEB, after_s=PASS_S)
    await node.poll(WEB, after_s=VANISHED_S - 1)
    await node.poll(ETCD, after_s=VANISHED_S)
    assert "job:1" in await node.poll(WEB, after_s=VANISHED_S)
    assert "job:1" not in await node.poll(WEB, after_s=VANISHED_S)


async def test_static_pod_missing_beside_pods_of_the_api_server_only_remains_bound() -> None:
    node = Node(Kubelet())
    await node.poll(WEB, ETCD)
    await node.poll(WEB)
    assert "etcd:1" in await node.poll(WEB, after_s=10 * VANISHED_S)


@pytest.mark.parametrize(
    "last",
    [pod("job", deleting=True), pod("job", phase="Succeeded"), pod("job", phase="Failed")],
    ids=["terminating", "succeeded", "failed"],
)
async def test_pod_that_was_listed_as_ending_is_forgotten_with_the_list(last: PodSpec) -> None:
    node = Node(Kubelet())
    await node.poll(WEB, JOB)
    await node.poll(WEB, last)
    assert await node.poll() == {"web:1"}


async def test_pod_replaced_by_one_of_the_same_name_is_forgotten() -> None:
    node = Node(Kubelet())
    await node.poll(WEB, pod("db", uid="first"))
    assert await node.poll(WEB, replace(pod("db", uid="second"), images=("db:2",))) == {"web:1", "db:2"}


async def test_list_of_static_pods_beside_sandboxes_of_the_api_server_is_incomplete() -> None:
    kubelet = Kubelet((ETCD,), sandboxes=tuple(map(made_by_api_server, ("web", "job", "db", "dns"))))
    node = Node(kubelet)
    found = await node.images.read()
    assert found.error == (
        "the kubelet's list is incomplete: no pod of the API server in the list, but the runtime has "
        "shop/db, shop/dns, shop/job and 1 more"
    )
    state = await node.bound.read()
    assert state is not None
    assert (state.completeness, state.pods, state.error) == (Completeness.PARTIAL, 1, "")


@pytest.mark.parametrize(
    ("pods", "sandboxes", "completeness"),
    [
        pytest.param((), (), Completeness.UNCONFIRMED, id="new node"),
        pytest.param((ETCD,), (sandbox("etcd"),), Completeness.UNCONFIRMED, id="static pods only"),
        pytest.param((), (made_by_api_server("web", ready=False),), Completeness.PARTIAL, id="node just booted"),
        pytest.param((WEB,), (made_by_api_server("old"),), Completeness.SOURCE_LISTED, id="leftover of a deleted pod"),
        pytest.param((pod("web", source=""),), (made_by_api_server("web"),), Completeness.UNCONFIRMED, id="no source"),
        pytest.param((), (replace(made_by_api_server("web"), uid=""),), Completeness.UNCONFIRMED, id="no UID"),
    ],
)
async def test_completeness_is_by_the_sources_in_the_list_and_by_the_sandboxes(
    pods: tuple[PodSpec, ...], sandboxes: tuple[Sandbox, ...], completeness: Completeness
) -> None:
    state = await Node(Kubelet(pods, sandboxes=sandboxes)).bound.read()
    assert state is not None
    assert state.completeness is completeness


async def test_pods_listed_before_are_no_evidence_of_an_incomplete_list() -> None:
    node = Node(Kubelet(sandboxes=(made_by_api_server("web"),)))
    await node.poll(WEB, ETCD)
    assert node.kubelet.comparisons == 0
    assert await node.poll(ETCD) == {"web:1", "etcd:1"}
    assert (await node.images.read()).error == ""


async def test_failed_comparison_counts_as_an_incomplete_list() -> None:
    kubelet = Kubelet((ETCD,), sandbox_error=RuntimeUnavailableError("no socket"))
    assert "cannot list sandboxes: no socket" in (await Node(kubelet).images.read()).error


async def test_failed_reading_has_the_error_and_keeps_the_pods() -> None:
    node = Node(Kubelet())
    await node.poll(WEB)
    read_at = node.clock.now()
    node.kubelet.error = "HTTP 401 Unauthorized"
    assert await node.poll() == {"web:1"}
    state = node.bound.state
    assert state is not None
    assert (state.error, state.pods, state.observed_at) == ("HTTP 401 Unauthorized", 1, read_at)
    node.kubelet.error = ""
    await node.poll(WEB)
    assert node.bound.state is not None
    assert node.bound.state.error == ""


async def test_no_image_of_a_bound_pod_is_unnamed_in_100_restarts_of_the_kubelet() -> None:
    """Restart the kubelet and the agent at random phases of the pod list, with and without the API server."""
    chance = random.Random(7)
    pods = (WEB, JOB, PROXY, ETCD)
    sandboxes = (*(made_by_api_server(each) for each in ("web", "job", "proxy")), sandbox("etcd"))
    node = Node(Kubelet(sandboxes=sandboxes))
    for _ in range(RESTARTS):
        if chance.random() < 0.3:  # a restart of the agent, which loses its previous readings
            node = Node(node.kubelet)
        away = chance.random() < 0.5
        phases = [None, (), (ETCD,), *([(ETCD,)] * 5 if away else []), pods]
        for answer in phases:
            for _ in range(chance.randrange(3)):
                node.kubelet.error = "connection refused" if answer is None else ""
                node.kubelet.pods = answer or ()
                node.clock.advance(chance.choice((1.0, 30.0, 300.0, 2 * VANISHED_S)))
                found = await node.images.read()
                assert found.error or set(found.named) >= {"web:1", "job:1", "proxy:1"}
