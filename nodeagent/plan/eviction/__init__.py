"""Which pod goes when the node is short of something, and why no other.

A pass has two pure steps. ``evaluate`` judges readings against thresholds and remembers, in a state that goes in and
comes out, since when each is met; it answers what to act on and which conditions hold. ``plan_eviction`` then decides
over every pod: first those over their own storage limits, then node-level reclaim, then the ranking.

The order of evaluation and the ranking are the kubelet's. Where the kubelet leaves the order to chance it is fixed
here; where it would evict on a reading it cannot trust, or a pod of which it knows nothing, nothing is evicted. Only
monotonic time counts, so a wall clock that jumps neither evicts nor ends a grace period. Evicting several pods in one
pass was decided against even for storage limits: one at a time is slower and can be looked at.
"""
