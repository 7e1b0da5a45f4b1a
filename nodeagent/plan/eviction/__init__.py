"""Eviction: which thresholds are crossed, what that means for the node, and which pod goes, if any.

All of it is pure: observations, settings, the state of the last pass and the instant go in, a decision and the next
state come out.
"""
