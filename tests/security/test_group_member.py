"""Attacks by a member of the control socket's group with write access, against a daemon in a separate process."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.api.client import ControlClient
from nodeagent.errors import NodeAgentError
from tests.security.conftest import MEMBERS_GID

if TYPE_CHECKING:
    from tests.security.conftest import Attacker
    from tests.support.simulated_daemon import SimulatedDaemon

HOLDS: Final = 100
LENGTHS: Final = (4095, 256, 64, 8, 1)
"""Lengths of the patterns of the attack, so that all limits are used up."""
MAX_CPU_S: Final = 3.0
"""CPU seconds of the daemon for one plan; without holds about 0.1."""


def test_holds_of_a_member_delay_neither_plans_nor_the_stop(member_daemon: SimulatedDaemon, attacker: Attacker) -> None:
    directory = os.open(member_daemon.control_socket.parent, os.O_PATH)

    def hold() -> None:
        os.fchdir(directory)
        client = ControlClient(Path("control.sock"))
        for length in LENGTHS:
            for number in range(HOLDS):
                image = (f"*{number:02}?" + "?a*b" * length)[:length]
                with suppress(NodeAgentError):
                    client.call("AddHold", {"image": image, "seconds": 365 * 86400})

    assert os.waitpid(attacker.start(hold, group=MEMBERS_GID), 0)[1] == 0
    os.close(directory)
    client = ControlClient(member_daemon.control_socket)
    assert '"by":' in client.call("Holds", {})
    before_s = cpu_s(member_daemon.pid)
    client.call("Plan", {"scope": "images"})
    assert cpu_s(member_daemon.pid) - before_s < MAX_CPU_S
    os.kill(member_daemon.pid, signal.SIGTERM)
    os.waitid(os.P_PID, member_daemon.pid, os.WEXITED | os.WNOWAIT)
    assert "agent_stopped" in member_daemon.log.read_text()


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
