"""A real part that tests require, such as a containerd: without it they are skipped with a reason, or fail in CI."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class RequiredPart:
    """Hooks for the ``conftest.py`` of a directory whose tests require the part.

    A ``conftest.py`` assigns the methods to its own names: a registered plugin would apply to all directories.
    """

    def __init__(
        self,
        name: str,
        marker: str,
        unavailable: Callable[[], str | None],
        read_logs: Callable[[], list[tuple[str, str]]],
    ) -> None:
        """Create the hooks.

        Args:
            name: name of the part in messages.
            marker: marker of the tests that require it.
            unavailable: returns the reason that it is unavailable; ``None`` if it is available.
            read_logs: returns titles and logs of the running parts, for reports of failed tests.
        """
        self._name = name
        self._marker = marker
        self._unavailable = unavailable
        self._read_logs = read_logs
        self._skipped: dict[str, str] = {}

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a test without the part; fail it in CI."""
        if item.get_closest_marker(self._marker) is None:
            return
        reason = self._unavailable()
        if reason is None:
            return
        if os.environ.get("CI") == "true":
            pytest.fail(f"{self._name} unavailable, required in CI: {reason}", pytrace=False)
        self._skipped[item.nodeid] = reason
        pytest.skip(reason)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the logs of the running parts to the report of a failed test."""
        report = yield
        if report.failed and item.get_closest_marker(self._marker) is not None:
            report.sections += self._read_logs()
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the reasons of skipped tests with their number."""
        if not self._skipped:
            return
        terminalreporter.section(f"NOT TESTED: {self._name} unavailable", red=True, bold=True)
        for reason, count in sorted(Counter(self._skipped.values()).items()):
            terminalreporter.write_line(f"{count} tests skipped: {reason}")
