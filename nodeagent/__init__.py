"""A node-side housekeeper for container nodes.

Every duty has three steps: observe the node into an immutable snapshot, plan purely, and act behind guards.
Preview, daemon and explanation share the one planner, so what is shown is what runs.
"""

__version__ = "0.1.0"
