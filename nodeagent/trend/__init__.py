"""The node over time: a recorder of its resources, when a threshold will be met, and what drives the growth.

The recorder writes one line of figures a minute to a file of its own: the readings of the other features serve
decisions of the moment and are forgotten. A lost file costs its figures only. Image GC ahead of its threshold is the
only decision that depends on the record; it removes nothing that a pass at the threshold would keep. ``plan`` has the
forecast, a pure function of recorded readings.
"""
