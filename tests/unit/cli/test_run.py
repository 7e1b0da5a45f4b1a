"""Process of the daemon started by its internal entry point."""

from __future__ import annotations

import subprocess
import sys

from nodeagent.cli.run import SWITCH_INTERVAL_S

MAIN = """
import atexit, sys
from nodeagent.cli import run

atexit.register(lambda: print(sys.getswitchinterval()))
sys.argv = ["run"]
run.main()
"""


def test_event_loop_of_the_daemon_waits_shortly_for_busy_threads() -> None:
    ended = subprocess.run([sys.executable, "-c", MAIN], capture_output=True, text=True, check=False)
    assert (ended.returncode, "internal entry point" in ended.stderr) == (2, True)
    assert float(ended.stdout) == SWITCH_INTERVAL_S < 0.005
