"""The eviction loop: composition, passes, outstanding effects, and OOM kills of the kernel.

The loop reads signals at an interval that depends on their distance to the thresholds, and earlier when a PSI trigger
fires. It evicts at most one pod per pass, and no second one for a resource with an outstanding effect.
"""
