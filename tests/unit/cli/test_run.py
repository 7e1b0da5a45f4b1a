"""Process of the daemon started by ``nodeagent run``."""

from __future__ import annotations

import subprocess
import sys

from nodeagent.cli.run import SWITCH_INTERVAL_S

MAIN = """
import sys
from nodeagent.cli import run

run._serve = lambda settings, once: print(sys.getswitchinterval())
run.run_daemon(None, {}, dry_run=True, once=True)
"""


def test_event_loop_of_the_daemon_waits_shortly_for_busy_threads() -> None:
    ended = subprocess.run([sys.executable, "-c", MAIN], capture_output=True, text=True, check=True)
    assert float(ended.stdout) == SWITCH_INTERVAL_S < 0.005
