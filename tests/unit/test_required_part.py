"""Tests that require a program or a real node: skipped with a reason if unavailable, failed in CI."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\nmarkers =\n    node: in a node\n"
CONFTEST = """
from tests.support.required_part import RequiredPart

required = RequiredPart("real node", "node", lambda: {reason!r}, lambda: [("console", "kernel panic")])
pytest_runtest_setup = required.pytest_runtest_setup
pytest_runtest_makereport = required.pytest_runtest_makereport
pytest_terminal_summary = required.pytest_terminal_summary
"""
TESTS = """
import pytest

@pytest.mark.node
def test_marked():
    assert False

def test_unmarked():
    pass
"""


def run(pytester: pytest.Pytester, reason: str | None) -> tuple[dict[str, int], str]:
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST.format(reason=reason))
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("-p", "no:cacheprovider")
    return result.parseoutcomes(), str(result.stdout)


def test_missing_part_skips_its_tests_and_the_reason_is_listed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    outcomes, printed = run(pytester, "not installed: qemu")
    assert outcomes == {"passed": 1, "skipped": 1}
    assert "NOT TESTED: real node unavailable" in printed
    assert "1 tests skipped: not installed: qemu" in printed


@pytest.mark.parametrize("options", [(), ("--numprocesses", "2")], ids=["one-process", "workers"])
def test_reason_is_listed_once_if_two_directories_share_the_hooks(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(shared=CONFTEST.format(reason="not installed: qemu"))
    pytester.syspathinsert()
    for name in ("first", "second"):
        directory = pytester.mkpydir(name)
        (directory / "conftest.py").write_text("from shared import *")
        (directory / "test_part.py").write_text(TESTS)
    pytester.makeini(INI)
    result = pytester.runpytest("-p", "no:cacheprovider", *options, "first", "second")
    assert result.parseoutcomes() == {"passed": 2, "skipped": 2}
    result.stdout.fnmatch_lines(["2 tests skipped: not installed: qemu"])
    assert str(result.stdout).count("NOT TESTED") == 1


def test_missing_part_fails_its_tests_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    outcomes, printed = run(pytester, "not installed: qemu")
    assert (outcomes["passed"], "skipped" in outcomes) == (1, False)
    assert "real node unavailable, required in CI: not installed: qemu" in printed


def test_report_of_a_failed_test_has_the_logs_of_its_part(pytester: pytest.Pytester) -> None:
    outcomes, printed = run(pytester, None)
    assert outcomes == {"failed": 1, "passed": 1}
    assert "kernel panic" in printed
