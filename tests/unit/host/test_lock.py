"""Lock files that serialize passes and exclude a second daemon."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import PassBusyError
from nodeagent.host.lock import daemon_lock, lock_identity, process_lock

if TYPE_CHECKING:
    from pathlib import Path


def test_second_pass_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    busy = rf"another pass is running on this node \(pid {os.getpid()}\)"
    with process_lock(tmp_path / "pass.lock"), pytest.raises(PassBusyError, match=busy):
        process_lock(tmp_path / "pass.lock").__enter__()
    with process_lock(tmp_path / "pass.lock") as warning:
        assert warning == ""


def test_second_daemon_of_a_state_directory_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    state = tmp_path / "state{0}"
    with daemon_lock(state), daemon_lock(tmp_path / "other"), pytest.raises(PassBusyError) as caught:
        daemon_lock(state).__enter__()
    assert str(caught.value) == (
        f"another daemon (pid {os.getpid()}) is running with state directory {state}; stop it first"
    )
    with daemon_lock(state) as warning:
        assert warning == ""


def test_lock_in_an_unusable_directory_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with daemon_lock(tmp_path / "file") as warning:
        assert warning.startswith(f"cannot lock against other processes: {tmp_path}/file/daemon.lock: ")


def test_identity_is_that_of_the_file_and_not_of_its_path(tmp_path: Path) -> None:
    path, other = tmp_path / "pass.lock", tmp_path / "other" / "pass.lock"
    assert lock_identity(path) == ""
    with process_lock(path), process_lock(other):
        identity = lock_identity(path)
        assert identity
        assert identity != lock_identity(other)
    with process_lock(path):
        assert lock_identity(path) == identity
    path.rename(tmp_path / "moved.lock")
    assert lock_identity(tmp_path / "moved.lock") == identity
    with process_lock(path):
        assert lock_identity(path) != identity
