"""SIGKILL for the processes of a cgroup, with real processes and cgroup files in a temporary tree."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from nodeagent.host.processes import free_memory_of_killed, kill_processes

if TYPE_CHECKING:
    from pathlib import Path


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])


def listed(directory: Path, *pids: int) -> Path:
    """Write a cgroup with these PIDs, and proc files with the path of the cgroup; return its directory."""
    directory.mkdir()
    (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    for pid in pids:
        member_of(directory.parent, pid, str(directory))
    return directory


def member_of(proc: Path, pid: int, cgroup: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")


def test_all_processes_of_a_cgroup_and_its_descendants_are_killed_and_no_other(tmp_path: Path) -> None:
    first, second, bystander = sleeper(), sleeper(), sleeper()
    try:
        pod = listed(tmp_path / "pod", first.pid)
        listed(pod / "nested", second.pid)
        (pod / str(second.pid)).rename(tmp_path / str(second.pid))
        listed(tmp_path / "other", bystander.pid)
        assert kill_processes([str(pod)], tmp_path) == ""
        assert [first.wait(10), second.wait(10)] == [-signal.SIGKILL] * 2
        assert bystander.poll() is None
    finally:
        for each in (first, second, bystander):
            each.kill()
            each.wait()


def test_memory_of_all_killed_processes_is_freed(tmp_path: Path) -> None:
    killed = [sleeper(), sleeper()]
    freed: queue.SimpleQueue[int] = queue.SimpleQueue()
    try:
        pod = listed(tmp_path / "pod", *(each.pid for each in killed))
        assert kill_processes([str(pod)], tmp_path, freed.put) == ""
        assert {freed.get(timeout=60) for _ in killed} == {each.pid for each in killed}
    finally:
        for each in killed:
            each.kill()
            each.wait()


def test_kill_does_not_wait_for_the_memory_to_be_freed(tmp_path: Path) -> None:
    killed, released = sleeper(), threading.Event()
    try:
        pod = listed(tmp_path / "pod", killed.pid)
        assert kill_processes([str(pod)], tmp_path, lambda _: released.wait(60)) == ""
        assert killed.wait(10) == -signal.SIGKILL
    finally:
        released.set()
        killed.kill()
        killed.wait()


def with_data(mib: int) -> subprocess.Popen[bytes]:
    """Return a process with an amount of memory, which counts its bytes at the end of its input."""
    code = f"import sys; data = bytearray(b'x') * ({mib} << 20); print(flush=True); sys.stdin.read(); print(len(data))"
    started = subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert started.stdout is not None
    started.stdout.readline()
    return started


def test_memory_of_a_dying_process_is_freed() -> None:
    processors = os.sched_getaffinity(0)
    try:
        for _ in range(20):  # the processor may be taken away before the call
            dying = with_data(100)
            os.sched_setscheduler(dying.pid, os.SCHED_IDLE, os.sched_param(0))  # it does not end while this thread runs
            for pid in (0, dying.pid):
                os.sched_setaffinity(pid, {min(processors)})
            dying.kill()
            freed = free_memory_of_killed(dying.pid)
            os.sched_setaffinity(0, processors)
            dying.communicate()
            if freed:
                return
    finally:
        os.sched_setaffinity(0, processors)
    raise AssertionError("no memory was freed in 20 attempts")


def test_memory_of_a_running_or_ended_process_is_not_freed() -> None:
    running = with_data(1)
    assert not free_memory_of_killed(running.pid)
    output, _ = running.communicate(timeout=60)
    assert int(output) == 1 << 20
    assert not free_memory_of_killed(running.pid)


def test_own_process_is_not_killed(tmp_path: Path) -> None:
    assert kill_processes([str(listed(tmp_path / "pod", os.getpid(), 1))], tmp_path) == ""


def test_process_with_a_reused_pid_is_not_killed(tmp_path: Path) -> None:
    reused = sleeper()
    try:
        (tmp_path / "pod").mkdir()
        (tmp_path / "pod" / "cgroup.procs").write_text(f"{reused.pid}\n")
        member_of(tmp_path, reused.pid, "/system.slice/other.service")
        assert kill_processes([str(tmp_path / "pod")], tmp_path) == ""
        assert reused.poll() is None
    finally:
        reused.kill()
        reused.wait()


def test_ended_process_and_removed_cgroup_are_no_error(tmp_path: Path) -> None:
    ended = sleeper()
    ended.kill()
    ended.wait()
    assert kill_processes([str(listed(tmp_path / "pod", ended.pid)), str(tmp_path / "removed")], tmp_path) == ""


def test_unreadable_cgroup_is_an_error(tmp_path: Path) -> None:
    (listed(tmp_path / "pod") / "cgroup.procs").write_text("not a number\n")
    assert kill_processes([str(tmp_path / "pod")], tmp_path) == "processes in the cgroups unreadable"
