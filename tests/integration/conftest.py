"""Fixtures with a real containerd; without containerd, tests are skipped with a visible reason, or fail in CI.

NODEAGENT_TEST_CONTAINERD selects the version: "host" (default: the installed containerd), "1.7" or "2.1".
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Protocol, Unpack

import pytest

from tests.support import reclaim
from tests.support.containerd import VERSIONS, Containerd, Options, Version, live, unavailable
from tests.support.required_part import RequiredPart
from tests.support.worn_node import IMAGEFS, AgedImages, WornNode, age_images, wear

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.pods import Pods


class ContainerdFactory(Protocol):
    """Factory of containerd daemons that are stopped at the end of the fixture's scope."""

    def __call__(self, **options: Unpack[Options]) -> Containerd: ...


@cache
def chosen_version() -> Version:
    chosen = os.environ.get("NODEAGENT_TEST_CONTAINERD", "host")
    for version in VERSIONS:
        if chosen == version:
            return version
    raise pytest.UsageError(f"NODEAGENT_TEST_CONTAINERD={chosen!r} is not one of {', '.join(VERSIONS)}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect campaign tests except in a campaign, and tests that require another version of containerd."""
    campaign = "NODEAGENT_TEST_RUNS" in os.environ
    deselected = [each for each in items if (_is_long(each) and not campaign) or _is_of_another_version(each)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [each for each in items if each not in deselected]


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _is_of_another_version(item: pytest.Item) -> bool:
    version = item.get_closest_marker("containerd")
    return version is not None and chosen_version() not in version.args


def _unavailable() -> str | None:
    return unavailable(chosen_version())


def _logs() -> list[tuple[str, str]]:
    return [(f"containerd {one.version} in {one.base}", one.log_tail()) for one in live()]


_required = RequiredPart("real containerd", "real", _unavailable, _logs)
pytest_runtest_setup = _required.pytest_runtest_setup
pytest_runtest_makereport = _required.pytest_runtest_makereport
pytest_terminal_summary = _required.pytest_terminal_summary


@pytest.fixture(scope="session")
def containerd_version() -> Version:
    return chosen_version()


@pytest.fixture(scope="session", autouse=True)
def _swept() -> None:
    """Remove the files and processes of killed test runs, once before the first containerd is started."""
    for base in reclaim.sweep():
        print(f"removed leftovers of an earlier run in {base}", file=sys.stderr)


@pytest.fixture(scope="session")
def containerd(containerd_version: Version) -> Iterator[Containerd]:
    """Return the containerd of the session, on the machine's disk.

    Tests share it and use unique names of pods and images.
    """
    with Containerd(containerd_version) as started:
        yield started


@pytest.fixture
def pods(containerd: Containerd) -> Iterator[Pods]:
    """Return a pod client of the session's containerd; sandboxes created by it are removed after the test."""
    with containerd.pods() as maker:
        yield maker
        maker.remove_made()


@pytest.fixture
def containerd_factory(containerd_version: Version) -> Iterator[ContainerdFactory]:
    """Return a factory of containerd daemons for one test: ``containerd_factory(imagefs=LoopFs(400, "xfs"))``."""
    yield from _factory(containerd_version)


@pytest.fixture(scope="session")
def aged_images(containerd_version: Version) -> Iterator[AgedImages]:
    """Return the images of worn nodes, which are imported once, on an image filesystem that the nodes copy."""
    with Containerd(containerd_version, imagefs=IMAGEFS) as importer:
        aged = age_images(importer)
        importer.stop()
        yield aged


@pytest.fixture
def worn(containerd_factory: ContainerdFactory, aged_images: AgedImages) -> WornNode:
    """Return a node with used and unused images and dead pods, on a separate small image filesystem."""
    return wear(containerd_factory(imagefs=aged_images.imagefs, with_pause=False), aged=aged_images)


@pytest.fixture(scope="module")
def module_containerd_factory(containerd_version: Version) -> Iterator[ContainerdFactory]:
    """Return a factory of containerd daemons that the tests of a module share."""
    yield from _factory(containerd_version)


def _factory(version: Version) -> Iterator[ContainerdFactory]:
    with contextlib.ExitStack() as stack:

        def start(**options: Unpack[Options]) -> Containerd:
            return stack.enter_context(Containerd(version, **options))

        yield start
