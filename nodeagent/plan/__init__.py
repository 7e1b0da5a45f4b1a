"""Pure decisions: a snapshot, a policy and one instant go in, a plan comes out.

Nothing here reads a file, a socket or a clock, and nothing logs. Each policy (the settings a planner needs) stands
beside its planner. Every surface, from a preview to the daemon, goes through these functions, so that what is shown
and what runs cannot differ.
"""
