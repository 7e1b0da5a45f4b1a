"""Garbage collection plans: images, dead containers, sandboxes, pod log directories and leaked content.

Each planner returns one decision for every item, kept items included, with a reason code. ``planner`` combines them
for a scope; the removals of one planner are input of the next. The rules for images are in ``image_keep_rules``.
``saved_plan`` stores a plan for a later run, which applies the stricter of plan and current configuration.
"""
