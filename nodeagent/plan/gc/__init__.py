"""Garbage collection plans: images, dead containers, sandboxes, pod log directories and leaked content.

Each planner returns one decision for every item, kept items included, with a reason code. ``planner`` combines them
for a scope, so that what one step frees is part of the next step's input. ``saved_plan`` keeps a plan for a later run,
which applies the stricter of plan and current configuration.
"""
