"""The eviction loop: composition, passes, outstanding effects, and OOM kills of the kernel.

``composition`` makes the loop. ``loop`` schedules passes, at an interval that depends on the distance to the
thresholds and at once when a PSI trigger fires. ``eviction_pass`` is one pass: it evicts at most one pod, and no second
one for a resource with an outstanding effect. Its two actions are ``node_reclaim`` and ``pod_eviction``, each followed
by ``effect_wait``. ``signal_monitor`` and ``pod_monitor`` observe, ``reporting`` logs.

Rejected: a task for each threshold, since two tasks could evict two pods for one shortage.
"""

from typing import Final

LOOP_NAME: Final = "eviction"
"""Name of the loop in status, metrics and logs."""
