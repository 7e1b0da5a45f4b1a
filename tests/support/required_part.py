"""Hooks for tests that require a real component, such as containerd: without it, they are skipped or fail in CI."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class RequiredPart:
    """pytest hooks for the ``conftest.py`` of a directory with tests that require a component.

    A ``conftest.py`` assigns the methods to module-level names: a registered plugin would apply to all directories.
    """

    def __init__(
        self,
        name: str,
        marker: str,
        unavailable: Callable[[], str | None],
        read_logs: Callable[[], list[tuple[str, str]]],
    ) -> None:
        """Create the hooks for a component.

        Args:
            name: name of the component in messages.
            marker: marker of the tests that require the component.
            unavailable: function that returns the reason why the component is unavailable; ``None`` if it is available.
            read_logs: function that returns titles and logs of the running components, for reports of failed tests.
        """
        self._name = name
        self._marker = marker
        self._unavailable = unavailable
        self._read_logs = read_logs
        self._is_summarised = False

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a test if its component is unavailable; fail the test in CI."""
        if item.get_closest_marker(self._marker) is None:
            return
        reason = self._unavailable()
        if reason is None:
            return
        if os.environ.get("CI") == "true":
            pytest.fail(f"{self._name} unavailable, required in CI: {reason}", pytrace=False)
        pytest.skip(reason)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the logs of the running components to the report of a failed test."""
        report = yield
        if report.failed and item.get_closest_marker(self._marker) is not None:
            report.sections += self._read_logs()
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the number of skipped tests with the reason, once for all directories that share these hooks.

        Tests are counted by their reports, since worker processes of pytest-xdist may have skipped them.
        """
        reports = [each for each in terminalreporter.stats.get("skipped", ()) if self._marker in each.keywords]
        reason = self._unavailable() if reports and not self._is_summarised else None
        if reason is None:
            return
        self._is_summarised = True
        count = sum(each.longrepr[2] == f"Skipped: {reason}" for each in reports)
        terminalreporter.section(f"NOT TESTED: {self._name} unavailable", red=True, bold=True)
        terminalreporter.write_line(f"{count} tests skipped: {reason}")
