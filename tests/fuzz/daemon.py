"""Fuzz the control socket of a daemon on a simulated node: ``python -m tests.fuzz.daemon SECONDS SEED RESULT``.

Unlike with the ``http`` target, bytes arrive in pieces from several connections, and requests are carried out. The
daemon must respond to a status request within a second at any time, its memory must remain bounded, and its log must
not contain an internal error.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz.figures import GROWTH_MIB, STALL_S, Figures, rss_mib
from tests.fuzz.mutation import mutations
from tests.fuzz.targets import HTTP_SEEDS
from tests.support.simulated_daemon import simulated_daemon

_PROBE: Final = b"GET /v1/status HTTP/1.1\r\nHost: nodeagent\r\n\r\n"
_PROBE_EVERY: Final = 20
_OPEN: Final = 8
"""Maximum number of unfinished connections in addition to the current connection."""
_SLOW_PROBES: Final = 3
"""Number of consecutive slow responses that count as a stall; other processes can cause single slow responses."""


def fuzz(seconds: float, seed: int, result: Path) -> None:
    """Fuzz the control socket for ``seconds``.

    Raises:
        AssertionError: the daemon stalls, its memory grows too much, or its log contains an internal error.
    """
    random, figures = Random(seed), Figures("daemon", "mutation")
    with (
        tempfile.TemporaryDirectory(prefix="nodeagent-fuzz-") as name,
        simulated_daemon(Path(name)) as (pid, path, log),
    ):
        _probe(path)
        first_mib, slow, ends_s = rss_mib(str(pid)), 0, time.monotonic() + seconds
        unfinished: list[socket.socket] = []
        for data in mutations(HTTP_SEEDS, random):
            _send(path, data, random, unfinished)
            figures.inputs += 1
            if figures.inputs % _PROBE_EVERY:
                continue
            took_s = _probe(path)
            figures.slowest_s = max(figures.slowest_s, took_s)
            slow = slow + 1 if took_s > STALL_S else 0
            figures.rss_mib = round(rss_mib(str(pid)), 1)
            figures.rss_growth_mib = round(figures.rss_mib - first_mib, 1)
            if slow >= _SLOW_PROBES:
                figures.defect = f"status answered after {took_s:.1f} s"
            if figures.rss_growth_mib > GROWTH_MIB:
                figures.defect = f"memory grew by {figures.rss_growth_mib} MiB"
            result.write_text(json.dumps(asdict(figures)))
            if figures.defect or time.monotonic() > ends_s:
                break
        for each in unfinished:
            each.close()
        bugs = [line for line in log.read_text().splitlines() if "control_failed" in line or "Traceback" in line]
        figures.defect = figures.defect or (f"in the log: {bugs[0][:200]}" if bugs else "")
        shutil.copy(log, result.with_suffix(".daemon-log"))
    result.write_text(json.dumps(asdict(figures)))
    if figures.defect:
        raise AssertionError(figures.defect)


def _send(path: Path, data: bytes, random: Random, unfinished: list[socket.socket]) -> None:
    """Send a request in one to three pieces; read the response, or abandon the connection."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(random.choice((0.01, 0.05, 0.2)))  # after the timeout the operation is abandoned
    with suppress(OSError):
        client.connect(str(path))
        cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(3)))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            client.sendall(data[start:end])
        if random.random() < 0.2:
            unfinished.append(client)
            if len(unfinished) > _OPEN:
                unfinished.pop(random.randrange(len(unfinished))).close()
            return
        if random.random() < 0.5:
            client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass
    client.close()


def _probe(path: Path) -> float:
    """Return the duration of a status request in seconds."""
    start_s = time.monotonic()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        client.sendall(_PROBE)
        answer = b""
        while part := client.recv(65536):
            answer += part
    if not answer.startswith(b"HTTP/1.1 200"):
        raise AssertionError(answer[:500])
    return time.monotonic() - start_s


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
    fuzz(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
