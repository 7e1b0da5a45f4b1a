"""Shutdown plans: the order in which pods stop and the time each gets within the granted delay.

Pods are grouped by priority, either in two bands (regular, critical) or in configured phases. A pod's time is the
smaller of its own termination grace period and its group's budget.
"""
