"""Pure decisions: snapshot, policy and time in, plan out.

Nothing here reads a file, a socket or a clock, and nothing logs. A policy (the settings that a planner needs) is
declared beside its planner. Preview, daemon and explain call the same functions.
"""
