"""Shutdown plans: the stop order of pods, the time of each within the budget, and the inhibitor lock's state machine.

Pods are grouped by priority, either in two bands (regular, critical) or in configured phases. A pod's time is the
smaller of its own termination grace period and its group's budget.
"""
