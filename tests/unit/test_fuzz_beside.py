"""Command with a fuzzing campaign beside it: exit code, output and end of the campaign."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.fuzz.beside import run_beside
from tests.support import reclaim

ENDLESS = "import signal; signal.pause()"


WAIT = "from tests.support import reclaim; from pathlib import Path; reclaim.poll('', Path({!r}).exists)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code_of_the_campaign_is_returned_after_a_successful_command(
    capfd: pytest.CaptureFixture[str], code: int
) -> None:
    assert run_beside(python("print('passed')"), python(f"print('1 defect'); raise SystemExit({code})")) == code
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
    assert run_beside(python(command), python(campaign)) == 5
    directory, *processes = pids.read_text().split()
    assert not Path(directory).exists()
    for pid in map(int, processes):
        reclaim.poll("the process has ended", lambda pid=pid: not reclaim.alive(pid))  # type: ignore[misc]


def test_campaign_has_the_lowest_priority_and_the_command_keeps_its_own(tmp_path: Path) -> None:
    own, lowest = tmp_path / "command", tmp_path / "campaign"
    nice = "import os; open({!r}, 'w').write(str(os.nice(0)))"
    campaign = f"{WAIT.format(str(own))}; {nice.format(str(lowest))}"
    assert run_beside(python(nice.format(str(own))), python(campaign)) == 0
    assert (int(own.read_text()), int(lowest.read_text())) == (os.nice(0), 19)
