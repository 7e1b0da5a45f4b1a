"""The node in a cluster: registration and heartbeats without a kubelet, the watch of its pods, and conditions.

A registration has three loops of one session: registration until it succeeds, then the Lease and the status beside each
other, each with a connection of its own, so that a slow status report does not delay the Lease. Local loops do not wait
for any of them.
"""

from typing import Final

NAME: Final = "kubernetes"
POD_WATCH: Final = "pod-watch"
CONDITIONS: Final = "node-conditions"
EVENTS: Final = "node-events"
"""The task that sends Events about the node and its pods, over reloads."""
FAILED_PODS: Final = "failed-pods"
"""The task that deletes failed pods."""
