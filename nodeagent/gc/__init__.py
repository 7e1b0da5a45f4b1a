"""Garbage collection: images, dead containers, sandboxes, pod log directories and leaked content.

``snapshot`` reads the node, ``plan`` decides on every item, and the removers of this package carry the decisions out:
each item is read again just before its removal, and skipped if it changed since the plan. A failed item never stops a
pass. A dry run uses removers without effect, so no planner and no loop checks for dry runs.

``agent`` composes observer, planner and removers from the settings, for one command or for the daemon. ``documents``
has the JSON of previews, lists and explanations.
"""
