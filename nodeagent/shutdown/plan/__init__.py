"""Shutdown plans: the stop order of pods, their time within the budget, and the inhibitor lock state machine.

Pods are grouped by priority, either in two bands (regular, critical) or in configured phases. The time of a pod is the
smaller of its termination grace period and the budget of its phase.
"""
