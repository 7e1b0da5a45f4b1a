"""Items of deleted pods beside a kubelet: removed only on proof of a synced watch, not of the kubelet's list."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.gc.executor import PassEnd
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.pods import PodSpec
from nodeagent.model.runtime import ANNOTATION_SOURCE, ContainerState
from nodeagent.pods.plan.watch import SYNC_GRACE_S, WatchState, after_interruption, after_list
from nodeagent.record import replace
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.support.kubelet_api import Answer, kubelet, pod_list
from tests.unit.control_node import Node, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

IMAGE = "registry.test/app:v1"
PODS = ("running", "crashing", "deleted", "job", "static")
RESTARTS = 100


def uid(number: int) -> str:
    return f"0f3b5c1e-7a61-4d0e-9f0e-{number:012}"


UIDS = {name: uid(number) for number, name in enumerate(PODS)} | {"static": "5f1e7c62d3b04a8f9e1d2c3b4a596877"}


def sim_node(root: Path) -> SimNode:
    """Return a node with one running and four stopped pods; only the pod ``deleted`` is deleted from the API server."""
    sim = SimNode()
    sim.root_path = str(root)
    sim.add_image(IMAGE, layers=[Layer("base", 1 << 20)], age_s=86400)
    for name in PODS:
        ready = name == "running"
        source = "file" if name == "static" else "api"
        made = sim.add_pod(name, uid=UIDS[name], ready=ready, age_s=7200, annotations={ANNOTATION_SOURCE: source})
        if ready:
            sim.add_container(made, "app", IMAGE, age_s=7000)
        sim.add_container(made, "old", IMAGE, state=ContainerState.EXITED, age_s=7100, ended_s=7000)
    return sim


async def removed(node: Node, scope: Scope = Scope.ALL) -> set[str]:
    """Run a GC pass; return the names of pods with removed sandboxes."""
    agent = node.context.agent
    assert agent is not None
    before = {each.id: each.name for each in node.sim.sandboxes.values()}
    preview = await agent.preview(scope)
    report = await agent.run(preview, trigger="test", stop=node.context.stop)
    assert report.end in (PassEnd.COMPLETE, PassEnd.NOTHING_TO_DO, PassEnd.SHORTFALL)
    return {name for sandbox_id, name in before.items() if sandbox_id not in node.sim.sandboxes}


def watch(node: Node, *names: str, age_s: float = SYNC_GRACE_S, **changes: Any) -> None:
    """Set the state of the pod watch as after a list with these pods, ``age_s`` ago."""
    now_s = node.context.clock.monotonic_s()
    state = after_list(
        WatchState(),
        [PodSpec(UIDS[each], "default", each) for each in names],
        "7",
        requested_s=now_s - age_s,
        now_s=now_s - age_s,
        now=datetime.now(UTC),
    )
    node.context.watched_pods.address = "API server"
    node.context.watched_pods.state = replace(state, **changes)


@asynccontextmanager
async def beside_kubelet(root: Path, extra: str = "") -> AsyncIterator[Node]:
    """Serve the node with an agent beside a kubelet; yield the node."""
    (root / "config.d").mkdir()
    (root / "config.d/role.toml").write_text('role = "beside-kubelet"\n')
    async with serving(root, sim=sim_node(root), extra=extra) as node:
        yield node


async def test_only_pods_that_the_synced_watch_lacks_are_removed(tmp_path: Path) -> None:
    async with beside_kubelet(tmp_path) as node:
        watch(node, "running", "crashing", "job")
        assert await removed(node) == {"deleted"}
        left = {each.sandbox_id for each in node.sim.containers.values()}
        assert left == {each.id for each in node.sim.sandboxes.values()}


@pytest.mark.parametrize(
    ("listed", "changes"),
    [
        pytest.param(("running", "crashing", "job"), {"age_s": SYNC_GRACE_S - 1}, id="just listed"),
        pytest.param(("running", "crashing", "job"), {"connected_s": None, "error": "reset"}, id="interrupted"),
        pytest.param(("running", "crashing", "job"), {"foreign": "no Node object"}, id="unproven node name"),
        pytest.param(("running", "crashing", "job"), {"unnamed": 1}, id="unreadable pod"),
        pytest.param(("running", "crashing", "job"), {"truncated": True}, id="truncated list"),
        pytest.param((), {}, id="list of another cluster"),
        pytest.param(("crashing",), {}, id="list without the running pod"),
    ],
)
async def test_nothing_is_removed_without_proof(
    tmp_path: Path, listed: tuple[str, ...], changes: dict[str, Any]
) -> None:
    async with beside_kubelet(tmp_path) as node:
        watch(node, *listed, **changes)
        assert await removed(node) == set()


async def test_restarts_of_a_kubelet_in_every_phase_of_its_list_remove_nothing(tmp_path: Path) -> None:
    phases = [
        Answer(503, b"starting"),
        Answer(body=pod_list()),
        Answer(body=pod_list("static", source="file")),
        Answer(body=pod_list("running", "crashing", "job")),
        Answer(body=b"{", length=100),
    ]
    answer = Answer()
    with kubelet(answer) as url:
        extra = f'[kubelet]\nurl = "{url}"\n'
        async with beside_kubelet(tmp_path, extra) as node:
            items = set(node.sim.sandboxes), set(node.sim.containers), set(node.sim.images)
            agent = node.context.agent
            assert agent is not None
            for number in range(RESTARTS):
                phase = phases[number % len(phases)]
                answer.status, answer.body, answer.length = phase.status, phase.body, phase.length
                if number % 10 == 5:
                    watch(node, "running", "crashing", "job")
                    before = node.context.watched_pods.state
                    node.context.watched_pods.state = after_interruption(before, "connection refused")
                await agent.bound_pods.read(max_age_s=0)
                preview = await agent.preview(Scope.CONTAINERS)
                assert preview.removals == ()
            assert await removed(node) == set()
            assert (set(node.sim.sandboxes), set(node.sim.containers), set(node.sim.images)) == items
