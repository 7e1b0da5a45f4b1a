"""Fixtures with a node in a virtual machine; if none can be booted, tests are skipped with a reason, or fail in CI."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.support import images, reclaim, vm
from tests.support.required_part import RequiredPart

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = "node.test/app:v1"


def _logs() -> list[tuple[str, str]]:
    return [(f"console of the node in {one.base}", one.console_tail()) for one in vm.live()]


_required = RequiredPart("real node", "node", cache(vm.unavailable), _logs)
pytest_runtest_setup = _required.pytest_runtest_setup
pytest_runtest_makereport = _required.pytest_runtest_makereport
pytest_terminal_summary = _required.pytest_terminal_summary


@pytest.fixture(scope="session", autouse=True)
def _swept() -> None:
    """Remove the files and processes of killed test runs, once before the first node is started."""
    for base in reclaim.sweep():
        print(f"removed leftovers of an earlier run in {base}", file=sys.stderr)


def remove_pods(node: vm.Node) -> None:
    """Stop and remove all pods of a node."""
    node.python(
        "from pathlib import Path\n"
        "from tests.support.pods import Pods\n"
        "with Pods(Path('/run/containerd/containerd.sock'), log_root=Path('/var/log/pods')) as pods:\n"
        "    for sandbox in pods.list_sandboxes():\n"
        "        pods.call('StopPodSandbox', {'pod_sandbox_id': sandbox.id})\n"
        "        pods.call('RemovePodSandbox', {'pod_sandbox_id': sandbox.id})\n",
        timeout_s=120,
    )


@pytest.fixture(scope="session")
def disk() -> vm.Disk:
    """Return the disk with this checkout installed; nodes boot copies of this disk."""
    return vm.ensure_disk()


@pytest.fixture(scope="module")
def node(disk: vm.Disk) -> Iterator[vm.Node]:
    """Return a node for all tests of the module, with the pause image and the image APP."""
    with vm.Node.boot(disk) as booted:
        booted.import_images(vm.pause_image(), images.image(APP))
        yield booted


@pytest.fixture(scope="module")
def shutdown_node(disk: vm.Disk) -> Iterator[vm.Node]:
    """Return a node for shutdown tests, with the pause image and APP; each test boots the node again.

    With ``NODEAGENT_TEST_COUNTED`` the clock of the node counts instructions, so that the load of the host changes no
    outcome.
    """
    counted = bool(os.environ.get("NODEAGENT_TEST_COUNTED"))
    with vm.Node.boot(disk, counted=counted) as booted:
        booted.import_images(vm.pause_image(), images.image(APP))
        yield booted
