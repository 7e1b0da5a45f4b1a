"""Pure decisions: snapshot, policy and time in, plan out.

No module here reads a file, a socket or a clock, or logs. A policy (the settings that a planner needs) is
declared beside its planner. Preview, daemon and explain call the same functions.
"""
