"""Eviction plans: the pod to evict for a signal, with a reason for every pod that is kept.

A pass has two pure steps. ``evaluate`` compares readings with thresholds; its immutable state records the time at which
each threshold was first met. ``plan_eviction`` then decides on every pod: for hard thresholds first, then for pods over
their own local storage limits, then for soft thresholds. Node-level reclaim precedes the ranking of pods for a
threshold.

Evaluation order and ranking are the kubelet's. Orders that the kubelet leaves undefined are fixed: pods by UID,
thresholds by signal and amount. No pod is evicted on a rejected reading, and a pod with missing facts is kept. Only
monotonic time counts, so a wall clock step neither evicts a pod nor ends a grace period. Rejected alternative: evicting
several pods in one pass, even for local storage limits.
"""
