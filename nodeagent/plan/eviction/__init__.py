"""Eviction plans: which pod is evicted for which signal, and why every other pod is kept.

A pass has two pure steps. ``evaluate`` compares readings with thresholds; its state goes in and comes out as a value
and records since when each threshold is met. ``plan_eviction`` then decides over every pod: pods over their own local
storage limits first, then node-level reclaim, then the ranking.

Evaluation order and ranking are the kubelet's. Where the kubelet leaves the order open it is fixed here. On a reading
that cannot be trusted, and for a pod without facts, nothing is evicted. Only monotonic time counts, so a wall clock
step neither evicts nor ends a grace period. Rejected: several pods in one pass, even for local storage limits.
"""
