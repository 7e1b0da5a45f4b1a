"""Eviction plans: the pod to evict for a signal, with a reason for every pod that is kept.

A pass has two pure steps. ``evaluate`` compares readings with thresholds; its state is a value, with the time
since which each threshold is met. ``plan_eviction`` then decides on every pod: pods over their own local storage limits
first, then node-level reclaim, then the ranking.

Evaluation order and ranking are the kubelet's. An order that the kubelet does not define is fixed here. No pod is
evicted on a rejected reading, and no pod without facts. Only monotonic time counts, so a wall clock step neither evicts
a pod nor ends a grace period. Rejected: several pods in one pass, even for local storage limits.
"""
