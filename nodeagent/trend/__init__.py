"""The node over time: a recorder of its resources, when a threshold will be met, and what drives the growth.

The recorder writes one line of figures a minute to a file of its own: the readings of the other features serve
decisions of the moment and are forgotten. No decision depends on the record, so that a lost or damaged file costs its
figures only. ``plan`` has the forecast, a pure function of recorded readings.
"""
