"""Environment of the inhibitor task: services of the node, intervals, and whether graceful shutdown is enabled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.config.paths import RUNTIME_DIRECTORY
from nodeagent.host.systemd import DescriptorStore, LogindUnit, PodSlices
from nodeagent.pods.role import FRESH_S, ROLE_POLL_S
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext

NAME: Final = "shutdown"
"""Name of the task in the loop status, in logs and in pauses."""


class HostServices(Record):
    """The services of the node that the inhibitor task uses.

    Attributes:
        bus_address: D-Bus address; empty for the system bus of this machine.
        root: root directory for logind's files.
        store: systemd's descriptor store, for a copy of the lock.
        logind: logind's unit.
        slices: slices of pods.
        boot_id: id of the current start of the userspace; empty to read the id from the node.
        runtime_directory: directory for records that the state directory cannot store.
    """

    bus_address: str = ""
    root: Path = Path("/")
    store: DescriptorStore = field(default_factory=DescriptorStore)
    logind: LogindUnit = field(default_factory=LogindUnit)
    slices: PodSlices = field(default_factory=PodSlices)
    boot_id: str = ""
    runtime_directory: Path = Path(RUNTIME_DIRECTORY)


class Intervals(Record):
    """Intervals of the inhibitor task, in seconds.

    Attributes:
        refresh_s: interval between two refreshes of the pod cache.
        retry_s: interval between two refreshes without the lock, and between two checks while disabled.
        role_poll_s: interval between two readings of the role.
        restart_after_s: time from the loss of the lock to the decision on a restart of logind.
    """

    refresh_s: float = 30.0
    retry_s: float = 5.0
    role_poll_s: float = ROLE_POLL_S
    restart_after_s: float = 1.5


class Enablement(Record):
    """Whether graceful shutdown is enabled now.

    Attributes:
        disabled_because: reason, without a full stop; empty if graceful shutdown is enabled.
        refused: whether graceful shutdown is configured "on" but refused beside a kubelet.
    """

    disabled_because: str
    refused: bool


async def read_enablement(context: DaemonContext, *, max_age_s: float = FRESH_S) -> Enablement:
    """Return whether graceful shutdown is enabled by the settings, the role and the operator.

    The role was read at most ``max_age_s`` ago.
    """
    settings = context.settings
    role = await context.roles.evaluate(settings.role, max_age_s=max_age_s)
    because = settings.shutdown_off_because(role.role, role.reason, context.pass_lock.paused_by_operator)
    return Enablement(because, settings.shutdown.refused(role.role))
