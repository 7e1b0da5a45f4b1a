"""Command that kills itself at an SQL statement of its history: ``python -m tests.support.killed_command NUMBER ...``.

SIGKILL is sent before the statement, or during the statement by another thread after DELAY_US microseconds. If the
command is not killed, the number of its statements is written to standard error.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
from typing import Any

from nodeagent.cli.start import main
from nodeagent.store.history import FILE_NAME

MARK = "statements of the history: "


class _Killing(sqlite3.Connection):
    number = sys.maxsize
    delay_us = 0
    count = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        _Killing.before()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        _Killing.before()
        return super().executemany(*arguments)

    @classmethod
    def before(cls) -> None:
        cls.count += 1
        if cls.count != cls.number:
            return
        if not cls.delay_us:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=cls._kill, daemon=True).start()

    @classmethod
    def _kill(cls) -> None:
        end = time.monotonic() + cls.delay_us / 1e6
        while time.monotonic() < end:
            pass
        os.kill(os.getpid(), signal.SIGKILL)


def _connect_killing(connect: Any) -> Any:
    def connect_killing(path: object, *arguments: Any, **options: Any) -> sqlite3.Connection:
        if str(path).endswith(FILE_NAME):
            options["factory"] = _Killing
        connection: sqlite3.Connection = connect(path, *arguments, **options)
        return connection

    return connect_killing


if __name__ == "__main__":
    _Killing.number, _Killing.delay_us = int(sys.argv[1]), int(sys.argv[2])
    sqlite3.connect = _connect_killing(sqlite3.connect)
    sys.argv[1:] = sys.argv[3:]
    try:
        main()
    finally:
        sys.stderr.write(f"{MARK}{_Killing.count}\n")
