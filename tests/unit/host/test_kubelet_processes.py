"""Detection of processes named kubelet and of listeners, in separate namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


NESTED = ["processes of the node are hidden: the agent runs in its own PID namespace"]
_PROGRAM = """
import json, sys, time
from pathlib import Path
from nodeagent.host.kubelet_traces import KubeletTraceReader
from nodeagent.units import SystemClock
reader = KubeletTraceReader(SystemClock(), Path(sys.argv[1]))
found, ends_s = reader.read(), time.monotonic() + 20
while not (found.processes and found.ports) and time.monotonic() < ends_s and len(sys.argv) > 2:
    reader = KubeletTraceReader(SystemClock(), Path(sys.argv[1]))
    found = reader.read()
print(json.dumps([[each.name for each in found.processes], found.ports, found.unreadable]))
"""
_LISTEN = """
import socket, sys
with socket.socket() as one:
    one.bind(("127.0.0.1", 10250))
    one.listen()
    sys.stdin.read()
"""


def in_namespaces(tmp_path: Path, script: str) -> list[list[object]]:
    """Run a script in new user, PID, mount and network namespaces; return its JSON output.

    The script mounts its /proc at ``$ROOT/proc``.
    """
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    environment = {
        **os.environ,
        "ROOT": str(root),
        "PYTHON": sys.executable,
        "PROGRAM": _PROGRAM,
        "LISTEN": _LISTEN,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "DIRECTORY": str(tmp_path),
    }
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount", "--net"]
    try:
        probe = [*words, sys.executable, "-c", ""]
        tried = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if tried.returncode:
        pytest.skip(f"namespaces not permitted for this user: {tried.stderr.strip()}")
    ended = subprocess.run(
        [*words, "sh", "-ec", script], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    answer: list[list[object]] = json.loads(ended.stdout)
    return answer


def test_real_process_and_listener_are_found(tmp_path: Path) -> None:
    script = """
        mount -t proc proc "$ROOT/proc"
        ip link set lo up || true
        cp "$(command -v sleep)" "$DIRECTORY/kubelet"
        "$DIRECTORY/kubelet" 1000 &
        mkfifo "$DIRECTORY/pipe"
        "$PYTHON" -c "$LISTEN" < "$DIRECTORY/pipe" &
        exec 3> "$DIRECTORY/pipe"
        "$PYTHON" -c "$PROGRAM" "$ROOT" wait
    """
    assert in_namespaces(tmp_path, script) == [["kubelet"], [10250], NESTED]


def test_real_process_in_a_nested_pid_namespace_is_ignored(tmp_path: Path) -> None:
    script = """
        mount -t proc proc "$ROOT/proc"
        cp "$(command -v sleep)" "$DIRECTORY/kubelet"
        unshare --pid --fork --kill-child "$DIRECTORY/kubelet" 1000 &
        while ! grep -qx kubelet "$ROOT"/proc/[0-9]*/comm; do :; done
        "$PYTHON" -c "$PROGRAM" "$ROOT"
    """
    assert in_namespaces(tmp_path, script) == [[], [], NESTED]


def test_processes_are_visible_under_the_hardening_of_the_unit(tmp_path: Path) -> None:
    """Mount /proc with ``hidepid=invisible``, as ``ProtectProc=invisible`` does, and drop all capabilities."""
    script = """
        mount -t proc -o hidepid=invisible proc "$ROOT/proc"
        cp "$(command -v sleep)" "$DIRECTORY/kubelet"
        "$DIRECTORY/kubelet" 1000 &
        while ! grep -qx kubelet "$ROOT/proc/$!/comm"; do :; done
        exec setpriv --bounding-set -all --inh-caps -all --no-new-privs "$PYTHON" -c "$PROGRAM" "$ROOT"
    """
    assert in_namespaces(tmp_path, script) == [["kubelet"], [], NESTED]


def test_own_cgroup_namespace_makes_the_role_unknown() -> None:
    words = ["unshare", "--user", "--map-root-user", "--cgroup"]
    program = [*words, sys.executable, "-c", _PROGRAM, "/"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        ended = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60, env=environment)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if ended.returncode and "unshare:" in ended.stderr:
        pytest.skip(f"namespaces not permitted for this user: {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)[2][:1] in (
        ["files of the node are hidden: the agent runs in a container"],
        NESTED,  # if the tests run in a PID namespace
    )
