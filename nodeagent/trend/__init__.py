"""Trends of the node's resources: when a threshold will be met, and the cause of the growth.

``plan`` has the forecast, a pure function of recorded readings.
"""
