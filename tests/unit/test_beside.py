"""Command with background commands beside it: exit codes, outputs, priorities and ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.beside import Background, run_beside
from tests.support import reclaim

ENDLESS = "import signal; signal.pause()"


WAIT = "from tests.support import reclaim; from pathlib import Path; reclaim.poll('', Path({!r}).exists)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def campaign_of(code: str) -> Background:
    return Background(python(code), is_campaign=True)


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code_of_the_campaign_is_returned_after_a_successful_command(
    capfd: pytest.CaptureFixture[str], code: int
) -> None:
    assert run_beside(python("print('passed')"), [campaign_of(f"print('1 defect'); raise SystemExit({code})")]) == code
    printed = capfd.readouterr().out
    assert printed.index("passed") < printed.index("1 defect\n")


def test_campaign_and_its_processes_and_files_end_with_a_failed_command(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    campaign = f"""
import os, subprocess, sys, tempfile
child = subprocess.Popen([sys.executable, "-c", {ENDLESS!r}])
with open({str(tmp_path / "new")!r}, "w") as file:
    file.write(f"{{tempfile.mkdtemp()}} {{os.getpid()}} {{child.pid}}")
os.rename(file.name, {str(pids)!r})
child.wait()
"""
    command = f"{WAIT.format(str(pids))}; raise SystemExit(5)"
    assert run_beside(python(command), [campaign_of(campaign)]) == 5
    directory, *processes = pids.read_text().split()
    assert not Path(directory).exists()
    for pid in map(int, processes):
        reclaim.poll("the process has ended", lambda pid=pid: not reclaim.alive(pid))  # type: ignore[misc]


def test_campaign_has_the_lowest_priority_and_the_command_keeps_its_own(tmp_path: Path) -> None:
    own, lowest = tmp_path / "command", tmp_path / "campaign"
    nice = "import os; open({!r}, 'w').write(str(os.nice(0)))"
    campaign = f"{WAIT.format(str(own))}; {nice.format(str(lowest))}"
    assert run_beside(python(nice.format(str(own))), [campaign_of(campaign)]) == 0
    assert (int(own.read_text()), int(lowest.read_text())) == (os.nice(0), 19)


@pytest.mark.parametrize(("first", "second", "expected"), [(0, 0, 0), (3, 0, 3), (0, 4, 4), (3, 4, 3)])
def test_outputs_of_several_background_commands_follow_in_order_and_the_first_failure_counts(
    capfd: pytest.CaptureFixture[str], first: int, second: int, expected: int
) -> None:
    ended = python(f"print('nodes tested'); raise SystemExit({first})")
    backgrounds = [Background(ended), campaign_of(f"print('fuzzed'); raise SystemExit({second})")]
    assert run_beside(python("print('passed')"), backgrounds) == expected
    printed = capfd.readouterr().out
    assert printed.index("passed") < printed.index("nodes tested\n") < printed.index("print('fuzzed')")


def test_background_command_has_the_priority_and_environment_of_the_command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/tmp")  # the variable, not a file
    assert run_beside(python(""), [Background(python("import os; print(os.nice(0), os.environ['TMPDIR'])"))]) == 0
    assert f"\n{os.nice(0)} /tmp\n" in capfd.readouterr().out
