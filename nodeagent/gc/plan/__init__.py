"""Garbage collection plans: images, dead containers, sandboxes, pod log directories and leaked content.

Each planner returns one decision for every item, kept items included, with a reason code. ``planner`` combines them for
a scope; each planner uses the removals of the previous planner as input. The rules for images are in
``image_protection``. ``saved_plan`` stores a plan for a later run, which removes only items that a new plan also
removes.
"""
