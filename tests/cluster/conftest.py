"""Fixtures with a real control plane; without its binaries all tests of this directory are skipped, also in CI.

``NODEAGENT_TEST_LOGS`` names a directory for the whole logs of the control plane, the kubelet and the agent.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.agent import ClusterAgent
from tests.support.cluster import BINARIES, Cluster, binary_directory, unavailable
from tests.support.cluster_node import ClusterNode

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_nodes: list[ClusterNode] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if the binaries are missing; pytest reports skips from this function as one line.

    A test with the mark ``kubelet_only`` requires no control plane.
    """
    if reason := unavailable(("kubelet",) if item.get_closest_marker("kubelet_only") else BINARIES):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return a cluster with an API server on a separate node, shared by the tests of a module."""
    binaries = binary_directory()
    assert binaries is not None
    with separate_node(request.path.stem) as node, Cluster(node, binaries) as started:
        yield started


@pytest.fixture
def bare_node(request: pytest.FixtureRequest) -> Iterator[ClusterNode]:
    """Return a separate node with containerd only."""
    with separate_node(request.path.stem) as node:
        yield node


@contextmanager
def separate_node(name: str, *identity: str) -> Iterator[ClusterNode]:
    """Start a node whose logs are in the reports of failed tests.

    Args:
        name: directory of the whole logs of the node.
        identity: name and address of the node, if it is not the first one.
    """
    with ClusterNode(*identity) as node:
        _nodes.append(node)
        try:
            yield node
        finally:
            _nodes.remove(node)
            if directory := os.environ.get("NODEAGENT_TEST_LOGS"):
                keep_logs(node, Path(directory) / name)


def keep_logs(node: ClusterNode, directory: Path) -> None:
    """Copy the logs of a node to a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for each in node.base.glob("*.log"):
        shutil.copy(each, directory)


@pytest.fixture
def agent(cluster: Cluster) -> Iterator[ClusterAgent]:
    """Return an agent on the node; its daemon is stopped and its state removed after the test.

    An agent with the state of an earlier test would measure the effect of an eviction while the next pods start.
    """
    made = ClusterAgent(cluster, cluster.node)
    yield made
    made.stop()
    shutil.rmtree(made.state, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the control plane, the kubelet and the agent to the report of a failed test."""
    report = yield
    if report.failed and "cluster" in item.nodeid:
        for node in _nodes:
            report.sections += node.logs
    return report
