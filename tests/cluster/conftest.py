"""Fixtures with a real control plane; without its binaries all tests of this directory are skipped, also in CI.

``NODEAGENT_TEST_LOGS`` names a directory for the whole logs of the control plane, the kubelet and the agent.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.agent import ClusterAgent
from tests.support.cluster import Cluster, binary_directory, unavailable
from tests.support.cluster_node import ClusterNode

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_nodes: list[ClusterNode] = []


def pytest_runtest_setup() -> None:
    """Skip a test if the binaries are missing; pytest reports skips from this function as one line."""
    if reason := unavailable():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return a cluster with an API server on a separate node, shared by the tests of a module."""
    binaries = binary_directory()
    assert binaries is not None
    with ClusterNode() as node:
        _nodes.append(node)
        try:
            with Cluster(node, binaries) as started:
                yield started
        finally:
            _nodes.remove(node)
            if directory := os.environ.get("NODEAGENT_TEST_LOGS"):
                keep_logs(node, Path(directory) / request.path.stem)


def keep_logs(node: ClusterNode, directory: Path) -> None:
    """Copy the logs of a node to a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for each in node.base.glob("*.log"):
        shutil.copy(each, directory)


@pytest.fixture
def agent(cluster: Cluster) -> Iterator[ClusterAgent]:
    """Return an agent on the node; its daemon is stopped after the test."""
    made = ClusterAgent(cluster)
    yield made
    made.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the control plane, the kubelet and the agent to the report of a failed test."""
    report = yield
    if report.failed and "cluster" in item.nodeid:
        for node in _nodes:
            report.sections += node.logs
    return report
