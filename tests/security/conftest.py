"""Fixtures for attacks by processes of an unprivileged user."""

from __future__ import annotations

import grp
import os
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.simulated_daemon import SimulatedDaemon, simulated_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ATTACKER_UID: Final = 54321
MEMBERS_GID: Final = 65534
FAILED: Final = 9


class Attacker:
    """Unprivileged local user of the node."""

    uid = ATTACKER_UID

    def start(self, attack: Callable[[], object], group: int | None = None) -> int:
        """Run an attack in a process of the user; return its pid.

        The exit code is 0, or 9 after an ``OSError``.

        ``group`` is a supplementary group of the user.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: safe, since the child uses no locks
            pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setgroups([] if group is None else [group])
            os.setresgid(ATTACKER_UID, ATTACKER_UID, ATTACKER_UID)
            os.setresuid(ATTACKER_UID, ATTACKER_UID, ATTACKER_UID)
            attack()
            code = 0
        except OSError:
            code = FAILED
        finally:
            os._exit(code)

    def succeeds(self, attack: Callable[[], object]) -> bool:
        """Run an attack in a process of the user; return whether the system permitted it."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.start(attack), 0)[1])
        assert code in (0, FAILED), "the attack itself has a defect"
        return code == 0

    def can(self, access: str, path: Path) -> bool:
        """Return whether the user has access to a path; ``access`` is ``-e``, ``-r`` or ``-w``. Source: test(1)."""
        words = ["/usr/bin/test", access, str(path)]
        return subprocess.run(words, user=self.uid, group=self.uid, extra_groups=[], check=False).returncode == 0


@pytest.fixture
def attacker() -> Attacker:
    """Return an unprivileged local user; skip the test unless it is run by root."""
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of another user")
    return Attacker()


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory that every user can enter; later pytest sessions remove this access from ``tmp_path``."""
    with tempfile.TemporaryDirectory(prefix="nodeagent-security-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def member_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedDaemon]:
    """Return a daemon with 40 images and ``control.group_may_act`` for the group ``MEMBERS_GID``."""
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of another user")
    directory = Path(os.path.realpath(tmp_path_factory.mktemp("d")))
    group = grp.getgrgid(MEMBERS_GID)
    run = directory / "run"
    run.mkdir()
    os.chown(run, 0, group.gr_gid)
    run.chmod(0o750)
    configuration = f'control.group = "{group.gr_name}"\ncontrol.group_may_act = true\n'
    with simulated_daemon(directory, configuration, images=40) as started:
        yield started
