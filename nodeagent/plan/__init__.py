"""Pure planners: functions that compute a plan from a snapshot, a policy and the current time.

No module of this package reads a file, a socket or a clock, or writes a log. A policy (the settings that a planner
needs) is declared beside its planner. The daemon, the preview and the ``explain`` command call the same planners.
"""
