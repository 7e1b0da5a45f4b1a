"""Fixtures on a real node in a virtual machine; without one, tests are skipped with a reason, or fail in CI."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.support import images, reclaim, vm

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_SKIPPED = pytest.StashKey[dict[str, str]]()
APP = "node.test/app:v1"


@cache
def _unavailable() -> str | None:
    return vm.unavailable()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SKIPPED] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("node") is None:
        return
    reason = _unavailable()
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"real node unavailable, required in CI: {reason}", pytrace=False)
    item.config.stash[_SKIPPED][item.nodeid] = reason
    pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.get_closest_marker("node") is not None:
        report.sections += [(f"console of the node in {one.base}", one.console_tail()) for one in vm.live()]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash.get(_SKIPPED, {})
    if skipped:
        terminalreporter.section("NOT TESTED IN A REAL NODE", red=True, bold=True)
        for reason in sorted(set(skipped.values())):
            count = sum(1 for one in skipped.values() if one == reason)
            terminalreporter.write_line(f"{count} tests skipped: {reason}")


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
