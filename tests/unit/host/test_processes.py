"""Environment of child processes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from nodeagent.host.commands import child_environment, run
from nodeagent.host.processes import started_s
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    import pytest

PRINT = "import os; print(os.environ.get('NOTIFY_SOCKET'))"


def test_child_does_not_report_to_the_service_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    ended = run(sys.executable, "-I", "-c", PRINT)
    assert ended is not None
    assert ended.stdout == "None\n"


def test_process_that_replaces_this_one_reports_to_the_service_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    assert child_environment()["NOTIFY_SOCKET"] == os.environ["NOTIFY_SOCKET"]


def test_start_of_a_process_is_in_seconds_since_boot() -> None:
    before_s = SystemClock().monotonic_s()
    code = "from nodeagent.host.processes import started_s; print(started_s())"
    child = run(sys.executable, "-I", "-c", code)
    assert child is not None
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert 0 < started_s() < before_s <= float(child.stdout) + tick_s <= SystemClock().monotonic_s() + tick_s
