"""The node in a cluster: registration and heartbeats of a standalone node, the pod watch, conditions and Events.

A session registers the node, then runs loops for the Lease, the status and Events concurrently. Each loop has a
separate connection, so that a slow status report does not delay the Lease. Local loops, such as eviction, do not wait
for the API server.
"""

from typing import Final

NAME: Final = "kubernetes"
CLIENT_CERTIFICATE: Final = "client-certificate"
"""Name of the task that requests and renews the client certificate."""
POD_WATCH: Final = "pod-watch"
CONDITIONS: Final = "node-conditions"
TAINTS: Final = "node-taints"
EVENTS: Final = "node-events"
"""Name of the task that sends Events about the node and its pods."""
FAILED_PODS: Final = "failed-pods"
"""Name of the task that deletes failed pods."""
