"""Fixtures of unit tests. Tests of a missing Debian program are skipped with a reason, and fail in CI."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.login1 import PrivateBus, unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_SKIPPED = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SKIPPED] = {}


def _skip(request: pytest.FixtureRequest, title: str, reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"required in CI: {reason}", pytrace=False)
    request.config.stash[_SKIPPED][title] = reason
    pytest.skip(reason)


@pytest.fixture
def private_bus(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PrivateBus]:
    reason = unavailable()
    if reason is not None:
        _skip(request, "THE DELAY LOCK WAS NOT TESTED", reason)
    bus = PrivateBus(tmp_path)
    bus.start()
    yield bus
    bus.stop()


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make psutil read ``proc`` in the temporary directory."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))


@pytest.fixture
def promtool(request: pytest.FixtureRequest) -> str:
    """Return the path of promtool, in the virtual environment (installed by .ci/setup) or on the system."""
    found = shutil.which("promtool", path=f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        _skip(
            request,
            "THE ALERT RULES WERE NOT TESTED",
            "promtool not found (.ci/setup dev real installs it as root; in Debian part of the package prometheus)",
        )
    return found or ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for title, reason in sorted(config.stash[_SKIPPED].items()):
        terminalreporter.section(title, red=True, bold=True)
        terminalreporter.write_line(reason)
