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


END = """
import os, signal, sys
from nodeagent.gc.executor import PassEnd
from nodeagent.cli import run

class Last:
    def __del__(self, write=os.write, read=signal.getitimer, timer=signal.ITIMER_REAL):
        write(1, str(read(timer)[0]).encode())

async def supervise(*_, **__):
    return PassEnd.COMPLETE

last = Last()
run.supervise = supervise
run.run_daemon(None, {}, dry_run=True, once=True)
"""


def test_time_limit_for_threads_does_not_kill_the_interpreter_that_ends_after_them() -> None:
    ended = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "0.0"), ended.stderr
