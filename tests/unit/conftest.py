"""A private bus for the tests of logind, and the rule for where there is none: a loud skip, in CI a failure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.login1 import PrivateBus, unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SKIPPED = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SKIPPED] = set()


@pytest.fixture
def private_bus(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PrivateBus]:
    reason = unavailable()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"in CI the private bus is no option: {reason}", pytrace=False)
        request.config.stash[_SKIPPED].add(reason)
        pytest.skip(reason)
    bus = PrivateBus(tmp_path)
    bus.start()
    yield bus
    bus.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash[_SKIPPED]
    for reason in sorted(skipped):
        terminalreporter.section("THE DELAY LOCK WAS NOT TESTED", red=True, bold=True)
        terminalreporter.write_line(reason)
