"""State of the kubelet's pod list in ``status``, ``doctor`` and passes, with a fake kubelet API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.api import requests as api
from nodeagent.cli.doctor import runtime_findings
from nodeagent.doctor.plan.node import Grade
from nodeagent.model.runtime import ANNOTATION_SOURCE
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.support.kubelet_api import FORBIDDEN, Answer, kubelet, pod_list
from tests.unit.control_node import say, serving

if TYPE_CHECKING:
    from pathlib import Path

UNUSED = "registry.test/unused:v1"


def node(root: Path) -> SimNode:
    """Return a simulated node with one pod of the API server and one unused image."""
    sim = SimNode()
    sim.root_path = str(root)
    sim.add_image(UNUSED, layers=[Layer("base", 1 << 20)], age_s=86400)
    sim.add_pod("web", annotations={ANNOTATION_SOURCE: "api"})
    return sim


@pytest.mark.parametrize(
    ("answer", "shown", "problem", "kept"),
    [
        pytest.param(Answer(body=pod_list("web", "job")), ("source-listed", 2), "", False, id="all pods"),
        pytest.param(Answer(body=pod_list("etcd", source="file")), ("partial", 1), "", True, id="static pods only"),
        pytest.param(Answer(body=pod_list()), ("partial", 0), "", True, id="empty list of a starting kubelet"),
        pytest.param(Answer(403, FORBIDDEN), ("unknown", 0), "grant get on nodes/pods", True, id="missing permission"),
        pytest.param(Answer(401, b"Unauthorized"), ("unknown", 0), "credentials unknown", True, id="wrong credentials"),
        pytest.param(Answer(500, b"Authorization error (user=x)"), ("unknown", 0), "error (user=x)", True, id="error"),
    ],
)
async def test_state_of_the_pod_list_is_shown_and_decides_on_images(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    answer: Answer,
    shown: tuple[str, int],
    problem: str,
    kept: bool,
) -> None:
    with kubelet(answer) as url:
        async with serving(tmp_path, sim=node(tmp_path), extra=f'[kubelet]\nurl = "{url}"\n') as served:
            status: dict[str, Any] = await served.ask("Status")
            (listed,) = status["pod_lists"]
            assert (listed["source"], listed["address"]) == ("kubelet", f"kubelet {url}/pods")
            assert (listed["completeness"], listed["pods"]) == shown
            assert problem in listed["problem"]
            assert bool(listed["problem"]) == bool(problem)
            assert (listed["observed_at"] is None) == bool(problem)
            _, screen, _ = await say(capsys, "status", "--config", str(served.config))
            line = next(each for each in screen.splitlines() if each.startswith("pod list: "))
            assert (listed["problem"] or f"{shown[1]} pods, read") in line
            assert ("no image is removed" in line) == (shown[0] == "partial")
            (images,) = (await served.ask("Plan", api.PlanRequest(scope="images")))["plans"]
            (reason,) = [each["reason"]["code"] for each in images["decisions"] if each["name"] == UNUSED]
            assert (reason == "use-unknown") == kept


async def test_status_without_a_configured_kubelet_has_no_pod_list(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert (await served.ask("Status"))["pod_lists"] == []


@pytest.mark.parametrize(
    ("answer", "verdict", "words"),
    [
        (Answer(body=pod_list("web")), Grade.OK, "1 pods; a missing pod does not count as deleted"),
        (Answer(body=pod_list()), Grade.WARNING, "the runtime has default/web: no image is removed"),
        (Answer(403, FORBIDDEN), Grade.PROBLEM, "user=agent"),
    ],
    ids=["complete", "partial", "refused"],
)
async def test_doctor_reports_the_pod_list(tmp_path: Path, answer: Answer, verdict: Grade, words: str) -> None:
    with kubelet(answer) as url:
        async with serving(tmp_path, sim=node(tmp_path), extra=f'[kubelet]\nurl = "{url}"\n') as served:
            settings = served.context.settings
            findings = await asyncio.to_thread(lambda: list(runtime_findings(settings)))
    (finding,) = [each for each in findings if each.check == "pod-list"]
    assert finding.verdict is verdict
    assert words in finding.evidence
