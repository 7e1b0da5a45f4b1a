"""Pod eviction: one pod at a time for a shortage that its eviction helps to end, and the reclaim before it.

``plan`` decides: which threshold, which reclaim steps, which pod, with a reason for every pod that is kept. ``loop``
schedules passes, at an interval that depends on the distance to the thresholds and immediately when a PSI trigger
fires; ``signals`` and ``pod_monitor`` read the node. ``eviction_pass`` is one pass: it reclaims, or evicts at most one
pod, and no pod for a resource with an outstanding effect of an earlier action (``effects``). ``pod_eviction`` is the
eviction; the pod is stopped through the runtime (``evictor``) or the API server (``api_evictor``). ``composition``
composes the loop from the settings, ``reporting`` logs.

Rejected: a task for each threshold, since two tasks could evict two pods for one shortage.
"""

from typing import Final

LOOP_NAME: Final = "eviction"
"""Name of the loop in status, metrics and logs."""
