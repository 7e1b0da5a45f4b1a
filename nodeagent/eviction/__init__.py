"""The eviction loop: composition, passes, outstanding effects, and OOM kills of the kernel.

``composition`` composes the loop. ``loop`` schedules passes, at an interval that depends on the distance to the
thresholds and immediately when a PSI trigger fires. ``eviction_pass`` is one pass: it evicts at most one pod, and no
pod for a resource with an outstanding effect of an earlier action. Its two actions are ``node_reclaim`` and
``pod_eviction``, each followed by ``effect_wait``. ``signal_monitor`` and ``pod_monitor`` read the node;
``pod_measurement`` and ``image_observation`` begin during reclaim if space runs out; ``reporting`` logs.

Rejected: a task for each threshold, since two tasks could evict two pods for one shortage.
"""

from typing import Final

LOOP_NAME: Final = "eviction"
"""Name of the loop in status, metrics and logs."""
