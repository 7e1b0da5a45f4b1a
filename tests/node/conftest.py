"""Fixtures on a real node in a virtual machine; without one, tests are skipped with a reason, or fail in CI."""

from __future__ import annotations

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
    """Remove the leftovers of killed runs, once before any start."""
    for base in reclaim.sweep():
        print(f"removed leftovers of an earlier run in {base}", file=sys.stderr)


@pytest.fixture(scope="session")
def disk() -> vm.Disk:
    """The disk with this checkout installed; nodes boot copies of it."""
    return vm.ensure_disk()


@pytest.fixture(scope="module")
def node(disk: vm.Disk) -> Iterator[vm.Node]:
    """A node for all tests of the module, with the pause image and APP in its containerd."""
    with vm.Node.boot(disk) as booted:
        booted.import_images(vm.pause_image(), images.image(APP))
        yield booted


@pytest.fixture(scope="module")
def shutdown_node(disk: vm.Disk) -> Iterator[vm.Node]:
    """A node for shutdowns, with the images; each test starts it again."""
    with vm.Node.boot(disk) as booted:
        booted.import_images(vm.pause_image(), images.image(APP))
        yield booted
