"""All tasks of the node's part in a cluster, for the supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.cluster.conditions import ConditionsTask, TaintsTask
from nodeagent.cluster.events import EventsTask
from nodeagent.cluster.failed_pods import FailedPodsTask
from nodeagent.cluster.pod_watch import PodWatchTask
from nodeagent.cluster.task import RegistrationTask

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext, DaemonTask


def kubernetes_tasks(context: DaemonContext) -> tuple[DaemonTask, ...]:
    """Return the tasks; each is idle until it is configured."""
    return (
        RegistrationTask(context),
        PodWatchTask(context),
        ConditionsTask(context),
        TaintsTask(context),
        EventsTask(context),
        FailedPodsTask(context),
    )
